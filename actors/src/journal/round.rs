//! The record of one round, for exports and people.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::ToolMetrics;
use crate::{
    chat::{RawJson, Usage},
    ids::{ConversationId, RoundId},
    stream::{RoundStatus, StopReason},
};

/// One round, from its prompt to its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ConversationRound {
    pub round_id: RoundId,
    /// The conversation in which the round took place. In a fork or an import, earlier rounds name
    /// the conversation that they come from.
    pub conversation_id: ConversationId,
    /// Index in the history of the round's first message. `None` when the history no longer has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// Text of the prompt.
    pub user_message: String,
    /// The model's reasoning, in order.
    pub thoughts: Vec<String>,
    /// Tool calls, in order.
    pub tool_calls: Vec<RoundToolCall>,
    /// Observations of the tool calls, in the order in which the calls finished.
    pub tool_observations: Vec<String>,
    /// Metrics of each finished call.
    #[serde(default)]
    pub tool_metrics: Vec<ToolMetrics>,
    /// Names of the skills activated in the round.
    #[serde(default)]
    pub skill_activations: Vec<String>,
    /// Text of the answer. `None` while there is none.
    pub final_answer: Option<String>,
    /// Input and output tokens of all model calls.
    pub tokens_used: u64,
    /// The same tokens, by class.
    pub usage: Usage,
    /// Model calls that were decided, including those without an answer.
    #[serde(default)]
    pub model_calls: u32,
    /// Milliseconds from start to end.
    pub latency_ms: u64,
    pub status: RoundStatus,
    /// Why the round ended. `None` while it is open.
    pub stop_reason: Option<StopReason>,
}

/// A tool call of a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct RoundToolCall {
    /// Id assigned by the model's provider.
    pub tool_call_id: String,
    pub tool_name: String,
    /// The arguments as the model wrote them.
    pub parameters: RawJson,
}

impl ConversationRound {
    /// Whether the round has ended.
    pub fn is_over(&self) -> bool {
        match self.status {
            RoundStatus::Pending | RoundStatus::InProgress => false,
            RoundStatus::Completed | RoundStatus::Error => true,
        }
    }
}
