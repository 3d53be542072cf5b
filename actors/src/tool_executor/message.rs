//! The messages of the tool executor.

use std::sync::{Arc, atomic::AtomicU64};

use tracing::Span;

use super::{Again, RunResult, ToolInvocationRequest};
use crate::{
    ids::{CallKey, Seq, WorkId},
    ports::Tool,
    subagent::Siblings,
    tool::OutputLevel,
};

/// One attempt of one call.
pub struct Run {
    /// Identifies the attempt within this activation.
    pub work: WorkId,
    /// The stable key of the call, the same in every activation.
    pub key: CallKey,
    /// The tool to run.
    pub tool: Arc<dyn Tool>,
    /// The arguments and options of the call.
    pub request: ToolInvocationRequest,
    /// Output level of the observation.
    pub level: OutputLevel,
    /// Number of the attempt, from 0.
    pub attempt: u32,
    /// How long the attempts before this one ran, in milliseconds.
    pub ran_ms: u64,
    /// How long this attempt waited for its file, in milliseconds; no part of its run.
    pub waited_ms: Arc<AtomicU64>,
    /// The span of the round; a disabled span if the round is not sampled, `None` for a call
    /// outside of a round.
    pub turn: Option<Span>,
    /// For `create_subagent`: the number of such calls in the batch, which share the parent's
    /// context.
    pub siblings: Option<Siblings>,
}

impl Run {
    /// Whether the call is tried again after `result`.
    pub(super) fn again(&self, result: &RunResult) -> Option<Again> {
        Again::after(self.tool.spec(), &self.request, self.attempt, result)
    }

    /// The attempt after this one; `ran_ms` is the time of both.
    pub(super) fn next(&self, ran_ms: u64) -> Self {
        let Self {
            work,
            key,
            tool,
            request,
            level,
            attempt,
            ran_ms: _,
            waited_ms: _,
            turn,
            siblings,
        } = self;
        let key = key.clone();
        let tool = tool.clone();
        let request = request.clone();
        let turn = turn.clone();
        let siblings = *siblings;
        Self {
            work: *work,
            key,
            tool,
            request,
            level: *level,
            attempt: attempt + 1,
            ran_ms,
            waited_ms: Arc::default(),
            turn,
            siblings,
        }
    }
}

/// A message to the tool executor.
pub(crate) enum ToolExecutorMsg {
    /// From the conversation, once the start is allowed: run an attempt.
    Run(Box<Run>),
    /// From the conversation: the result is no longer needed. Ends the attempt now.
    Abort {
        /// The attempt to end.
        work: WorkId,
    },
    /// From the task of an attempt, when it ends.
    Ended {
        /// The attempt that ended.
        work: WorkId,
        /// How the attempt ended.
        result: RunResult,
        /// How long all attempts ran, in milliseconds, without the pauses between them.
        duration_ms: u64,
        /// The coming attempt, the batch of the call, and its index there; `None` if the result is final.
        again: Option<(Again, (Seq, u32))>,
    },
    /// From its own timer: the pause before another attempt is over.
    PauseOver {
        /// The batch of the call, and its index there.
        place: (Seq, u32),
    },
}
