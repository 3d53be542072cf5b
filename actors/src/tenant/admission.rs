//! Rate limits and refusals of a tenant. The functions are pure: callers pass monotonic times, in
//! nanoseconds since any fixed instant.
//!
//! A rate is a token bucket that holds one minute's worth and refills steadily. Its whole state is
//! one number, the instant at which it is full again, so taking from it is one compare-and-swap.
//!
//! Pure.

use std::time::Duration;

/// Nanoseconds in the minute that rates refer to.
const MINUTE_NS: u64 = 60_000_000_000;

/// Retry delay where no exact one is known. It is short, because rounds end all the time.
const SOON_MS: u64 = 1000;

/// Retry delay where only a deletion frees room.
const LATER_MS: u64 = 60_000;

/// Why a prompt of a tenant is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// All seats of the tenant are taken.
    Prompts,
    /// The tenant has used up its prompts per minute.
    Requests {
        /// Time until the next prompt is admitted.
        after: Duration,
    },
    /// The tenant has used up its tokens per minute.
    Tokens {
        /// Time until tokens are available again.
        after: Duration,
    },
    /// The prompts under way take all the memory of the tenant.
    Memory,
    /// The prompts under way take all the memory of the host.
    HostMemory,
    /// The tenant has stored its maximum number of conversations.
    Conversations,
    /// The tenant has stored its maximum number of bytes.
    StoredBytes,
    /// The tenant is paused.
    Paused,
    /// The tenant is out of service, or is being erased.
    Removed,
}

impl NotAdmitted {
    /// The limit that was hit, and when to retry, in milliseconds; `None` for a paused or removed
    /// tenant.
    pub(crate) fn bound(&self) -> Option<(&'static str, u64)> {
        match self {
            Self::Prompts => Some(("prompts of this tenant", SOON_MS)),
            Self::Requests { after } => Some(("prompts of this tenant in a minute", ms_up(*after))),
            Self::Tokens { after } => Some(("tokens of this tenant in a minute", ms_up(*after))),
            Self::Memory => Some(("memory of this tenant", SOON_MS)),
            Self::HostMemory => Some(("memory of this host", SOON_MS)),
            Self::Conversations => Some(("conversations of this tenant", LATER_MS)),
            Self::StoredBytes => Some(("stored bytes of this tenant", LATER_MS)),
            Self::Paused | Self::Removed => None,
        }
    }
}

/// Milliseconds, rounded up, so that a retry after this time is admitted.
fn ms_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// How long the bucket takes to refill `cost`.
fn refill_ns(cost: u64, per_minute: u64) -> u64 {
    let ns = u128::from(cost) * u128::from(MINUTE_NS);
    ns.checked_div(u128::from(per_minute))
        .map_or(u64::MAX, |_| {
            u64::try_from(ns.div_ceil(u128::from(per_minute))).unwrap_or(u64::MAX)
        })
}

/// Takes `cost` from a bucket that is full again at `full_at`. Returns the new instant at which it
/// is full.
///
/// # Errors
/// The time until enough is available; nothing is taken then.
pub fn take(full_at: u64, now: u64, cost: u64, per_minute: u64) -> Result<u64, Duration> {
    let after = charge(full_at, now, cost, per_minute);
    let empty = now.saturating_add(MINUTE_NS);
    // A limit of 0 admits nothing. It can be changed at any time, so a retry after a minute makes
    // sense.
    let wait = if per_minute == 0 {
        MINUTE_NS
    } else {
        after.saturating_sub(empty)
    };
    if wait == 0 {
        Ok(after)
    } else {
        Err(Duration::from_nanos(wait))
    }
}

/// Takes `cost` even if the bucket goes into debt. Returns the new instant at which it is full.
pub fn charge(full_at: u64, now: u64, cost: u64, per_minute: u64) -> u64 {
    full_at.max(now).saturating_add(refill_ns(cost, per_minute))
}

/// Converts a bucket to another rate. What was taken stays taken.
pub fn resize(full_at: u64, now: u64, old: u64, new: u64) -> u64 {
    let missing = u128::from(full_at.saturating_sub(now)) * u128::from(old) / u128::from(MINUTE_NS);
    charge(
        0,
        now,
        u64::try_from(missing).unwrap_or(u64::MAX),
        new.max(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SeededEntropy;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_minutes_worth_is_let_in_at_once_and_then_as_it_comes_back() {
        let mut full_at = 0;
        let start = 5 * SECOND;

        let admitted = (0..100)
            .filter(|_| take(full_at, start, 1, 10).map(|at| full_at = at).is_ok())
            .count();

        assert_eq!(admitted, 10);
        assert_eq!(take(full_at, start, 1, 10), Err(Duration::from_secs(6)));
        assert_eq!(
            take(full_at, start + 4 * SECOND, 1, 10),
            Err(Duration::from_secs(2))
        );
        assert!(take(full_at, start + 6 * SECOND, 1, 10).is_ok());
    }

    #[test]
    fn what_was_charged_beyond_the_minute_is_owed() {
        let full_at = charge(0, 0, 30, 10);

        assert_eq!(take(full_at, 0, 1, 10), Err(Duration::from_secs(126)));
        assert!(take(full_at, 126 * SECOND, 1, 10).is_ok());
    }

    #[test]
    fn a_bound_of_zero_refuses_all_with_a_hint_to_retry() {
        assert_eq!(take(0, 0, 1, 0), Err(Duration::from_secs(60)));
        assert_eq!(take(u64::MAX, 7, 1, 0), Err(Duration::from_secs(60)));
    }

    #[test]
    fn another_rate_keeps_what_was_taken() {
        let used_up = charge(0, 0, 10, 10);

        let raised = resize(used_up, 0, 10, 100);
        let lowered = resize(used_up, 0, 10, 5);

        assert_eq!(
            (0..200)
                .scan(raised, |at, _| take(*at, 0, 1, 100)
                    .map(|next| *at = next)
                    .ok())
                .count(),
            90
        );
        assert_eq!(
            take(lowered, 0, 1, 5),
            Err(Duration::from_secs(72)),
            "ten of five are taken"
        );
    }

    #[test]
    fn no_stretch_of_time_lets_in_more_than_a_bucket_and_what_came_back() {
        for seed in 0..200u64 {
            let chance = SeededEntropy::new(seed);
            let random = || {
                u64::from_le_bytes(
                    crate::ports::Entropy::bytes(&chance)[..8]
                        .try_into()
                        .unwrap(),
                )
            };
            let per_minute = random() % 500 + 1;
            let mut now = random() % SECOND;
            let mut full_at = 0;
            let mut admitted = Vec::new();

            for _ in 0..2000 {
                now += random() % (2 * MINUTE_NS / per_minute / 3 + 1);
                match take(full_at, now, 1, per_minute) {
                    Ok(after) => {
                        full_at = after;
                        admitted.push(now);
                    }
                    Err(wait) => {
                        let then = now + u64::try_from(wait.as_nanos()).unwrap();
                        assert!(
                            take(full_at, then, 1, per_minute).is_ok(),
                            "seed {seed}: the hint is no use"
                        );
                        assert!(
                            take(full_at, then - 1, 1, per_minute).is_err(),
                            "seed {seed}: the hint is too long"
                        );
                    }
                }
            }

            for (first, from) in admitted.iter().enumerate().step_by(37) {
                for (last, to) in admitted.iter().enumerate().skip(first).step_by(41) {
                    let came_back =
                        u128::from(to - from) * u128::from(per_minute) / u128::from(MINUTE_NS);
                    let bound = u128::from(per_minute) + came_back + 1;
                    assert!(
                        (last - first + 1) as u128 <= bound,
                        "seed {seed}: {} in {} ns",
                        last - first + 1,
                        to - from
                    );
                }
            }
        }
    }

    #[test]
    fn absurd_figures_never_overflow() {
        for cost in [0, 1, u64::MAX] {
            for per_minute in [0, 1, u64::MAX] {
                for at in [0, 1, u64::MAX] {
                    for now in [0, 1, u64::MAX] {
                        let _ = (
                            take(at, now, cost, per_minute),
                            charge(at, now, cost, per_minute),
                            resize(at, now, cost, per_minute),
                        );
                    }
                }
            }
        }
    }
}
