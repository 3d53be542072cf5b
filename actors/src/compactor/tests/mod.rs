//! Tests of the ladder: single steps, and generated histories.

mod ladder;
mod properties;
pub(super) mod stories;
