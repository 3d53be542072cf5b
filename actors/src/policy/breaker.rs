//! A circuit breaker: opens after repeated failures, then lets one probe through after a pause. The
//! probe's result closes the breaker or opens it again.
//!
//! Pure.

use std::time::Duration;

/// When to open and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Consecutive failures that open the breaker.
    pub failures: u32,
    /// How long the breaker refuses calls before it allows a probe.
    pub open_for: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failures: 10,
            open_for: Duration::from_secs(10),
        }
    }
}

/// The state of a breaker. Times are durations since any fixed instant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Breaker {
    failures: u32,
    open_until: Option<Duration>,
    probing: bool,
    /// Probes that failed since the last success.
    failed_probes: u32,
}

/// The answer to a call that asks to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// The call may start.
    Closed,
    /// The call may start as the only one; its result closes the breaker or opens it again.
    Probe,
    /// The call is refused; the next probe is allowed after this duration.
    Open(Duration),
}

impl Breaker {
    /// Asks whether a call may start at `now`.
    pub fn request(&mut self, now: Duration) -> Permission {
        match self.open_until {
            None => Permission::Closed,
            Some(until) if now < until => Permission::Open(until - now),
            Some(_) if self.probing => Permission::Open(Duration::from_secs(1)),
            Some(_) => {
                self.probing = true;
                Permission::Probe
            }
        }
    }

    /// How long the breaker still refuses every call; `None` if it is closed or due for a probe.
    pub fn open_for(&self, now: Duration) -> Option<Duration> {
        self.open_until
            .and_then(|until| until.checked_sub(now))
            .filter(|left| !left.is_zero())
    }

    /// How many probes failed since the last success.
    pub fn failed_probes(&self) -> u32 {
        self.failed_probes
    }

    /// Records a success, which closes the breaker.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records a failure at `now`. A failed probe opens the breaker at once.
    pub fn failed(&mut self, config: &BreakerConfig, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        self.failed_probes = self.failed_probes.saturating_add(self.probing.into());
        if self.probing || self.failures >= config.failures {
            self.open_until = Some(now + config.open_for);
            self.probing = false;
        }
    }

    /// Records a call that ended without evidence about the other side, such as a cancelled one.
    /// The next call may probe.
    pub fn abandoned(&mut self) {
        self.probing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_probes_with_one_call_and_closes_on_success() {
        let config = BreakerConfig {
            failures: 2,
            open_for: Duration::from_secs(10),
        };
        let at = Duration::from_secs;
        let mut breaker = Breaker::default();

        breaker.failed(&config, at(0));
        assert_eq!(breaker.request(at(0)), Permission::Closed);
        breaker.failed(&config, at(1));
        assert_eq!(breaker.request(at(2)), Permission::Open(at(9)));
        assert_eq!(breaker.request(at(11)), Permission::Probe);
        assert!(matches!(breaker.request(at(11)), Permission::Open(_)));
        breaker.failed(&config, at(12));
        assert_eq!(breaker.failed_probes(), 1);
        assert_eq!(breaker.request(at(13)), Permission::Open(at(9)));
        assert_eq!(breaker.request(at(22)), Permission::Probe);
        breaker.succeeded();
        assert_eq!(breaker.failed_probes(), 0);
        assert_eq!(breaker.request(at(22)), Permission::Closed);
    }
}
