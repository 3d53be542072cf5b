//! The result of a tool call.
//!
//! A result does not hold the id of its call, which stands beside it in the entry. A cached result
//! therefore cannot carry the id of another call.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::tool::{OutputLevel, ToolError, ToolErrorType};

/// Most characters of a failed attempt that its successors keep.
const LAST_ERROR_CHARS: usize = 500;

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
    /// Milliseconds in which the attempts ran, without the pauses between them and without the wait
    /// for a lock.
    #[serde(default)]
    pub duration_ms: u64,
    /// Attempts after the first.
    #[serde(default)]
    pub retry_count: u32,
    /// Message of the last failed attempt before this result, at most 500 characters.
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

    /// Returns the failure in words, shortened, for the record of a retry.
    pub(crate) fn words(&self) -> String {
        let words = self.error_message.as_ref().unwrap_or(&self.observation);
        words.chars().take(LAST_ERROR_CHARS).collect()
    }

    /// Whether the call succeeded.
    pub fn success(&self) -> bool {
        !self.is_error
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
}

#[cfg(test)]
mod tests {

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
    }

    #[test]
    fn what_a_failure_does_not_say_has_its_words() {
        let unknown = ToolExecutionResult {
            is_error: true,
            ..ToolExecutionResult::default()
        };

        assert_eq!(
            unknown.error_observation("t"),
            "Operation failed.\n\nError Type: Unknown\nError Code: UNKNOWN\nError Message: An unknown error occurred\n\nTool Call ID: t"
        );
    }

    #[test]
    fn an_exact_text_stays_exact() {
        assert_eq!(
            ToolExecutionResult::error_text("INTERRUPTED", "cancelled").observation,
            "cancelled"
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
