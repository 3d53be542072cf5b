//! A wall clock that does not jump. When the system clock deviates from elapsed time, the steady
//! clock approaches it at a bounded rate.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Clock;
use crate::time::Timestamp;

/// Deviation from elapsed time that is taken over at once; adjustments of this size expire nothing.
const TOLERANCE_MS: u64 = 5 * 60 * 1000;

/// Another clock without its jumps. After a jump it runs at double or half speed until it agrees
/// again. Data that must be kept for a day is therefore kept for at least half a day, whatever
/// happens to the system clock.
pub struct SteadyClock {
    clock: Arc<dyn Clock>,
    since: Instant,
    shown: Mutex<Shown>,
}

/// The last time returned, and when.
#[derive(Debug, Clone, Copy)]
struct Shown {
    wall: u64,
    at: Duration,
}

impl SteadyClock {
    /// Creates a clock that starts at the current time of `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shown = Shown {
            wall: clock.now().0,
            at: Duration::ZERO,
        };
        Self {
            clock,
            since: Instant::now(),
            shown: Mutex::new(shown),
        }
    }
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        let wall = self.clock.now().0;
        let at = self.since.elapsed();
        let mut shown = self.shown.lock();
        let gone_by = u64::try_from(at.saturating_sub(shown.at).as_millis()).unwrap_or(u64::MAX);
        *shown = Shown {
            wall: follow(shown.wall, gone_by, wall),
            at: shown.at.saturating_add(Duration::from_millis(gone_by)),
        };
        Timestamp(shown.wall)
    }
}

/// Returns the next time to show. `shown` is the last time, `gone_by` the elapsed milliseconds
/// since, `wall` the system clock.
fn follow(shown: u64, gone_by: u64, wall: u64) -> u64 {
    let expected = shown.saturating_add(gone_by);
    if wall.abs_diff(expected) <= TOLERANCE_MS {
        wall
    } else if wall > expected {
        wall.min(expected.saturating_add(gone_by))
    } else {
        wall.max(shown.saturating_add(gone_by / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ManualClock, SeededEntropy};

    const HOUR: u64 = 60 * 60 * 1000;

    #[tokio::test(start_paused = true)]
    async fn small_adjustments_are_followed_at_once_and_jumps_at_a_bounded_pace() {
        let wall = Arc::new(ManualClock::at(Timestamp(1000 * HOUR)));
        let steady = SteadyClock::new(wall.clone());

        assert_eq!(steady.now(), Timestamp(1000 * HOUR));
        assert_eq!(
            (wall.advance_ms(4 * 60 * 1000), steady.now()),
            (wall.now(), wall.now())
        );
        wall.set(Timestamp(1000 * HOUR + 9000 * HOUR));
        assert_eq!(
            steady.now().ms_since(Timestamp(1000 * HOUR)),
            4 * 60 * 1000,
            "a year ahead: it stays"
        );
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(
            steady.now().ms_since(Timestamp(1000 * HOUR)),
            4 * 60 * 1000 + 2 * HOUR
        );
        wall.set(Timestamp(HOUR));
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(
            steady.now().ms_since(Timestamp(1000 * HOUR)),
            4 * 60 * 1000 + 2 * HOUR + HOUR / 2,
            "long ago: it goes on, slower"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_any_jump_it_is_right_again_and_never_goes_back_by_more_than_an_adjustment() {
        for seed in 0..100u64 {
            let dice = SeededEntropy::new(seed);
            let random =
                || u64::from_le_bytes(crate::ports::Entropy::bytes(&dice)[..8].try_into().unwrap());
            let wall = Arc::new(ManualClock::at(Timestamp(1_000_000 * HOUR)));
            let steady = SteadyClock::new(wall.clone());
            let mut before = steady.now();
            let began = Instant::now();

            for _ in 0..50 {
                if random().is_multiple_of(7) {
                    let hours = random() % 20_000;
                    wall.set(Timestamp(if hours.is_multiple_of(2) {
                        wall.now().0 + hours * HOUR
                    } else {
                        wall.now().0.saturating_sub(hours * HOUR)
                    }));
                }
                let ms = random() % HOUR;
                tokio::time::advance(Duration::from_millis(ms)).await;
                wall.advance_ms(ms);
                let now = steady.now();
                assert!(
                    before.ms_since(now) <= TOLERANCE_MS
                        && now.ms_since(before) <= 2 * ms + TOLERANCE_MS,
                    "seed {seed}"
                );
                before = now;
            }

            // While it deviates, the steady clock gains at least half an hour per hour.
            let off = wall.now().0.abs_diff(steady.now().0);
            let ms = off * 2 + HOUR;
            tokio::time::advance(Duration::from_millis(ms)).await;
            wall.advance_ms(ms);
            assert_eq!(
                steady.now(),
                wall.now(),
                "seed {seed}, after {:?}",
                began.elapsed()
            );
        }
    }
}
