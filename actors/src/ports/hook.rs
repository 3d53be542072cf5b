//! Verdicts of the embedding application before and after a tool call. Pure and quick: a hook runs inside the conversation's decision.
//!
//! Pure.

use super::ToolSpec;
use crate::{chat::RawJson, ids::Scope, journal::ToolExecutionResult};

/// What a hook says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go on.
    Allow,
    /// Refuse; the model reads the reason.
    Deny(String),
    /// Go on with other arguments.
    Replace(RawJson),
}

/// What a hook says of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Review {
    /// It stays.
    Keep,
    /// The model reads this instead; that the call failed or not stays as it is.
    Replace(String),
    /// The model is not to read it: it gets an error with this reason.
    Withhold(String),
}

/// Looks at every tool call before it is planned. Hooks run in the order they were added; the first refusal holds.
pub trait Hook: Send + Sync + 'static {
    /// Judges a call.
    fn before_tool(&self, scope: &Scope, tool: &ToolSpec, arguments: &RawJson) -> Verdict;

    /// Looks at a call's one result before it is journaled and shown. A result that was made without a run (a refusal, a cancel) is
    /// not reviewed.
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
