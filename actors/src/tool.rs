//! The vocabulary of tools that journals, policies and ports share: effect class, output level, error.
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// What a repeated start of a call would do. Decides before any retry policy (DESIGN §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Changes nothing; may run again and beside anything, even before it is journaled.
    Pure,
    /// May run again with the same [`CallKey`](crate::ids::CallKey).
    Idempotent,
    /// Must not be started twice. What a tool does not declare is this.
    #[default]
    Once,
}

impl EffectClass {
    /// Whether a call may be started again.
    pub fn may_repeat(self) -> bool {
        match self {
            Self::Pure | Self::Idempotent => true,
            Self::Once => false,
        }
    }
}

/// Class of a failure (REQUIREMENTS T-33).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words of T-33")]
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
    /// The value as it is written (M-17).
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

    /// Whether trying again may help (REQUIREMENTS T-34).
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Timeout | Self::RateLimit | Self::ResourceError | Self::TransientError => true,
            Self::PermissionDenied | Self::InvalidParameters | Self::NotFound | Self::ValidationError => false,
            Self::ExecutionError | Self::InternalError | Self::DependencyError => false,
        }
    }

    /// Whether trying again never helps (REQUIREMENTS T-35). What is neither wants a person's look.
    pub fn is_permanent(self) -> bool {
        match self {
            Self::PermissionDenied | Self::InvalidParameters | Self::NotFound | Self::ValidationError => true,
            Self::Timeout | Self::RateLimit | Self::ResourceError | Self::TransientError => false,
            Self::ExecutionError | Self::InternalError | Self::DependencyError => false,
        }
    }
}

/// A failed call. The model reads it (REQUIREMENTS T-38); it is no failure of the runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolError {
    /// Class.
    pub kind: ToolErrorType,
    /// Stable code in capitals (INTERFACES §2, `error_code`).
    pub code: String,
    /// What was wrong and what to do, for the model. No path of the host, no key.
    pub message: String,
    /// Whether the tool is certain that nothing was begun; only then may a `once` call be started again.
    pub not_started: bool,
}

impl ToolError {
    /// An error of a class, with the code that belongs to it.
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
        Self { kind, code: code.to_owned(), message: message.into(), not_started: false }
    }

    /// Bad arguments: nothing was begun.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::InvalidParameters, message).not_started()
    }

    /// Something named is not there.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::NotFound, message)
    }

    /// Not allowed.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::PermissionDenied, message)
    }

    /// The work failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ToolErrorType::ExecutionError, message)
    }

    /// Sets another code.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = code.into();
        self
    }

    /// Declares that nothing was begun.
    #[must_use]
    pub fn not_started(mut self) -> Self {
        self.not_started = true;
        self
    }
}

/// How much of [`ToolOutput::Data`](crate::ports::ToolOutput::Data) is shown (REQUIREMENTS O-01). Text is never shortened by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputLevel {
    /// One line.
    Brief,
    /// The first few items or 500 characters.
    #[default]
    Standard,
    /// Everything.
    Full,
}

impl OutputLevel {
    /// The word as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Brief => "brief",
            Self::Standard => "standard",
            Self::Full => "full",
        }
    }

    /// The level of one call, by the four steps of REQUIREMENTS O-09: the call's own, the tool's, BRIEF above 0.8 of the window
    /// (strictly, O-10), the global default.
    pub fn effective(call: Option<Self>, tool: Option<Self>, window_used: f64, global: Self) -> Self {
        let crowded = (window_used > CROWDED).then_some(Self::Brief);
        call.or(tool).or(crowded).unwrap_or(global)
    }
}

/// Share of the context window above which results are brief unless somebody chose otherwise (REQUIREMENTS O-09, O-10).
pub const CROWDED: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_worth_a_retry_or_permanent_or_a_persons_matter() {
        use ToolErrorType::{
            DependencyError, ExecutionError, InternalError, InvalidParameters, NotFound, PermissionDenied, RateLimit, ResourceError,
            Timeout, TransientError, ValidationError,
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
            assert_eq!((kind.as_str(), kind.is_retryable(), kind.is_permanent()), (word, retryable, permanent));
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
