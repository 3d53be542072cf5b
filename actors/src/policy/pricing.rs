//! The budget and the prices of a conversation's model calls.
//!
//! Pure.

use std::sync::Arc;

use super::{Budget, Price, Prices};

/// The budget of a conversation and the figures from which the cost of a call is estimated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pricing {
    /// What all rounds of the conversation together may use.
    pub budget: Budget,
    /// The conversation's own model.
    pub model: Arc<str>,
    /// The price of the conversation's own model; `None` if no price is configured.
    pub price: Option<Price>,
    /// Prices of other models: one that a skill selected, or one that a fallback answered with.
    pub prices: Arc<Prices>,
    /// Models that an active skill may select instead of the conversation's own; a name may contain
    /// `*` for any text.
    pub skill_models: Arc<[String]>,
    /// Bytes of every request apart from its messages: the system prompt and the tools.
    pub fixed_bytes: u64,
    /// Longest answer, in tokens.
    pub max_tokens: u64,
    /// The model's context window, in tokens; 0 if it is unknown.
    pub window_tokens: u64,
}

impl Pricing {
    /// The price of a model; `None` if no price is configured.
    pub(crate) fn price_of(&self, model: &str) -> Option<Price> {
        if *model == *self.model {
            self.price
        } else {
            self.prices.get(model).copied()
        }
    }
}
