//! Figures that belong to a conversation and sleep with it (REQUIREMENTS; ruling on H-04).
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{chat::Usage, time::Timestamp};

/// One tool call. Not kept in a list; added up in [`ToolAggregate`] and [`ConversationMetrics`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolMetrics {
    /// The tool.
    pub tool_name: String,
    /// When it began.
    pub start_time: Timestamp,
    /// When it ended.
    pub end_time: Timestamp,
    /// How long it took.
    pub duration_ms: u64,
    /// Estimated tokens of its arguments.
    pub input_tokens: u64,
    /// Estimated tokens of its observation.
    pub output_tokens: u64,
    /// Their sum.
    pub total_tokens: u64,
    /// Whether it succeeded.
    pub success: bool,
    /// The code of its failure.
    pub error_code: Option<String>,
    /// Starts after the first.
    pub retry_count: u32,
    /// Detail of its observation.
    pub output_level: String,
}

/// All calls of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ToolAggregate {
    /// Calls.
    pub calls: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that were retried.
    pub retried: u64,
    /// Time of all calls.
    pub duration_ms: u64,
    /// The longest.
    pub duration_ms_max: u64,
    /// Estimated tokens of all arguments and observations.
    #[serde(default)]
    pub tokens: u64,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names of X-02")]
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
    /// Model calls that were ordered, those that gave nothing included (L-02).
    #[serde(default)]
    pub api_calls: u64,
    /// Tokens by class, for prices.
    #[serde(default)]
    pub usage: Usage,
    #[serde(default)]
    pub cost_micro_usd: u64,
}

impl ConversationMetrics {
    /// Tokens in and out.
    pub fn total_tokens(&self) -> u64 {
        self.total_input_tokens.saturating_add(self.total_output_tokens)
    }

    /// From the first entry to the last.
    pub fn total_duration_ms(&self) -> u64 {
        self.end_time.ms_since(self.start_time)
    }

    /// Adds a tool call.
    pub fn record_tool_call(&mut self, failed: bool, retry_count: u32) {
        self.tool_calls += 1;
        self.successful_calls += u64::from(!failed);
        self.failed_calls += u64::from(failed);
        self.retried_calls += u64::from(retry_count > 0);
    }

    /// Adds a model call's tokens.
    pub fn record_usage(&mut self, usage: &Usage) {
        self.model_calls += 1;
        self.usage = self.usage.plus(usage);
        self.total_input_tokens = self.total_input_tokens.saturating_add(usage.input());
        self.total_output_tokens = self.total_output_tokens.saturating_add(usage.output);
    }
}

/// Tokens of a text, roughly: four bytes each.
pub(super) fn estimate(text: &str) -> u64 {
    text.len().div_ceil(4) as u64
}

impl ToolAggregate {
    /// Adds a call.
    pub fn record(&mut self, failed: bool, retry_count: u32, duration_ms: u64, tokens: u64) {
        self.tokens = self.tokens.saturating_add(tokens);
        self.calls += 1;
        self.failed += u64::from(failed);
        self.retried += u64::from(retry_count > 0);
        self.duration_ms = self.duration_ms.saturating_add(duration_ms);
        self.duration_ms_max = self.duration_ms_max.max(duration_ms);
    }
}
