//! What a provider tells of its limits with an answer. Plain data.

use std::time::Duration;

/// What a credential has left, as its provider sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateLimits {
    /// Requests.
    pub requests: Option<Allowance>,
    /// Tokens, input and output together.
    pub tokens: Option<Allowance>,
    /// Input tokens, where they are counted by themselves.
    pub input_tokens: Option<Allowance>,
    /// Output tokens, where they are counted by themselves.
    pub output_tokens: Option<Allowance>,
}

/// One limit, and what is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowance {
    /// The limit.
    pub limit: Option<u64>,
    /// What is left.
    pub remaining: u64,
    /// Time until all of it is there again.
    pub reset: Option<Duration>,
}

impl RateLimits {
    /// Whether nothing was told.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Allowance {
    /// About how long until `units` are there, if nothing is left; `None` if something is, or nobody knows. Providers fill up steadily.
    pub fn until(&self, units: u64) -> Option<Duration> {
        let reset = self.reset.filter(|_| self.remaining == 0)?;
        match self.limit.filter(|limit| *limit > 0) {
            Some(limit) => Some(reset.mul_f64((units.clamp(1, limit) as f64 / limit as f64).min(1.0))),
            None => Some(reset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_allowance_comes_back_bit_by_bit() {
        let spent = Allowance { limit: Some(50), remaining: 0, reset: Some(Duration::from_secs(60)) };

        assert_eq!(spent.until(1), Some(Duration::from_millis(1200)));
        assert_eq!(spent.until(900), Some(Duration::from_secs(60)));
        assert_eq!(Allowance { limit: None, ..spent }.until(1), Some(Duration::from_secs(60)));
        assert_eq!(Allowance { remaining: 1, ..spent }.until(1), None);
        assert_eq!(Allowance { reset: None, ..spent }.until(1), None);
    }
}
