//! Usage of a conversation: tokens by class, and model calls. Prices are configuration; this module
//! only counts.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{ConversationMetrics, ConversationRound};
use crate::chat::Usage;

/// Sums of tokens and model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageTotals {
    /// Tokens by class.
    #[serde(flatten)]
    pub usage: Usage,
    /// Model calls that were decided, including those without an answer.
    pub api_calls: u64,
}

impl UsageTotals {
    /// Adds up the usage of rounds. Rounds of an import or a fork include usage from the original
    /// conversation.
    pub fn from_rounds(rounds: &[ConversationRound]) -> Self {
        rounds.iter().fold(Self::default(), |sum, round| Self {
            usage: sum.usage.plus(&round.usage),
            api_calls: sum.api_calls.saturating_add(u64::from(round.model_calls)),
        })
    }

    /// Returns the usage of this conversation since its journal began or was reset, including
    /// rounds that were rewound.
    pub fn from_conversation(metrics: &ConversationMetrics) -> Self {
        Self {
            usage: metrics.usage,
            api_calls: metrics.api_calls,
        }
    }

    /// Returns the cost. `price` maps tokens by class to an amount.
    pub fn cost<T>(&self, price: impl FnOnce(&Usage) -> T) -> T {
        price(&self.usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up_by_class_and_never_overflow() {
        let round = crate::journal::rounds::tests::full();
        let much = Usage {
            output: u64::MAX,
            ..round.usage
        };
        let huge = ConversationRound {
            usage: much,
            ..round.clone()
        };

        let two = UsageTotals::from_rounds(&[round.clone(), round.clone()]);

        assert_eq!(
            (two.usage, two.api_calls),
            (round.usage.plus(&round.usage), 4)
        );
        assert_eq!(
            UsageTotals::from_rounds(&[huge.clone(), huge]).usage.output,
            u64::MAX
        );
        assert_eq!(
            two.cost(|usage| usage.input() * 3 + usage.output * 15),
            6 * 3 + 8 * 15
        );
        assert_eq!(
            serde_json::to_string(&two).unwrap(),
            r#"{"input_uncached":2,"cache_read":4,"cache_write":0,"output":8,"api_calls":4}"#
        );
    }
}
