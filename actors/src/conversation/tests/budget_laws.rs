//! The laws of budgets, for each step and over a whole journal. Stated independently of the code
//! under test.

use super::{Rng, laws::Law};
use crate::{
    conversation::round::{Effect, Input, ModelOutcome, volatile::Work},
    journal::{CallState, Durable, Entry, EntryBody, Phase},
    policy::{Amount, Budget, BudgetKind, BudgetLevel, Exhausted, Price, Pricing},
    stream::StopReason,
};

/// The prices and budget of a world: often no budget, sometimes one that is soon used up.
pub(super) fn pricing(rng: &mut Rng) -> Pricing {
    let budget = match rng.below(10) {
        0..4 => Budget::default(),
        4..7 => Budget::default().with_tokens(500 + rng.below(4000) as u64),
        7 => Budget::default()
            .with_tokens(rng.below(20_000) as u64)
            .with_usd(rng.below(40) as f64 / 1000.0),
        8 => Budget {
            wall_ms: Some(rng.below(3000) as u64),
            ..Budget::default()
        },
        _ => Budget::default().with_tokens(u64::MAX),
    };
    let price = (budget.micro_usd.is_some() || rng.percent(30))
        .then(|| Price::per_million(3.0, 15.0).unwrap());
    Pricing {
        budget,
        price,
        fixed_bytes: 100,
        max_tokens: 200,
        window_tokens: 1000,
        ..Pricing::default()
    }
}

/// A random answer of the tenant's budget.
pub(super) fn answer(rng: &mut Rng) -> Result<(), Exhausted> {
    let refusal = Exhausted {
        level: BudgetLevel::Tenant,
        kind: BudgetKind::Tokens,
        limit: 10,
        spent: 9,
        wanted: 2,
    };
    if rng.percent(88) {
        Ok(())
    } else {
        Err(refusal)
    }
}

pub(super) fn is_reminder(body: &EntryBody) -> bool {
    matches!(body, EntryBody::Injected { id: Some(id), .. } if id.starts_with("budget:"))
}

impl Law<'_> {
    fn is_bounded(&self) -> bool {
        !self.before.rules.pricing.budget.is_unlimited() || self.before.tenant_left.is_some()
    }

    /// Whether this input grants the open reservation.
    fn is_granted(&self) -> bool {
        let asked = self.before.reserving.map(|reserving| reserving.work);
        matches!(self.input, Input::Budget { work, answer: Ok(()) } if Some(*work) == asked)
    }

    /// A call has a reservation exactly where a budget is limited, and a tenant's budget is asked
    /// first.
    pub(super) fn call_ordered(&self, state: &Durable, tokens: u64, micro_usd: u64) {
        let bounded = self.is_bounded() || self.is_granted();
        assert_eq!(
            tokens > 0,
            bounded,
            "what is bounded is reserved, and nothing else"
        );
        assert!(state.spent.reserved.is_none(), "one reservation at a time");
        if self.before.tenant_left.is_some() || self.is_granted() {
            assert!(
                self.is_granted(),
                "who has a tenant with a budget asks first"
            );
        }
        let budget = &self.before.rules.pricing.budget;
        let spent = state.spent.amount;
        let wanted = Amount {
            tokens,
            micro_usd,
            wall_ms: 0,
        };
        let room = |limit: Option<u64>, spent: u64, wanted: u64| {
            limit.is_none_or(|limit| spent < limit && spent + wanted <= limit)
        };
        assert!(
            room(budget.tokens, spent.tokens, wanted.tokens)
                && room(budget.micro_usd, spent.micro_usd, wanted.micro_usd)
        );
    }

    /// A reservation is settled once: at the usage that the answer to its call reports, or in full.
    pub(super) fn settled(&self, state: &Durable, entry: &Entry) {
        if let EntryBody::SummaryBilled { usage, .. } = &entry.body {
            let is_billed = matches!(self.input, Input::Summary(bill) if bill.usage == *usage);
            assert!(is_billed, "a bill is recorded as it comes");
        }
        let EntryBody::BudgetSettled {
            reserved,
            used_tokens,
            cost_micro_usd,
            estimated,
        } = entry.body
        else {
            return;
        };
        let open = state.spent.reserved.expect("something is reserved");
        assert_eq!(reserved, open.tokens);
        match self.input {
            Input::Model { work, outcome, .. } if self.before.work.contains_key(work) => {
                let usage = match outcome {
                    ModelOutcome::Completed { completion, .. } => completion.usage,
                    _ => None,
                };
                let reported =
                    usage.filter(|usage| usage.input() + usage.output <= 1000 && usage.input() > 0);
                assert!(
                    reported.is_none_or(
                        |usage| usage.input() + usage.output == used_tokens && !estimated
                    ),
                    "{usage:?} {used_tokens}"
                );
                assert!(
                    used_tokens <= 2200,
                    "no call uses more than the window and an answer"
                );
                assert_eq!(
                    cost_micro_usd > 0,
                    self.before.rules.pricing.price.is_some() && used_tokens > 0
                );
            }
            _ => assert_eq!(
                (used_tokens, cost_micro_usd, estimated),
                (open.tokens, open.micro_usd, true),
                "whose usage is unknown counts in full"
            ),
        }
    }

    /// Whether a budget may end the round in this state.
    pub(super) fn refused(&self, state: &Durable) -> bool {
        let asked = self.before.reserving.map(|reserving| reserving.work);
        if matches!(self.input, Input::Budget { work, answer: Err(_) } if Some(*work) == asked) {
            return true;
        }
        let pricing = &self.before.rules.pricing;
        let round = state.round.as_ref().unwrap();
        let budget = &pricing.budget;
        let spent = &state.spent.amount;
        let near = |limit: Option<u64>, spent: u64, most: u64| {
            limit.is_some_and(|limit| spent >= limit || limit - spent < most)
        };
        let input = 100 + state.history.messages().wire_bytes() as u64;
        let output = 200;
        near(budget.tokens, spent.tokens, input + output)
            || near(budget.micro_usd, spent.micro_usd, input * 3 + output * 15)
            || near(
                budget.wall_ms,
                spent.wall_ms + self.now.ms_since(round.started_at),
                0,
            )
    }

    /// The model is reminded once at each threshold, before a round starts or before the last
    /// result of a batch.
    pub(super) fn reminded(&self, state: &Durable, entry: &Entry, next: Option<&Entry>) {
        let EntryBody::Injected { id: Some(id), .. } = &entry.body else {
            return;
        };
        let Some(at) = id.strip_prefix("budget:") else {
            return;
        };
        let at: u8 = at.parse().unwrap();
        assert!([5, 20].contains(&at) && self.is_bounded());
        assert!(
            state
                .spent
                .reminded_percent
                .is_none_or(|percent| percent > at),
            "once"
        );
        match next.map(|next| &next.body) {
            Some(EntryBody::RoundStarted { .. }) => assert!(state.round.is_none()),
            Some(EntryBody::ToolFinished { .. }) => {
                let open = state
                    .batch()
                    .unwrap()
                    .calls
                    .iter()
                    .filter(|call| !matches!(call.state, CallState::Finished(_)));
                assert_eq!(open.count(), 1, "before the last result");
            }
            other => panic!("a reminder stands before {other:?}"),
        }
    }

    /// What holds in a round that waits for the answer of the tenant's budget.
    pub(super) fn reserving_rests(&self, state: &Durable) {
        let reserving = self.after.reserving.expect("a reservation is open");
        let measures = |work: &Work| matches!(work, Work::Context { .. });
        assert!(self.after.work.values().all(measures) && self.after.cancelling.is_none());
        let round = state.round.as_ref().unwrap();
        let step = if matches!(round.phase, Phase::Model { .. }) {
            round.model_calls
        } else {
            round.model_calls + 1
        };
        assert_eq!(reserving.step, step);
        assert!(state.spent.reserved.is_none() && reserving.amount.tokens > 0);
    }

    /// Only a round that would continue asks the tenant's budget.
    pub(super) fn asked(&self, effect: &Effect) {
        assert!(
            matches!(effect, Effect::Reserve { .. })
                && self.before.tenant_left.is_some()
                && self.before.reserving.is_none_or(|_| {
                    self.outcome
                        .entries
                        .iter()
                        .any(|entry| matches!(entry.body, EntryBody::RoundFinished { .. }))
                })
        );
    }
}

/// Over a whole journal, each reservation is settled once, and the spent amount is the sum of the
/// entries.
pub(super) fn judge(entries: &[Entry], state: &Durable) {
    let mut open = None;
    let mut spent = Amount::default();
    for entry in entries {
        match &entry.body {
            EntryBody::ModelCallStarted { reserved, .. } => {
                assert_eq!(
                    std::mem::replace(&mut open, Some(*reserved).filter(|n| *n > 0)),
                    None
                )
            }
            EntryBody::BudgetSettled {
                reserved,
                used_tokens,
                cost_micro_usd,
                ..
            } => {
                assert_eq!(open.take(), Some(*reserved));
                spent = spent.plus(&Amount {
                    tokens: *used_tokens,
                    micro_usd: *cost_micro_usd,
                    wall_ms: 0,
                });
            }
            EntryBody::Assistant {
                usage,
                failed_usage,
                cost_micro_usd,
                ..
            } if open.is_none() => {
                let usage = usage.plus(failed_usage);
                let tokens = usage.input() + usage.output;
                spent = spent.plus(&Amount {
                    tokens,
                    micro_usd: cost_micro_usd.unwrap_or(0),
                    wall_ms: 0,
                });
            }
            EntryBody::SummaryBilled {
                usage,
                cost_micro_usd,
                ..
            } => {
                spent = spent.plus(&Amount {
                    tokens: usage.input() + usage.output,
                    micro_usd: *cost_micro_usd,
                    wall_ms: 0,
                });
            }
            EntryBody::FellBack { failed_usage, .. } => assert!(failed_usage.is_zero()),
            EntryBody::RoundFinished {
                latency_ms,
                stop_reason,
                error,
            } => {
                spent.wall_ms += latency_ms;
                let by_budget = error.as_ref().is_some_and(|error| error.code == "budget");
                assert_eq!(*stop_reason == StopReason::Budget, by_budget);
            }
            EntryBody::Reset {} => spent = Amount::default(),
            _ => {}
        }
    }
    assert_eq!(
        (open, spent, state.spent.reserved),
        (None, state.spent.amount, None),
        "what was spent is in the journal"
    );
}
