//! The result of a tool call, and its conversions to messages and wire forms.
//!
//! A result does not hold the id of its call. The id stands beside the result in the entry, and the
//! conversions take it as an argument. A cached result therefore cannot carry the id of another
//! call.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{
    chat::{Message, ToolResultBlock, ToolResultContent},
    tool::{OutputLevel, ToolError, ToolErrorType},
};

/// The result of a tool call. It never holds a path of the host: `artifact_id` refers to stored
/// content.
///
/// Absent and default fields are not written. Entries stay small, and entries of earlier versions
/// stay readable.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ToolExecutionResult {
    /// The text for the model.
    pub observation: String,
    /// Whether the call failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
    /// Class of the failure. `None` for a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<ToolErrorType>,
    /// Code of the failure, in capitals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The failure in words. `None` for a success, and where `observation` is the whole message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// How much of the data the observation shows.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_level: OutputLevel,
    /// Id of the artifact that holds content too large to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_id: Option<String>,
    /// Bytes of the whole text, or of the data as JSON text; 0 for failures.
    #[serde(default, skip_serializing_if = "is_default")]
    pub data_size_bytes: u64,
    /// First 16 hex digits of the SHA-256 of the stored content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_hash: Option<String>,
    /// One line that describes the stored content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_summary: Option<String>,
    /// Milliseconds from the first start to the end of the last attempt, including the waits
    /// between attempts.
    #[serde(default)]
    pub duration_ms: u64,
    /// Attempts after the first.
    #[serde(default)]
    pub retry_count: u32,
    /// Message of the last failed attempt before this result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl ToolExecutionResult {
    /// A successful result.
    pub(crate) fn ok(observation: impl Into<String>) -> Self {
        Self {
            observation: observation.into(),
            ..Self::default()
        }
    }

    /// A failed call, with the observation in the layout that all failures share.
    pub fn error(error: &ToolError, tool_call_id: &str) -> Self {
        let failed = Self {
            is_error: true,
            error_type: Some(error.kind),
            error_code: Some(error.code.clone()),
            error_message: Some(error.message.clone()),
            ..Self::default()
        };
        Self {
            observation: failed.error_observation(tool_call_id),
            ..failed
        }
    }

    /// A failure whose observation is exactly `text`.
    pub(crate) fn error_text(code: &str, text: impl Into<String>) -> Self {
        Self {
            is_error: true,
            error_type: Some(ToolErrorType::InternalError),
            error_code: Some(code.into()),
            ..Self::ok(text)
        }
    }

    /// Returns the failure in words, for the record of a retry.
    pub(crate) fn words(&self) -> String {
        self.error_message
            .clone()
            .unwrap_or_else(|| self.observation.clone())
    }

    /// Whether the call succeeded.
    pub fn success(&self) -> bool {
        !self.is_error
    }

    /// Returns the text for the model: the observation, or for a failure the shared layout. A
    /// failure made by `ToolExecutionResult::error_text` keeps its exact text.
    pub fn content(&self, tool_call_id: &str) -> String {
        let is_told = self.error_message.is_none() && !self.observation.is_empty();
        if self.is_error && !is_told {
            self.error_observation(tool_call_id)
        } else {
            self.observation.clone()
        }
    }

    /// Returns the layout that all failures share: status, id, type, code, message.
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

    /// Returns the block that the history stores for this result.
    pub fn to_tool_message(&self, tool_call_id: &str) -> ToolResultBlock {
        ToolResultBlock {
            tool_use_id: tool_call_id.to_owned(),
            content: ToolResultContent::Text(self.content(tool_call_id)),
            is_error: self.is_error,
        }
    }

    /// Returns the result alone as a user message, for debugging. A history puts all results of a
    /// batch into one message.
    pub fn to_llm_message(&self, tool_call_id: &str) -> Message {
        Message::tool_results([self.to_tool_message(tool_call_id)], [])
    }

    /// Returns the record of this failure for a retry. The record goes to logs and metrics; no
    /// model reads it.
    pub fn retry_record(&self, tool_call_id: &str) -> RetryRecord {
        let retry_count = self.retry_count.saturating_add(1);
        let cause = self
            .last_error
            .as_deref()
            .or(self.error_message.as_deref())
            .unwrap_or("An unknown error occurred");
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

/// The record of a failed attempt that is followed by another. Its type is not a [`ToolErrorType`],
/// so the record cannot be journaled or shown as a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the stored names of the record")]
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

/// A failed call in its wire form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ToolErrorResponse {
    /// Id of the call, assigned by the model's provider.
    pub tool_call_id: String,
    pub error_type: ToolErrorType,
    /// Stable code, in capitals.
    pub error_code: String,
    /// What was wrong and what to do.
    pub error_message: String,
}

impl ToolErrorResponse {
    /// Converts a tool's error to the answer of a call.
    pub fn new(error: &ToolError, tool_call_id: impl Into<String>) -> Self {
        let ToolError {
            kind,
            code,
            message,
            ..
        } = error;
        Self {
            tool_call_id: tool_call_id.into(),
            error_type: *kind,
            error_code: code.clone(),
            error_message: message.clone(),
        }
    }

    /// Whether the error class is worth a retry. The effect class and the retry policy decide
    /// whether a retry happens.
    pub fn should_retry(&self) -> bool {
        self.error_type.is_retryable()
    }

    /// Converts to a result. Its observation is for logs; a model reads
    /// [`ToolExecutionResult::content`].
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
        ToolError::new(
            ToolErrorType::Timeout,
            "Tool execution exceeded timeout limit",
        )
    }

    const LAYOUT: &str = "Operation failed.\n\nError Type: timeout\nError Code: TIMEOUT\n\
                          Error Message: Tool execution exceeded timeout limit\n\nTool Call ID: toolu_1";

    #[test]
    fn a_failed_call_reads_as_specified() {
        let result = ToolExecutionResult::error(&timeout(), "toolu_1");

        assert_eq!(
            (
                result.observation.as_str(),
                result.is_error,
                result.success()
            ),
            (LAYOUT, true, false)
        );
        assert_eq!(result.content("toolu_1"), LAYOUT);
    }

    #[test]
    fn what_a_failure_does_not_say_has_its_words() {
        let unknown = ToolExecutionResult {
            is_error: true,
            ..ToolExecutionResult::default()
        };

        assert_eq!(
            unknown.content("t"),
            "Operation failed.\n\nError Type: Unknown\nError Code: UNKNOWN\nError Message: An unknown error occurred\n\nTool Call ID: t"
        );
    }

    #[test]
    fn an_exact_text_stays_exact() {
        assert_eq!(
            ToolExecutionResult::error_text("INTERRUPTED", "cancelled").content("t"),
            "cancelled"
        );
    }

    #[test]
    fn a_result_becomes_the_block_of_the_call_it_is_shown_for() {
        let good = ToolExecutionResult::ok("42");
        let block = good.to_tool_message("toolu_2");
        assert_eq!(
            (
                block.tool_use_id.as_str(),
                &*block.content.text(),
                block.is_error
            ),
            ("toolu_2", "42", false)
        );

        let failed = ToolExecutionResult::error(&timeout(), "toolu_1").to_llm_message("toolu_1");
        let wire: serde_json::Value = serde_json::from_slice(failed.wire()).unwrap();
        let block = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": LAYOUT, "is_error": true });
        assert_eq!(wire, json!({ "role": "user", "content": [block] }));
    }

    #[test]
    fn a_retry_is_recorded_and_is_no_result() {
        let first = ToolExecutionResult::error(&timeout(), "t");
        let second = ToolExecutionResult {
            retry_count: 1,
            last_error: Some("away".into()),
            ..first.clone()
        };

        let record = first.retry_record("t");
        assert_eq!(
            record.observation,
            "Retry 1 after: Tool execution exceeded timeout limit"
        );
        assert_eq!(
            (record.retry_count, record.success, record.error_type),
            (1, false, "RETRY")
        );
        assert_eq!(record.error_message, "Retrying after 1 failures");
        assert_eq!(
            record.last_error.as_deref(),
            Some("Tool execution exceeded timeout limit")
        );
        assert_eq!(second.retry_record("t").observation, "Retry 2 after: away");
        assert!(serde_json::from_value::<ToolErrorType>(json!("RETRY")).is_err());
    }

    #[test]
    fn an_error_response_becomes_a_result_and_knows_whether_to_retry() {
        let response = ToolErrorResponse::new(&timeout(), "toolu_1");
        let result = response.to_result();

        assert_eq!(
            result.observation,
            "Tool Error [TIMEOUT]: Tool execution exceeded timeout limit"
        );
        assert_eq!(
            (result.is_error, result.error_type),
            (true, Some(ToolErrorType::Timeout))
        );
        assert_eq!(
            result.content("toolu_1"),
            LAYOUT,
            "a model reads every failure in one layout"
        );
        assert!(response.should_retry());
        assert!(!ToolErrorResponse::new(&ToolError::invalid("x"), "t").should_retry());
        assert_eq!(
            serde_json::to_value(&response).unwrap()["error_type"],
            "timeout"
        );
    }

    #[test]
    fn rows_of_earlier_versions_are_read_and_plain_rows_stay_small() {
        let old: ToolExecutionResult =
            serde_json::from_str(r#"{"observation":"o","duration_ms":5,"retry_count":1}"#).unwrap();
        assert_eq!(
            old,
            ToolExecutionResult {
                duration_ms: 5,
                retry_count: 1,
                ..ToolExecutionResult::ok("o")
            }
        );
        assert_eq!(
            serde_json::to_string(&old).unwrap(),
            r#"{"observation":"o","duration_ms":5,"retry_count":1}"#
        );

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
        assert_eq!(
            serde_json::from_str::<ToolExecutionResult>(&text).unwrap(),
            all
        );
        assert!(text.contains(r#""output_level":"full""#), "{text}");
    }
}
