//! A token bucket: a limit of N units per minute. Callers pass a monotonic time.
//!
//! Callers take an estimate and settle it when the real figure is known. Settling may leave the
//! level below zero; the debt is paid by waiting.
//!
//! Pure.

use std::time::Duration;

/// Parts of a unit in which the level is kept: the microseconds of a minute, so that refilling is
/// exact.
const PARTS: i128 = 60_000_000;

/// A full bucket holds 1/6 of a minute's units, ten seconds' worth. A bucket of a whole minute
/// would allow twice the rate in the first minute, and a caller that arrives after a burst would
/// wait long.
const BURST_PART: u64 = 6;

/// A bucket that refills steadily.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    per_minute: u64,
    full: u64,
    /// The level, in [`PARTS`] of a unit. Negative while units are owed.
    level: i128,
    /// When the level was last refilled.
    at: Duration,
}

impl TokenBucket {
    /// A full bucket for `per_minute` units per minute. Its capacity is ten seconds' worth, or
    /// `burst_min` if that is more, but at most a minute's worth. A rate of 0 counts as 1.
    pub(crate) fn new(per_minute: u64, burst_min: u64, now: Duration) -> Self {
        let per_minute = per_minute.max(1);
        let full = (per_minute / BURST_PART)
            .max(burst_min.min(per_minute))
            .max(1);
        Self {
            per_minute,
            full,
            level: parts(full),
            at: now,
        }
    }

    /// Changes the rate. The level and any debt are kept, up to the new capacity.
    pub(crate) fn set_rate(&mut self, per_minute: u64, burst_min: u64, now: Duration) {
        self.fill(now);
        let new = Self::new(per_minute, burst_min, self.at);
        let grown = (new.level - parts(self.full)).max(0);
        *self = Self {
            level: (self.level + grown).min(new.level),
            ..new
        };
    }

    /// Units available, rounded down; negative while units are owed.
    pub(crate) fn left(&mut self, now: Duration) -> i64 {
        self.fill(now);
        i64::try_from(self.level.div_euclid(PARTS)).unwrap_or(i64::MIN)
    }

    /// How long to wait until `units` are available; `None` if they are. A request above the
    /// capacity waits for a full bucket.
    pub(crate) fn wait(&mut self, units: u64, now: Duration) -> Option<Duration> {
        self.fill(now);
        let missing = parts(units.min(self.full)) - self.level;
        (missing > 0).then(|| {
            let rate = i128::from(self.per_minute);
            Duration::from_micros(u64::try_from((missing + rate - 1) / rate).unwrap_or(u64::MAX))
        })
    }

    /// Takes units, even if the level goes below zero.
    pub(crate) fn take(&mut self, units: u64) {
        self.level = self.level.saturating_sub(parts(units));
    }

    /// Returns units, up to the capacity.
    pub(crate) fn give_back(&mut self, units: u64) {
        self.level = self
            .level
            .saturating_add(parts(units))
            .min(parts(self.full));
    }

    /// Replaces an estimate that was taken by what was really used.
    pub(crate) fn settle(&mut self, estimated: u64, used: u64) {
        match used.checked_sub(estimated) {
            Some(more) => self.take(more),
            None => self.give_back(estimated - used),
        }
    }

    /// Lowers the level to `left`, as the provider reported it; never raises it.
    pub(crate) fn lower_to(&mut self, left: u64, now: Duration) {
        self.fill(now);
        self.level = self.level.min(parts(left));
    }

    /// Refills for the time since the last call. A time in the past refills nothing.
    fn fill(&mut self, now: Duration) {
        let Some(passed) = now.checked_sub(self.at) else {
            return;
        };
        self.at = now;
        let came = i128::try_from(passed.as_micros())
            .unwrap_or(i128::MAX)
            .saturating_mul(i128::from(self.per_minute));
        self.level = self.level.saturating_add(came).min(parts(self.full));
    }
}

fn parts(units: u64) -> i128 {
    i128::from(units).saturating_mul(PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::splitmix64;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_fills_steadily_and_holds_ten_seconds() {
        let mut bucket = TokenBucket::new(600, 1, at(0));

        assert_eq!(bucket.left(at(0)), 100);
        bucket.take(100);
        assert_eq!(bucket.wait(1, at(0)), Some(Duration::from_millis(100)));
        assert_eq!(bucket.wait(1, Duration::from_millis(100)), None);
        assert_eq!(bucket.left(at(5)), 50);
        assert_eq!(bucket.left(at(500)), 100);
    }

    #[test]
    fn a_small_rate_may_be_used_at_once() {
        assert_eq!(TokenBucket::new(5, 10, at(0)).left(at(0)), 5);
        assert_eq!(TokenBucket::new(50, 10, at(0)).left(at(0)), 10);
        assert_eq!(TokenBucket::new(0, 10, at(0)).left(at(0)), 1);
    }

    #[test]
    fn more_than_it_holds_is_taken_from_a_full_bucket_and_owed() {
        let mut bucket = TokenBucket::new(600, 1, at(0));

        assert_eq!(bucket.wait(1000, at(0)), None);
        bucket.take(1000);

        assert_eq!(bucket.left(at(0)), -900);
        assert_eq!(bucket.wait(1, at(0)), Some(Duration::from_millis(90_100)));
    }

    #[test]
    fn an_estimate_is_settled_both_ways() {
        let mut bucket = TokenBucket::new(600, 1, at(0));
        bucket.take(50);

        bucket.settle(50, 20);
        assert_eq!(bucket.left(at(0)), 80);
        bucket.settle(0, 200);
        assert_eq!(bucket.left(at(0)), -120);
        bucket.settle(1000, 0);
        assert_eq!(
            bucket.left(at(0)),
            100,
            "a refund never fills it beyond the brim"
        );
    }

    #[test]
    fn what_the_provider_says_only_lowers_it() {
        let mut bucket = TokenBucket::new(600, 1, at(0));

        bucket.lower_to(7, at(0));
        assert_eq!(bucket.left(at(0)), 7);
        bucket.lower_to(90, at(0));
        assert_eq!(bucket.left(at(0)), 7);
    }

    #[test]
    fn a_new_rate_keeps_what_is_owed() {
        let mut bucket = TokenBucket::new(600, 1, at(0));
        bucket.take(150);

        bucket.set_rate(1200, 1, at(0));
        assert_eq!(bucket.left(at(0)), 50);
        bucket.set_rate(60, 1, at(0));
        assert_eq!(bucket.left(at(0)), 10);
    }

    #[test]
    fn a_clock_that_jumps_neither_stalls_nor_floods() {
        let mut bucket = TokenBucket::new(600, 1, at(3600));
        bucket.take(100);

        assert_eq!(bucket.left(at(0)), 0, "back");
        assert_eq!(bucket.left(at(3601)), 10, "and on from where it was");
        assert_eq!(
            bucket.left(at(3600 + 365 * 86_400)),
            100,
            "a year on it is full, not more"
        );
        bucket.take(u64::MAX);
        assert!(
            bucket.wait(1, at(3601 + 365 * 86_400)).is_some(),
            "a debt that can never be paid overflows nothing"
        );
        assert_eq!(bucket.wait(1, Duration::MAX), None);
    }

    #[test]
    fn no_minute_sees_more_than_the_rate_and_one_burst() {
        for seed in 0..50 {
            let rate = 10 + splitmix64(seed) % 5000;
            let mut bucket = TokenBucket::new(rate, 1, at(0));
            let mut now = Duration::ZERO;
            let mut taken = Vec::new();

            for step in 0..2000 {
                let units = 1 + splitmix64(seed << 20 | step) % 20;
                now += bucket.wait(units, now).unwrap_or_default();
                bucket.take(units);
                taken.push((now, units));
            }

            for (index, (from, _)) in taken.iter().enumerate().step_by(37) {
                let minute = taken
                    .iter()
                    .skip(index)
                    .take_while(|(when, _)| *when < *from + at(60));
                let sum: u64 = minute.map(|(_, units)| units).sum();
                assert!(
                    sum <= rate + (rate / BURST_PART).max(1) + 20,
                    "seed {seed}: {sum} of {rate}"
                );
            }
        }
    }
}
