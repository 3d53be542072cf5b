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

/// One round (V-01).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConversationRound {
    /// Its id.
    pub round_id: RoundId,
    /// The conversation in which it took place; of a fork's or an import's older rounds, the one they come from.
    pub conversation_id: ConversationId,
    /// Index in the history of the message that it begins with; none once that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// The prompt's text.
    pub user_message: String,
    /// Reasoning, in order.
    pub thoughts: Vec<String>,
    /// Calls, in order.
    pub tool_calls: Vec<RoundToolCall>,
    /// Their observations, in order of arrival.
    pub tool_observations: Vec<String>,
    /// Figures of each finished call.
    #[serde(default)]
    pub tool_metrics: Vec<ToolMetrics>,
    /// Names of the skills that were activated in it.
    #[serde(default)]
    pub skill_activations: Vec<String>,
    /// The answer.
    pub final_answer: Option<String>,
    /// Tokens in and out.
    pub tokens_used: u64,
    /// The same, by class.
    pub usage: Usage,
    /// Model calls ordered (L-02).
    #[serde(default)]
    pub model_calls: u32,
    /// From start to end.
    pub latency_ms: u64,
    /// How far it is.
    pub status: RoundStatus,
    /// Why it ended.
    pub stop_reason: Option<StopReason>,
}

/// A call within a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundToolCall {
    /// The id of the model's server.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Its arguments.
    pub parameters: RawJson,
}

impl ConversationRound {
    /// Notes that a skill was activated in it.
    pub fn skill_activated(&mut self, name: impl Into<String>) {
        self.skill_activations.push(name.into());
    }

    /// Whether nothing more will come of it.
    pub fn is_over(&self) -> bool {
        match self.status {
            RoundStatus::Pending | RoundStatus::InProgress => false,
            RoundStatus::Completed | RoundStatus::Error => true,
        }
    }
}
