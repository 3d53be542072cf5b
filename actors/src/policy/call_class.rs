//! The urgency of a model call, by who waits for it: a person, a parent conversation, or no caller.
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// How urgent a model call is, compared with other calls of the same tenant and with calls of
/// tenants that are served in the same round.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum CallClass {
    /// A person waits for the answer.
    #[default]
    Interactive,
    /// A parent conversation or a fan-out waits for the answer. Many such calls depend on one
    /// provider, so they wait while its circuit breaker is open.
    Subagent,
    /// No caller waits for the answer, as for summaries.
    Background,
}

impl CallClass {
    /// All classes, the most urgent first.
    pub(crate) const ALL: [Self; 3] = [Self::Interactive, Self::Subagent, Self::Background];
}
