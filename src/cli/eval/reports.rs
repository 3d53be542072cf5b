//! `callboard eval report`, `compare`, `list` and `delete`.

use clap::Args;

use super::{
    super::{
        failure::{Done, Failure},
        terminal::{out, out_json, out_line},
    },
    flags::{OutputFlags, ResultsFlag, figures_of},
};
use crate::{config::Config, evals, evals::report};

/// Runs that a list shows.
const RUNS_MAX: u32 = 1_000;

/// Report a run: pass rates with intervals, pass@k, tokens, cost, tools
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  callboard eval report nightly
  callboard eval report nightly --html nightly.html")]
pub(in crate::cli) struct ReportArgs {
    /// Name of the run
    run: String,
    #[command(flatten)]
    results: ResultsFlag,
    #[command(flatten)]
    output: OutputFlags,
}

/// Compare run B with run A, paired by task and trial
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  callboard eval compare before after

The interval and p take tasks as the sample. A run is called better only if the interval excludes 0; the report also says the
smallest difference that these runs could have shown. Tasks that were changed between the runs are left out.")]
pub(in crate::cli) struct CompareArgs {
    /// Name of run A, the base
    a: String,
    /// Name of run B
    b: String,
    #[command(flatten)]
    results: ResultsFlag,
    #[command(flatten)]
    output: OutputFlags,
}

/// List runs, the newest first
#[derive(Debug, Args)]
pub(in crate::cli) struct ListArgs {
    #[command(flatten)]
    results: ResultsFlag,
    /// Print one JSON object per run
    #[arg(long)]
    json: bool,
}

/// Delete the results of a run; its conversations stay
#[derive(Debug, Args)]
pub(in crate::cli) struct DeleteArgs {
    /// Name of the run
    run: String,
    #[command(flatten)]
    results: ResultsFlag,
}

fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::work(error.to_string()))
}

pub(super) fn report(config: &Config, args: &ReportArgs) -> Result<Done, Failure> {
    let store = args.results.existing(config)?;
    let figures = figures_of(&store, &args.run)?;
    args.output.write_page(|| report::html::run(&figures))?;
    if args.output.json {
        out_json(&json(&figures)?);
    } else {
        out(&report::table::run(&figures));
    }
    Ok(Done::Well)
}

pub(super) fn compare(config: &Config, args: &CompareArgs) -> Result<Done, Failure> {
    let store = args.results.existing(config)?;
    let (a, b) = (figures_of(&store, &args.a)?, figures_of(&store, &args.b)?);
    let found = evals::compare(&a, &b);
    if found.tasks.is_empty() {
        return Err(Failure::work(format!(
            "the runs `{}` and `{}` have no trial in common",
            args.a, args.b
        ))
        .hint(
            found
                .left_out
                .first()
                .cloned()
                .unwrap_or_else(|| "run the same tasks in both".to_owned()),
        ));
    }
    args.output
        .write_page(|| report::html::comparison(&found))?;
    if args.output.json {
        out_json(&json(&found)?);
    } else {
        out(&report::table::comparison(&found));
    }
    Ok(Done::Well)
}

pub(super) fn list(config: &Config, args: &ListArgs) -> Result<Done, Failure> {
    let store = args.results.existing(config)?;
    let rows = store.runs(RUNS_MAX)?;
    if args.json {
        for row in &rows {
            out_json(&json(&serde_json::json!({
                "run": row.run,
                "done": row.done,
                "passed": row.passed,
                "planned": row.run.trials_planned(),
            }))?);
        }
        return Ok(Done::Well);
    }
    let rows: Vec<_> = rows
        .into_iter()
        .map(|row| (row.run, row.done, row.passed))
        .collect();
    out(&report::table::runs(&rows));
    Ok(Done::Well)
}

pub(super) fn delete(config: &Config, args: &DeleteArgs) -> Result<Done, Failure> {
    let store = args.results.existing(config)?;
    if store.delete(&args.run)? {
        out_line(&format!("deleted {}", args.run));
        return Ok(Done::Well);
    }
    figures_of(&store, &args.run).map(|_| Done::Well)
}
