//! The executor's mail.

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
    /// Its name in this life.
    pub work: WorkId,
    /// Its name for ever.
    pub key: CallKey,
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// What is asked of it.
    pub request: ToolInvocationRequest,
    /// How much of its data is shown.
    pub level: OutputLevel,
    /// Which start it is, from 0.
    pub attempt: u32,
    /// When the call was first started.
    pub began: Instant,
    /// The span of its turn, a disabled one where the turn is not sampled; `None` for a call that belongs to no turn.
    pub turn: Option<Span>,
    /// Of a call that begins a subagent: with how many it shares its credit.
    pub siblings: Option<Siblings>,
}

impl Run {
    /// The attempt after this one.
    pub(super) fn next(&self) -> Self {
        let Self { work, key, tool, request, level, attempt, began, turn, siblings } = self;
        let (key, tool, request) = (key.clone(), tool.clone(), request.clone());
        let (turn, siblings) = (turn.clone(), *siblings);
        Self { work: *work, key, tool, request, level: *level, attempt: attempt + 1, began: *began, turn, siblings }
    }
}

/// What the executor can be told.
pub enum ToolExecutorMsg {
    /// From the conversation, once the start may happen: run an attempt.
    Run(Box<Run>),
    /// From the conversation: an answer is no longer awaited; end the attempt now.
    Abort {
        /// Which.
        work: WorkId,
    },
    /// From an attempt's task: it ended.
    Ended {
        /// Which.
        work: WorkId,
        /// How.
        result: RunResult,
        /// From the call's first start until now.
        duration_ms: u64,
    },
}
