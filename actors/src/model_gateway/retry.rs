//! The retry policy of model calls.
//!
//! Pure.

use std::time::Duration;

use crate::{
    limits::{RETRY_AFTER_MAX, RETRY_AFTER_MIN},
    ports::ProviderError,
};

/// Retries of a model call before its first content. The default is 3 retries, after 1, 2 and 4
/// seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRetryPolicy {
    /// Retries after the first attempt.
    pub max_retries: u32,
    /// Delay before the first retry; doubles with each retry.
    pub initial_delay: Duration,
}

impl Default for ModelRetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 3,
            initial_delay: Duration::from_secs(1),
        }
    }
}

impl ModelRetryPolicy {
    /// Returns the delay before the next attempt, or `None` to give up. `attempt` is the number of
    /// retries so far; `jitter` is in `0.0..1.0`.
    ///
    /// A Retry-After of the provider is never shortened, only lengthened by jitter; above
    /// [`RETRY_AFTER_MAX`] the call fails at once, and below [`RETRY_AFTER_MIN`] it counts as none, so
    /// that the callers of an overloaded server do not return all at once. The policy's own delays are shortened by up to a
    /// quarter, so that callers spread out. A call that the server did not begin with is made again
    /// at once, the first time.
    pub(crate) fn delay(
        &self,
        error: &ProviderError,
        attempt: u32,
        jitter: f64,
    ) -> Option<Duration> {
        if !error.is_retryable() || attempt >= self.max_retries {
            return None;
        }
        if attempt == 0 && matches!(error, ProviderError::NotStarted { .. }) {
            return Some(Duration::ZERO);
        }
        let jitter = jitter.clamp(0.0, 1.0);
        match error.retry_after() {
            Some(asked) if asked > RETRY_AFTER_MAX => None,
            Some(asked) if asked >= RETRY_AFTER_MIN => Some(asked + asked.mul_f64(0.1 * jitter)),
            _ => {
                let delay = self
                    .initial_delay
                    .saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX));
                Some(delay.mul_f64(1.0 - 0.25 * jitter))
            }
        }
    }
}

/// Credit for retries: 10 at the start, and 0.1 for each first attempt. Bounds the extra load when
/// every call fails.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryBucket {
    /// Credit in tenths of a retry, so that 0.1 is exact.
    tenths: u32,
}

/// Capacity in tenths of a retry.
const BUCKET_TENTHS: u32 = 100;

impl Default for RetryBucket {
    fn default() -> Self {
        Self {
            tenths: BUCKET_TENTHS,
        }
    }
}

impl RetryBucket {
    /// Credits a first attempt.
    pub(crate) fn first_call(&mut self) {
        self.tenths = (self.tenths + 1).min(BUCKET_TENTHS);
    }

    /// Takes the credit for one retry. Returns false without enough credit.
    pub(crate) fn take(&mut self) -> bool {
        let enough = self.tenths >= 10;
        if enough {
            self.tenths -= 10;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(retry_after: Option<Duration>) -> ProviderError {
        ProviderError::RateLimited {
            retry_after,
            message: String::new(),
        }
    }

    #[test]
    fn own_delays_double_and_retry_after_is_obeyed() {
        let policy = ModelRetryPolicy::default();

        let own: Vec<_> = (0..4)
            .map(|n| policy.delay(&limited(None), n, 0.0))
            .collect();
        assert_eq!(
            own,
            [
                Some(Duration::from_secs(1)),
                Some(Duration::from_secs(2)),
                Some(Duration::from_secs(4)),
                None
            ]
        );
        assert_eq!(
            policy.delay(&limited(Some(Duration::from_secs(7))), 0, 0.0),
            Some(Duration::from_secs(7))
        );
        assert!(
            policy.delay(&limited(Some(Duration::from_secs(7))), 0, 1.0)
                >= Some(Duration::from_secs(7))
        );
        assert_eq!(
            policy.delay(&limited(Some(Duration::from_secs(61))), 0, 0.0),
            None
        );
        assert_eq!(
            policy.delay(&limited(Some(Duration::ZERO)), 1, 0.0),
            policy.delay(&limited(None), 1, 0.0)
        );
        assert_eq!(
            policy.delay(
                &ProviderError::Auth {
                    message: String::new()
                },
                0,
                0.0
            ),
            None
        );
    }

    #[test]
    fn a_call_that_was_not_begun_is_made_again_at_once_and_then_with_a_delay() {
        let policy = ModelRetryPolicy::default();
        let refused = ProviderError::NotStarted {
            message: String::new(),
        };

        assert_eq!(policy.delay(&refused, 0, 0.0), Some(Duration::ZERO));
        assert_eq!(policy.delay(&refused, 1, 0.0), Some(Duration::from_secs(2)));
        assert_eq!(policy.delay(&refused, 3, 0.0), None);
    }

    #[test]
    fn a_thousand_failing_calls_get_at_most_a_hundred_and_ten_retries() {
        let mut bucket = RetryBucket::default();
        let mut retries = 0;

        for _ in 0..1000 {
            bucket.first_call();
            while bucket.take() {
                retries += 1;
            }
        }

        assert!((100..=110).contains(&retries), "{retries}");
    }
}
