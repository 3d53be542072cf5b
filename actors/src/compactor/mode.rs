//! The four ways to make a history smaller, and what each costs.
//!
//! Pure.

use serde::{Deserialize, Serialize};

/// How old messages are made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompressionMode {
    /// Keeps the most recent rounds and drops the rest. Fastest, and free.
    Truncate,
    /// Drops messages by priority and rules.
    #[default]
    Extract,
    /// Shows old answers and results by their first words, by importance and age, before anything
    /// is dropped.
    Importance,
    /// Lets a model write a summary. Slowest, and costs money.
    Summarize,
}

impl CompressionMode {
    /// The cost of one token, in millionths of a US dollar: 0, 0.001 and 0.003 US dollars per 1000
    /// tokens, as integers, so that sums are exact. By importance costs what extraction costs.
    pub(crate) const fn micro_usd_per_token(self) -> u64 {
        match self {
            Self::Truncate => 0,
            Self::Extract | Self::Importance => 1,
            Self::Summarize => 3,
        }
    }

    /// The cost of `tokens`, in millionths of a US dollar.
    pub(crate) const fn cost_micro_usd(self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.micro_usd_per_token())
    }

    /// The name in JSON and configuration.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Truncate => "truncate",
            Self::Extract => "extract",
            Self::Importance => "importance",
            Self::Summarize => "summarize",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_has_its_word_and_its_price() {
        for (mode, word, micro_usd) in [
            (CompressionMode::Truncate, "\"truncate\"", 0),
            (CompressionMode::Extract, "\"extract\"", 1000),
            (CompressionMode::Importance, "\"importance\"", 1000),
            (CompressionMode::Summarize, "\"summarize\"", 3000),
        ] {
            assert_eq!(serde_json::to_string(&mode).unwrap(), word);
            assert_eq!(serde_json::from_str::<CompressionMode>(word).unwrap(), mode);
            assert_eq!(format!("\"{}\"", mode.as_str()), word);
            assert_eq!(mode.cost_micro_usd(1000), micro_usd);
        }
        assert!(serde_json::from_str::<CompressionMode>("\"EXTRACT\"").is_err());
    }
}
