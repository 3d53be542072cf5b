//! The state that an activation keeps in memory only: running work, a cancellation under way, the
//! rules. Only `Volatile::note` and `Volatile::absorb` change it.
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
    tenant::MemoryLeft,
};
use std::{collections::BTreeMap, sync::Arc};

/// Work that runs in a task and ends with a message to the conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// A model call.
    Model,
    /// A measurement of the context.
    Context {
        /// The caller that asked for a compaction; `None` before a model call.
        waiter: Option<WaiterId>,
    },
    /// A tool call.
    Tool {
        /// The index of the call in its batch.
        call: u32,
        /// The number of the attempt; 0 is the first.
        attempt: u32,
        /// The declaration of the tool.
        spec: Arc<ToolSpec>,
        /// The failure of the previous attempt in words; `None` for the first attempt.
        last_error: Option<Arc<str>>,
    },
}

/// A tool call that waits for its next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Retry {
    /// The number of the next attempt; 1 is the first retry.
    pub attempt: u32,
    /// The failure of the last attempt, at most 500 characters.
    pub last_error: Arc<str>,
}

/// A cancellation under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cancelling {
    /// The canceled round.
    pub round_id: RoundId,
    /// Whether the grace period is over: results are no longer awaited.
    pub grace_over: bool,
    /// The failure that the round ends with; `None` for a plain interrupt.
    pub failure: Option<Failure>,
}

/// An open question to the tenant's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reserving {
    /// The id that the answer carries.
    pub work: WorkId,
    /// The number of the model call that waits for the answer.
    pub step: u32,
    /// The amount to reserve.
    pub amount: Amount,
}

/// The half of a conversation's state that is not stored; [`crate::journal::Durable`] is the other
/// half.
#[derive(Debug, Clone)]
pub struct Volatile {
    /// The epoch of this activation.
    pub epoch: Epoch,
    /// A random number in the first entry of the activation. It distinguishes two activations that
    /// claim the same epoch.
    pub nonce: u64,
    /// Whether the activation before this one ended without a crash although a round was open.
    pub in_order: bool,
    /// The rules of the conversation.
    pub rules: Rules,
    /// The work whose result is awaited.
    pub work: SmallMap<WorkId, Work>,
    /// The calls that wait for their next attempt, by batch and index.
    pub(crate) retries: BTreeMap<(Seq, u32), Retry>,
    /// The last seq whose state was measured and fits its window.
    pub measured: Option<Seq>,
    /// The cancellation of the open round; `None` if none is under way.
    pub(crate) cancelling: Option<Cancelling>,
    /// The skills of the host; `None` without a skill source.
    pub skills: Option<SkillView>,
    /// The open question to the tenant's budget.
    pub(crate) reserving: Option<Reserving>,
    /// Percent of the tenant's or family's budget that is left, whichever is less, read by the
    /// shell before this input; `None` without such a budget.
    pub tenant_left: Option<u8>,
    /// Whether the tenant's or the family's budget limits money.
    pub bounds_money: bool,
    /// Whether the tenant's storage quota is used up, read by the shell before this input.
    pub is_store_full: bool,
    /// What the tenant may still take of memory, read by the shell before this input.
    pub(crate) memory_left: MemoryLeft,
    /// Whether the host is shutting down, so that no round starts.
    pub draining: bool,
    /// Whether [`Input::Recovered`] was decided; before that, nothing advances.
    pub recovered: bool,
}

impl Volatile {
    /// The state of a new activation.
    pub(crate) fn new(epoch: Epoch, nonce: u64, rules: Rules) -> Self {
        Self {
            epoch,
            nonce,
            in_order: false,
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
            memory_left: MemoryLeft::Some,
            draining: false,
            recovered: false,
        }
    }

    /// The open work of a tool call.
    pub(crate) fn work_of_call(&self, call: u32) -> Option<WorkId> {
        self.work.iter().find_map(|(id, work)| match work {
            Work::Tool { call: found, .. } if *found == call => Some(*id),
            Work::Tool { .. } | Work::Model | Work::Context { .. } => None,
        })
    }

    /// The open model call.
    pub(crate) fn model_work(&self) -> Option<WorkId> {
        self.work
            .iter()
            .find_map(|(id, work)| (*work == Work::Model).then_some(*id))
    }

    /// Notes that an input was decided on: the work that it ends is no longer open.
    pub(crate) fn note(&mut self, input: &Input) {
        match input {
            Input::Model { work, .. } | Input::Tool { work, .. } => drop(self.work.remove(work)),
            Input::Context { work, outcome } => {
                if self.work.remove(work).is_some() && *outcome == ContextOutcome::Fits {
                    self.measured = Some(work.seq);
                }
            }
            Input::Budget { work, .. } => {
                let _ = self.reserving.take_if(|reserving| reserving.work == *work);
            }
            Input::Recovered { .. } => self.recovered = true,
            Input::Drain => self.draining = true,
            Input::GraceOver { round_id } => {
                if let Some(cancelling) = self
                    .cancelling
                    .as_mut()
                    .filter(|cancelling| cancelling.round_id == *round_id)
                {
                    cancelling.grace_over = true;
                }
            }
            // Keyed by batch as well: a late timer of an earlier batch must not remove another
            // retry.
            Input::RetryDue { batch, call } => drop(self.retries.remove(&(*batch, *call))),
            Input::Prompt(_)
            | Input::Command { .. }
            | Input::Tick
            | Input::Cancel { .. }
            | Input::Summary(_)
            | Input::Withdraw { .. } => {}
        }
    }

    /// Notes what an effect starts or ends.
    pub(crate) fn absorb(&mut self, effect: &Effect) {
        match effect {
            Effect::StartModel { work } => {
                // A compaction on a caller's request can make the measurement unnecessary.
                self.work
                    .retain(|_, work| *work != Work::Context { waiter: None });
                self.work.insert(*work, Work::Model);
            }
            Effect::MeasureContext { work, waiter, .. } => {
                drop(self.work.insert(*work, Work::Context { waiter: *waiter }))
            }
            Effect::Reserve { work, step, amount } => {
                self.reserving = Some(Reserving {
                    work: *work,
                    step: *step,
                    amount: *amount,
                })
            }
            Effect::StartTool(start) => {
                let spec = start.spec.clone();
                let last_error = start.last_error.clone();
                let work = Work::Tool {
                    call: start.call,
                    attempt: start.attempt,
                    spec,
                    last_error,
                };
                self.work.insert(start.work, work);
            }
            Effect::ToolRetry {
                batch,
                call,
                again,
                last_error,
                ..
            } => {
                let retry = Retry {
                    attempt: again.attempt,
                    last_error: last_error.clone(),
                };
                self.retries.insert((*batch, *call), retry);
            }
            Effect::CancelRound {
                round_id,
                failure,
                grace_over,
            } => {
                let failure = failure.clone();
                self.cancelling = Some(Cancelling {
                    round_id: *round_id,
                    grace_over: *grace_over,
                    failure,
                });
                self.retries.clear();
            }
            Effect::Abort { work } => drop(self.work.remove(work)),
            Effect::RoundOver { .. } => {
                self.cancelling = None;
                self.reserving = None;
                self.retries.clear();
                // The measurement task ended with its round. A compaction for a caller continues.
                self.work
                    .retain(|_, work| *work != Work::Context { waiter: None });
            }
            Effect::Summarise { .. } | Effect::CompactionDropped => {}
            Effect::Acknowledge { .. }
            | Effect::Refuse { .. }
            | Effect::Answer { .. }
            | Effect::Park { .. }
            | Effect::Queued { .. } => {}
        }
    }
}
