//! When a server that failed may be started again. Pure: times are durations since any fixed instant.

use std::time::Duration;

/// The pause after the first failure; it doubles with every further one.
const FIRST: Duration = Duration::from_millis(500);

/// The longest pause: a server that comes back is used within a minute, one that does not costs a start a minute at most.
const LONGEST: Duration = Duration::from_secs(60);

/// A connection that held this long was a good one: counting begins anew.
const GOOD: Duration = Duration::from_secs(60);

/// Failures in a row of one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// Notes that it failed at `now` after it had run for `held` (nothing, if it never began).
    pub(super) fn failed(&mut self, now: Duration, held: Duration) {
        self.failures = if held >= GOOD { 1 } else { self.failures.saturating_add(1) };
        let pause = FIRST.saturating_mul(2_u32.saturating_pow(self.failures - 1)).min(LONGEST);
        self.until = now + pause;
    }

    /// How long it must still be left alone; `None` if it may be started.
    pub(super) fn wait(&self, now: Duration) -> Option<Duration> {
        (self.failures > 0).then(|| self.until.saturating_sub(now)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pauses_double_up_to_a_minute() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.wait(ms(0)), None);

        let mut now = ms(1000);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            backoff.failed(now, ms(10));
            let wait = backoff.wait(now).unwrap();
            pauses.push(wait.as_millis());
            now += wait;
            assert_eq!(backoff.wait(now), None);
        }

        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000]);
    }

    #[test]
    fn a_connection_that_held_begins_the_count_anew() {
        let mut backoff = Backoff::default();
        for at in 0..6 {
            backoff.failed(ms(at), ms(0));
        }

        backoff.failed(ms(100_000), GOOD);

        assert_eq!(backoff.wait(ms(100_000)), Some(FIRST));
    }

    #[test]
    fn no_number_of_failures_overflows() {
        let mut backoff = Backoff { failures: u32::MAX, until: ms(0) };

        backoff.failed(ms(5), ms(0));

        assert_eq!(backoff.wait(ms(5)), Some(LONGEST));
    }
}
