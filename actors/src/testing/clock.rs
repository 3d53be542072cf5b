//! A wall clock that stands still until a test moves it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ports::Clock, time::Timestamp};

/// A clock that a test sets.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.0))
    }

    /// Sets the time. It may go back, as on real clocks.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Advances the time and returns the new time.
    pub fn advance_ms(&self, ms: u64) -> Timestamp {
        Timestamp(self.0.fetch_add(ms, Ordering::Relaxed)).plus_ms(ms)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_only_by_hand() {
        let clock = ManualClock::at(Timestamp(1000));

        assert_eq!(
            (clock.now(), clock.advance_ms(500), clock.now()),
            (Timestamp(1000), Timestamp(1500), Timestamp(1500))
        );
        clock.set(Timestamp(7));
        assert_eq!(clock.now(), Timestamp(7));
    }
}
