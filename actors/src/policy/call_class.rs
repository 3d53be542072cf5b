//! Who waits for a model call: a person, a parent, or nobody (DESIGN §4.5).
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// How urgent a model call is beside others of the same tenant, and of tenants whose turn it is as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallClass {
    /// Somebody waits for the answer.
    #[default]
    Interactive,
    /// A conversation waits for it.
    Subagent,
    /// Nobody waits: summaries and the like.
    Background,
}

impl CallClass {
    /// All of them, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Subagent, Self::Background];
}
