//! Holds the budget reservation of the running model call, and the timer of a round with a time
//! budget. Reserving never waits. Dropping the guard releases the reservation; the next activation
//! settles the call from the journal.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    conversation::{ConversationMsg, round::Input, run::Live},
    ids::{RoundId, WorkId},
    journal::{Entry, EntryBody, OpenRound},
    policy::{Amount, Budget, BudgetCounter, BudgetLevel, Exhausted, Reservation},
    task::AbortOnDrop,
    tenant::Family,
    time::Timestamp,
};

/// The budgets of one activation.
pub(in crate::conversation) struct BudgetGuard {
    tenant: Arc<BudgetCounter>,
    /// The budget that a conversation shares with its subagents; `None` without subagents.
    family: Option<Arc<Family>>,
    /// The counter that calls are charged to. Its parents, such as the tenant's, are charged with
    /// it.
    own: Arc<BudgetCounter>,
    reservation: Option<Reservation>,
    /// The answer to the last reservation, until it is decided.
    answer: Option<(WorkId, Result<(), Exhausted>)>,
    /// Cancels the round with this id when its time is used up.
    clock: Option<(RoundId, AbortOnDrop)>,
}

impl BudgetGuard {
    pub(in crate::conversation) fn new(
        tenant: Arc<BudgetCounter>,
        family: Option<Arc<Family>>,
        is_subagent: bool,
    ) -> Self {
        let own = match &family {
            Some(family) if is_subagent => family
                .counter()
                .below(BudgetLevel::Subagent, Budget::default()),
            Some(family) => family.counter().clone(),
            None => tenant.clone(),
        };
        Self {
            tenant,
            family,
            own,
            reservation: None,
            answer: None,
            clock: None,
        }
    }

    /// Percent left of the tenant's or of the family's budget, whichever is less; `None` if neither
    /// is limited.
    pub(in crate::conversation) fn tenant_left(&self) -> Option<u8> {
        let family = self
            .family
            .as_ref()
            .and_then(|family| family.counter().left_percent());
        self.tenant.left_percent().into_iter().chain(family).min()
    }

    /// The counter that calls are charged to.
    pub(in crate::conversation) fn counter(&self) -> &Arc<BudgetCounter> {
        &self.own
    }

    /// Whether one of the budgets limits money.
    pub(in crate::conversation) fn bounds_money(&self) -> bool {
        self.own.bounds_money()
    }

    /// Reserves `amount`. [`BudgetGuard::answer`] returns the result.
    pub(in crate::conversation) fn reserve(&mut self, work: WorkId, amount: Amount) {
        let answer = self
            .own
            .reserve(amount)
            .map(|reservation| self.reservation = Some(reservation));
        self.answer = Some((work, answer));
    }

    /// Takes the answer to the last reservation, if it was not taken yet.
    pub(in crate::conversation) fn answer(&mut self) -> Option<Input> {
        let (work, answer) = self.answer.take()?;
        Some(Input::Budget { work, answer })
    }

    /// Charges what these entries record: the settlement of a call, the wall-clock time of a round.
    pub(in crate::conversation) fn note(&mut self, entries: &[Entry]) {
        for entry in entries {
            match &entry.body {
                EntryBody::BudgetSettled {
                    used_tokens,
                    cost_micro_usd,
                    ..
                } => {
                    let used = Amount {
                        tokens: *used_tokens,
                        micro_usd: *cost_micro_usd,
                        wall_ms: 0,
                    };
                    match self.reservation.take() {
                        Some(reservation) => reservation.settle(used),
                        None => self.own.charge(used), // An earlier activation made the reservation.
                    }
                }
                EntryBody::RoundFinished { latency_ms, .. } => {
                    self.reservation = None;
                    if !self.tenant.budget().is_unlimited() {
                        self.tenant.charge(Amount {
                            wall_ms: *latency_ms,
                            ..Amount::default()
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// The time that the open round may still take, if its timer is not set yet. Clears the timer
    /// when no round is open.
    pub(in crate::conversation) fn time_left(
        &mut self,
        budget: &Budget,
        spent: &Amount,
        round: Option<&OpenRound>,
        now: Timestamp,
    ) -> Option<(RoundId, Duration)> {
        let limit = budget.wall_ms?;
        let Some(round) = round else {
            self.clock = None;
            return None;
        };
        if self.clock.as_ref().is_some_and(|(id, _)| *id == round.id) {
            return None;
        }
        let used = spent.wall_ms.saturating_add(now.ms_since(round.started_at));
        Some((round.id, Duration::from_millis(limit.saturating_sub(used))))
    }

    pub(in crate::conversation) fn set_clock(&mut self, round_id: RoundId, timer: AbortOnDrop) {
        self.clock = Some((round_id, timer));
    }
}

impl Live {
    /// Sets the timer of a round whose conversation has a time budget.
    pub(super) fn watch_time_budget(&mut self, now: Timestamp) {
        let budget = self.setup.pricing.budget;
        let round = self.durable.round.as_deref();
        if let Some((round_id, left)) =
            self.budget_guard
                .time_left(&budget, &self.durable.spent.amount, round, now)
        {
            let timer = self.timer(
                Instant::now() + left,
                ConversationMsg::BudgetTimeOver { round_id },
            );
            self.budget_guard.set_clock(round_id, timer);
        }
    }
}
