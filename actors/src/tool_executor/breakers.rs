//! One circuit breaker per tool and tenant. A tool that fails repeatedly is not called for a while.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::RunResult;
use crate::{
    policy::{Breaker, BreakerConfig, Permission, ProbeToken},
    ports::ToolSpec,
    tool::{ToolError, ToolErrorType},
};

/// The breakers of a tenant's tools: at most one per tool of the host.
pub(super) struct Breakers {
    since: Instant,
    by_tool: Mutex<HashMap<String, Breaker>>,
}

impl Default for Breakers {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            by_tool: Mutex::default(),
        }
    }
}

/// What the result of an attempt says about the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Works,
    Fails,
    Nothing,
}

fn sign(result: Option<&RunResult>) -> Sign {
    match result {
        None | Some(RunResult::Output(_) | RunResult::Activation(_)) => Sign::Works,
        Some(RunResult::TimedOut { .. } | RunResult::Panicked { .. }) => Sign::Fails,
        Some(RunResult::Cancelled | RunResult::NotBegun) => Sign::Nothing,
        // An error caused by the arguments or by missing permission shows that the tool works.
        Some(RunResult::Error(error)) if error.kind.is_permanent() => Sign::Works,
        Some(RunResult::Error(_)) => Sign::Fails,
    }
}

/// The right to make one attempt. Reports the result to the breaker, also when it is dropped before
/// the attempt ends.
pub(super) struct Attempt<'a> {
    breakers: &'a Breakers,
    tool: &'a str,
    config: &'a BreakerConfig,
    probe: Option<ProbeToken>,
    reported: bool,
}

impl Breakers {
    /// Asks the breaker of a tool for permission to make an attempt.
    pub(super) fn request<'a>(&'a self, spec: &'a ToolSpec) -> Result<Attempt<'a>, RunResult> {
        let permission = self.with(spec.name(), |breaker, now| breaker.request(now));
        match permission {
            Permission::Closed | Permission::Probe(_) => Ok(Attempt {
                breakers: self,
                tool: spec.name(),
                config: &spec.breaker,
                probe: permission.probe(),
                reported: false,
            }),
            Permission::Open(wait) => {
                let message = format!(
                    "{} failed {} times in a row and is left alone for another {} s; do without it, or try again later",
                    spec.name(),
                    spec.breaker.failures,
                    wait.as_secs().max(1)
                );
                Err(RunResult::Error(
                    ToolError::new(ToolErrorType::DependencyError, message)
                        .code("BREAKER_OPEN")
                        .not_started(),
                ))
            }
        }
    }

    fn with<T>(&self, tool: &str, change: impl FnOnce(&mut Breaker, Duration) -> T) -> T {
        let mut by_tool = self.by_tool.lock();
        if !by_tool.contains_key(tool) {
            by_tool.insert(tool.to_owned(), Breaker::default());
        }
        let mut idle = Breaker::default();
        change(
            by_tool.get_mut(tool).unwrap_or(&mut idle),
            self.since.elapsed(),
        )
    }
}

impl Attempt<'_> {
    /// Reports the result of the attempt; `None` means success.
    pub(super) fn ended(mut self, result: Option<&RunResult>) {
        self.reported = true;
        let (config, probe) = (self.config, self.probe);
        self.breakers
            .with(self.tool, |breaker, now| match sign(result) {
                Sign::Works => breaker.succeeded(),
                Sign::Fails => breaker.failed(config, now, probe),
                Sign::Nothing => breaker.abandoned(probe),
            });
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.reported {
            self.breakers
                .with(self.tool, |breaker, _| breaker.abandoned(self.probe));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::RawJson;

    fn fails(breakers: &Breakers, spec: &ToolSpec, result: &RunResult) {
        breakers
            .request(spec)
            .unwrap_or_else(|_| panic!("the breaker is open"))
            .ended(Some(result));
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_lets_one_probe_through() {
        let spec = ToolSpec::new("flaky", "", RawJson::empty_object());
        let breakers = Breakers::default();
        let bad = RunResult::Error(ToolError::failed("down"));
        for _ in 0..4 {
            fails(&breakers, &spec, &bad);
        }
        fails(
            &breakers,
            &spec,
            &RunResult::Error(ToolError::invalid("not the tool's fault")),
        ); // Resets the count.
        for _ in 0..5 {
            fails(&breakers, &spec, &bad);
        }

        let Err(RunResult::Error(error)) = breakers.request(&spec) else {
            panic!("it is open")
        };
        assert_eq!(
            (error.code.as_str(), error.not_started),
            ("BREAKER_OPEN", true)
        );
        tokio::time::advance(Duration::from_secs(30)).await;
        let probe = breakers.request(&spec).ok();
        assert!(
            probe.is_some() && breakers.request(&spec).is_err(),
            "one probe, alone"
        );
        drop(probe); // Cancelled: another attempt may probe.
        breakers
            .request(&spec)
            .unwrap_or_else(|_| panic!("a probe"))
            .ended(None);
        assert!(breakers.request(&spec).is_ok() && breakers.request(&spec).is_ok());
    }
}
