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
pub(crate) struct Breaker {
    failures: u32,
    open_until: Option<Duration>,
    /// The probe under way.
    probe: Option<ProbeToken>,
    /// Probes begun so far; the next token.
    probes: u64,
    /// Probes that failed since the last success.
    failed_probes: u32,
}

/// Identifies a probe, so that no other call speaks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeToken(u64);

/// The answer to a call that asks to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// The call may start.
    Closed,
    /// The call may start as the only one; its result closes the breaker or opens it again.
    Probe(ProbeToken),
    /// The call is refused; the next probe is allowed after this duration.
    Open(Duration),
}

impl Permission {
    /// The token of a probe, to be passed with its result; `None` for any other call.
    pub(crate) fn probe(self) -> Option<ProbeToken> {
        match self {
            Self::Probe(token) => Some(token),
            Self::Closed | Self::Open(_) => None,
        }
    }
}

impl Breaker {
    /// Asks whether a call may start at `now`.
    pub(crate) fn request(&mut self, now: Duration) -> Permission {
        match self.open_until {
            None => Permission::Closed,
            Some(until) if now < until => Permission::Open(until - now),
            Some(_) if self.probe.is_some() => Permission::Open(Duration::from_secs(1)),
            Some(_) => {
                let token = ProbeToken(self.probes);
                self.probes += 1;
                self.probe = Some(token);
                Permission::Probe(token)
            }
        }
    }

    /// How long the breaker still refuses every call; `None` if it is closed or due for a probe.
    pub(crate) fn open_for(&self, now: Duration) -> Option<Duration> {
        self.open_until
            .and_then(|until| until.checked_sub(now))
            .filter(|left| !left.is_zero())
    }

    /// How many probes failed since the last success.
    pub(crate) fn failed_probes(&self) -> u32 {
        self.failed_probes
    }

    /// Records a success, which closes the breaker.
    pub(crate) fn succeeded(&mut self) {
        *self = Self {
            probes: self.probes,
            ..Self::default()
        };
    }

    /// Records a failure at `now` of a call that had `probe`. A failed probe opens the breaker
    /// again. While the breaker is open, other failures count for nothing: their calls began before.
    pub(crate) fn failed(
        &mut self,
        config: &BreakerConfig,
        now: Duration,
        probe: Option<ProbeToken>,
    ) {
        if self.open_until.is_some() {
            if self.is_probe(probe) {
                self.failed_probes = self.failed_probes.saturating_add(1);
                self.open_until = Some(now + config.open_for);
                self.probe = None;
            }
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= config.failures {
            self.open_until = Some(now + config.open_for);
        }
    }

    /// Records that a call that had `probe` ended without evidence about the other side, such as a
    /// canceled one. After a probe the next call may probe.
    pub(crate) fn abandoned(&mut self, probe: Option<ProbeToken>) {
        if self.is_probe(probe) {
            self.probe = None;
        }
    }

    fn is_probe(&self, probe: Option<ProbeToken>) -> bool {
        probe.is_some() && self.probe == probe
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

        breaker.failed(&config, at(0), None);
        assert_eq!(breaker.request(at(0)), Permission::Closed);
        breaker.failed(&config, at(1), None);
        assert_eq!(breaker.request(at(2)), Permission::Open(at(9)));
        let probe = breaker.request(at(11)).probe();
        assert!(probe.is_some());
        assert!(matches!(breaker.request(at(11)), Permission::Open(_)));
        breaker.failed(&config, at(12), probe);
        assert_eq!(breaker.failed_probes(), 1);
        assert_eq!(breaker.request(at(13)), Permission::Open(at(9)));
        assert!(breaker.request(at(22)).probe().is_some());
        breaker.succeeded();
        assert_eq!(breaker.failed_probes(), 0);
        assert_eq!(breaker.request(at(22)), Permission::Closed);
    }

    #[test]
    fn a_call_that_is_no_probe_neither_ends_a_probe_nor_keeps_the_breaker_open() {
        let config = BreakerConfig {
            failures: 1,
            open_for: Duration::from_secs(10),
        };
        let at = Duration::from_secs;
        let mut breaker = Breaker::default();
        breaker.failed(&config, at(0), None);

        breaker.failed(&config, at(9), None); // A call that began before.
        let probe = breaker.request(at(10)).probe();
        assert!(probe.is_some(), "a late failure keeps no breaker open");
        breaker.abandoned(None);
        assert!(matches!(breaker.request(at(10)), Permission::Open(_)));
        breaker.abandoned(probe);

        let next = breaker.request(at(10)).probe();
        assert!(next.is_some() && next != probe);
        breaker.failed(&config, at(11), probe);
        assert!(
            matches!(breaker.request(at(11)), Permission::Open(_)),
            "an ended probe speaks for no other"
        );
        assert_eq!(breaker.failed_probes(), 0);
    }

    /// Checks a state of an exploration, and all states that follow it within `depth` steps.
    /// `calls` are the open calls; a probe counts as stale once another call closed the breaker.
    fn explore(
        breaker: &Breaker,
        calls: &[(Option<ProbeToken>, bool)],
        now: Duration,
        depth: u32,
        states: &mut u64,
    ) {
        let config = BreakerConfig {
            failures: 2,
            open_for: Duration::from_secs(10),
        };
        *states += 1;
        // Whatever happened: when all calls have ended and the pause is over, a call may start.
        let mut later = breaker.clone();
        calls.iter().for_each(|(probe, _)| later.abandoned(*probe));
        let permission = later.request(now + config.open_for);
        assert!(
            !matches!(permission, Permission::Open(_)),
            "{breaker:?} refuses for ever"
        );
        if depth == 0 {
            return;
        }
        let mut next = breaker.clone();
        let mut with = calls.to_vec();
        match next.request(now) {
            Permission::Closed => with.push((None, false)),
            Permission::Probe(token) => {
                let second = calls.iter().any(|(probe, stale)| probe.is_some() && !stale);
                assert!(!second, "two probes at once: {breaker:?} {calls:?}");
                with.push((Some(token), false));
            }
            Permission::Open(left) => assert!(left <= config.open_for && !left.is_zero()),
        }
        if with.len() <= 3 {
            explore(&next, &with, now, depth - 1, states);
        }
        for ended in 0..calls.len() {
            let mut rest = calls.to_vec();
            let (probe, _) = rest.remove(ended);
            let mut failed = breaker.clone();
            failed.failed(&config, now, probe);
            explore(&failed, &rest, now, depth - 1, states);
            let mut abandoned = breaker.clone();
            abandoned.abandoned(probe);
            explore(&abandoned, &rest, now, depth - 1, states);
            let mut closed = breaker.clone();
            closed.succeeded();
            assert_eq!(closed.clone().request(now), Permission::Closed);
            rest.iter_mut().for_each(|(_, stale)| *stale = true);
            explore(&closed, &rest, now, depth - 1, states);
        }
        let later = now + Duration::from_secs(5);
        explore(breaker, calls, later, depth - 1, states);
    }

    #[test]
    fn in_every_order_of_results_one_probe_runs_and_no_breaker_stays_open() {
        let mut states = 0;

        explore(&Breaker::default(), &[], Duration::ZERO, 8, &mut states);

        assert!(states > 50_000, "{states}");
    }
}
