//! What a conversation has spent of its budget. The figures are folded from the journal, so they
//! survive sleep and crashes.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::EntryBody;
use crate::{
    chat::Usage,
    policy::{Amount, Price},
    time::Timestamp,
};

/// Prefix of the ids of injected messages that remind the model of its budget. The percentage left
/// follows: `budget:20`, `budget:5`.
pub(crate) const BUDGET_REMINDER: &str = "budget:";

/// What a conversation has spent, and what is reserved for its open model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Spent {
    /// Tokens, cost and time of all model calls and rounds that are over.
    pub amount: Amount,
    /// Reservation of the open model call. `None` when no call is open or no budget applies.
    pub reserved: Option<Amount>,
    /// The percentage of the budget that was left at the last reminder to the model. `None` before
    /// the first reminder.
    #[serde(rename = "told")]
    pub reminded_percent: Option<u8>,
}

impl Spent {
    /// Returns what counts against the budget at `now`: finished work, the open reservation, and
    /// the time of a round that is open since `since`.
    pub(crate) fn now(&self, since: Option<Timestamp>, now: Timestamp) -> Amount {
        let wall_ms = since.map_or(0, |since| now.ms_since(since));
        self.amount
            .plus(&self.reserved.unwrap_or_default())
            .plus(&Amount {
                wall_ms,
                ..Amount::default()
            })
    }

    /// Applies an entry. Entries that do not concern the budget change nothing.
    ///
    /// # Errors
    /// Returns the reason when the entry contradicts the reservation.
    pub(crate) fn apply(&mut self, entry: &EntryBody) -> Result<(), String> {
        match entry {
            EntryBody::ModelCallStarted {
                reserved,
                reserved_micro_usd,
                ..
            } => {
                if self.reserved.is_some() {
                    return Err("another call has its reservation".into());
                }
                let amount = Amount {
                    tokens: *reserved,
                    micro_usd: *reserved_micro_usd,
                    wall_ms: 0,
                };
                self.reserved = (amount != Amount::default()).then_some(amount);
            }
            // With a reservation, `BudgetSettled` counts the call. Without one, the provider's
            // usage counts.
            EntryBody::Assistant {
                usage,
                failed_usage,
                cost_micro_usd,
                ..
            } if self.reserved.is_none() => {
                let usage = usage.plus(failed_usage);
                self.amount = self.amount.plus(&of(&usage, cost_micro_usd.unwrap_or(0)));
            }
            EntryBody::FellBack {
                failed_usage,
                cost_micro_usd,
                ..
            } if self.reserved.is_none() => {
                let used = of(failed_usage, cost_micro_usd.unwrap_or(0));
                self.amount = self.amount.plus(&used);
            }
            EntryBody::BudgetSettled {
                used_tokens,
                cost_micro_usd,
                ..
            } => {
                self.reserved.take().ok_or("nothing is reserved")?;
                self.amount = self.amount.plus(&Amount {
                    tokens: *used_tokens,
                    micro_usd: *cost_micro_usd,
                    wall_ms: 0,
                });
            }
            // No reservation of a round covers it.
            EntryBody::SummaryBilled {
                usage,
                cost_micro_usd,
                ..
            } => self.amount = self.amount.plus(&of(usage, *cost_micro_usd)),
            EntryBody::RoundFinished { latency_ms, .. } => {
                if self.reserved.is_some() {
                    return Err("a reservation is not settled".into());
                }
                self.amount = self.amount.plus(&Amount {
                    wall_ms: *latency_ms,
                    ..Amount::default()
                });
            }
            EntryBody::Injected { id: Some(id), .. } => {
                let percent = id
                    .strip_prefix(BUDGET_REMINDER)
                    .and_then(|percent| percent.parse().ok());
                self.reminded_percent = percent.or(self.reminded_percent);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the tokens and the cost of an answer.
pub(crate) fn of(usage: &Usage, micro_usd: u64) -> Amount {
    Amount {
        tokens: usage.input().saturating_add(usage.output),
        micro_usd,
        wall_ms: 0,
    }
}

/// Returns the tokens and the cost of a call. Without a price the cost is 0.
pub(crate) fn amount(usage: &Usage, price: Option<Price>) -> Amount {
    of(usage, price.map_or(0, |price| price.cost(usage)))
}
