//! What a conversation has spent, folded from its journal, so that it survives sleep (REQUIREMENTS L-05).
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::EntryBody;
use crate::{
    chat::Usage,
    policy::{Amount, Price},
    time::Timestamp,
};

/// Where an injected message that tells the model of its budget has its id from: `budget:20`, `budget:5`.
pub const BUDGET_REMINDER: &str = "budget:";

/// What was spent, and what is reserved for the call that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Of all calls and rounds that are over.
    pub amount: Amount,
    /// For the open call.
    pub reserved: Option<Amount>,
    /// At how much left, in percent, the model was told last.
    pub told: Option<u8>,
}

impl Spent {
    /// What counts against a budget now: also what is reserved, and the time of a round that is open since `since`.
    pub fn now(&self, since: Option<Timestamp>, now: Timestamp) -> Amount {
        let wall_ms = since.map_or(0, |since| now.ms_since(since));
        self.amount.plus(&self.reserved.unwrap_or_default()).plus(&Amount { wall_ms, ..Amount::default() })
    }

    /// Takes in an entry.
    ///
    /// # Errors
    /// Says why it cannot follow.
    pub(super) fn apply(&mut self, entry: &EntryBody) -> Result<(), String> {
        match entry {
            EntryBody::ModelCallStarted { reserved, reserved_micro_usd, .. } => {
                if self.reserved.is_some() {
                    return Err("another call has its reservation".into());
                }
                let amount = Amount { tokens: *reserved, micro_usd: *reserved_micro_usd, wall_ms: 0 };
                self.reserved = (amount != Amount::default()).then_some(amount);
            }
            // Who reserved is settled; without a budget an answer counts as its provider says.
            EntryBody::Assistant { usage, cost_micro_usd, .. } if self.reserved.is_none() => {
                self.amount = self.amount.plus(&of(usage, cost_micro_usd.unwrap_or(0)));
            }
            EntryBody::BudgetSettled { used_tokens, cost_micro_usd, .. } => {
                self.reserved.take().ok_or("nothing is reserved")?;
                self.amount = self.amount.plus(&Amount { tokens: *used_tokens, micro_usd: *cost_micro_usd, wall_ms: 0 });
            }
            EntryBody::RoundFinished { latency_ms, .. } => {
                if self.reserved.is_some() {
                    return Err("a reservation is not settled".into());
                }
                self.amount = self.amount.plus(&Amount { wall_ms: *latency_ms, ..Amount::default() });
            }
            EntryBody::Injected { id: Some(id), .. } => {
                let percent = id.strip_prefix(BUDGET_REMINDER).and_then(|percent| percent.parse().ok());
                self.told = percent.or(self.told);
            }
            _ => {}
        }
        Ok(())
    }
}

/// An answer's tokens and cost.
pub(crate) fn of(usage: &Usage, micro_usd: u64) -> Amount {
    Amount { tokens: usage.input().saturating_add(usage.output), micro_usd, wall_ms: 0 }
}

/// What a call used, in tokens and money; without a price it costs nothing.
pub(crate) fn amount(usage: &Usage, price: Option<Price>) -> Amount {
    of(usage, price.map_or(0, |price| price.cost(usage)))
}
