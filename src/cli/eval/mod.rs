//! `callboard eval`: runs tasks many times, and says how often they are solved and how sure that is.

mod flags;
mod reports;
mod run;
mod check;

use clap::Subcommand;

use super::failure::{Done, Failure};
use crate::{
    config::Config,
    evals::{EvalError, EvalStoreError},
};

pub(super) const EXAMPLE: &str = "\
Examples:
  callboard eval check examples/evals --solve      # do the tests of these tasks judge?
  callboard eval run examples/evals --trials 5 --jobs 4 --budget-usd 2 --run base
  callboard eval run examples/evals --trials 5 --jobs 4 --run terse --system \"Be terse.\"
  callboard eval compare base terse

A task is a folder (instruction.md, task.toml, tests/test.sh) or a line of a JSONL file.";

/// Evaluations: run tasks, report, compare, list, check
#[derive(Debug, Subcommand)]
pub(super) enum EvalCommand {
    Run(Box<run::RunArgs>),
    #[command(visible_alias = "show")]
    Report(reports::ReportArgs),
    Compare(reports::CompareArgs),
    List(reports::ListArgs),
    Check(check::CheckArgs),
    Delete(reports::DeleteArgs),
}

pub(super) async fn run(config: &Config, command: EvalCommand) -> Result<Done, Failure> {
    match command {
        EvalCommand::Run(args) => Box::pin(run::run(config, *args)).await,
        EvalCommand::Check(args) => Box::pin(check::run(config, args)).await,
        EvalCommand::Report(args) => reports::report(config, &args),
        EvalCommand::Compare(args) => reports::compare(config, &args),
        EvalCommand::List(args) => reports::list(config, &args),
        EvalCommand::Delete(args) => reports::delete(config, &args),
    }
}

impl From<EvalStoreError> for Failure {
    fn from(error: EvalStoreError) -> Self {
        Self::work(error.to_string())
    }
}

impl From<EvalError> for Failure {
    fn from(error: EvalError) -> Self {
        match error {
            EvalError::Store(error) => error.into(),
            EvalError::InUse(_) => Self::work(error.to_string()),
            other => Self::usage(other.to_string()),
        }
    }
}
