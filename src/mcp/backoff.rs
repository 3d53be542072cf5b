//! Restart delays of a failed MCP server. Pure: times are durations since any fixed instant.

use std::time::Duration;

/// Delay after the first failure; it doubles with every further one.
const FIRST: Duration = Duration::from_millis(500);

/// Longest delay. A server that recovers is used again within a minute; one that does not costs at
/// most one start attempt per minute.
const LONGEST: Duration = Duration::from_secs(60);

/// A connection that lasted this long resets the failure count.
const GOOD: Duration = Duration::from_secs(60);

/// Consecutive failures of one server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// Records a failure at `now`. `held` is how long the connection lasted; zero if it was never
    /// established.
    pub(super) fn failed(&mut self, now: Duration, held: Duration) {
        self.failures = if held >= GOOD {
            1
        } else {
            self.failures.saturating_add(1)
        };
        let pause = FIRST
            .saturating_mul(2_u32.saturating_pow(self.failures - 1))
            .min(LONGEST);
        self.until = now + pause;
    }

    /// Remaining delay before the next start; `None` if the server may be started now.
    pub(super) fn wait(&self, now: Duration) -> Option<Duration> {
        (self.failures > 0)
            .then(|| self.until.saturating_sub(now))
            .filter(|left| !left.is_zero())
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

        assert_eq!(
            pauses,
            [
                500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000
            ]
        );
    }

    #[test]
    fn a_connection_that_lasted_resets_the_count() {
        let mut backoff = Backoff::default();
        for at in 0..6 {
            backoff.failed(ms(at), ms(0));
        }

        backoff.failed(ms(100_000), GOOD);

        assert_eq!(backoff.wait(ms(100_000)), Some(FIRST));
    }

    #[test]
    fn no_number_of_failures_overflows() {
        let mut backoff = Backoff {
            failures: u32::MAX,
            until: ms(0),
        };

        backoff.failed(ms(5), ms(0));

        assert_eq!(backoff.wait(ms(5)), Some(LONGEST));
    }
}
