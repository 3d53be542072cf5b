//! Kill loops: the real program is killed with SIGKILL again and again, at random instants, also
//! while it starts. The checker knows only what clients received, what the model was asked, and
//! what commands did to files.
//!
//! There are some 25 kills together, 100 with `CALLBOARD_GATE=1` and 5,000 with `CALLBOARD_LONG=1`.
//! `CALLBOARD_SEED=n` repeats the random choices.

mod checker;
mod client;
mod commands;
mod errors;
mod hosts;
mod model;
mod serve;

use std::sync::Arc;

use callboard_actors::testing::TestSize;

use parking_lot::Mutex;

/// Violations of a promise. They are collected, so that one run shows all of them.
#[derive(Clone, Default)]
struct Broken(Arc<Mutex<Vec<String>>>);

impl Broken {
    fn add(&self, what: String) {
        self.0.lock().push(what);
    }

    fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.add(what());
        }
    }

    fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Fails the test if there is a violation. Prints the first ones.
    #[track_caller]
    fn none(&self, story: &str) {
        let broken = self.0.lock();
        let first: Vec<&String> = broken.iter().take(20).collect();
        assert!(
            broken.is_empty(),
            "{} promises broken ({story}): {first:#?}",
            broken.len()
        );
    }
}

/// How long a program lives before it is killed. Most lives are short, and some are long enough for
/// commands to end.
fn life(random: &mut crate::support::SplitMix) -> std::time::Duration {
    let most_ms = if random.below(4) == 0 { 1_500 } else { 300 };
    std::time::Duration::from_millis(random.below(most_ms) as u64)
}

/// The number of kills of a loop: a share of the gate's 100.
fn kills(of_a_hundred: usize) -> usize {
    TestSize::pick(of_a_hundred.div_ceil(4), of_a_hundred, of_a_hundred * 50)
}

/// The lines of a file that commands append to.
fn lines(file: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

/// Processes whose command line has this word.
fn alive(word: &str) -> usize {
    let of = |entry: &std::fs::DirEntry| std::fs::read(entry.path().join("cmdline"));
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| {
        of(entry).is_ok_and(|line| line.split(|byte| *byte == 0).any(|w| w == word.as_bytes()))
    })
    .count()
}

/// Whether commands can be run in a sandbox here; prints a note if they cannot.
fn has_sandbox(home: &crate::cli::Home, test: &str) -> bool {
    let has = home.run(&["tools", "list", "--sandbox", "linux"]).code == Some(0);
    if !has {
        crate::support::skipped(test, "there is no sandbox here");
    }
    has
}
