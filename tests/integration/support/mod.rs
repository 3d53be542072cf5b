//! Helpers that the integration tests share.

pub mod h2_server;
pub mod https;
pub mod model_server;
mod random;
mod scratch;
pub mod tls_front;

pub use random::{SplitMix, random_splits, seed};
pub use scratch::scratch;

/// Reports that a test cannot run here. Writes past the test harness, which would hide the line; CI
/// fails on it.
pub fn skipped(test: &str, reason: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
}
