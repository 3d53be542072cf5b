//! Counts tool calls that a round repeats with the same result, for the loop guard. Part of the
//! fold.
//!
//! Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ToolExecutionResult, digest};
use crate::ids::Seq;

/// Error code of a call that the loop guard refused.
pub const LOOP_GUARD: &str = "LOOP_GUARD";

/// The calls of a round by digest, each with the number of times that it gave the same result.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Repeats {
    calls: BTreeMap<u64, Repeat>,
    /// Calls of the round that the loop guard refused so far.
    pub refusals: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Repeat {
    /// Digest of the result.
    result: u64,
    /// Consecutive batches that gave this result.
    times: u32,
    /// The last of those batches. Equal calls within one batch count once.
    batch: Seq,
}

impl Repeats {
    /// Returns how often in a row batches before `batch` got the same result from this call.
    pub(crate) fn times_before(&self, call: u64, batch: Seq) -> u32 {
        self.calls
            .get(&call)
            .map_or(0, |known| known.times - u32::from(known.batch == batch))
    }

    /// Records the result of a call.
    pub(super) fn note(&mut self, call: u64, batch: Seq, outcome: &ToolExecutionResult) {
        if outcome.error_code.as_deref() == Some(LOOP_GUARD) {
            self.refusals = self.refusals.saturating_add(1);
            return;
        }
        let result = match (outcome.is_error, &outcome.error_code) {
            // An error's text names the id of the call and so never repeats; its code does.
            (true, Some(code)) => digest(code.as_bytes()),
            _ => digest(outcome.observation.as_bytes()),
        };
        let known = self.calls.entry(call).or_insert(Repeat {
            result,
            times: 0,
            batch: Seq(0),
        });
        if known.result != result {
            *known = Repeat {
                result,
                times: 1,
                batch,
            };
        } else if known.batch != batch {
            *known = Repeat {
                result,
                times: known.times.saturating_add(1),
                batch,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_once_and_another_result_restarts_the_count() {
        let same = ToolExecutionResult::ok("pending");
        let other = ToolExecutionResult::ok("done");
        let mut repeats = Repeats::default();

        repeats.note(1, Seq(10), &same);
        repeats.note(1, Seq(10), &same);
        repeats.note(1, Seq(20), &same);
        repeats.note(2, Seq(20), &same);
        assert_eq!(
            [
                repeats.times_before(1, Seq(20)),
                repeats.times_before(1, Seq(30)),
                repeats.times_before(2, Seq(30))
            ],
            [1, 2, 1]
        );

        repeats.note(1, Seq(30), &other);
        assert_eq!(repeats.times_before(1, Seq(40)), 1);
        repeats.note(
            1,
            Seq(40),
            &ToolExecutionResult::error_text(LOOP_GUARD, "stop"),
        );
        assert_eq!((repeats.times_before(1, Seq(50)), repeats.refusals), (1, 1));
    }

    #[test]
    fn errors_repeat_by_their_code_since_their_text_names_the_call() {
        let mut repeats = Repeats::default();
        for n in 1..=3 {
            repeats.note(
                1,
                Seq(n),
                &ToolExecutionResult::error(
                    &crate::tool::ToolError::invalid("path is missing"),
                    &format!("call_{n}"),
                ),
            );
        }

        assert_eq!(repeats.times_before(1, Seq(9)), 3);
    }
}
