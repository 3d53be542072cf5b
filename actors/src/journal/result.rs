//! What came of a tool call: one observation, one result model (REQUIREMENTS D-02, T-25). Plain data and its conversions.
//!
//! A result has no id of its own: the call's id stands beside it in the entry, and whoever shows a result names the call that it is
//! shown for. So one that came from a cache cannot carry another call's id (REQUIREMENTS T-20, M-10).
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{
    chat::{Message, ToolResultBlock, ToolResultContent},
    tool::{OutputLevel, ToolError, ToolErrorType},
};

/// The result of a tool call (REQUIREMENTS T-26). Never holds a path of the host: `artifact_id` stands in for what is stored (A-07).
///
/// What is absent or usual is not written, so that rows stay small and those of earlier versions are read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ToolExecutionResult {
    /// What the model reads.
    pub observation: String,
    /// Whether the call failed; the opposite of `success`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// Class of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<ToolErrorType>,
    /// Code of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The failure in words, where `observation` is a layout around them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// How much of the data is shown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_level: OutputLevel,
    /// Reference to what was too large to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_id: Option<String>,
    /// Bytes of the whole text or of the data's JSON text (A-02); 0 for failures.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_size_bytes: u64,
    /// First 16 hex digits of the SHA-256 of what was stored (A-05).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_hash: Option<String>,
    /// What was stored, in a line (A-12).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_summary: Option<String>,
    /// From the first start to the end of the tool's run, waits between retries included (T-32).
    #[serde(default)]
    pub duration_ms: u64,
    /// Starts after the first one.
    #[serde(default)]
    pub retry_count: u32,
    /// What the last failure before this result said (T-30).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl ToolExecutionResult {
    /// A good result.
    pub fn ok(observation: impl Into<String>) -> Self {
        Self { observation: observation.into(), ..Self::default() }
    }

    /// A failed call in the layout of REQUIREMENTS O-13.
    pub fn error(error: &ToolError, tool_call_id: &str) -> Self {
        let failed = Self {
            is_error: true,
            error_type: Some(error.kind),
            error_code: Some(error.code.clone()),
            error_message: Some(error.message.clone()),
            ..Self::default()
        };
        Self { observation: failed.error_observation(tool_call_id), ..failed }
    }

    /// An error whose observation is exactly `text`.
    pub fn error_text(code: &str, text: impl Into<String>) -> Self {
        Self { is_error: true, error_type: Some(ToolErrorType::InternalError), error_code: Some(code.into()), ..Self::ok(text) }
    }

    /// The failure in words, for the next attempt's record.
    pub fn words(&self) -> String {
        self.error_message.clone().unwrap_or_else(|| self.observation.clone())
    }

    /// Whether the call succeeded.
    pub fn success(&self) -> bool {
        !self.is_error
    }

    /// What the model reads (REQUIREMENTS O-15): the observation; of a failure the layout of O-13, unless the failure is told by an
    /// exact text of its own ([`ToolExecutionResult::error_text`]).
    pub fn content(&self, tool_call_id: &str) -> String {
        let is_told = self.error_message.is_none() && !self.observation.is_empty();
        if self.is_error && !is_told { self.error_observation(tool_call_id) } else { self.observation.clone() }
    }

    /// The layout of a failure (REQUIREMENTS O-13, O-14).
    fn error_observation(&self, tool_call_id: &str) -> String {
        let or = |text: Option<&str>, default: &'static str| match text {
            None | Some("") => default.to_owned(),
            Some(text) => text.to_owned(),
        };
        format!(
            "Operation failed.\n\nError Type: {}\nError Code: {}\nError Message: {}\n\nTool Call ID: {tool_call_id}",
            or(self.error_type.map(ToolErrorType::as_str), "Unknown"),
            or(self.error_code.as_deref(), "UNKNOWN"),
            or(self.error_message.as_deref(), "An unknown error occurred"),
        )
    }

    /// The result as the history holds it (REQUIREMENTS T-28): the primary conversion.
    pub fn to_tool_message(&self, tool_call_id: &str) -> ToolResultBlock {
        ToolResultBlock {
            tool_use_id: tool_call_id.to_owned(),
            content: ToolResultContent::Text(self.content(tool_call_id)),
            is_error: self.is_error,
        }
    }

    /// The result alone as a user message. For debugging (REQUIREMENTS T-29): a history puts all results of a turn into one message.
    pub fn to_llm_message(&self, tool_call_id: &str) -> Message {
        Message::tool_results([self.to_tool_message(tool_call_id)], [])
    }

    /// The record of this failure when the call is tried again. For logs and metrics; no model ever reads it.
    pub fn retry_record(&self, tool_call_id: &str) -> RetryRecord {
        let retry_count = self.retry_count.saturating_add(1);
        let cause = self.last_error.as_deref().or(self.error_message.as_deref()).unwrap_or("An unknown error occurred");
        RetryRecord {
            tool_call_id: tool_call_id.to_owned(),
            observation: format!("Retry {retry_count} after: {cause}"),
            output_level: self.output_level,
            retry_count,
            last_error: self.error_message.clone(),
            success: false,
            error_type: "RETRY",
            error_message: format!("Retrying after {retry_count} failures"),
        }
    }
}

/// What is noted between two attempts (REQUIREMENTS T-31). Its type is no [`ToolErrorType`], so it is no result either: it cannot be
/// journaled as one, nor shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the words of T-31")]
pub struct RetryRecord {
    pub tool_call_id: String,
    pub observation: String,
    pub output_level: OutputLevel,
    pub retry_count: u32,
    pub last_error: Option<String>,
    pub success: bool,
    pub error_type: &'static str,
    pub error_message: String,
}

/// A failure as it crosses a wire (REQUIREMENTS T-36).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolErrorResponse {
    /// The call, by the id that the model's server gave it.
    pub tool_call_id: String,
    /// Class.
    pub error_type: ToolErrorType,
    /// Code.
    pub error_code: String,
    /// What was wrong.
    pub error_message: String,
}

impl ToolErrorResponse {
    /// A tool's error as the answer to a call.
    pub fn new(error: &ToolError, tool_call_id: impl Into<String>) -> Self {
        let ToolError { kind, code, message, .. } = error;
        Self { tool_call_id: tool_call_id.into(), error_type: *kind, error_code: code.clone(), error_message: message.clone() }
    }

    /// Whether its class is worth another attempt. Whether there is one is the effect's and the policy's to say.
    pub fn should_retry(&self) -> bool {
        self.error_type.is_retryable()
    }

    /// As a result (REQUIREMENTS T-37). Its observation is for logs; a model reads [`ToolExecutionResult::content`].
    pub fn to_result(&self) -> ToolExecutionResult {
        ToolExecutionResult {
            observation: format!("Tool Error [{}]: {}", self.error_code, self.error_message),
            is_error: true,
            error_type: Some(self.error_type),
            error_code: Some(self.error_code.clone()),
            error_message: Some(self.error_message.clone()),
            ..ToolExecutionResult::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn timeout() -> ToolError {
        ToolError::new(ToolErrorType::Timeout, "Tool execution exceeded timeout limit")
    }

    const LAYOUT: &str = "Operation failed.\n\nError Type: timeout\nError Code: TIMEOUT\n\
                          Error Message: Tool execution exceeded timeout limit\n\nTool Call ID: toolu_1";

    #[test]
    fn a_failed_call_reads_as_specified() {
        let result = ToolExecutionResult::error(&timeout(), "toolu_1");

        assert_eq!((result.observation.as_str(), result.is_error, result.success()), (LAYOUT, true, false));
        assert_eq!(result.content("toolu_1"), LAYOUT);
    }

    #[test]
    fn what_a_failure_does_not_say_has_its_words() {
        let unknown = ToolExecutionResult { is_error: true, ..ToolExecutionResult::default() };

        assert_eq!(
            unknown.content("t"),
            "Operation failed.\n\nError Type: Unknown\nError Code: UNKNOWN\nError Message: An unknown error occurred\n\nTool Call ID: t"
        );
    }

    #[test]
    fn an_exact_text_stays_exact() {
        assert_eq!(ToolExecutionResult::error_text("INTERRUPTED", "cancelled").content("t"), "cancelled");
    }

    #[test]
    fn a_result_becomes_the_block_of_the_call_it_is_shown_for() {
        let good = ToolExecutionResult::ok("42");
        let block = good.to_tool_message("toolu_2");
        assert_eq!((block.tool_use_id.as_str(), &*block.content.text(), block.is_error), ("toolu_2", "42", false));

        let failed = ToolExecutionResult::error(&timeout(), "toolu_1").to_llm_message("toolu_1");
        let wire: serde_json::Value = serde_json::from_slice(failed.wire()).unwrap();
        let block = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": LAYOUT, "is_error": true });
        assert_eq!(wire, json!({ "role": "user", "content": [block] }));
    }

    #[test]
    fn a_retry_is_recorded_and_is_no_result() {
        let first = ToolExecutionResult::error(&timeout(), "t");
        let second = ToolExecutionResult { retry_count: 1, last_error: Some("away".into()), ..first.clone() };

        let record = first.retry_record("t");
        assert_eq!(record.observation, "Retry 1 after: Tool execution exceeded timeout limit");
        assert_eq!((record.retry_count, record.success, record.error_type), (1, false, "RETRY"));
        assert_eq!(record.error_message, "Retrying after 1 failures");
        assert_eq!(record.last_error.as_deref(), Some("Tool execution exceeded timeout limit"));
        assert_eq!(second.retry_record("t").observation, "Retry 2 after: away");
        assert!(serde_json::from_value::<ToolErrorType>(json!("RETRY")).is_err());
    }

    #[test]
    fn an_error_response_becomes_a_result_and_knows_whether_to_retry() {
        let response = ToolErrorResponse::new(&timeout(), "toolu_1");
        let result = response.to_result();

        assert_eq!(result.observation, "Tool Error [TIMEOUT]: Tool execution exceeded timeout limit");
        assert_eq!((result.is_error, result.error_type), (true, Some(ToolErrorType::Timeout)));
        assert_eq!(result.content("toolu_1"), LAYOUT, "a model reads every failure in one layout");
        assert!(response.should_retry());
        assert!(!ToolErrorResponse::new(&ToolError::invalid("x"), "t").should_retry());
        assert_eq!(serde_json::to_value(&response).unwrap()["error_type"], "timeout");
    }

    #[test]
    fn rows_of_earlier_versions_are_read_and_plain_rows_stay_small() {
        let old: ToolExecutionResult = serde_json::from_str(r#"{"observation":"o","duration_ms":5,"retry_count":1}"#).unwrap();
        assert_eq!(old, ToolExecutionResult { duration_ms: 5, retry_count: 1, ..ToolExecutionResult::ok("o") });
        assert_eq!(serde_json::to_string(&old).unwrap(), r#"{"observation":"o","duration_ms":5,"retry_count":1}"#);

        let all = ToolExecutionResult {
            output_level: OutputLevel::Full,
            data_size_bytes: 7,
            data_hash: Some("ba7816bf8f01cfea".into()),
            data_summary: Some("s".into()),
            artifact_id: Some("artifact_ba7816bf8f01cfea".into()),
            last_error: Some("e".into()),
            ..ToolExecutionResult::error(&timeout(), "t")
        };
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<ToolExecutionResult>(&text).unwrap(), all);
        assert!(text.contains(r#""output_level":"full""#), "{text}");
    }
}
