//! Runs the tool calls of a round. The conversation decides when a call starts (`plan`, pure). The
//! executor turns each start into a task, and the task's end, timeout or panic into a result. A call
//! that may be tried again it tries again (`again`, pure): it waits, asks the conversation to write
//! the start of the next attempt, and runs that.
//!
//! State: the tasks of running attempts and the pauses before others, each aborted when the actor
//! stops. Supervised by its conversation; lives for one round that uses tools. Bound: at most
//! `parallel_tools_max` attempts, enforced by the plan.
//!
//! Promises: a_panicking_tool_is_a_result_not_a_crash, a_timeout_really_cancels.

mod again;
mod breakers;
mod file_locks;
mod format;
mod idempotency;
mod lone;
mod message;
mod observation;
mod outcome;
pub mod paging;
mod permissions;
mod plan;
mod request;
mod run;
mod shared_runs;
mod tenant_tools;
mod trace;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, ActorRuntime};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use again::Again;
pub use format::{format, summary};

pub(crate) use idempotency::IdempotencyCache;
pub use lone::{LoneCall, call_once};
pub use message::Run;
pub(crate) use message::ToolExecutorMsg;
pub(crate) use observation::Observed;
pub use observation::observe;
pub use outcome::{RunResult, approval_denied, cancelled_before_start, outcome, stuck};
pub(crate) use outcome::{cancelled_unknown, in_doubt};
pub use permissions::Permissions;
pub(crate) use plan::one_spelling;
pub use plan::{PlannedCall, Progress, plan};
pub use request::{KEY_BYTES_MAX, RequestError, ToolInvocationRequest, caller_id};
pub use run::{Mask, ToolEnvironment, ToolResources};
pub use tenant_tools::TenantTools;
pub(crate) use trace::is_word;

use crate::{
    ids::{Seq, WorkId},
    metrics_collector::Tally,
    task::AbortOnDrop,
};

/// What an executor reports to its conversation.
#[derive(Debug)]
pub enum ToolReport {
    /// An attempt ended.
    Ended {
        /// The attempt.
        work: WorkId,
        /// How it ended.
        result: RunResult,
        /// How long all attempts ran, in milliseconds, without the pauses between them.
        duration_ms: u64,
        /// Whether the executor tries again; `None` if the result is final.
        again: Option<Again>,
    },
    /// The pause before another attempt is over. The executor runs it when it gets its [`Run`],
    /// after the journal has its start.
    Due {
        /// The seq of the assistant entry that holds the calls.
        batch: Seq,
        /// The index of the call in its batch.
        call: u32,
    },
}

/// Called with each report.
pub type Report = Arc<dyn Fn(ToolReport) + Send + Sync>;

/// Creates the progress sink of a call.
pub(crate) type ProgressOf = Arc<dyn Fn(&Run) -> crate::ports::Progress + Send + Sync>;

/// The arguments of an executor.
pub struct ToolExecutorArgs {
    /// Receives what becomes of attempts.
    pub report: Report,
    /// Creates the progress sink of each call.
    pub progress: ProgressOf,
    /// What the calls may use.
    pub environment: ToolEnvironment,
    /// The cancellation token of the round.
    pub cancel: CancellationToken,
}

/// A handle to an executor.
#[derive(Clone)]
pub struct ToolExecutorRef(ActorRef<ToolExecutorMsg>);

impl ToolExecutorRef {
    /// Starts an executor under `supervisor`. Returns at once; `None` when the runtime is shutting
    /// down.
    pub fn start(args: ToolExecutorArgs, supervisor: ActorCell) -> Option<Self> {
        ActorRuntime::spawn_linked_instant(None, ToolExecutor, args, supervisor)
            .ok()
            .map(|(actor, _)| Self(actor))
    }

    /// Runs an attempt. If the executor has stopped, the round is over, and the call needs no
    /// result.
    pub fn execute(&self, run: Run) {
        let _ = self.0.cast(ToolExecutorMsg::Run(Box::new(run)));
    }

    /// Ends an attempt now, without a report.
    pub(crate) fn abort(&self, work: WorkId) {
        let _ = self.0.cast(ToolExecutorMsg::Abort { work });
    }

    /// Stops the executor and all running attempts.
    pub fn stop(&self) {
        self.0.stop(None);
    }
}

struct ToolExecutor;

struct State {
    args: ToolExecutorArgs,
    running: BTreeMap<WorkId, AbortOnDrop>,
    /// The pauses of calls that will be tried again.
    pauses: BTreeMap<(Seq, u32), AbortOnDrop>,
    /// Attempts that were aborted before their `Run` message arrived.
    aborted: BTreeSet<WorkId>,
    /// Sent when the executor ends.
    tally: Tally,
}

impl Actor for ToolExecutor {
    type Msg = ToolExecutorMsg;
    type State = State;
    type Arguments = ToolExecutorArgs;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        args: ToolExecutorArgs,
    ) -> Result<State, ActorProcessingErr> {
        let environment = &args.environment;
        let tally = Tally::new(
            environment.collector.clone(),
            environment.owner.tenant.clone(),
        );
        Ok(State {
            tally,
            args,
            running: BTreeMap::new(),
            pauses: BTreeMap::new(),
            aborted: BTreeSet::new(),
        })
    }

    async fn handle(
        &self,
        me: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.tally.woke_up();
        match message {
            ToolExecutorMsg::Run(run) if state.aborted.remove(&run.work) => {} // Aborted while waiting.
            ToolExecutorMsg::Run(run) => {
                let environment = state.args.environment.clone();
                let cancel = state.args.cancel.clone();
                let progress = (state.args.progress)(&run);
                let work = run.work;
                let before = run.ran_ms;
                let waited = run.waited_ms.clone();
                let span = trace::begin(&run);
                let name = run.tool.spec().definition.name.clone();
                // Boxed, since the runtime moves the future several times.
                let run: Arc<Run> = Arc::from(run);
                let task = tokio::spawn(Box::pin(async move {
                    let start = Instant::now();
                    let result = run::run(run.clone(), environment, cancel, progress)
                        .instrument(span.clone())
                        .await;
                    let again = run
                        .again(&result)
                        .map(|again| (again, (run.key.seq, run.key.index)));
                    trace::ended(&span, &name, start, &result);
                    let duration_ms = run::ran_ms(before, start, &waited);
                    let _ = me.cast(ToolExecutorMsg::Ended {
                        work,
                        result,
                        duration_ms,
                        again,
                    });
                }));
                state.running.insert(work, AbortOnDrop(task));
            }
            ToolExecutorMsg::Abort { work } => {
                if state.running.remove(&work).is_none() {
                    state.aborted.insert(work);
                }
            }
            ToolExecutorMsg::Ended {
                work,
                result,
                duration_ms,
                again,
            } => {
                if state.running.remove(&work).is_none() {
                    return Ok(());
                }
                let again = again.filter(|_| !state.args.cancel.is_cancelled());
                let again = again.map(|(again, place)| {
                    let pause = pause(me, place, again.delay);
                    state.pauses.insert(place, pause);
                    again
                });
                (state.args.report)(ToolReport::Ended {
                    work,
                    result,
                    duration_ms,
                    again,
                });
            }
            ToolExecutorMsg::PauseOver { place } => {
                if state.pauses.remove(&place).is_some() {
                    let (batch, call) = place;
                    (state.args.report)(ToolReport::Due { batch, call });
                }
            }
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<Self::Msg>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        state.running.clear();
        state.pauses.clear();
        Ok(())
    }
}

/// The pause before another attempt of a call.
fn pause(me: ActorRef<ToolExecutorMsg>, place: (Seq, u32), delay: Duration) -> AbortOnDrop {
    AbortOnDrop(tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        let _ = me.cast(ToolExecutorMsg::PauseOver { place });
    }))
}
