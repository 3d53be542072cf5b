//! Statistics of trials: how often a solver passes, how sure that is, and whether two runs differ.
//!
//! Trials of one task resemble each other, so tasks are the sample and trials only sharpen it.
//!
//! Pure.

pub mod distribution;
pub mod interval;
pub mod paired;
pub mod pass_at;

pub use interval::{Interval, clustered, wilson};
pub use paired::{Paired, paired};
pub use pass_at::{pass_at_k, pass_hat_k};

/// The level of every interval.
pub const LEVEL: f64 = 0.95;

/// The mean; 0 for no values.
#[allow(clippy::cast_precision_loss, reason = "a count of trials")]
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        0.0
    } else {
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// The standard error of the mean; `None` for fewer than two values.
#[allow(clippy::cast_precision_loss, reason = "a count of trials")]
pub fn standard_error(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let middle = mean(values);
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    let n = values.len() as f64;
    // Sums of equal values differ in their last bits, which must not count as variation.
    Some((squares / (n - 1.0) / n).sqrt()).map(|error| if error < 1e-12 { 0.0 } else { error })
}

#[cfg(test)]
mod simulation;
