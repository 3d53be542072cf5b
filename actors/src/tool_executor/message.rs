//! The messages of the tool executor.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::Span;

use super::{RunResult, ToolInvocationRequest};
use crate::{
    ids::{CallKey, WorkId},
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
    /// When the first attempt started.
    pub began: Instant,
    /// The span of the round; a disabled span if the round is not sampled, `None` for a call
    /// outside of a round.
    pub turn: Option<Span>,
    /// For `create_subagent`: the number of such calls in the batch, which share the parent's
    /// context.
    pub siblings: Option<Siblings>,
}

impl Run {
    /// The attempt after this one.
    pub(super) fn next(&self) -> Self {
        let Self {
            work,
            key,
            tool,
            request,
            level,
            attempt,
            began,
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
            began: *began,
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
        /// Time since the first attempt started, in milliseconds.
        duration_ms: u64,
    },
}
