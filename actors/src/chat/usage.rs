//! The usage of a model call and its stop reason, in a form that all providers share.
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// Tokens of one model call. The adapter normalizes the provider's figures: all input tokens are
/// `input_uncached + cache_read + cache_write`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens that were neither read from nor written to a cache.
    pub input_uncached: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write: u64,
    /// Tokens that the model wrote, its reasoning included.
    pub output: u64,
}

impl Usage {
    /// Returns all input tokens: uncached, read and written.
    pub fn input(&self) -> u64 {
        self.input_uncached
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
    }

    /// Whether no token was used.
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the sum of two usages, saturating.
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

/// Why a model stopped, normalized by the adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderStop {
    /// The answer is complete.
    EndTurn,
    /// The model waits for tool results.
    ToolUse,
    /// The answer reached `max_tokens`.
    MaxTokens,
    /// The answer reached a stop text.
    StopSequence,
    /// The provider paused a long answer. Send it back to continue.
    PauseTurn,
    /// The model or a filter declined to answer.
    Refusal,
    /// The context window is full.
    ContextWindowExceeded,
    /// A reason that the adapter does not know; ends the round.
    Other,
}
