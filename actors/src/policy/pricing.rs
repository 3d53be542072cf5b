//! What the calls of a conversation may cost, and how that is known.
//!
//! Pure.

use std::sync::Arc;

use super::{Budget, Price, Prices};

/// What the calls of a conversation may cost, and how that is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pricing {
    /// What all rounds of the conversation together may use.
    pub budget: Budget,
    /// The conversation's own model.
    pub model: Arc<str>,
    /// What its own model costs.
    pub price: Option<Price>,
    /// What other models cost: one that a skill chose, one that a fallback answered with.
    pub prices: Arc<Prices>,
    /// Models that an active skill may choose in place of the conversation's own; a name may hold `*` for any text.
    pub skill_models: Arc<[String]>,
    /// Bytes of every request beside its messages: system prompt and tools.
    pub fixed_bytes: u64,
    /// Longest answer, in tokens.
    pub max_tokens: u64,
    /// The model's window, in tokens; 0 if nobody knows.
    pub window_tokens: u64,
}

impl Pricing {
    /// What a model costs.
    pub(crate) fn price_of(&self, model: &str) -> Option<Price> {
        if *model == *self.model { self.price } else { self.prices.of(model).copied() }
    }
}
