//! Bugs that are planted on purpose: the checker must find each, and its seed must replay it. Where a
//! bug can be expressed in a port of the world, it is; the others are hooks that only the tests of
//! the kernel compile.

use super::{
    plan::Plan,
    run::{Ended, run},
};

pub(super) use crate::planted::Bug;

use crate::testing::TestSize;

/// Seeds within which each bug must be found, and how often its seed is replayed in the gate and in a usual run.
const SEEDS: u64 = 1000;
const REPLAYS: usize = 10;
const REPLAYS_USUALLY: usize = 2;

fn breaks(ended: &Ended, promise: &str) -> bool {
    ended
        .violations
        .iter()
        .any(|broken| broken.contains(promise))
}

/// Finds a seed whose run keeps every promise without the bug, and breaks this one with it.
fn find(bug: Bug, promise: &str) -> (u64, Ended) {
    for seed in 0..SEEDS {
        let ended = run(Plan::new(seed).with_bug(bug));
        if !breaks(&ended, promise) {
            continue;
        }
        let without = run(Plan::new(seed));
        if without.violations.is_empty() && without.figures.helped == 0 {
            return (seed, ended);
        }
    }
    panic!("{bug:?} was not found in {SEEDS} seeds");
}

/// Checks that the bug is found by the promise it breaks, and that its seed replays it.
fn check(bug: Bug, promise: &str) {
    let (seed, found) = find(bug, promise);
    eprintln!("{bug:?}: seed {seed}: {:?}", found.violations);

    for _ in 0..TestSize::pick(REPLAYS_USUALLY, REPLAYS, REPLAYS) {
        let again = run(Plan::new(seed).with_bug(bug));
        assert_eq!(
            (again.digest, &again.violations),
            (found.digest, &found.violations)
        );
    }
}

#[test]
fn a_store_that_acknowledges_early_is_found() {
    check(Bug::AcknowledgesEarly, "was accepted and is lost");
}

#[test]
fn a_permit_that_a_cancelled_call_keeps_is_found() {
    check(Bug::KeepsCancelledPermit, "calls running");
}

#[test]
fn a_second_start_of_a_once_tool_is_found() {
    check(Bug::RepeatsOnce, "was started twice");
}

#[test]
fn a_lost_last_event_is_found() {
    check(Bug::LosesLastEvent, "without its last event");
}

#[test]
fn a_skipped_result_of_a_cancelled_call_is_found() {
    check(Bug::SkipsCancelledResult, "is not valid");
}

#[test]
fn a_doubled_prompt_is_found() {
    check(Bug::ForgetsClientKeys, "times");
}

#[test]
fn a_round_that_stays_open_is_found() {
    check(Bug::LeavesRoundsOpen, "in the end");
}

#[test]
fn an_overfilled_inbox_is_found() {
    check(Bug::OverfillsInbox, "the inbox holds");
}
