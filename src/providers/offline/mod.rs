//! A model without a network: it answers by rules.

mod rules;

pub use rules::Offline;
