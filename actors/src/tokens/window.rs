//! How full a model's window is, by what its provider said of the last call and how much came since (REQUIREMENTS K-28, C-03).
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{chat::Usage, limits::BYTES_A_TOKEN};

/// Follows the fill of a window. Asks nobody and counts no text: the provider's figure steers, what is new is estimated by its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WindowUse {
    /// Tokens of the last call, input and output; 0 when nothing is known.
    known: u64,
    /// Bytes of all messages at that time.
    known_bytes: u64,
    /// Bytes of the messages that came since.
    new_bytes: u64,
    /// How many came since; they are the last ones.
    new_messages: u32,
}

impl WindowUse {
    /// A call was answered. `history_bytes`: all messages, the answer included. Figures that cannot be (fewer tokens than a sixteenth of
    /// the bytes, more than bytes and fixed parts allow) are bent into what can (FAULTS F21).
    pub fn answered(&mut self, usage: &Usage, history_bytes: u64) {
        let said = usage.input().saturating_add(usage.output);
        let least = history_bytes / (4 * BYTES_A_TOKEN);
        let most = history_bytes.saturating_mul(2).max(FIXED_TOKENS_MAX);
        *self = Self { known: said.clamp(least, most), known_bytes: history_bytes, new_bytes: 0, new_messages: 0 };
    }

    /// A message was appended that no call has seen.
    pub fn appended(&mut self, bytes: usize) {
        self.new_bytes = self.new_bytes.saturating_add(bytes as u64);
        self.new_messages = self.new_messages.saturating_add(1);
    }

    /// A message that was appended last is taken back.
    pub fn taken_back(&mut self, bytes: usize) {
        self.new_bytes = self.new_bytes.saturating_sub(bytes as u64);
        self.new_messages = self.new_messages.saturating_sub(1);
    }

    /// The history was compacted; all that is sent was counted.
    pub fn counted(&mut self, tokens: u64, history_bytes: u64) {
        *self = Self { known: tokens, known_bytes: history_bytes, new_bytes: 0, new_messages: 0 };
    }

    /// The history was replaced by something nobody counted.
    pub fn replaced(&mut self, messages: usize, history_bytes: u64) {
        let new_messages = u32::try_from(messages).unwrap_or(u32::MAX);
        *self = Self { known: 0, known_bytes: 0, new_bytes: history_bytes, new_messages };
    }

    /// Tokens in use, estimated. `fixed`: those of the system prompt and the tools, which only a call's figure includes.
    pub fn estimate(&self, fixed: u64) -> u64 {
        self.base(fixed).saturating_add(self.new_bytes / BYTES_A_TOKEN)
    }

    /// Tokens in use at most: no token is shorter than a byte.
    pub fn at_most(&self, fixed: u64) -> u64 {
        self.base(fixed).saturating_add(self.new_bytes)
    }

    /// Tokens of the last call, if one is known, and how many messages at the end it did not have.
    pub fn last_call(&self) -> (Option<u64>, usize) {
        (Some(self.known).filter(|known| *known > 0), self.new_messages as usize)
    }

    fn base(&self, fixed: u64) -> u64 {
        if self.known > 0 { self.known } else { fixed }
    }
}

/// System prompt and tools can be this large whatever the history is.
const FIXED_TOKENS_MAX: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input_uncached: u64, cache_read: u64, output: u64) -> Usage {
        Usage { input_uncached, cache_read, cache_write: 0, output }
    }

    #[test]
    fn cached_input_fills_the_window_too() {
        let mut window = WindowUse::default();

        window.answered(&usage(500, 189_000, 500), 700_000);

        assert_eq!(window.estimate(9), 190_000);
    }

    #[test]
    fn what_is_new_is_estimated_until_the_next_call_says_it() {
        let mut window = WindowUse::default();
        window.appended(300);
        assert_eq!((window.estimate(50), window.at_most(50)), (150, 350), "before a call the fixed parts count by themselves");

        window.answered(&usage(140, 0, 10), 340);
        assert_eq!((window.estimate(50), window.last_call()), (150, (Some(150), 0)));

        window.appended(30);
        assert_eq!((window.estimate(50), window.last_call()), (160, (Some(150), 1)));

        window.replaced(3, 600);
        assert_eq!((window.estimate(50), window.last_call()), (250, (None, 3)));
    }

    #[test]
    fn figures_that_cannot_be_are_bent_into_what_can() {
        let mut window = WindowUse::default();

        window.answered(&usage(u64::MAX, u64::MAX, u64::MAX), 1000);
        assert!(window.estimate(0) <= FIXED_TOKENS_MAX);

        window.answered(&usage(1, 0, 0), 1_200_000);
        assert!(window.estimate(0) >= 100_000, "a provider that counts nothing does not keep us from compacting");
    }
}
