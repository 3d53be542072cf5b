//! What a life knows and forgets: running work, a cancel under way, rules. Pure; changed only by [`Volatile::note`] and [`Volatile::absorb`].

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{
    context::{ContextOutcome, ContextRules},
    turn::{Effect, Input},
};
use crate::{
    chat::RawJson,
    ids::{Epoch, RoundId, Seq, WaiterId, WorkId},
    journal::ToolExecutionResult,
    policy::{Amount, Pricing},
    ports::ToolSpec,
    skill::{SkillIndex, SkillPolicy},
    small_map::SmallMap,
    stream::Failure,
    tool::{OutputLevel, ToolError},
};

/// Whether tools that change something may run (INTERFACES §2, `--approve`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApprovalMode {
    /// A person is asked.
    Ask,
    /// They are refused.
    #[default]
    Deny,
    /// They run.
    Auto,
}

/// What becomes of a round that was open when its host stopped (DESIGN §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// It is taken up again.
    #[default]
    Resume,
    /// It is closed as interrupted.
    Close,
}

/// What is to be said of a call before anything of it is journaled.
#[derive(Debug, Clone, PartialEq)]
pub enum Judgement {
    /// It may go, with this input where it is not the model's.
    Ready {
        /// What its tool declares.
        spec: Arc<ToolSpec>,
        /// Arguments in place of the model's: a hook's, or the same in their one spelling.
        input: Option<RawJson>,
        /// What a person agrees to who says "always"; `None` where nobody needs to agree.
        pattern: Option<String>,
        /// The output level that the call names.
        level: Option<OutputLevel>,
    },
    /// It may not: no such tool, bad arguments, a hook's no.
    Refused(ToolError),
}

/// Judges calls: knows the tools and hooks of a conversation. The same answer for the same call.
pub trait CallPolicy: Send + Sync {
    /// Judges one call.
    fn judge(&self, name: &str, input: &RawJson) -> Judgement;

    /// What a tool declares.
    fn spec(&self, name: &str) -> Option<Arc<ToolSpec>>;

    /// Judges an answer that must be JSON of a schema.
    ///
    /// # Errors
    /// What is wrong with it, for the model.
    fn check_output(&self, schema: &RawJson, text: &str) -> Result<(), String> {
        let _ = schema;
        super::json_in(text, |_| Ok(()))
    }

    /// Looks at a result before it is journaled.
    fn review(&self, name: &str, outcome: ToolExecutionResult, tool_call_id: &str) -> ToolExecutionResult {
        let _ = (name, tool_call_id);
        outcome
    }
}

/// What a conversation goes by. Shared by all lives that were configured alike.
#[derive(Clone)]
pub struct Rules {
    /// The tools.
    pub judge: Arc<dyn CallPolicy>,
    /// Whether tools that change something may run.
    pub approval: ApprovalMode,
    /// Whether somebody can be asked.
    pub has_approver: bool,
    /// How much of data is shown where neither call nor tool says so.
    pub output_level: OutputLevel,
    /// The model's context window, in tokens.
    pub window_tokens: u64,
    /// What a request must fit.
    pub context: ContextRules,
    /// How often a round may get the same result from the same call before the next one is refused (FAULTS F22).
    pub identical_calls_max: u32,
    /// Model calls of a round at most.
    pub tool_iterations_max: u32,
    /// Calls of a batch that run at once.
    pub parallel_tools_max: usize,
    /// Subagents that a round may begin (FAULTS F22).
    pub subagents_a_round_max: usize,
    /// Subagents that all its rounds together may begin.
    pub subagents_max: u64,
    /// Prompts that wait at most.
    pub inbox_prompts_max: usize,
    /// What its calls may cost.
    pub spending: Arc<Pricing>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rules({:?})", self.approval)
    }
}

/// The skills within reach, as they were last seen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SkillView {
    /// The list.
    pub index: Arc<SkillIndex>,
    /// How deep they may activate one another.
    pub policy: Arc<SkillPolicy>,
}

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
