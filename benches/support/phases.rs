//! Compares sides in alternating phases, A B A B, so that other load on the machine affects all of
//! them alike, and takes the median.
#![allow(dead_code, reason = "each bench needs some of it")]

use std::{
    future::Future,
    time::{Duration, Instant},
};

use super::process;

/// The cost of one phase.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cost {
    pub(crate) cpu: Duration,
    pub(crate) wall: Duration,
    /// Units of work in the phase: turns or tokens.
    pub(crate) done: usize,
}

impl Cost {
    /// CPU microseconds per unit.
    pub(crate) fn cpu_us(self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.done as f64
    }

    /// Wall-clock microseconds per unit.
    pub(crate) fn wall_us(self) -> f64 {
        self.wall.as_secs_f64() * 1e6 / self.done as f64
    }

    /// Units per second.
    pub(crate) fn rate(self) -> f64 {
        self.done as f64 / self.wall.as_secs_f64()
    }
}

/// Measures a future that returns how many units it completed.
pub(crate) async fn measure(run: impl Future<Output = usize>) -> Cost {
    let cpu = process::cpu();
    let began = Instant::now();
    let done = run.await;
    Cost {
        cpu: process::cpu().saturating_sub(cpu),
        wall: began.elapsed(),
        done,
    }
}

/// The costs of one side, one for each phase.
#[derive(Default)]
pub(crate) struct Side(Vec<Cost>);

impl Side {
    pub(crate) fn add(&mut self, cost: Cost) {
        self.0.push(cost);
    }

    /// The median phase by CPU per unit.
    pub(crate) fn median(&self) -> Cost {
        middle(&self.0, |cost| cost.cpu_us())
    }

    /// The median phase by wall time per unit.
    pub(crate) fn median_wall(&self) -> Cost {
        middle(&self.0, |cost| cost.wall_us())
    }

    /// The lowest and the highest CPU per unit.
    pub(crate) fn spread(&self) -> (f64, f64) {
        let each = self.0.iter().map(|cost| cost.cpu_us());
        (
            each.clone().fold(f64::INFINITY, f64::min),
            each.fold(0.0, f64::max),
        )
    }
}

fn middle(costs: &[Cost], by: impl Fn(&Cost) -> f64) -> Cost {
    let mut costs = costs.to_vec();
    costs.sort_by(|a, b| by(a).total_cmp(&by(b)));
    costs[costs.len() / 2]
}

/// Returns the median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the time below which `part` of all times lie.
pub(crate) fn percentile(mut times: Vec<Duration>, part: f64) -> Duration {
    times.sort_unstable();
    times[((times.len() as f64 * part) as usize).min(times.len() - 1)]
}

/// The arguments of the bench, without those that cargo adds and the mark before them.
pub(crate) fn arguments() -> Vec<String> {
    std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench" && argument != "--")
        .collect()
}

/// Returns the number after a flag, or `usual`.
pub(crate) fn number(flag: &str, usual: usize) -> usize {
    let arguments = arguments();
    let given = arguments
        .windows(2)
        .find(|pair| pair[0] == flag)
        .map(|pair| pair[1].parse().expect("a number"));
    given.unwrap_or(usual)
}

/// Returns the word after a flag.
pub(crate) fn word_after(flag: &str) -> Option<String> {
    let arguments = arguments();
    let found = arguments.windows(2).find(|pair| pair[0] == flag);
    found.map(|pair| pair[1].clone())
}

/// Whether a row is measured: all are unless a flag names one.
pub(crate) fn is_wanted(flag: &str, name: &str) -> bool {
    word_after(flag).is_none_or(|wanted| wanted == name)
}

/// A runtime with two workers, as on the machine of the figures in the documentation.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}
