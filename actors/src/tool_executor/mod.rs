//! Runs the tool calls of a round. The conversation decides when a call starts (`plan`, pure). The
//! executor turns each start into a task, and the task's end, timeout or panic into a result.
//!
//! State: the tasks of running attempts, each aborted when the actor stops. Supervised by its
//! conversation; lives for one round that uses tools. Bound: at most `parallel_tools_max` attempts,
//! enforced by the plan.
//!
//! Promises: a_panicking_tool_is_a_result_not_a_crash, a_timeout_really_cancels.

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
};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, ActorRuntime};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

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

use crate::{ids::WorkId, metrics_collector::Tally, task::AbortOnDrop};

/// Called with each attempt that ends: its id, its result, and the milliseconds since its first
/// start.
pub type Report = Arc<dyn Fn(WorkId, RunResult, u64) + Send + Sync>;

/// Creates the progress sink of a call.
pub(crate) type ProgressOf = Arc<dyn Fn(&Run) -> crate::ports::Progress + Send + Sync>;

/// The arguments of an executor.
pub struct ToolExecutorArgs {
    /// Receives ended attempts.
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
                let task = tokio::spawn(Box::pin(async move {
                    let start = Instant::now();
                    let result = run::run(Arc::from(run), environment, cancel, progress)
                        .instrument(span.clone())
                        .await;
                    trace::ended(&span, &name, start, &result);
                    let duration_ms = run::ran_ms(before, start, &waited);
                    let _ = me.cast(ToolExecutorMsg::Ended {
                        work,
                        result,
                        duration_ms,
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
            } => {
                if state.running.remove(&work).is_some() {
                    (state.args.report)(work, result, duration_ms);
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
        Ok(())
    }
}
