//! Tracks how full a model's window is, from the provider's figures of the last call and the
//! messages added since.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use crate::{chat::Usage, limits::BYTES_A_TOKEN};

/// The use of a window. No text is counted and no provider is asked: the provider's last figure is
/// the base, and newer messages are estimated by their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WindowUse {
    /// Input and output tokens of the last call; 0 if unknown.
    known: u64,
    /// Bytes of all messages at the time of that call.
    known_bytes: u64,
    /// Bytes of the messages added since.
    new_bytes: u64,
    /// Number of messages added since; they are the last ones of the history.
    new_messages: u32,
}

impl WindowUse {
    /// Records an answered call. `history_bytes` covers all messages, the answer included.
    /// Impossible figures (fewer tokens than a sixteenth of the bytes, or more than bytes and fixed
    /// parts allow) are clamped to the possible range.
    pub(crate) fn answered(&mut self, usage: &Usage, history_bytes: u64) {
        let reported = usage.input().saturating_add(usage.output);
        let least = history_bytes / (4 * BYTES_A_TOKEN);
        let most = history_bytes.saturating_mul(2).max(FIXED_TOKENS_MAX);
        *self = Self {
            known: reported.clamp(least, most),
            known_bytes: history_bytes,
            new_bytes: 0,
            new_messages: 0,
        };
    }

    /// Records a message that no call has included yet.
    pub(crate) fn appended(&mut self, bytes: usize) {
        self.new_bytes = self.new_bytes.saturating_add(bytes as u64);
        self.new_messages = self.new_messages.saturating_add(1);
    }

    /// Takes back the message that was appended last.
    pub(crate) fn taken_back(&mut self, bytes: usize) {
        self.new_bytes = self.new_bytes.saturating_sub(bytes as u64);
        self.new_messages = self.new_messages.saturating_sub(1);
    }

    /// Records a compacted history whose tokens were counted in full.
    pub(crate) fn counted(&mut self, tokens: u64, history_bytes: u64) {
        *self = Self {
            known: tokens,
            known_bytes: history_bytes,
            new_bytes: 0,
            new_messages: 0,
        };
    }

    /// Records a replaced history whose tokens are unknown.
    pub(crate) fn replaced(&mut self, messages: usize, history_bytes: u64) {
        let new_messages = u32::try_from(messages).unwrap_or(u32::MAX);
        *self = Self {
            known: 0,
            known_bytes: 0,
            new_bytes: history_bytes,
            new_messages,
        };
    }

    /// Estimated tokens in use. `fixed` is the size of the system prompt and the tools, which a
    /// call's figure already includes.
    pub(crate) fn estimate(&self, fixed: u64) -> u64 {
        self.base(fixed)
            .saturating_add(self.new_bytes / BYTES_A_TOKEN)
    }

    /// Upper bound of the tokens in use: no token is shorter than a byte.
    pub(crate) fn at_most(&self, fixed: u64) -> u64 {
        self.base(fixed).saturating_add(self.new_bytes)
    }

    /// Tokens of the last call, if known, and the number of messages added since.
    pub(crate) fn last_call(&self) -> (Option<u64>, usize) {
        (
            Some(self.known).filter(|known| *known > 0),
            self.new_messages as usize,
        )
    }

    fn base(&self, fixed: u64) -> u64 {
        if self.known > 0 { self.known } else { fixed }
    }
}

/// Upper bound of the system prompt and the tools, whatever the size of the history.
const FIXED_TOKENS_MAX: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input_uncached: u64, cache_read: u64, output: u64) -> Usage {
        Usage {
            input_uncached,
            cache_read,
            cache_write: 0,
            output,
        }
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
        assert_eq!(
            (window.estimate(50), window.at_most(50)),
            (150, 350),
            "before a call the fixed parts count by themselves"
        );

        window.answered(&usage(140, 0, 10), 340);
        assert_eq!(
            (window.estimate(50), window.last_call()),
            (150, (Some(150), 0))
        );

        window.appended(30);
        assert_eq!(
            (window.estimate(50), window.last_call()),
            (160, (Some(150), 1))
        );

        window.replaced(3, 600);
        assert_eq!((window.estimate(50), window.last_call()), (250, (None, 3)));
    }

    #[test]
    fn figures_that_cannot_be_are_bent_into_what_can() {
        let mut window = WindowUse::default();

        window.answered(&usage(u64::MAX, u64::MAX, u64::MAX), 1000);
        assert!(window.estimate(0) <= FIXED_TOKENS_MAX);

        window.answered(&usage(1, 0, 0), 1_200_000);
        assert!(
            window.estimate(0) >= 100_000,
            "a provider that counts nothing does not keep us from compacting"
        );
    }
}
