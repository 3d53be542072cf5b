//! The metrics of a conversation. They are part of its state and stored in its snapshot.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{chat::Usage, time::Timestamp};

/// Metrics of one tool call. Calls are added up in [`ToolAggregate`] and [`ConversationMetrics`],
/// not kept as a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ToolMetrics {
    pub tool_name: String,
    /// When the call started.
    pub start_time: Timestamp,
    /// When the call ended.
    pub end_time: Timestamp,
    /// Milliseconds from start to end.
    pub duration_ms: u64,
    /// Estimated tokens of the arguments.
    pub input_tokens: u64,
    /// Estimated tokens of the observation.
    pub output_tokens: u64,
    /// Sum of input and output tokens.
    pub total_tokens: u64,
    pub success: bool,
    /// Code of the failure; `None` for a success.
    pub error_code: Option<String>,
    /// Attempts after the first.
    pub retry_count: u32,
    /// Output level of the observation.
    pub output_level: String,
}

/// Sums over all calls of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ToolAggregate {
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that were retried.
    pub retried: u64,
    /// Milliseconds of all calls together.
    pub duration_ms: u64,
    /// Milliseconds of the longest call.
    pub duration_ms_max: u64,
    /// Estimated tokens of all arguments and observations.
    #[serde(default)]
    pub tokens: u64,
}

/// Sums over one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the stored names of the sums")]
pub struct ConversationMetrics {
    pub start_time: Timestamp,
    pub end_time: Timestamp,
    pub total_input_tokens: u64,
    pub total_output_tokens: u64,
    pub tool_calls: u64,
    pub successful_calls: u64,
    pub failed_calls: u64,
    pub retried_calls: u64,
    pub skill_activations: u64,
    pub unique_skills: u64,
    pub messages_count: u64,
    pub compression_events: u64,
    pub rounds: u64,
    pub model_calls: u64,
    /// Model calls that were decided, including those without an answer.
    #[serde(default)]
    pub api_calls: u64,
    /// Tokens by class, the basis of the cost.
    #[serde(default)]
    pub usage: Usage,
    /// Cost of the model calls and of the summaries.
    #[serde(default)]
    pub cost_micro_usd: u64,
    /// Tokens of the summaries that models wrote of dropped messages, apart from the answers above.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub summary_usage: Usage,
}

impl ConversationMetrics {
    /// Returns input and output tokens together.
    pub fn total_tokens(&self) -> u64 {
        self.total_input_tokens
            .saturating_add(self.total_output_tokens)
    }

    /// Returns the milliseconds from the first entry to the last.
    pub fn total_duration_ms(&self) -> u64 {
        self.end_time.ms_since(self.start_time)
    }

    /// Counts a tool call.
    pub(crate) fn record_tool_call(&mut self, failed: bool, retry_count: u32) {
        self.tool_calls += 1;
        self.successful_calls += u64::from(!failed);
        self.failed_calls += u64::from(failed);
        self.retried_calls += u64::from(retry_count > 0);
    }

    /// Counts a model call and adds its tokens.
    pub(crate) fn record_usage(&mut self, usage: &Usage) {
        self.model_calls += 1;
        self.usage = self.usage.plus(usage);
        self.total_input_tokens = self.total_input_tokens.saturating_add(usage.input());
        self.total_output_tokens = self.total_output_tokens.saturating_add(usage.output);
    }
}

/// Estimates the tokens of a text at four bytes per token.
pub(super) fn estimate(text: &str) -> u64 {
    text.len().div_ceil(4) as u64
}

impl ToolAggregate {
    /// Adds a call.
    pub(crate) fn record(&mut self, failed: bool, retry_count: u32, duration_ms: u64, tokens: u64) {
        self.tokens = self.tokens.saturating_add(tokens);
        self.calls += 1;
        self.failed += u64::from(failed);
        self.retried += u64::from(retry_count > 0);
        self.duration_ms = self.duration_ms.saturating_add(duration_ms);
        self.duration_ms_max = self.duration_ms_max.max(duration_ms);
    }
}
