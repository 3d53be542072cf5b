//! The executor's mail.

use std::sync::Arc;

use tokio::time::Instant;

use super::RunResult;
use crate::{
    chat::RawJson,
    ids::{CallKey, WorkId},
    ports::Tool,
};

/// One attempt of one call.
pub struct Run {
    /// Its name in this life.
    pub work: WorkId,
    /// Its name for ever.
    pub key: CallKey,
    /// The id of the model's server.
    pub tool_call_id: String,
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// The arguments.
    pub input: RawJson,
    /// Which start it is, from 0.
    pub attempt: u32,
    /// When the call was first started.
    pub began: Instant,
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
