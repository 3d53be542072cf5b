//! Intervals for a rate: Wilson's for independent trials, and one that takes tasks as the sample.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{LEVEL, distribution::t_quantile, mean, standard_error};

/// An interval within 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether a value lies in it.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// The quantile of the normal distribution for [`LEVEL`].
const Z: f64 = 1.959_963_984_540_054;

/// Wilson's score interval for `passed` of `trials` independent trials; the whole range for none.
///
/// It never leaves 0 to 1, and has a width even if all trials passed.
pub fn wilson(passed: u32, trials: u32) -> Interval {
    if trials == 0 {
        return Interval {
            low: 0.0,
            high: 1.0,
        };
    }
    let n = f64::from(trials);
    score_interval(f64::from(passed) / n, n, Z)
}

fn score_interval(rate: f64, n: f64, z: f64) -> Interval {
    let shrink = 1.0 + z * z / n;
    let middle = (rate + z * z / (2.0 * n)) / shrink;
    let half = z / shrink * (rate * (1.0 - rate) / n + z * z / (4.0 * n * n)).sqrt();
    // At the ends the formula is exact, but its rounded value is not.
    Interval {
        low: if rate <= 0.0 {
            0.0
        } else {
            (middle - half).max(0.0)
        },
        high: if rate >= 1.0 {
            1.0
        } else {
            (middle + half).min(1.0)
        },
    }
}

/// The interval for the mean over tasks like these, from the mean score of each task; `trials` is
/// the number of trials of all tasks. `None` for fewer than two tasks.
///
/// The variation between tasks gives the number of independent trials that these are worth. With
/// that number and Student's t, the interval is Wilson's: a plain t interval covers too little near
/// 0 and 1, and has no width if all trials passed.
#[allow(clippy::cast_precision_loss, reason = "a count of tasks")]
pub fn clustered(tasks: &[f64], trials: usize) -> Option<Interval> {
    let error = standard_error(tasks)?;
    let rate = mean(tasks).clamp(0.0, 1.0);
    let count = tasks.len() as f64;
    let worth = if rate <= 0.0 || rate >= 1.0 {
        // Nothing varied. Each task counts once, as if its trials were copies.
        count
    } else if error == 0.0 {
        trials as f64
    } else {
        (rate * (1.0 - rate) / (error * error)).max(count - 1.0)
    };
    let t = t_quantile(f64::midpoint(1.0, LEVEL), count - 1.0);
    Some(score_interval(rate, worth, t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(interval: Interval, low: f64, high: f64) {
        let close = |a: f64, b: f64| (a - b).abs() < 5e-4;
        assert!(
            close(interval.low, low) && close(interval.high, high),
            "{interval:?}"
        );
    }

    #[test]
    fn wilson_is_that_of_the_books() {
        near(wilson(8, 10), 0.4902, 0.9433);
        near(wilson(10, 10), 0.7225, 1.0);
        near(wilson(0, 10), 0.0, 0.2775);
        near(wilson(0, 0), 0.0, 1.0);
    }

    #[test]
    fn copies_of_trials_do_not_narrow_the_interval_of_tasks() {
        let tasks = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0];

        let one = clustered(&tasks, 6).unwrap();
        let many = clustered(&tasks, 600).unwrap();

        assert_eq!(one, many);
        let independent = wilson(400, 600);
        assert!(many.high - many.low > 4.0 * (independent.high - independent.low));
    }

    #[test]
    fn an_interval_has_a_width_if_all_or_no_trials_passed() {
        let all = clustered(&[1.0; 13], 65).unwrap();
        let none = clustered(&[0.0; 13], 65).unwrap();

        assert!(all.high == 1.0 && all.low < 0.8, "{all:?}");
        assert!(none.low == 0.0 && none.high > 0.2, "{none:?}");
        assert_eq!(clustered(&[1.0], 5), None);
    }
}
