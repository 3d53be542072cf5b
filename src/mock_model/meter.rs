//! Rates and concurrency. Calls beyond a limit are refused, with the headers that providers send.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::MockModelSettings;

/// A token bucket that refills completely in one minute.
#[derive(Debug)]
struct Bucket {
    size: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_minute: f64) -> Self {
        Self {
            size: per_minute,
            level: per_minute,
            at: Instant::now(),
        }
    }

    fn fill(&mut self, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.size / 60.0;
        (self.level, self.at) = ((self.level + gained).min(self.size), now);
    }

    /// Time until it holds this amount.
    fn until(&self, amount: f64) -> Duration {
        Duration::from_secs_f64(
            ((amount.min(self.size) - self.level) / self.size.max(1.0) * 60.0).clamp(0.0, 60.0),
        )
    }
}

/// The values of one limit for response headers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limit {
    /// `requests` or `tokens`.
    pub(super) what: &'static str,
    pub(super) size: u64,
    pub(super) left: u64,
    /// Time until it is full again.
    pub(super) full_in: Duration,
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    /// Name of the limit that was reached.
    pub(super) what: &'static str,
    pub(super) retry_after: Duration,
}

/// A running call. Dropping it ends the call.
#[derive(Debug)]
pub(super) struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All limits of the server.
#[derive(Debug)]
pub(super) struct Meter {
    running: Arc<AtomicUsize>,
    running_max: usize,
    requests: Option<Mutex<Bucket>>,
    tokens: Option<Mutex<Bucket>>,
}

impl Meter {
    pub(super) fn new(settings: &MockModelSettings) -> Self {
        Self {
            running: Arc::default(),
            running_max: settings.concurrency.unwrap_or(usize::MAX),
            requests: settings
                .requests_per_minute
                .map(|n| Mutex::new(Bucket::new(f64::from(n)))),
            tokens: settings
                .tokens_per_minute
                .map(|n| Mutex::new(Bucket::new(n as f64))),
        }
    }

    /// Admits a call of this many tokens, or returns when to retry.
    pub(super) fn admit(&self, tokens: usize) -> Result<Running, Refused> {
        if self.running.fetch_add(1, Ordering::AcqRel) >= self.running_max {
            self.running.fetch_sub(1, Ordering::AcqRel);
            return Err(Refused {
                what: "concurrent requests",
                retry_after: Duration::from_secs(1),
            });
        }
        let running = Running(self.running.clone());
        let now = Instant::now();
        let mut requests = self.requests.as_ref().map(|bucket| bucket.lock());
        let mut in_tokens = self.tokens.as_ref().map(|bucket| bucket.lock());
        let amounts = [
            (requests.as_deref_mut(), 1.0, "requests"),
            (in_tokens.as_deref_mut(), tokens as f64, "tokens"),
        ];
        let mut taken = Vec::with_capacity(2);
        for (bucket, amount, what) in amounts {
            let Some(bucket) = bucket else { continue };
            bucket.fill(now);
            if bucket.level < amount.min(bucket.size) {
                return Err(Refused {
                    what,
                    retry_after: bucket.until(amount),
                });
            }
            taken.push((bucket, amount));
        }
        // Take from the buckets only if every bucket admits the call.
        taken
            .into_iter()
            .for_each(|(bucket, amount)| bucket.level -= amount);
        Ok(running)
    }

    /// Number of running calls.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// The current state of the limits.
    pub(super) fn limits(&self) -> impl Iterator<Item = Limit> {
        let read = |bucket: &Option<Mutex<Bucket>>, what| {
            let mut bucket = bucket.as_ref()?.lock();
            bucket.fill(Instant::now());
            let full_in = bucket.until(bucket.size);
            Some(Limit {
                what,
                size: bucket.size as u64,
                left: bucket.level.max(0.0) as u64,
                full_in,
            })
        };
        [
            read(&self.requests, "requests"),
            read(&self.tokens, "tokens"),
        ]
        .into_iter()
        .flatten()
    }
}

/// The time after `wait`, as RFC 3339 in whole seconds, rounded up.
pub(super) fn rfc3339_in(wait: Duration) -> String {
    let then = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        + wait;
    rfc3339(then.as_secs() + u64::from(then.subsec_nanos() > 0))
}

/// Converts a Unix time to a date. Days count from 0000-03-01, so a leap day is the last of its
/// year.
fn rfc3339(unix: u64) -> String {
    let days = unix / 86_400 + 719_468;
    let second = unix % 86_400;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(settings: MockModelSettings) -> Meter {
        Meter::new(&settings)
    }

    #[tokio::test(start_paused = true)]
    async fn a_minutes_worth_may_come_at_once_and_then_the_rate_holds() {
        let meter = meter(MockModelSettings {
            requests_per_minute: Some(60),
            ..MockModelSettings::default()
        });

        assert_eq!((0..100).filter(|_| meter.admit(1).is_ok()).count(), 60);
        assert_eq!(
            meter.admit(1).err(),
            Some(Refused {
                what: "requests",
                retry_after: Duration::from_secs(1)
            })
        );
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((0..100).filter(|_| meter.admit(1).is_ok()).count(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_one_limit_refuses_costs_the_other_nothing() {
        let meter = meter(MockModelSettings {
            requests_per_minute: Some(60),
            tokens_per_minute: Some(100),
            ..MockModelSettings::default()
        });
        drop(meter.admit(100));

        assert_eq!(
            meter.admit(50).err().map(|refused| refused.what),
            Some("tokens")
        );
        let left: Vec<u64> = meter.limits().map(|limit| limit.left).collect();
        assert_eq!(left, [59, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_counts_until_it_is_over() {
        let meter = meter(MockModelSettings {
            concurrency: Some(1),
            ..MockModelSettings::default()
        });
        let first = meter.admit(1);

        assert!(meter.admit(1).is_err());
        drop(first);
        assert!(meter.admit(1).is_ok());
    }

    #[test]
    fn times_are_written_as_others_write_them() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_826_500), "2000-02-29T12:15:00Z");
        assert_eq!(rfc3339(4_107_542_399), "2100-02-28T23:59:59Z");
    }
}
