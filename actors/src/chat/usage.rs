//! What a model call used and why the model stopped, in the form that all providers share.
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// Tokens of one call, normalised once by the adapter (DESIGN §4.4). All input = uncached + read + written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens that were neither read from nor written to a cache.
    pub input_uncached: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read: u64,
    /// Input tokens written to it.
    pub cache_write: u64,
    /// Output tokens.
    pub output: u64,
}

impl Usage {
    /// All input tokens (REQUIREMENTS C-03 as ruled).
    pub fn input(&self) -> u64 {
        self.input_uncached.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }

    /// The sum with another call's usage; never overflows.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            input_uncached: self.input_uncached.saturating_add(other.input_uncached),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            output: self.output.saturating_add(other.output),
        }
    }
}

/// Why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderStop {
    /// It said what it had to say.
    EndTurn,
    /// It wants tools.
    ToolUse,
    /// The answer was cut at `max_tokens`.
    MaxTokens,
    /// A stop text.
    StopSequence,
    /// The server paused a long turn; send it back to go on (R-06 as ruled).
    PauseTurn,
    /// The model or a filter declined.
    Refusal,
    /// The window is full.
    ContextWindowExceeded,
    /// A reason we do not know; ends the turn.
    Other,
}
