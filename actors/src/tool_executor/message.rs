//! The executor's mail.

use std::sync::Arc;

use tokio::time::Instant;

use super::RunResult;
use crate::{
    chat::RawJson,
    ids::{CallKey, WorkId},
    ports::{OutputLevel, Tool},
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
    /// How much of its data is shown.
    pub level: OutputLevel,
    /// Which start it is, from 0.
    pub attempt: u32,
    /// When the call was first started.
    pub began: Instant,
}

impl Run {
    /// The attempt after this one.
    pub(super) fn next(&self) -> Self {
        let Self { work, key, tool_call_id, tool, input, level, attempt, began } = self;
        Self {
            work: *work,
            key: key.clone(),
            tool_call_id: tool_call_id.clone(),
            tool: tool.clone(),
            input: input.clone(),
            level: *level,
            attempt: attempt + 1,
            began: *began,
        }
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
