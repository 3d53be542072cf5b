//! Verdicts of the embedding application before a tool call. Pure and quick: a hook runs inside the conversation's decision.

use super::ToolSpec;
use crate::{chat::RawJson, ids::Scope};

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

/// Looks at every tool call before it is planned. Hooks run in the order they were added; the first refusal holds.
pub trait Hook: Send + Sync + 'static {
    /// Judges a call.
    fn before_tool(&self, scope: &Scope, tool: &ToolSpec, arguments: &RawJson) -> Verdict;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::Hook) {}
        let _ = takes;
    }
}
