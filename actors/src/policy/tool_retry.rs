//! Decides whether a failed tool call is retried, after which delay, and with which timeout. The
//! effect class decides first: a `once` call is never started again, whatever this policy says.
//!
//! Pure.

use std::time::Duration;

use crate::tool::ToolErrorType;

/// The retry policy of one tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolRetryPolicy {
    /// Retries after the first attempt: with 3 retries a call is executed at most 4 times.
    pub max_retries: u32,
    /// Error classes that are retried.
    pub retry_on: Vec<ToolErrorType>,
    /// Factor by which the delay grows with each retry.
    pub backoff_multiplier: f64,
    /// Delay before the first retry, in milliseconds.
    pub initial_delay_ms: u64,
    /// Longest delay, in milliseconds.
    pub max_delay_ms: u64,
    /// Factor by which the timeout grows with each retry.
    pub timeout_multiplier: f64,
    /// Longest timeout, in milliseconds.
    pub max_timeout_ms: u64,
}

impl Default for ToolRetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 3,
            retry_on: vec![ToolErrorType::Timeout, ToolErrorType::ResourceError],
            backoff_multiplier: 1.5,
            initial_delay_ms: 1000,
            max_delay_ms: 10_000,
            timeout_multiplier: 2.0,
            max_timeout_ms: 300_000,
        }
    }
}

impl ToolRetryPolicy {
    /// No retry at all.
    pub fn never() -> Self {
        Self {
            max_retries: 0,
            ..Self::default()
        }
    }

    /// Whether to retry after `attempt` earlier retries. A call that was denied permission is never
    /// retried, even if `retry_on` lists that class.
    pub(crate) fn should_retry(&self, error: ToolErrorType, attempt: u32) -> bool {
        error != ToolErrorType::PermissionDenied
            && attempt < self.max_retries
            && self.retry_on.contains(&error)
    }

    /// The delay before retry number `attempt`, counted from 0. With the defaults: 1000, 1500,
    /// 2250, 3375, 5062, 7593, 10000 ms, then always 10000 ms.
    pub(crate) fn delay(&self, attempt: u32) -> Duration {
        let ms = self.initial_delay_ms as f64 * self.backoff_multiplier.powf(f64::from(attempt));
        Duration::from_millis(if ms < self.max_delay_ms as f64 {
            ms as u64
        } else {
            self.max_delay_ms
        })
    }

    /// The timeout of retry number `n`, counted from 1. It grows with each retry and is never below
    /// the original timeout.
    pub(crate) fn timeout(&self, original: Duration, n: u32) -> Duration {
        let grown = original.as_millis() as f64 * self.timeout_multiplier.powf(f64::from(n));
        let capped = if grown < self.max_timeout_ms as f64 {
            grown as u64
        } else {
            self.max_timeout_ms
        };
        Duration::from_millis(capped).max(original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_and_timeouts_are_those_of_the_requirements() {
        let policy = ToolRetryPolicy::default();
        let delays: Vec<u128> = (0..8).map(|n| policy.delay(n).as_millis()).collect();
        let timeouts: Vec<u128> = (1..4)
            .map(|n| policy.timeout(Duration::from_secs(120), n).as_millis())
            .collect();

        assert_eq!(delays, [1000, 1500, 2250, 3375, 5062, 7593, 10_000, 10_000]);
        assert_eq!(policy.delay(u32::MAX).as_millis(), 10_000);
        assert_eq!(timeouts, [240_000, 300_000, 300_000]);
        assert_eq!(
            policy.timeout(Duration::from_secs(600), 1),
            Duration::from_secs(600)
        );
        assert!(
            policy.should_retry(ToolErrorType::Timeout, 2)
                && !policy.should_retry(ToolErrorType::Timeout, 3)
        );
        assert!(
            policy.should_retry(ToolErrorType::ResourceError, 2)
                && !policy.should_retry(ToolErrorType::ResourceError, 3)
        );
        assert!(
            !policy.should_retry(ToolErrorType::RateLimit, 0),
            "retry_on decides"
        );
    }

    #[test]
    fn what_was_refused_is_never_tried_again_whatever_the_policy_says() {
        let eager = ToolRetryPolicy {
            retry_on: vec![ToolErrorType::PermissionDenied, ToolErrorType::NotFound],
            ..ToolRetryPolicy::default()
        };

        assert!(
            !eager.should_retry(ToolErrorType::PermissionDenied, 0)
                && eager.should_retry(ToolErrorType::NotFound, 0)
        );
    }
}
