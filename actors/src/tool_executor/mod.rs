//! Runs the calls of a round that uses tools.

mod outcome;
mod plan;

pub use outcome::{RunResult, approval_denied, cancelled_before_start, cancelled_unknown, in_doubt, outcome};
pub use plan::{PlannedCall, Progress, plan};
