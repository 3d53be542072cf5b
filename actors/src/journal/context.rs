//! The context of a conversation as its journal records it: use of the window, pinned lines, and
//! the last compaction.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{ids::Seq, tokens::WindowUse};

/// Why a compaction ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionCause {
    /// The window was nearly full.
    Full,
    /// The request had more bytes than its provider accepts.
    Bytes,
    /// A user or the application requested it.
    Asked,
}

/// What a compaction did, for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompactionNote {
    /// Sequence number of the `compacted` entry.
    pub seq: Seq,
    /// Tokens of the context before the compaction.
    pub before_tokens: u64,
    /// Tokens of the context after the compaction.
    pub after_tokens: u64,
    /// The steps of the ladder that ran, in order.
    pub mode: String,
}

/// The context of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Context {
    /// How much of the window the context uses.
    pub window: WindowUse,
    /// Lines that every compaction keeps, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pinned: Vec<String>,
    /// The last compaction; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_compaction: Option<CompactionNote>,
    /// Bytes of the messages of the last request that its provider refused as too large. Later
    /// requests stay below. `None` before the first refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_bytes: Option<u64>,
}

impl Context {
    /// Returns the bytes of all pinned lines together.
    pub(crate) fn pinned_bytes(&self) -> usize {
        self.pinned.iter().map(String::len).sum()
    }
}
