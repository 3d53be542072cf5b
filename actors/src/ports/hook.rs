//! Hooks: the embedding application's decisions before and after a tool call. A hook runs inside
//! the conversation's decision, so it must be fast and free of side effects.
//!
//! Pure.

use super::ToolSpec;
use crate::{chat::RawJson, ids::Scope, journal::ToolExecutionResult};

/// A hook's decision on a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The call continues.
    Allow,
    /// The call is refused. The model reads the reason.
    Deny(String),
    /// The call continues with these arguments.
    Replace(RawJson),
}

/// A hook's decision on a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Review {
    /// The result stays as it is.
    Keep,
    /// The model reads this text instead. Whether the call failed does not change.
    Replace(String),
    /// The model does not get the result, but an error with this reason.
    Withhold(String),
}

/// Checks every tool call before it runs. Hooks run in the order in which they were added, and the
/// first refusal wins.
pub trait Hook: Send + Sync + 'static {
    /// Decides whether a call may run.
    fn before_tool(&self, scope: &Scope, tool: &ToolSpec, arguments: &RawJson) -> Verdict;

    /// Reviews a result before it is stored and shown. A result without a run (a refusal, a
    /// cancellation) is not reviewed.
    fn after_tool(&self, scope: &Scope, tool: &ToolSpec, outcome: &ToolExecutionResult) -> Review {
        let _ = (scope, tool, outcome);
        Review::Keep
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::Hook) {}
        let _ = takes;
    }
}
