//! Tests of the ladder: single steps, and generated histories.

mod ladder;
mod properties;
mod request_bytes;
pub(super) mod stories;
