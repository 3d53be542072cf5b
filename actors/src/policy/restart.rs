//! How often a crashed conversation is activated again: at most 3 times in 60 s, with a pause that
//! doubles each time.
//!
//! Pure.

use std::time::Duration;

/// Restarts allowed within [`WINDOW`].
const RESTARTS_MAX: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Recent crashes of one conversation. Times are durations since any fixed instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RestartHistory {
    crashes: Vec<Duration>,
    ended_in_order: bool,
}

/// What to do after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Start another activation after this pause.
    After(Duration),
    /// Too many crashes: fail the conversation for this duration.
    Fail(Duration),
}

impl RestartHistory {
    /// Records that the last activation ended without a crash.
    pub(crate) fn ended_in_order(&mut self) {
        self.ended_in_order = true;
    }

    /// Whether the last activation ended without a crash.
    pub(crate) fn has_ended_in_order(&self) -> bool {
        self.ended_in_order
    }

    /// Records a crash at `now` and decides what follows.
    pub(crate) fn crashed(&mut self, now: Duration) -> Restart {
        self.ended_in_order = false;
        self.crashes.retain(|at| now.saturating_sub(*at) < WINDOW);
        self.crashes.push(now);
        let n = self.crashes.len();
        if n > RESTARTS_MAX {
            return Restart::Fail(WINDOW);
        }
        Restart::After(FIRST_PAUSE * 2u32.pow(u32::try_from(n - 1).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_crash_within_a_minute_fails_the_conversation() {
        let mut history = RestartHistory::default();
        let at = Duration::from_secs;

        assert_eq!(
            history.crashed(at(0)),
            Restart::After(Duration::from_millis(100))
        );
        assert_eq!(
            history.crashed(at(1)),
            Restart::After(Duration::from_millis(200))
        );
        assert_eq!(
            history.crashed(at(2)),
            Restart::After(Duration::from_millis(400))
        );
        assert_eq!(history.crashed(at(3)), Restart::Fail(at(60)));
        assert!(matches!(history.crashed(at(120)), Restart::After(_)));
    }
}
