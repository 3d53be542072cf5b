//! Compares two runs, paired by task and trial.
//!
//! Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    figures::RunFigures,
    result::{EvalResult, RunInfo, Status},
    statistics::{Paired, distribution::t_quantile, mean, paired, standard_error},
};

/// The comparison of run B with run A.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Run A, the base.
    pub a: RunInfo,
    /// Run B.
    pub b: RunInfo,
    /// What differs between the requests of the two runs.
    pub differs: Vec<String>,
    /// Passing, paired.
    pub passes: Paired,
    /// Scores, paired.
    pub scores: Paired,
    /// Tokens of B in proportion to A.
    pub tokens: Option<Ratio>,
    /// Cost of B in proportion to A.
    pub cost: Option<Ratio>,
    /// Time of B in proportion to A.
    pub seconds: Option<Ratio>,
    /// Each compared task.
    pub tasks: Vec<ComparedTask>,
    /// Tasks that are not compared, with the reason.
    pub left_out: Vec<String>,
    /// The verdict in one sentence.
    pub verdict: String,
}

/// A proportion with its interval: the geometric mean over tasks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// B divided by A.
    pub ratio: f64,
    /// Ends of the interval; `None` for fewer than two tasks.
    pub low: Option<f64>,
    /// The other end.
    pub high: Option<f64>,
}

/// One task in both runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedTask {
    /// Its id.
    pub id: String,
    /// Pairs of trials.
    pub pairs: usize,
    /// Pass rate of A over the pairs.
    pub a: f64,
    /// Pass rate of B over the pairs.
    pub b: f64,
}

/// Compares B with A.
pub fn compare(a: &RunFigures, b: &RunFigures) -> Comparison {
    let mut left_out = Vec::new();
    let mut tasks = Vec::new();
    let mut pairs_of = Vec::new();
    for task in &a.run.tasks {
        match b.run.tasks.iter().find(|other| other.id == task.id) {
            None => left_out.push(format!("{}: only in {}", task.id, a.run.id)),
            Some(other) if other.hash != task.hash => {
                left_out.push(format!(
                    "{}: the task was changed between the runs",
                    task.id
                ));
            }
            Some(_) => {
                let pairs = pairs(&task.id, a, b);
                if pairs.is_empty() {
                    left_out.push(format!("{}: no trial ended in both runs", task.id));
                    continue;
                }
                let rate = |of: fn(&(&EvalResult, &EvalResult)) -> f64| {
                    mean(&pairs.iter().map(of).collect::<Vec<_>>())
                };
                tasks.push(ComparedTask {
                    id: task.id.clone(),
                    pairs: pairs.len(),
                    a: rate(|(a, _)| passed(a)),
                    b: rate(|(_, b)| passed(b)),
                });
                pairs_of.push(pairs);
            }
        }
    }
    for task in &b.run.tasks {
        if !a.run.tasks.iter().any(|other| other.id == task.id) {
            left_out.push(format!("{}: only in {}", task.id, b.run.id));
        }
    }
    let over = |value: fn(&EvalResult) -> f64| {
        let tasks: Vec<Vec<(f64, f64)>> = pairs_of
            .iter()
            .map(|pairs| pairs.iter().map(|(a, b)| (value(a), value(b))).collect())
            .collect();
        paired(&tasks)
    };
    let passes = over(passed);
    Comparison {
        differs: differs(&a.run, &b.run),
        verdict: verdict(&a.run.id, &b.run.id, &passes),
        scores: over(|result| result.score),
        tokens: ratio(&pairs_of, |result| Some(result.tokens.total as f64)),
        cost: ratio(&pairs_of, |result| result.cost_usd),
        seconds: ratio(&pairs_of, |result| Some(result.duration_ms as f64)),
        passes,
        a: a.run.clone(),
        b: b.run.clone(),
        tasks,
        left_out,
    }
}

fn passed(result: &EvalResult) -> f64 {
    f64::from(u8::from(result.status == Status::Passed))
}

fn pairs<'r>(
    task: &str,
    a: &'r RunFigures,
    b: &'r RunFigures,
) -> Vec<(&'r EvalResult, &'r EvalResult)> {
    let of = |figures: &'r RunFigures| -> BTreeMap<u32, &'r EvalResult> {
        figures
            .results
            .iter()
            .filter(|result| result.task == task)
            .map(|result| (result.trial, result))
            .collect()
    };
    let others = of(b);
    of(a)
        .into_iter()
        .filter_map(|(trial, one)| others.get(&trial).map(|other| (one, *other)))
        .collect()
}

/// The geometric mean over tasks of B's mean divided by A's; `None` without a positive value.
#[allow(clippy::cast_precision_loss, reason = "a count of tasks")]
fn ratio(
    tasks: &[Vec<(&EvalResult, &EvalResult)>],
    value: fn(&EvalResult) -> Option<f64>,
) -> Option<Ratio> {
    let logs: Vec<f64> = tasks
        .iter()
        .filter_map(|pairs| {
            let values: Option<Vec<(f64, f64)>> = pairs
                .iter()
                .map(|(a, b)| Some((value(a)?, value(b)?)))
                .collect();
            let values = values?;
            let a = mean(&values.iter().map(|(a, _)| *a).collect::<Vec<_>>());
            let b = mean(&values.iter().map(|(_, b)| *b).collect::<Vec<_>>());
            (a > 0.0 && b > 0.0).then(|| (b / a).ln())
        })
        .collect();
    if logs.is_empty() {
        return None;
    }
    let middle = mean(&logs);
    let half =
        standard_error(&logs).map(|error| t_quantile(0.975, logs.len() as f64 - 1.0) * error);
    Some(Ratio {
        ratio: middle.exp(),
        low: half.map(|half| (middle - half).exp()),
        high: half.map(|half| (middle + half).exp()),
    })
}

fn differs(a: &RunInfo, b: &RunInfo) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |what: &str, a: &str, b: &str| {
        if a != b {
            found.push(format!("{what}: {a} → {b}"));
        }
    };
    add("solver", &a.solver, &b.solver);
    add("provider", &a.provider, &b.provider);
    add("model", &a.model, &b.model);
    let short = |hash: &str| hash.chars().take(8).collect::<String>();
    add(
        "system prompt",
        &short(&a.system_hash),
        &short(&b.system_hash),
    );
    let judge = |run: &RunInfo| run.judge.clone().unwrap_or_else(|| "none".into());
    add("judge", &judge(a), &judge(b));
    add("version", &a.version, &b.version);
    if let (Some(left), Some(right)) = (a.settings.as_object(), b.settings.as_object()) {
        for key in left
            .keys()
            .chain(right.keys().filter(|key| !left.contains_key(*key)))
        {
            let shown = |of: &serde_json::Map<String, serde_json::Value>| {
                of.get(key)
                    .map_or_else(|| "none".into(), ToString::to_string)
            };
            add(key, &shown(left), &shown(right));
        }
    }
    found
}

/// The verdict in one sentence. It names a better run only if the interval excludes 0.
fn verdict(a: &str, b: &str, found: &Paired) -> String {
    let points = |share: f64| format!("{:.1} percentage points", 100.0 * share.abs());
    let (Some(low), Some(high)) = (found.low, found.high) else {
        return "fewer than two tasks are in both runs: nothing can be said".into();
    };
    if found.is_significant() {
        let (better, worse) = if found.difference > 0.0 {
            (b, a)
        } else {
            (a, b)
        };
        return format!(
            "{better} passes {} more than {worse}",
            points(found.difference)
        );
    }
    let seen = match found.smallest {
        Some(smallest) if smallest > 1.0 => "; this comparison is too small to find any".to_owned(),
        Some(smallest) => format!(
            "; this comparison finds differences from {} on",
            points(smallest)
        ),
        None => String::new(),
    };
    format!(
        "no difference is shown: it lies between {:+.1} and {:+.1} percentage points{seen}",
        100.0 * low,
        100.0 * high
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evals::figures::{
        figures,
        tests::{result, run},
    };

    fn of(id: &str, passed: impl Fn(usize, u32) -> bool) -> RunFigures {
        let info = run(id, 6, 3);
        let mut results = Vec::new();
        for (at, task) in info.tasks.iter().enumerate() {
            for trial in 1..=3 {
                let status = if passed(at, trial) {
                    Status::Passed
                } else {
                    Status::Failed
                };
                results.push(result(&task.id, trial, status));
            }
        }
        figures(info, results)
    }

    #[test]
    fn a_run_is_called_better_only_if_the_interval_excludes_zero() {
        let half = of("half", |task, _| task % 2 == 0);
        let all = of("all", |_, trial| trial != 3);
        let none = of("none", |_, _| false);

        let clear = compare(&none, &all);
        let open = compare(&half, &all);

        assert!(
            clear
                .verdict
                .starts_with("all passes 66.7 percentage points more than none")
        );
        assert!(
            open.verdict.starts_with("no difference is shown: "),
            "{}",
            open.verdict
        );
        assert!(
            open.verdict.contains("finds differences from "),
            "{}",
            open.verdict
        );
        assert!(compare(&all, &none).verdict.starts_with("all passes 66.7"));
    }

    #[test]
    fn changed_and_missing_tasks_are_left_out_with_the_reason() {
        let a = of("a", |_, _| true);
        let mut b = of("b", |_, _| true);
        b.run.tasks[0].hash = "other".into();
        b.run.tasks[1].id = "z".into();
        b.results.retain(|result| result.task != "c");
        b.run.model = "new".into();

        let found = compare(&a, &b);

        assert_eq!(found.tasks.len(), 3);
        assert_eq!(
            found.left_out,
            [
                "a: the task was changed between the runs",
                "b: only in a",
                "c: no trial ended in both runs",
                "z: only in b"
            ]
        );
        assert_eq!(found.differs, ["model: rules → new"]);
        assert_eq!(found.tokens.unwrap().ratio, 1.0);
    }
}
