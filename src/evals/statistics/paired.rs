//! Two runs over the same tasks: is one better, and what difference could they have shown?
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{
    LEVEL,
    distribution::{sign_test, t_quantile, t_two_sided},
    mean, standard_error,
};

/// The power for which the smallest visible difference is given.
pub const POWER: f64 = 0.8;

/// The comparison of run B with run A, paired by task and trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Tasks with at least one pair.
    pub tasks: usize,
    /// Pairs of trials.
    pub pairs: usize,
    /// Mean of B minus A over tasks.
    pub difference: f64,
    /// Ends of the interval of the difference; `None` for fewer than two tasks.
    pub low: Option<f64>,
    /// The other end.
    pub high: Option<f64>,
    /// Probability of a difference at least as large if the runs do not differ (t test over tasks).
    pub p: Option<f64>,
    /// The smallest difference that a comparison like this finds in 80 % of cases. `None` for fewer
    /// than two tasks, or if all tasks differ equally, so that nothing shows how much they vary.
    pub smallest: Option<f64>,
    /// Tasks in which B is better, worse and equal.
    pub better: u32,
    /// See `better`.
    pub worse: u32,
    /// See `better`.
    pub equal: u32,
    /// Probability of so uneven a count of tasks by chance (exact sign test).
    pub sign_p: f64,
}

impl Paired {
    /// Whether the interval excludes 0.
    pub fn is_significant(&self) -> bool {
        self.p.is_some_and(|p| p < 1.0 - LEVEL)
    }
}

/// Compares pairs of scores `(A, B)`, a list for each task.
#[allow(clippy::cast_precision_loss, reason = "a count of tasks")]
pub fn paired(tasks: &[Vec<(f64, f64)>]) -> Paired {
    let differences: Vec<f64> = tasks
        .iter()
        .filter(|pairs| !pairs.is_empty())
        .map(|pairs| mean(&pairs.iter().map(|(a, b)| b - a).collect::<Vec<_>>()))
        .map(|difference| {
            if difference.abs() < 1e-12 {
                0.0
            } else {
                difference
            }
        })
        .collect();
    let difference = mean(&differences);
    let count = |wanted: fn(f64) -> bool| {
        u32::try_from(differences.iter().filter(|value| wanted(**value)).count())
            .unwrap_or(u32::MAX)
    };
    let (better, worse) = (count(|value| value > 0.0), count(|value| value < 0.0));
    let error = standard_error(&differences);
    let df = differences.len() as f64 - 1.0;
    let half = error.map(|error| t_quantile(f64::midpoint(1.0, LEVEL), df) * error);
    let p = error.map(|error| match error {
        _ if difference == 0.0 => 1.0,
        0.0 => 0.0,
        error => t_two_sided(difference.abs() / error, df),
    });
    Paired {
        tasks: differences.len(),
        pairs: tasks.iter().map(Vec::len).sum(),
        difference,
        low: half.map(|half| (difference - half).max(-1.0)),
        high: half.map(|half| (difference + half).min(1.0)),
        p,
        smallest: error
            .filter(|error| *error > 0.0)
            .zip(half)
            .map(|(error, half)| half + t_quantile(POWER, df) * error),
        better,
        worse,
        equal: count(|value| value == 0.0),
        sign_p: sign_test(better, worse),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_that_of_a_hand_calculation() {
        // Differences 0.2, 0.4, 0.0, 0.2: mean 0.2, standard error 0.0816.
        let tasks: Vec<_> = [0.2, 0.4, 0.0, 0.2]
            .iter()
            .map(|more| vec![(0.5, 0.5 + more)])
            .collect();

        let found = paired(&tasks);

        assert!((found.difference - 0.2).abs() < 1e-9);
        assert!((found.p.unwrap() - 0.0917).abs() < 1e-3, "{found:?}");
        assert!((found.high.unwrap() - 0.4598).abs() < 1e-3, "{found:?}");
        assert!((found.smallest.unwrap() - 0.3397).abs() < 1e-3, "{found:?}");
        assert_eq!((found.better, found.worse, found.equal), (3, 0, 1));
        assert!(!found.is_significant());
    }

    #[test]
    fn equal_runs_do_not_differ_and_a_constant_gain_does() {
        let equal = paired(&vec![vec![(1.0, 1.0); 3]; 5]);
        let gain = paired(&vec![vec![(0.0, 1.0); 3]; 5]);

        assert_eq!((equal.p, equal.smallest), (Some(1.0), None));
        assert!(gain.is_significant() && gain.difference == 1.0);
        assert_eq!(
            paired(&[vec![(0.0, 1.0)]]).p,
            None,
            "one task shows no variation"
        );
        assert!(!paired(&[]).is_significant());
    }
}
