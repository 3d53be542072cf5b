//! Whether a call whose attempt failed is tried again.
//!
//! Pure.

use std::time::Duration;

use super::{RunResult, ToolInvocationRequest};
use crate::{ports::ToolSpec, tool::ToolErrorType};

/// A call will be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    /// The number of the coming attempt; 1 is the first retry.
    pub attempt: u32,
    /// The pause before it.
    pub delay: Duration,
    /// Why the last attempt failed.
    pub reason: ToolErrorType,
}

impl Again {
    /// What follows from the `result` of an attempt; `None` if the result is final. The effect class
    /// comes first: a `once` call that may have started is never tried again. Then the request and
    /// the tool's retry policy decide.
    pub(crate) fn after(
        spec: &ToolSpec,
        request: &ToolInvocationRequest,
        attempt: u32,
        result: &RunResult,
    ) -> Option<Self> {
        let reason = result.error_type()?;
        let may = spec.effect.may_repeat() || result.not_started();
        (may && request.should_retry(&spec.retry, reason, attempt)).then(|| Self {
            attempt: attempt + 1,
            delay: spec.retry.delay(attempt),
            reason,
        })
    }
}
