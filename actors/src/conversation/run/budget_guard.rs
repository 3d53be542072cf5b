//! Holds the budget reservation of the running model call, and the timer of a round with a time
//! budget. Reserving never waits. Dropping the guard releases the reservation; the next activation
//! settles the call from the journal.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    conversation::{
        ConversationMsg,
        round::{Input, budget},
        run::Live,
    },
    ids::{RoundId, WorkId},
    journal::{Entry, EntryBody, OpenRound},
    policy::{Amount, Budget, BudgetCounter, BudgetLevel, Exhausted, Reservation},
    task::AbortOnDrop,
    tenant::Family,
    time::Timestamp,
};

/// How often the time of a round is charged to a tenant with a time budget: all rounds that run at
/// once may exceed the budget by this.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
    /// The timer of the round with this id, and the level whose time it watches.
    clock: Option<(RoundId, BudgetLevel, AbortOnDrop)>,
    /// The round whose time is charged to the tenant while it runs.
    timed: Option<TimedRound>,
}

/// How much of a round's time is charged. An activation that resumes a round counts from its own
/// begin: the one before it charged the time until then. Measured by a clock that does not jump.
struct TimedRound {
    id: RoundId,
    since: Instant,
    charged_ms: u64,
}

impl TimedRound {
    /// The time that is not charged yet; it counts as charged from now on.
    fn due_ms(&mut self) -> u64 {
        let elapsed = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = elapsed.saturating_sub(self.charged_ms);
        self.charged_ms = elapsed;
        due
    }
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
            timed: None,
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
                    let timed = self.timed.take();
                    if !self.tenant.budget().is_unlimited() {
                        self.tenant.charge(Amount {
                            wall_ms: timed.map_or(*latency_ms, |mut round| round.due_ms()),
                            ..Amount::default()
                        });
                    }
                }
                _ => {}
            }
        }
    }

    /// Charges the time of the open round to a tenant with a time budget, as far as it is not
    /// charged yet.
    fn charge_time(&mut self, round: Option<RoundId>) {
        let Some(id) = round.filter(|_| self.tenant.budget().wall_ms.is_some()) else {
            return;
        };
        match &mut self.timed {
            Some(timed) if timed.id == id => {
                let wall_ms = timed.due_ms();
                self.tenant.charge(Amount {
                    wall_ms,
                    ..Amount::default()
                });
            }
            _ => {
                self.timed = Some(TimedRound {
                    id,
                    since: Instant::now(),
                    charged_ms: 0,
                });
            }
        }
    }

    /// When to look at the time of `round`: at the end of the conversation's `budget`, of which
    /// `spent` is used, and of its tenant's, which other rounds use too, once a second. `None`
    /// without a time budget.
    fn look_after(
        &self,
        budget: &Budget,
        spent: &Amount,
        round: &OpenRound,
        now: Timestamp,
    ) -> Option<(Duration, BudgetLevel)> {
        let own = budget.wall_ms.map(|limit| {
            let used = spent.wall_ms.saturating_add(now.ms_since(round.started_at));
            let left = Duration::from_millis(limit.saturating_sub(used));
            (left, BudgetLevel::Conversation)
        });
        let of_tenant = self.tenant.budget().wall_ms.filter(|_| !round.is_parked());
        let of_tenant = of_tenant.map(|limit| {
            let left = limit.saturating_sub(self.tenant.spent().wall_ms);
            (
                Duration::from_millis(left).min(LOOK_EVERY),
                BudgetLevel::Tenant,
            )
        });
        own.into_iter()
            .chain(of_tenant)
            .min_by_key(|(left, _)| *left)
    }

    /// Stops looking at the tenant's time, so that a conversation that waits for a person can sleep.
    fn rest(&mut self) {
        self.clock = self
            .clock
            .take()
            .filter(|(_, level, _)| *level != BudgetLevel::Tenant);
    }

    fn is_watching(&self, round: RoundId) -> bool {
        self.clock.as_ref().is_some_and(|(id, ..)| *id == round)
    }
}

impl Live {
    /// Charges the time of the open round, and sets the timer of a round with a time budget.
    pub(super) fn watch_time_budget(&mut self, now: Timestamp) {
        let round = self.durable.round.as_deref();
        self.budget_guard.charge_time(round.map(|round| round.id));
        let Some(round) = round else {
            self.budget_guard.clock = None;
            return;
        };
        if round.is_parked() {
            self.budget_guard.rest();
        }
        if self.budget_guard.is_watching(round.id) {
            return;
        }
        let (budget, spent) = (&self.setup.pricing.budget, &self.durable.spent.amount);
        if let Some((left, level)) = self.budget_guard.look_after(budget, spent, round, now) {
            let round_id = round.id;
            let timer = self.timer(
                Instant::now() + left,
                ConversationMsg::BudgetTimeOver { round_id },
            );
            self.budget_guard.clock = Some((round_id, level, timer));
        }
    }

    /// The timer of a round with a time budget is over. If its tenant has time left, it is set again.
    pub(super) fn budget_time_over(&mut self, round_id: RoundId) -> Option<Input> {
        let round = self.durable.round.as_deref();
        round.filter(|round| round.id == round_id)?;
        self.budget_guard.charge_time(Some(round_id));
        let (_, level, _) = self.budget_guard.clock.take()?;
        let budget = match level {
            BudgetLevel::Tenant => self.tenant.budget().budget(),
            BudgetLevel::Conversation | BudgetLevel::Subagent => self.setup.pricing.budget,
        };
        let is_left = level == BudgetLevel::Tenant
            && budget
                .wall_ms
                .is_none_or(|limit| self.tenant.budget().spent().wall_ms < limit);
        if is_left {
            self.watch_time_budget(self.ports.clock.now());
            return None;
        }
        Some(Input::Cancel {
            failure: Some(budget::time_over(level, &budget)),
        })
    }
}
