//! What a life knows and forgets: running work, a cancel under way, rules. Pure; changed only by [`Volatile::note`] and [`Volatile::absorb`].
//!
//! Pure.

use crate::{
    conversation::round::{
        Effect, Input,
        input::ContextOutcome,
        rules::{Rules, SkillView},
    },
    ids::{Epoch, RoundId, Seq, WaiterId, WorkId},
    policy::Amount,
    ports::ToolSpec,
    small_map::SmallMap,
    stream::Failure,
};
use std::{collections::BTreeMap, sync::Arc};

/// A piece of running work.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// A model call.
    Model,
    /// A measurement of the context.
    Context {
        /// Who asked for a compaction; none: it stands before a model call.
        waiter: Option<WaiterId>,
    },
    /// A tool call.
    Tool {
        /// Its place in the batch.
        call: u32,
        /// Which start it is, from 0.
        attempt: u32,
        /// What its tool declares.
        spec: Arc<ToolSpec>,
        /// How the attempt before it failed.
        last_error: Option<Arc<str>>,
    },
}

/// A call that waits to be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// Which attempt is next.
    pub attempt: u32,
    /// How the last one failed, in at most 500 characters (REQUIREMENTS T-30).
    pub last_error: Arc<str>,
}

/// A cancel under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancelling {
    /// The round it ends.
    pub round_id: RoundId,
    /// Whether the time for answers is over.
    pub grace_over: bool,
    /// Why, if somebody should read it.
    pub failure: Option<Failure>,
}

/// A question to the tenant's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserving {
    /// Its name.
    pub work: WorkId,
    /// The model call that waits for the answer.
    pub step: u32,
    /// What was asked for.
    pub amount: Amount,
}

/// The forgettable half of a conversation.
#[derive(Debug, Clone)]
pub struct Volatile {
    /// This life's epoch.
    pub life: Epoch,
    /// Chance that signs this life's first entry.
    pub nonce: u64,
    /// What it goes by.
    pub rules: Rules,
    /// Open work.
    pub work: SmallMap<WorkId, Work>,
    /// Calls that wait to be tried again, by batch and call.
    pub retries: BTreeMap<(Seq, u32), Retry>,
    /// The state that was measured and fits.
    pub measured: Option<Seq>,
    /// The open round is being cancelled.
    pub cancelling: Option<Cancelling>,
    /// The skills of its host, if it has any.
    pub skills: Option<SkillView>,
    /// The tenant's budget is asked.
    pub reserving: Option<Reserving>,
    /// How much of the tenant's budget is left, in percent, as the shell knew before this input; `None` without one.
    pub tenant_left: Option<u8>,
    /// A budget that others spend to too bounds money: the tenant's or the family's.
    pub bounds_money: bool,
    /// The tenant has as many bytes stored as it may have, as the shell knew before this input.
    pub is_store_full: bool,
    /// No new round begins.
    pub draining: bool,
    /// The fold is complete and what it needs was ordered.
    pub recovered: bool,
}

impl Volatile {
    /// The state of a life that begins.
    pub fn new(life: Epoch, nonce: u64, rules: Rules) -> Self {
        Self {
            life,
            nonce,
            rules,
            work: SmallMap::default(),
            retries: BTreeMap::new(),
            measured: None,
            cancelling: None,
            skills: None,
            reserving: None,
            tenant_left: None,
            bounds_money: false,
            is_store_full: false,
            draining: false,
            recovered: false,
        }
    }

    /// The open work for a call.
    pub fn work_of_call(&self, call: u32) -> Option<WorkId> {
        self.work.iter().find_map(|(id, work)| match work {
            Work::Tool { call: found, .. } if *found == call => Some(*id),
            Work::Tool { .. } | Work::Model | Work::Context { .. } => None,
        })
    }

    /// The open model call.
    pub fn model_work(&self) -> Option<WorkId> {
        self.work.iter().find_map(|(id, work)| (*work == Work::Model).then_some(*id))
    }

    /// Notes that an input was decided on: answered work is no longer open.
    pub fn note(&mut self, input: &Input) {
        match input {
            Input::Model { work, .. } | Input::Tool { work, .. } => drop(self.work.remove(work)),
            Input::Context { work, outcome } => {
                if self.work.remove(work).is_some() && *outcome == ContextOutcome::Fits {
                    self.measured = Some(work.seq);
                }
            }
            Input::Budget { work, .. } => drop(self.reserving.take_if(|reserving| reserving.work == *work)),
            Input::Recovered { .. } => self.recovered = true,
            Input::Drain => self.draining = true,
            Input::GraceOver { round_id } => {
                if let Some(cancelling) = self.cancelling.as_mut().filter(|cancelling| cancelling.round_id == *round_id) {
                    cancelling.grace_over = true;
                }
            }
            // By batch too: the late timer of a batch that is gone must not take the retry of another one.
            Input::RetryDue { batch, call } => drop(self.retries.remove(&(*batch, *call))),
            Input::Prompt(_)
            | Input::Approval { .. }
            | Input::Tick
            | Input::Interrupt { .. }
            | Input::Inject { .. }
            | Input::Withdraw { .. }
            | Input::Compact { .. }
            | Input::Pin { .. }
            | Input::Import { .. }
            | Input::ActivateSkill { .. }
            | Input::DeactivateSkill { .. }
            | Input::Rewind { .. }
            | Input::Fork { .. }
            | Input::Reset { .. } => {}
        }
    }

    /// Takes in what an act means for this half.
    pub fn absorb(&mut self, effect: &Effect) {
        match effect {
            Effect::StartModel { work } => {
                // A compaction that somebody asked for may have made the measurement needless.
                self.work.retain(|_, work| *work != Work::Context { waiter: None });
                self.work.insert(*work, Work::Model);
            }
            Effect::MeasureContext { work, waiter } => drop(self.work.insert(*work, Work::Context { waiter: *waiter })),
            Effect::Reserve { work, step, amount } => self.reserving = Some(Reserving { work: *work, step: *step, amount: *amount }),
            Effect::StartTool(start) => {
                let (spec, last_error) = (start.spec.clone(), start.last_error.clone());
                let work = Work::Tool { call: start.call, attempt: start.attempt, spec, last_error };
                self.work.insert(start.work, work);
            }
            Effect::RetryLater { batch, call, attempt, last_error, .. } => {
                let retry = Retry { attempt: *attempt, last_error: last_error.clone() };
                self.retries.insert((*batch, *call), retry);
            }
            Effect::CancelRound { round_id, failure, grace_over } => {
                let failure = failure.clone();
                self.cancelling = Some(Cancelling { round_id: *round_id, grace_over: *grace_over, failure });
                self.retries.clear();
            }
            Effect::Abort { work } => drop(self.work.remove(work)),
            Effect::RoundOver { .. } => {
                self.cancelling = None;
                self.reserving = None;
                self.retries.clear();
                // Its task went with the round; what somebody asked for goes on.
                self.work.retain(|_, work| *work != Work::Context { waiter: None });
            }
            Effect::Summarise { .. } | Effect::CompactionDropped => {}
            Effect::Acknowledge { .. }
            | Effect::Refuse { .. }
            | Effect::Answer { .. }
            | Effect::Park { .. }
            | Effect::Queued { .. }
            | Effect::ToolRetry { .. } => {}
        }
    }
}
