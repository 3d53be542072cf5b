//! The figures of a run, from its results.
//!
//! Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    result::{EvalResult, RunInfo, Status},
    statistics::{Interval, clustered, mean, pass_at_k, pass_hat_k, wilson},
};

/// A run with its figures: the model of every report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunFigures {
    /// What the run was asked to do.
    pub run: RunInfo,
    /// Figures of each task, in the order of the run.
    pub tasks: Vec<TaskFigures>,
    /// Figures of all tasks.
    pub total: Total,
    /// All results, by task and trial.
    pub results: Vec<EvalResult>,
}

/// Figures of one task.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskFigures {
    /// Its id.
    pub id: String,
    /// Its difficulty.
    pub difficulty: Option<String>,
    /// Trials that ended.
    pub trials: u32,
    /// Trials that passed.
    pub passed: u32,
    /// Trials that ended with an error.
    pub errors: u32,
    /// Share of the trials that passed.
    pub pass_rate: f64,
    /// Wilson's interval of the rate.
    pub interval: Interval,
    /// Mean score.
    pub score: f64,
    /// Mean tokens of a trial.
    pub tokens: f64,
    /// Mean cost of a trial in US dollars; `None` if no trial has a price.
    pub cost_usd: Option<f64>,
    /// Mean seconds of a trial.
    pub seconds: f64,
    /// Mean model calls of a trial.
    pub model_calls: f64,
    /// Calls of each tool, over all trials.
    pub tools: BTreeMap<String, u32>,
    /// Tool calls whose result was an error.
    pub tool_errors: u32,
    /// Trials in which the solver ran a command after its last edit.
    pub self_verified: u32,
    /// Trials in which it could have: those that edited a file through `file_edit`.
    pub self_verified_of: u32,
}

/// Figures of all tasks of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Total {
    /// Trials that the run has.
    pub planned: usize,
    /// Trials that ended.
    pub trials: u32,
    /// Trials that passed.
    pub passed: u32,
    /// Trials that ended with an error; they count as failed.
    pub errors: u32,
    /// Tasks in which every trial passed.
    pub tasks_passed: u32,
    /// Mean pass rate of the tasks.
    pub pass_rate: f64,
    /// Its interval with tasks as the sample; `None` for fewer than two tasks.
    pub interval: Option<Interval>,
    /// Wilson's interval if all trials were independent.
    pub trials_interval: Interval,
    /// Mean score of the tasks.
    pub score: f64,
    /// Its interval with tasks as the sample.
    pub score_interval: Option<Interval>,
    /// pass@k and pass^k, means over the tasks, for each `k` up to the trials that every task has.
    pub at: Vec<At>,
    /// Tokens of all trials.
    pub tokens: u64,
    /// Cost of all trials; `None` if no trial has a price.
    pub cost_usd: Option<f64>,
    /// Tokens of the judge.
    pub judge_tokens: u64,
    /// Cost of the judge.
    pub judge_cost_usd: Option<f64>,
    /// Seconds of all trials.
    pub seconds: f64,
}

/// pass@k and pass^k.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct At {
    /// The number of trials drawn.
    pub k: u32,
    /// Probability that at least one passes.
    pub any: f64,
    /// Probability that all pass.
    pub all: f64,
}

/// Computes the figures of a run.
pub fn figures(run: RunInfo, mut results: Vec<EvalResult>) -> RunFigures {
    let place: BTreeMap<&str, usize> = (0..)
        .zip(&run.tasks)
        .map(|(at, task)| (task.id.as_str(), at))
        .collect();
    results.retain(|result| place.contains_key(result.task.as_str()) && result.trial <= run.trials);
    results.sort_by_key(|result| (place.get(result.task.as_str()).copied(), result.trial));
    let tasks: Vec<TaskFigures> = run
        .tasks
        .iter()
        .map(|task| {
            let of: Vec<&EvalResult> = results
                .iter()
                .filter(|result| result.task == task.id)
                .collect();
            task_figures(task.id.clone(), task.difficulty.clone(), &of)
        })
        .collect();
    let total = total(&run, &tasks, &results);
    RunFigures {
        run,
        tasks,
        total,
        results,
    }
}

fn count(results: &[&EvalResult], wanted: impl Fn(&EvalResult) -> bool) -> u32 {
    u32::try_from(results.iter().filter(|result| wanted(result)).count()).unwrap_or(u32::MAX)
}

#[allow(clippy::cast_precision_loss, reason = "tokens and milliseconds")]
fn task_figures(id: String, difficulty: Option<String>, of: &[&EvalResult]) -> TaskFigures {
    let trials = count(of, |_| true);
    let passed = count(of, |result| result.status == Status::Passed);
    let mean_of = |value: fn(&EvalResult) -> f64| {
        mean(&of.iter().map(|result| value(result)).collect::<Vec<_>>())
    };
    let costs: Vec<f64> = of.iter().filter_map(|result| result.cost_usd).collect();
    let mut tools = BTreeMap::new();
    for (tool, calls) in of.iter().flat_map(|result| &result.tools) {
        *tools.entry(tool.clone()).or_default() += calls;
    }
    TaskFigures {
        id,
        difficulty,
        trials,
        passed,
        errors: count(of, |result| result.status == Status::Error),
        pass_rate: mean_of(|result| f64::from(u8::from(result.status == Status::Passed))),
        interval: wilson(passed, trials),
        score: mean_of(|result| result.score),
        tokens: mean_of(|result| result.tokens.total as f64),
        cost_usd: (!costs.is_empty()).then(|| mean(&costs)),
        seconds: mean_of(|result| result.duration_ms as f64 / 1000.0),
        model_calls: mean_of(|result| f64::from(result.model_calls)),
        tools,
        tool_errors: of.iter().map(|result| result.tool_errors).sum(),
        self_verified: count(of, |result| result.self_verified == Some(true)),
        self_verified_of: count(of, |result| result.self_verified.is_some()),
    }
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds")]
fn total(run: &RunInfo, tasks: &[TaskFigures], results: &[EvalResult]) -> Total {
    // A task without a trial says nothing yet; `planned` shows that it is missing.
    let begun: Vec<&TaskFigures> = tasks.iter().filter(|task| task.trials > 0).collect();
    let rates: Vec<f64> = begun.iter().map(|task| task.pass_rate).collect();
    let scores: Vec<f64> = begun.iter().map(|task| task.score).collect();
    let trials: u32 = begun.iter().map(|task| task.trials).sum();
    let passed: u32 = begun.iter().map(|task| task.passed).sum();
    let sum = |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum());
    Total {
        planned: run.trials_planned(),
        trials,
        passed,
        errors: begun.iter().map(|task| task.errors).sum(),
        tasks_passed: u32::try_from(
            begun
                .iter()
                .filter(|task| task.passed == task.trials)
                .count(),
        )
        .unwrap_or(u32::MAX),
        pass_rate: mean(&rates),
        interval: clustered(&rates, results.len()),
        trials_interval: wilson(passed, trials),
        score: mean(&scores),
        score_interval: clustered(&scores, results.len()),
        at: at(&begun),
        tokens: added(results.iter().map(|result| result.tokens.total)),
        cost_usd: sum(results
            .iter()
            .filter_map(|result| result.cost_usd)
            .collect()),
        judge_tokens: added(results.iter().map(|result| result.judge_tokens)),
        judge_cost_usd: sum(results
            .iter()
            .filter_map(|result| result.judge_cost_usd)
            .collect()),
        seconds: results
            .iter()
            .fold(0.0, |sum, result| sum + result.duration_ms as f64 / 1000.0),
    }
}

/// The sum of counts, which a damaged store may hold at any size.
fn added(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// pass@k and pass^k for 1, 2, 4, … and for all trials that every task has.
fn at(tasks: &[&TaskFigures]) -> Vec<At> {
    let most = tasks.iter().map(|task| task.trials).min().unwrap_or(0);
    let mut ks: Vec<u32> = std::iter::successors(Some(1u32), |k| k.checked_mul(2))
        .take_while(|k| *k < most)
        .collect();
    ks.extend(Some(most).filter(|most| *most > 0));
    ks.into_iter()
        .map(|k| {
            let over = |of: fn(u32, u32, u32) -> Option<f64>| {
                mean(
                    &tasks
                        .iter()
                        .filter_map(|task| of(task.passed, task.trials, k))
                        .collect::<Vec<_>>(),
                )
            };
            At {
                k,
                any: over(pass_at_k),
                all: over(pass_hat_k),
            }
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::evals::result::{RunTask, Tokens};

    /// A run of tasks `a`, `b`, … with the given number of trials.
    pub(in crate::evals) fn run(id: &str, tasks: usize, trials: u32) -> RunInfo {
        RunInfo {
            id: id.into(),
            created_ms: 1_795_300_000_000,
            data_set: "suite".into(),
            solver: "model".into(),
            provider: "offline".into(),
            model: "rules".into(),
            system_hash: "0".repeat(64),
            settings: serde_json::json!({}),
            judge: None,
            trials,
            version: "0.1.0".into(),
            tasks: (b'a'..)
                .take(tasks)
                .map(|letter| RunTask {
                    id: char::from(letter).to_string(),
                    difficulty: Some("easy".into()),
                    tags: Vec::new(),
                    grader: "script".into(),
                    hash: "h".into(),
                })
                .collect(),
        }
    }

    /// A result with a cost of a cent and 100 tokens.
    pub(in crate::evals) fn result(task: &str, trial: u32, status: Status) -> EvalResult {
        EvalResult {
            task: task.into(),
            trial,
            status,
            score: f64::from(u8::from(status == Status::Passed)),
            reason: "so".into(),
            error_code: None,
            judge: None,
            stop_reason: "end_turn".into(),
            answer: "done".into(),
            output: String::new(),
            tokens: Tokens {
                total: 100,
                ..Tokens::default()
            },
            cost_usd: Some(0.01),
            judge_tokens: 0,
            judge_cost_usd: None,
            model_calls: 2,
            tools: [("bash".to_owned(), 1)].into(),
            tool_errors: 0,
            self_verified: Some(trial == 1),
            duration_ms: 500,
            attempts: 1,
            tenant: "t".into(),
            conversation: "c".into(),
            finished_ms: 1_795_300_000_000,
        }
    }

    #[test]
    fn figures_are_those_of_a_hand_calculation() {
        let results = vec![
            result("b", 2, Status::Error),
            result("a", 1, Status::Passed),
            result("a", 2, Status::Passed),
            result("b", 1, Status::Passed),
        ];

        let figures = figures(run("r", 3, 2), results);

        let total = &figures.total;
        assert_eq!(
            (total.planned, total.trials, total.passed, total.errors),
            (6, 4, 3, 1)
        );
        assert_eq!(
            total.pass_rate, 0.75,
            "the mean of two tasks; the third has not begun"
        );
        assert_eq!(total.tasks_passed, 1);
        assert_eq!(total.tokens, 400);
        assert!((total.cost_usd.unwrap() - 0.04).abs() < 1e-9);
        assert_eq!(
            total.at,
            [
                At {
                    k: 1,
                    any: 0.75,
                    all: 0.75
                },
                At {
                    k: 2,
                    any: 1.0,
                    all: 0.5
                }
            ]
        );
        assert_eq!(figures.tasks[1].errors, 1);
        assert_eq!(figures.tasks[0].tools["bash"], 2);
        assert_eq!(
            (
                figures.tasks[0].self_verified,
                figures.tasks[0].self_verified_of
            ),
            (1, 2)
        );
        assert_eq!(figures.results[0].task, "a", "in the order of the run");
    }
}
