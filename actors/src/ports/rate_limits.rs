//! Rate limits that a provider reports with an answer.

use std::time::Duration;

/// The remaining allowances of a credential, as reported by its provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimits {
    /// Requests; `None` if not reported, as for all fields.
    pub requests: Option<Allowance>,
    /// Tokens, input and output together.
    pub tokens: Option<Allowance>,
    /// Input tokens, where the provider limits them separately.
    pub input_tokens: Option<Allowance>,
    /// Output tokens, where the provider limits them separately.
    pub output_tokens: Option<Allowance>,
}

/// One limit and its remaining part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowance {
    /// The whole limit.
    pub limit: Option<u64>,
    /// The remaining part.
    pub remaining: u64,
    /// Time until the whole limit is available again.
    pub reset: Option<Duration>,
}

impl RateLimits {
    /// Whether the provider reported no limit.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Allowance {
    /// Estimates the time until `units` are available, when nothing remains. `None` if something
    /// remains or the reset is unknown. Assumes a steady refill.
    pub fn until(&self, units: u64) -> Option<Duration> {
        let reset = self.reset.filter(|_| self.remaining == 0)?;
        match self.limit.filter(|limit| *limit > 0) {
            Some(limit) => {
                Some(reset.mul_f64((units.clamp(1, limit) as f64 / limit as f64).min(1.0)))
            }
            None => Some(reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_allowance_comes_back_bit_by_bit() {
        let spent = Allowance {
            limit: Some(50),
            remaining: 0,
            reset: Some(Duration::from_secs(60)),
        };

        assert_eq!(spent.until(1), Some(Duration::from_millis(1200)));
        assert_eq!(spent.until(900), Some(Duration::from_secs(60)));
        assert_eq!(
            Allowance {
                limit: None,
                ..spent
            }
            .until(1),
            Some(Duration::from_secs(60))
        );
        assert_eq!(
            Allowance {
                remaining: 1,
                ..spent
            }
            .until(1),
            None
        );
        assert_eq!(
            Allowance {
                reset: None,
                ..spent
            }
            .until(1),
            None
        );
    }
}
