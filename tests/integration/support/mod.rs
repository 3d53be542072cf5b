//! What the tests share.

pub mod model_server;
mod random;
mod scratch;

pub use random::{SplitMix, random_splits, seed};
pub use scratch::scratch;

/// Says that a test cannot run here, past the test harness, which would swallow it: CI fails on such a line.
pub fn skipped(test: &str, reason: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
}
