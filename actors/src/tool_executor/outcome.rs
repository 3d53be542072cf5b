//! Turns the end of an attempt into the result that the model reads.
//!
//! Pure.

use crate::{
    journal::{LOOP_GUARD, ToolExecutionResult},
    limits::OBSERVATION_BYTES_MAX,
    ports::ToolOutput,
    skill::SkillActivationResult,
    time::Timestamp,
    tool::{EffectClass, ToolError, ToolErrorType},
};
use std::sync::Arc;
use std::time::Duration;

use super::Observed;

/// How the run of a tool ended, before its observation is made.
pub(super) type Ended = Result<Arc<ToolOutput>, RunResult>;

/// Bytes that the model sees of what a tool returned after its time limit.
pub(super) const PARTIAL_BYTES_MAX: usize = 16 * 1024;

/// Bytes of an error that the model reads; the rest of an observation is for the layout around it.
const ERROR_BYTES_MAX: usize = OBSERVATION_BYTES_MAX - 2048;

/// How one attempt ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunResult {
    /// The tool returned an output.
    Output(Observed),
    /// The tool loaded a skill.
    Activation(Box<SkillActivationResult>),
    /// The tool returned an error.
    Error(ToolError),
    /// The time limit passed; the attempt was cancelled and has ended.
    TimedOut {
        /// The time limit of the attempt.
        after: Duration,
        /// What the tool returned when it was cancelled, cut to the bytes that a partial result may have.
        partial: Option<String>,
    },
    /// The tool panicked.
    Panicked {
        /// The panic message.
        message: String,
    },
    /// The attempt was cancelled while it ran.
    Cancelled,
    /// The attempt was cancelled before it started.
    NotBegun,
}

impl RunResult {
    /// The class of the failure; `None` for success.
    pub(crate) fn error_type(&self) -> Option<ToolErrorType> {
        match self {
            Self::Output(_) | Self::Activation(_) => None,
            Self::Error(error) => Some(error.kind),
            Self::TimedOut { .. } => Some(ToolErrorType::Timeout),
            Self::Panicked { .. } | Self::Cancelled | Self::NotBegun => {
                Some(ToolErrorType::InternalError)
            }
        }
    }

    /// Whether it is certain that the tool had no effect.
    pub(crate) fn not_started(&self) -> bool {
        match self {
            Self::Error(error) => error.not_started,
            Self::NotBegun => true,
            Self::Output(_)
            | Self::Activation(_)
            | Self::TimedOut { .. }
            | Self::Panicked { .. }
            | Self::Cancelled => false,
        }
    }
}

const MAY_HAVE_HAPPENED: &str =
    " It may have taken full, partial or no effect: check the state before repeating it.";

/// Makes the result that the model reads.
pub fn outcome(result: RunResult, effect: EffectClass, tool_call_id: &str) -> ToolExecutionResult {
    let caution = if effect == EffectClass::Once {
        MAY_HAVE_HAPPENED
    } else {
        ""
    };
    let error = match result {
        RunResult::Output(observed) => return observed.into(),
        RunResult::Activation(result) => match result.error {
            None => return ToolExecutionResult::ok(result.text()),
            Some(error) => ToolError::failed(error).code("SKILL_UNAVAILABLE"),
        },
        RunResult::Error(error) => error,
        // Code and message are a fixed contract. The executor's log line carries the timeout in
        // milliseconds.
        RunResult::TimedOut { partial, .. } => {
            let end = if caution.is_empty() { "" } else { "." };
            let message = format!("Tool execution exceeded timeout limit{end}{caution}");
            let error = ToolError::new(ToolErrorType::Timeout, message);
            let mut result = ToolExecutionResult::error(&error, tool_call_id);
            if let Some(partial) = partial {
                result.observation += "\nPartial result until then:\n";
                result.observation += &partial;
            }
            return result;
        }
        RunResult::Panicked { message } => ToolError::new(
            ToolErrorType::InternalError,
            format!("The tool panicked: {message}.{caution}"),
        )
        .code("PANIC"),
        RunResult::NotBegun => return cancelled_before_start(),
        RunResult::Cancelled if effect == EffectClass::Once => return cancelled_unknown(),
        RunResult::Cancelled => return ToolExecutionResult::error_text("INTERRUPTED", "cancelled"),
    };
    ToolExecutionResult::error(&shortened(error), tool_call_id)
}

/// The error with as much of its message as fits into an observation: a server's may have megabytes.
fn shortened(mut error: ToolError) -> ToolError {
    let total = error.message.len();
    if total > ERROR_BYTES_MAX {
        let kept = error.message.floor_char_boundary(ERROR_BYTES_MAX);
        error.message.truncate(kept);
        error.message.shrink_to_fit();
        error.message += &format!("\n[kept {kept} of {total} bytes]");
    }
    error
}

/// The result of a call that was cancelled before it started.
pub fn cancelled_before_start() -> ToolExecutionResult {
    ToolExecutionResult::error_text("INTERRUPTED", "cancelled before start")
}

/// The result of a call that was cancelled while it ran and may have had an effect.
pub(crate) fn cancelled_unknown() -> ToolExecutionResult {
    ToolExecutionResult::error_text("INTERRUPTED", "cancelled, effect unknown")
}

/// The result of a `once` call that was running when its host stopped.
pub(crate) fn in_doubt(tool: &str, started_at: Timestamp) -> ToolExecutionResult {
    ToolExecutionResult::error_text(
        "IN_DOUBT",
        format!(
            "[outcome unknown] {tool} was started at {started_at} and the host stopped before its result was recorded. \
             It may have taken full, partial or no effect. Do not repeat it; check the state first, or ask the user."
        ),
    )
}

/// The result of a call that is refused because it gave the same result too often in this round.
pub fn stuck(tool: &str, times: u32, tool_call_id: &str) -> ToolExecutionResult {
    let why = format!(
        "the same call of {tool} gave the same result {times} times in this round, and is not made again. \
         Use what you know, try something else, or tell the user what is missing."
    );
    let error = ToolError::new(ToolErrorType::ExecutionError, why).code(LOOP_GUARD);
    ToolExecutionResult::error(&error, tool_call_id)
}

/// The result of a call whose approval was denied, by a person or because none could be asked.
pub fn approval_denied(tool_call_id: &str, why: &str) -> ToolExecutionResult {
    let error = ToolError::new(ToolErrorType::PermissionDenied, why).code("APPROVAL_DENIED");
    ToolExecutionResult::error(&error, tool_call_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_any_length_fits_into_an_observation() {
        let long = ToolError::failed("é".repeat(4 * 1024 * 1024));

        let result = outcome(RunResult::Error(long), EffectClass::Pure, "t");

        assert!(result.observation.len() <= OBSERVATION_BYTES_MAX);
        assert!(result.observation.contains("of 8388608 bytes]"));
        assert_eq!(shortened(ToolError::failed("no")), ToolError::failed("no"));
    }

    #[test]
    fn a_timed_out_once_call_says_that_its_effect_may_have_happened() {
        let once = outcome(
            RunResult::TimedOut {
                after: Duration::from_secs(1),
                partial: None,
            },
            EffectClass::Once,
            "t",
        );
        let pure = outcome(
            RunResult::TimedOut {
                after: Duration::from_secs(1),
                partial: None,
            },
            EffectClass::Pure,
            "t",
        );

        assert!(
            once.observation
                .contains("check the state before repeating it")
        );
        assert!(
            pure.observation.contains("Error Type: timeout\nError Code: TIMEOUT\nError Message: Tool execution exceeded timeout limit\n")
        );
    }
}
