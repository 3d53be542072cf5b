//! What a conversation remembers of its context: how full the window is, what is pinned, what the last compaction did.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{ids::Seq, tokens::WindowUse};

/// Why a compaction was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionCause {
    /// The window was nearly full.
    Full,
    /// Somebody asked for it.
    Asked,
}

/// What a compaction did, for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionNote {
    /// The entry that holds it.
    pub seq: Seq,
    /// Tokens sent before, counted.
    pub before_tokens: u64,
    /// Tokens sent after, counted.
    pub after_tokens: u64,
    /// The steps of the ladder that it took, in order.
    pub mode: String,
}

/// The context of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Context {
    /// How full the window is.
    pub window: WindowUse,
    /// Lines that stay through every compaction (REQUIREMENTS C-51).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<String>,
    /// The last compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_compaction: Option<CompactionNote>,
}

impl Context {
    /// Bytes of the pinned lines.
    pub fn pinned_bytes(&self) -> usize {
        self.pinned.iter().map(String::len).sum()
    }
}
