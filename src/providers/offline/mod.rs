//! Models without a network: scripted and rule-based.
