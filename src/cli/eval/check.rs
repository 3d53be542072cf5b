//! `callboard eval check`: are the tasks well formed, and do their tests judge?

use std::{path::PathBuf, sync::Arc};

use clap::Args;

use super::{
    super::{
        failure::{Done, Failure},
        run::SHUTDOWN,
        session::fresh_id,
        terminal::{Paint, err_line, out_line},
    },
    flags::{figures_of, read},
    run::{ModelFlags, follow},
};
use crate::{
    app::{self, Chosen, Sessions},
    config::Config,
    evals::{DataSet, EvalOptions, EvalStore, RunEnd, RunFigures, Solver, task::Grader},
    storage::MemorySessions,
    visible::visible_line,
};

/// Check that tasks are well formed, and with --solve that their tests judge
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard eval check examples/evals
  callboard eval check my-tasks --solve --jobs 4

With --solve, three built-in solvers run: `oracle` applies the solution and must pass every task, `noop` does nothing and must pass
none, `cheater` edits the tests and must pass none. Nothing is stored. Tasks that a model judges are left out.")]
pub(in crate::cli) struct CheckArgs {
    /// A folder of tasks, the folder of one task, or a JSONL file
    path: PathBuf,
    /// Run the built-in solvers against the tests
    #[arg(long)]
    solve: bool,
    /// Only this task; can be repeated
    #[arg(long, value_name = "ID")]
    task: Vec<String>,
    /// Trials at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
}

pub(super) async fn run(config: &Config, args: CheckArgs) -> Result<Done, Failure> {
    let mut set = read(&args.path, &args.task).await?;
    let paint = Paint::stderr();
    for note in &set.notes {
        err_line(&paint.dim(&format!("note: {}", visible_line(note, 400))));
    }
    out_line(&format!(
        "{}: {} well formed",
        set.name,
        counted(set.tasks.len(), "task")
    ));
    if !args.solve {
        return Ok(Done::Well);
    }
    set.tasks
        .retain(|task| !matches!(task.grader, Grader::Model { .. }));
    if set.tasks.is_empty() {
        return Err(Failure::usage(
            "every task is judged by a model; --solve needs tests",
        ));
    }
    let mut well = true;
    for solver in [Solver::Oracle, Solver::Noop, Solver::Cheater] {
        let figures = solved(config, &set, solver, args.jobs).await?;
        well &= print(solver, &figures);
    }
    Ok(if well { Done::Well } else { Done::Badly })
}

fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Runs a built-in solver without storing anything.
async fn solved(
    config: &Config,
    set: &DataSet,
    solver: Solver,
    jobs: u32,
) -> Result<RunFigures, Failure> {
    let overrides = ModelFlags::default().overrides();
    let sandbox = app::trial_sandbox(config, &overrides);
    let run = format!("check-{}-{}", solver.as_str(), fresh_id()?);
    let work_dir = config.data_dir.join("eval-work").join(&run);
    let results = work_dir.join("evals.db");
    let store = Arc::new(EvalStore::open(&results)?);
    let options = EvalOptions {
        solver,
        provider: "built-in".into(),
        model: solver.as_str().into(),
        jobs,
        sandbox: sandbox.mode,
        sandbox_options: sandbox.options,
        masker: sandbox.masker,
        ..EvalOptions::new(run, &work_dir)
    };
    let sessions = Sessions::Memory(Arc::new(MemorySessions::new()));
    let app = app::eval_host(config, &overrides, &sessions, Chosen::offline()).await?;
    let ended = follow(&app, &store, set, &options).await;
    app.host.shutdown(SHUTDOWN).await;
    let figures = ended.and_then(|end| match end {
        RunEnd::Complete => figures_of(&store, &options.run),
        RunEnd::Stopped { code, message } => Err(Failure::work(format!(
            "the check stopped: {message} ({code})"
        ))),
        RunEnd::Interrupted | RunEnd::Budget => Err(Failure::work("interrupted")),
    });
    drop(store);
    let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(work_dir)).await;
    figures
}

/// Prints how a solver fared. Returns whether it is what the tasks promise.
fn print(solver: Solver, figures: &RunFigures) -> bool {
    let total = &figures.total;
    let wanted = if solver == Solver::Oracle {
        total.trials
    } else {
        0
    };
    out_line(&format!(
        "{}: {} of {} passed",
        solver.as_str(),
        total.passed,
        total.trials
    ));
    let should = solver == Solver::Oracle;
    for result in figures
        .results
        .iter()
        .filter(|result| result.is_passed() != should)
    {
        let what = if should {
            format!("the solution does not pass: {}", result.reason)
        } else {
            "it passes without being solved".to_owned()
        };
        err_line(&visible_line(&format!("{}: {what}", result.task), 400));
    }
    total.passed == wanted
}
