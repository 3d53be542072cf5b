//! The shell's side of budgets: what a life has reserved of its tenant's, and the clock of a round whose time is bounded. Nothing is
//! waited for; what is reserved is given back when the life ends in whatever way, and the next life settles it by the journal.

use std::{sync::Arc, time::Duration};

use crate::{
    conversation::round::Input,
    ids::{RoundId, WorkId},
    journal::{Entry, EntryBody, OpenRound},
    policy::{Amount, Budget, BudgetCounter, BudgetLevel, Reservation},
    task::AbortOnDrop,
    tenant::Family,
    time::Timestamp,
};

/// What one life holds.
pub(in crate::conversation) struct BudgetGuard {
    tenant: Arc<BudgetCounter>,
    /// What a conversation and its subagents spend together.
    family: Option<Arc<Family>>,
    /// Where it spends: the lowest level.
    own: Arc<BudgetCounter>,
    reservation: Option<Reservation>,
    answer: Option<Input>,
    /// Ends the round of this id when its time is used up.
    clock: Option<(RoundId, AbortOnDrop)>,
}

impl BudgetGuard {
    pub(in crate::conversation) fn new(tenant: Arc<BudgetCounter>, family: Option<Arc<Family>>, is_subagent: bool) -> Self {
        let own = match &family {
            Some(family) if is_subagent => family.counter().below(BudgetLevel::Subagent, Budget::default()),
            Some(family) => family.counter().clone(),
            None => tenant.clone(),
        };
        Self { tenant, family, own, reservation: None, answer: None, clock: None }
    }

    /// How much of the tighter of the budgets is left that others spend to too, the tenant's and the family's, in percent; `None` without
    /// one.
    pub(in crate::conversation) fn tenant_left(&self) -> Option<u8> {
        let family = self.family.as_ref().and_then(|family| family.counter().left_percent());
        self.tenant.left_percent().into_iter().chain(family).min()
    }

    /// Where it spends.
    pub(in crate::conversation) fn counter(&self) -> &Arc<BudgetCounter> {
        &self.own
    }

    /// Whether one of those budgets bounds money.
    pub(in crate::conversation) fn bounds_money(&self) -> bool {
        self.own.bounds_money()
    }

    /// Reserves; the answer is there at once.
    pub(in crate::conversation) fn reserve(&mut self, work: WorkId, amount: Amount) {
        let answer = self.own.reserve(amount).map(|reservation| self.reservation = Some(reservation));
        self.answer = Some(Input::Budget { work, answer });
    }

    /// The answer that the turn has not heard yet.
    pub(in crate::conversation) fn answer(&mut self) -> Option<Input> {
        self.answer.take()
    }

    /// Counts what entries say was used.
    pub(in crate::conversation) fn note(&mut self, entries: &[Entry]) {
        for entry in entries {
            match &entry.body {
                EntryBody::BudgetSettled { used_tokens, cost_micro_usd, .. } => {
                    let used = Amount { tokens: *used_tokens, micro_usd: *cost_micro_usd, wall_ms: 0 };
                    match self.reservation.take() {
                        Some(reservation) => reservation.settle(used),
                        None => self.own.charge(used), // Reserved by an earlier life.
                    }
                }
                EntryBody::RoundFinished { latency_ms, .. } => {
                    self.reservation = None;
                    if !self.tenant.budget().is_unlimited() {
                        self.tenant.charge(Amount { wall_ms: *latency_ms, ..Amount::default() });
                    }
                }
                _ => {}
            }
        }
    }

    /// How long the open round may still take, if its clock is not set yet.
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
