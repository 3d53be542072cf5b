//! Tool types that journals, policies and ports share: effect class, output level, error.
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// What a repeated start of a call would do. Checked before any retry policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Changes nothing. May run again, beside other calls, and before its start is stored.
    Pure,
    /// May run again with the same [`CallKey`](crate::ids::CallKey).
    Idempotent,
    /// Must not start twice. The default for tools that declare no class.
    #[default]
    Once,
    /// Runs where the caller is, and is never started on this host. The caller sends the result.
    Client,
}

impl EffectClass {
    /// Whether a call may be started again.
    pub fn may_repeat(self) -> bool {
        match self {
            Self::Pure | Self::Idempotent => true,
            Self::Once | Self::Client => false,
        }
    }
}

/// Class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variant names say it")]
pub enum ToolErrorType {
    Timeout,
    RateLimit,
    ResourceError,
    TransientError,
    PermissionDenied,
    InvalidParameters,
    NotFound,
    ValidationError,
    ExecutionError,
    InternalError,
    DependencyError,
}

impl ToolErrorType {
    /// Returns the value as it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::RateLimit => "rate_limit",
            Self::ResourceError => "resource_error",
            Self::TransientError => "transient_error",
            Self::PermissionDenied => "permission_denied",
            Self::InvalidParameters => "invalid_parameters",
            Self::NotFound => "not_found",
            Self::ValidationError => "validation_error",
            Self::ExecutionError => "execution_error",
            Self::InternalError => "internal_error",
            Self::DependencyError => "dependency_error",
        }
    }

    /// Whether a retry may help.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Timeout | Self::RateLimit | Self::ResourceError | Self::TransientError => true,
            Self::PermissionDenied
            | Self::InvalidParameters
            | Self::NotFound
            | Self::ValidationError => false,
            Self::ExecutionError | Self::InternalError | Self::DependencyError => false,
        }
    }

    /// Whether a retry cannot help. Classes that are neither retryable nor permanent need a person.
    pub fn is_permanent(self) -> bool {
        match self {
            Self::PermissionDenied
            | Self::InvalidParameters
            | Self::NotFound
            | Self::ValidationError => true,
            Self::Timeout | Self::RateLimit | Self::ResourceError | Self::TransientError => false,
            Self::ExecutionError | Self::InternalError | Self::DependencyError => false,
        }
    }
}

/// A failed call. The model reads the error; it is not a failure of the runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// Class of the failure.
    pub kind: ToolErrorType,
    /// Stable code in capitals, such as `NOT_FOUND`.
    pub code: String,
    /// What was wrong and what to do, for the model. Contains no path of the host and no key.
    pub message: String,
    /// Whether the tool is certain that no work began. Only then may a `once` call start again.
    pub not_started: bool,
}

impl ToolError {
    /// Creates an error of a class, with the default code of the class.
    pub fn new(kind: ToolErrorType, message: impl Into<String>) -> Self {
        let code = match kind {
            ToolErrorType::Timeout => "TIMEOUT",
            ToolErrorType::RateLimit => "RATE_LIMIT",
            ToolErrorType::ResourceError => "RESOURCE_LIMIT",
            ToolErrorType::TransientError => "TRANSIENT",
            ToolErrorType::PermissionDenied => "PERMISSION_DENIED",
            ToolErrorType::InvalidParameters => "INVALID_PARAMETERS",
            ToolErrorType::NotFound => "NOT_FOUND",
            ToolErrorType::ValidationError => "VALIDATION_ERROR",
            ToolErrorType::ExecutionError => "EXECUTION_ERROR",
            ToolErrorType::InternalError => "INTERNAL_ERROR",
            ToolErrorType::DependencyError => "DEPENDENCY_ERROR",
        };
        Self {
            kind,
            code: code.to_owned(),
            message: message.into(),
            not_started: false,
        }
    }

    /// Invalid arguments; no work began.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::InvalidParameters, message).not_started()
    }

    /// A file or another named thing does not exist.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::NotFound, message)
    }

    /// The call is not permitted.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::PermissionDenied, message)
    }

    /// The work failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::ExecutionError, message)
    }

    /// Replaces the code.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = code.into();
        self
    }

    /// Declares that no work began.
    #[must_use]
    pub fn not_started(mut self) -> Self {
        self.not_started = true;
        self
    }
}

/// How much of [`ToolOutput::Data`](crate::ports::ToolOutput::Data) the model is shown. Text
/// results are never shortened by the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLevel {
    /// One line: the number of items, whether the call succeeded, or the first characters.
    Brief,
    /// The first few items, or 500 characters.
    #[default]
    Standard,
    /// The whole data.
    Full,
}

impl OutputLevel {
    /// Returns the value as it is written in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Brief => "brief",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }

    /// Returns the level of one call: the level of the call itself, else of the tool, else brief if
    /// `window_used` is strictly above 0.8, else `global`.
    pub fn effective(
        call: Option<Self>,
        tool: Option<Self>,
        window_used: f64,
        global: Self,
    ) -> Self {
        let crowded = (window_used > CROWDED).then_some(Self::Brief);
        call.or(tool).or(crowded).unwrap_or(global)
    }
}

/// Share of the context window above which results are brief by default, from 0 to 1.
pub(crate) const CROWDED: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_worth_a_retry_or_permanent_or_a_persons_matter() {
        use ToolErrorType::{
            DependencyError, ExecutionError, InternalError, InvalidParameters, NotFound,
            PermissionDenied, RateLimit, ResourceError, Timeout, TransientError, ValidationError,
        };
        let all = [
            (Timeout, "timeout", true, false),
            (RateLimit, "rate_limit", true, false),
            (ResourceError, "resource_error", true, false),
            (TransientError, "transient_error", true, false),
            (PermissionDenied, "permission_denied", false, true),
            (InvalidParameters, "invalid_parameters", false, true),
            (NotFound, "not_found", false, true),
            (ValidationError, "validation_error", false, true),
            (ExecutionError, "execution_error", false, false),
            (InternalError, "internal_error", false, false),
            (DependencyError, "dependency_error", false, false),
        ];
        for (kind, word, retryable, permanent) in all {
            assert_eq!(
                (kind.as_str(), kind.is_retryable(), kind.is_permanent()),
                (word, retryable, permanent)
            );
            assert_eq!(serde_json::to_value(kind).unwrap(), word);
        }
    }

    #[test]
    fn the_level_follows_the_four_steps_and_point_eight_itself_is_not_crowded() {
        use OutputLevel::{Brief, Full, Standard};
        let of = OutputLevel::effective;

        assert_eq!(of(Some(Full), Some(Brief), 0.9, Standard), Full);
        assert_eq!(of(None, Some(Full), 0.9, Standard), Full);
        assert_eq!(of(None, None, 0.81, Full), Brief);
        assert_eq!(of(None, None, 0.8, Standard), Standard);
        assert_eq!(of(None, None, f64::NAN, Standard), Standard);
        assert_eq!(OutputLevel::default(), Standard);
    }
}
