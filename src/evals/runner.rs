//! Runs the trials of a data set on a host: in parallel, within a budget, and only those that have
//! no result yet.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use callboard_actors::{
    host::BuildError,
    policy::{Amount, Budget},
};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;

use super::{
    bounds::{JOBS_MAX, RETRIES, RUN_ID_BYTES_MAX, RUN_TRIALS_MAX, TRIALS_MAX},
    load::DataSet,
    options::{EvalOptions, JUDGE_GATEWAY},
    result::{EvalResult, Status},
    solver::{Builtin, Solver},
    store::{EvalStore, EvalStoreError},
    task::{Grader, Task},
    trial::{self, Attempt, SOLVER_GATEWAY, Shared, Trouble},
    verify::{Sandboxes, blocking},
};
use crate::{
    Host,
    sandbox::{PathRules, Root, Spawner},
};

/// Pause before a trial is repeated after an error, times the number of attempts.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Trials in a row that end with an error before the run stops: something is wrong for all.
const ERRORS_IN_A_ROW: u32 = 5;

/// Why a run cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The name of a run is malformed.
    #[error(
        "{0:?} is no name of a run; use 1-{RUN_ID_BYTES_MAX} characters of A-Z a-z 0-9 _ - and begin with a letter or a digit"
    )]
    BadRun(String),
    /// A number is out of range.
    #[error("{what} must be from 1 to {max}, not {given}")]
    Number {
        /// What the number is.
        what: &'static str,
        /// As given.
        given: u64,
        /// The largest one.
        max: u64,
    },
    /// A run of this name was asked to do something else.
    #[error("the run `{run}` exists, and {what} differs; choose another name, or ask for the same")]
    Differs {
        /// Name of the run.
        run: String,
        /// What differs.
        what: &'static str,
    },
    /// Another process works at the run.
    #[error("another process works at the run `{0}`; wait for its end, or choose another name")]
    InUse(String),
    /// Tests and built-in solvers need a sandbox.
    #[error("tasks with test scripts need a sandbox for commands: {0}; see `callboard doctor`")]
    NoSandbox(String),
    /// A task needs a judge.
    #[error(
        "the task `{0}` is graded by a model; name the judge with --judge-model, and --judge-provider if it is not the solver's"
    )]
    NoJudge(String),
    /// The oracle has no solution.
    #[error("the task `{0}` has no solution; add `solution/solve.sh`, or `answer` in its line")]
    NoSolution(String),
    /// The folder of workspaces cannot be used.
    #[error(
        "the workspaces cannot be made in {folder}: {reason}; choose another folder with --work-dir"
    )]
    WorkDir {
        /// The folder.
        folder: String,
        /// Why.
        reason: String,
    },
    /// The host refused the solver or the judge.
    #[error(transparent)]
    Host(#[from] BuildError),
    /// The results cannot be read or written.
    #[error(transparent)]
    Store(#[from] EvalStoreError),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// Every trial has a result.
    Complete,
    /// The budget is used up. With a larger one, the run continues.
    Budget,
    /// It was interrupted. The run continues when it is started again.
    Interrupted,
    /// An error stopped it that would meet every further trial.
    Stopped {
        /// A stable, machine-readable code.
        code: String,
        /// What happened.
        message: String,
    },
}

/// Runs trials on a host.
///
/// The host needs a store of sessions if its conversations shall be readable later. Its own provider
/// solves the tasks, unless a built-in solver is chosen.
pub struct EvalRunner {
    host: Host,
    store: Arc<EvalStore>,
    spawner: Spawner,
}

impl std::fmt::Debug for EvalRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EvalRunner").finish_non_exhaustive()
    }
}

impl EvalRunner {
    /// Creates a runner, and starts the thread that starts processes.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn new(host: Host, store: Arc<EvalStore>) -> std::io::Result<Self> {
        Ok(Self {
            host,
            store,
            spawner: Spawner::start()?,
        })
    }

    /// Runs every trial that has no result, and stores each result when it is there. `on` gets each
    /// one after that.
    ///
    /// # Errors
    /// [`EvalError`]: nothing was run, or the results cannot be written.
    ///
    /// # Cancel safety
    /// Dropping the future leaves running rounds to the host. Cancel the token and await the end
    /// instead.
    pub async fn run(
        &self,
        set: &DataSet,
        options: &EvalOptions,
        cancel: CancellationToken,
        mut on: impl FnMut(&EvalResult),
    ) -> Result<RunEnd, EvalError> {
        check(set, options)?;
        let _lock = lock(options)?;
        let sandboxes = Sandboxes {
            spawner: self.spawner.clone(),
            mode: options.sandbox,
            options: options.sandbox_options.clone(),
        };
        try_sandbox(set, options, &sandboxes).await?;
        self.gateways(set, options)?;
        self.begin(set, options)?;
        let shared = Shared {
            host: &self.host,
            sandboxes: &sandboxes,
            options,
            cancel: &cancel,
        };
        let mut progress = self.progress(set, options)?;
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < usize::try_from(options.jobs).unwrap_or(1)
                && progress.may_start(&cancel)
                && let Some((task, trial)) = progress.waiting.pop_front()
            {
                let allowance = progress.allow(options.budget, options.jobs, running.len());
                let Some(allowance) = allowance else {
                    progress.waiting.push_front((task, trial));
                    if running.is_empty() {
                        progress.end = Some(RunEnd::Budget);
                    }
                    break;
                };
                progress.allowed.push(allowance);
                running.push(self.trial(&shared, task, trial, allowance));
            }
            let Some((ended, allowance)) = running.next().await else {
                break;
            };
            progress.give_back(allowance);
            self.settle(options, &mut progress, ended, &mut on)?;
        }
        // Succeeds if no workspace was kept.
        let _ = std::fs::remove_dir(options.work_dir.join(&options.run));
        Ok(progress.end.unwrap_or(if cancel.is_cancelled() {
            RunEnd::Interrupted
        } else {
            RunEnd::Complete
        }))
    }

    /// Adds the gateways of a built-in solver and of a judge.
    fn gateways(&self, set: &DataSet, options: &EvalOptions) -> Result<(), EvalError> {
        let usual = || self.host.gateway_config().clone();
        if let Some(provider) = Builtin::of(options.solver, &set.tasks) {
            let mut config = usual();
            config.fallback = None;
            self.host.add_gateway(SOLVER_GATEWAY, provider, config)?;
        }
        if let Some(provider) = options
            .judge
            .as_ref()
            .and_then(|judge| judge.provider.clone())
        {
            let mut config = usual();
            config.fallback = None;
            self.host.add_gateway(JUDGE_GATEWAY, provider, config)?;
        }
        Ok(())
    }

    /// Stores the run, or checks that it is the one that was begun.
    fn begin(&self, set: &DataSet, options: &EvalOptions) -> Result<(), EvalError> {
        let mut info = options.info(set);
        if let Some(old) = self.store.run(&options.run)? {
            if let Some(what) = old.differs_from(&info) {
                return Err(EvalError::Differs {
                    run: options.run.clone(),
                    what,
                });
            }
            info.created_ms = old.created_ms;
            info.version = old.version;
            // Fewer trials must not hide results that exist.
            info.trials = info.trials.max(old.trials);
        }
        self.store.put_run(&info)?;
        if options.retry_errors {
            self.store.forget_errors(&options.run)?;
        }
        Ok(())
    }

    /// What is left to do: the first trial of every task, then the second, so that an early end has
    /// seen all tasks.
    fn progress<'t>(
        &self,
        set: &'t DataSet,
        options: &EvalOptions,
    ) -> Result<Progress<'t>, EvalError> {
        let results = self.store.results(&options.run)?;
        let (tokens, micro_usd) = self.store.lost(&options.run)?;
        let mut spent = Amount {
            tokens,
            micro_usd,
            wall_ms: 0,
        };
        for result in &results {
            spent = plus(spent, used(result));
        }
        let done: HashSet<(&str, u32)> = results
            .iter()
            .map(|result| (result.task.as_str(), result.trial))
            .collect();
        let waiting = (1..=options.trials)
            .flat_map(|trial| set.tasks.iter().map(move |task| (task, trial)))
            .filter(|(task, trial)| !done.contains(&(task.id.as_str(), *trial)))
            .collect();
        Ok(Progress {
            waiting,
            spent,
            allowed: Vec::new(),
            errors_in_a_row: 0,
            end: None,
        })
    }

    /// Runs a trial, and repeats it after errors of the machine, the store or a provider.
    async fn trial(
        &self,
        shared: &Shared<'_>,
        task: &Task,
        number: u32,
        allowance: Budget,
    ) -> (Ended, Budget) {
        let mut lost = Amount::default();
        let mut attempts = 1;
        loop {
            let left = Budget {
                tokens: allowance
                    .tokens
                    .map(|tokens| tokens.saturating_sub(lost.tokens)),
                micro_usd: allowance
                    .micro_usd
                    .map(|money| money.saturating_sub(lost.micro_usd)),
                ..allowance
            };
            let (end, used) = Box::pin(trial::attempt(shared, task, number, attempts, left)).await;
            let again = match &end {
                Attempt::Error(trouble) => {
                    !trouble.is_fatal && trouble.is_retryable && attempts <= RETRIES
                }
                _ => false,
            };
            if !again || shared.cancel.is_cancelled() {
                return (Ended { end, used, lost }, allowance);
            }
            lost = plus(lost, used);
            let pause = RETRY_PAUSE * attempts;
            tokio::select! {
                biased;
                () = shared.cancel.cancelled() => {
                    let ended = Ended { end: Attempt::Interrupted, used: Amount::default(), lost };
                    return (ended, allowance);
                }
                () = tokio::time::sleep(pause) => attempts += 1,
            }
        }
    }

    /// Stores what a trial brought.
    fn settle(
        &self,
        options: &EvalOptions,
        progress: &mut Progress<'_>,
        ended: Ended,
        on: &mut impl FnMut(&EvalResult),
    ) -> Result<(), EvalError> {
        let Ended { end, used, lost } = ended;
        progress.spent = plus(plus(progress.spent, used), lost);
        let mut without_result = lost;
        match end {
            Attempt::Graded(result) => {
                progress.errors_in_a_row = 0;
                self.store.put(&options.run, &result)?;
                on(&result);
            }
            Attempt::Cut => {
                without_result = plus(without_result, used);
                progress.end = Some(RunEnd::Budget);
            }
            Attempt::Interrupted => without_result = plus(without_result, used),
            Attempt::Error(trouble) if trouble.is_fatal => {
                without_result = plus(without_result, used);
                progress.end = Some(stopped(&trouble));
            }
            Attempt::Error(trouble) => {
                progress.errors_in_a_row += 1;
                self.store.put(&options.run, &trouble.result)?;
                on(&trouble.result);
                if progress.errors_in_a_row >= ERRORS_IN_A_ROW.max(options.jobs) {
                    progress.end = Some(stopped(&trouble));
                }
            }
        }
        if without_result != Amount::default() {
            self.store.spend(
                &options.run,
                without_result.tokens,
                without_result.micro_usd,
            )?;
        }
        Ok(())
    }
}

fn stopped(trouble: &Trouble) -> RunEnd {
    RunEnd::Stopped {
        code: trouble.code.clone(),
        message: trouble.message.clone(),
    }
}

/// A trial that ended.
struct Ended {
    end: Attempt,
    /// What the last attempt used.
    used: Amount,
    /// What earlier attempts used.
    lost: Amount,
}

/// The state of a run.
struct Progress<'t> {
    waiting: VecDeque<(&'t Task, u32)>,
    /// What ended trials used.
    spent: Amount,
    /// What running trials may use.
    allowed: Vec<Budget>,
    errors_in_a_row: u32,
    /// Why no further trial starts.
    end: Option<RunEnd>,
}

impl Progress<'_> {
    fn may_start(&self, cancel: &CancellationToken) -> bool {
        self.end.is_none() && !cancel.is_cancelled()
    }

    /// The share of the budget for the next trial; `None` if none is left. What is neither spent nor
    /// allowed is divided among the free places, so that the sum never exceeds the budget.
    fn allow(&self, budget: Budget, jobs: u32, running: usize) -> Option<Budget> {
        let running = u32::try_from(running).unwrap_or(u32::MAX);
        let waiting = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let places = jobs
            .saturating_sub(running)
            .min(waiting.saturating_add(1))
            .max(1);
        let share = |limit: Option<u64>, spent: u64, of: fn(&Budget) -> Option<u64>| match limit {
            None => Some(None),
            Some(limit) => {
                let allowed: u64 = self.allowed.iter().filter_map(of).sum();
                let left = limit.saturating_sub(spent).saturating_sub(allowed);
                Some(left / u64::from(places))
                    .filter(|share| *share > 0)
                    .map(Some)
            }
        };
        Some(Budget {
            tokens: share(budget.tokens, self.spent.tokens, |of| of.tokens)?,
            micro_usd: share(budget.micro_usd, self.spent.micro_usd, |of| of.micro_usd)?,
            wall_ms: None,
        })
    }

    fn give_back(&mut self, allowance: Budget) {
        if let Some(at) = self.allowed.iter().position(|one| *one == allowance) {
            self.allowed.swap_remove(at);
        }
    }
}

fn plus(one: Amount, other: Amount) -> Amount {
    Amount {
        tokens: one.tokens.saturating_add(other.tokens),
        micro_usd: one.micro_usd.saturating_add(other.micro_usd),
        wall_ms: one.wall_ms.saturating_add(other.wall_ms),
    }
}

/// What a stored trial used.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive amount"
)]
fn used(result: &EvalResult) -> Amount {
    let usd = result.cost_usd.unwrap_or(0.0) + result.judge_cost_usd.unwrap_or(0.0);
    Amount {
        tokens: result.tokens.total.saturating_add(result.judge_tokens),
        micro_usd: (usd * 1e6).round().max(0.0) as u64,
        wall_ms: 0,
    }
}

/// Checks a request before anything is made.
fn check(set: &DataSet, options: &EvalOptions) -> Result<(), EvalError> {
    let run = &options.run;
    let fits = !run.is_empty()
        && run.len() <= RUN_ID_BYTES_MAX
        && run
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_alphanumeric)
        && run
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if !fits {
        return Err(EvalError::BadRun(run.clone()));
    }
    let number = |what, given: u64, max: u64| {
        if (1..=max).contains(&given) {
            Ok(())
        } else {
            Err(EvalError::Number { what, given, max })
        }
    };
    number("--trials", options.trials.into(), TRIALS_MAX.into())?;
    number("--jobs", options.jobs.into(), JOBS_MAX.into())?;
    let all = (set.tasks.len() as u64).saturating_mul(options.trials.into());
    number("the trials of a run", all, RUN_TRIALS_MAX as u64)?;
    for task in &set.tasks {
        let id = || task.id.clone();
        if matches!(task.grader, Grader::Model { .. }) && options.judge.is_none() {
            return Err(EvalError::NoJudge(id()));
        }
        let solved = match task.folder() {
            Some(folder) => folder.join("solution/solve.sh").is_file(),
            None => task.answer.is_some(),
        };
        if options.solver == Solver::Oracle && !solved {
            return Err(EvalError::NoSolution(id()));
        }
    }
    Ok(())
}

/// Locks the run for this process, until the file is closed.
fn lock(options: &EvalOptions) -> Result<std::fs::File, EvalError> {
    let failed = |error: std::io::Error| EvalError::WorkDir {
        folder: options.work_dir.display().to_string(),
        reason: crate::os_error::words(&error),
    };
    crate::private::make_folder(&options.work_dir).map_err(failed)?;
    let path = options.work_dir.join(format!("{}.lock", options.run));
    let file = crate::private::file()
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(EvalError::InUse(options.run.clone())),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Tries the sandbox once if a task needs it.
async fn try_sandbox(
    set: &DataSet,
    options: &EvalOptions,
    sandboxes: &Sandboxes,
) -> Result<(), EvalError> {
    if !set.tasks.iter().any(|task| task.grader == Grader::Script) {
        return Ok(());
    }
    let (folder, sandboxes) = (options.work_dir.clone(), sandboxes.clone());
    let tried = blocking(move || {
        let root = Root::open(&folder, PathRules::default())
            .map_err(|error| crate::os_error::words(&error))?;
        sandboxes.over(&Arc::new(root)).map(drop)
    });
    tried.await.map_err(EvalError::NoSandbox)
}

impl EvalResult {
    /// Whether the trial passed.
    pub fn is_passed(&self) -> bool {
        self.status == Status::Passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(spent: u64, allowed: &[u64], waiting: usize) -> Progress<'static> {
        static TASK: std::sync::OnceLock<Task> = std::sync::OnceLock::new();
        let task = TASK.get_or_init(|| {
            super::super::task::jsonl::parse("t", r#"{"id":"a","prompt":"p","expected":"x"}"#)
                .unwrap()
        });
        Progress {
            waiting: (0..waiting).map(|_| (task, 1)).collect(),
            spent: Amount {
                tokens: spent,
                ..Amount::default()
            },
            allowed: allowed
                .iter()
                .map(|tokens| Budget {
                    tokens: Some(*tokens),
                    ..Budget::default()
                })
                .collect(),
            errors_in_a_row: 0,
            end: None,
        }
    }

    #[test]
    fn shares_of_running_trials_never_exceed_the_budget() {
        let budget = Budget {
            tokens: Some(1000),
            ..Budget::default()
        };
        for jobs in 1..6u32 {
            for spent in [0, 1, 500, 999] {
                let mut state = progress(spent, &[], 10);
                for running in 0..usize::try_from(jobs).unwrap() {
                    if let Some(share) = state.allow(budget, jobs, running) {
                        state.allowed.push(share);
                    }
                }
                let allowed: u64 = state.allowed.iter().filter_map(|one| one.tokens).sum();
                assert!(spent + allowed <= 1000, "{jobs} {spent} {allowed}");
                assert!(allowed > 0, "{jobs} {spent}");
            }
        }
        assert_eq!(progress(1000, &[], 1).allow(budget, 1, 0), None);
        assert_eq!(progress(400, &[600], 1).allow(budget, 2, 1), None);
        let last = progress(400, &[], 0).allow(budget, 8, 0).unwrap();
        assert_eq!(
            last.tokens,
            Some(600),
            "the last trial gets all that is left"
        );
    }
}
