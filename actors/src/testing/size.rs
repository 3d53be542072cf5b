//! How much randomized and repeated tests try: as many cases as the run's size says.
//!
//! `cargo test` answers in minutes, so it tries a share of the cases. `CALLBOARD_GATE=1`, which
//! `.ci/run` sets, tries all that a merge takes; `CALLBOARD_LONG=1` tries many times as many, for
//! hours. The larger one wins if both are set.

/// The size of a run of tests, read from the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestSize {
    /// `cargo test` without a variable.
    Usual,
    /// `CALLBOARD_GATE` is set.
    Gate,
    /// `CALLBOARD_LONG` is set.
    Long,
}

impl TestSize {
    /// The size of this run.
    #[must_use]
    pub fn of_this_run() -> Self {
        let is_set = |name| std::env::var_os(name).is_some();
        if is_set("CALLBOARD_LONG") {
            Self::Long
        } else if is_set("CALLBOARD_GATE") {
            Self::Gate
        } else {
            Self::Usual
        }
    }

    /// Whether this run is a long one.
    #[must_use]
    pub fn is_long() -> bool {
        Self::of_this_run() == Self::Long
    }

    /// Selects a number of cases, or another value, by the size of this run.
    pub fn pick<T>(usual: T, gate: T, long: T) -> T {
        match Self::of_this_run() {
            Self::Usual => usual,
            Self::Gate => gate,
            Self::Long => long,
        }
    }
}
