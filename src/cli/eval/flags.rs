//! Flags that subcommands of `eval` share.

use std::path::{Path, PathBuf};

use clap::Args;

use super::super::{failure::Failure, output::write_file, terminal::err_line};
use crate::{
    config::Config,
    evals::{DataSet, EvalStore, RunFigures, data_set, figures, task::TaskError},
    visible::visible_line,
};

/// Where results are.
#[derive(Debug, Clone, Args)]
pub(super) struct ResultsFlag {
    /// File of results [default: evals.db in the data folder of the configuration]
    #[arg(long, value_name = "FILE")]
    pub(super) results: Option<PathBuf>,
}

impl ResultsFlag {
    pub(super) fn path(&self, config: &Config) -> PathBuf {
        self.results
            .clone()
            .unwrap_or_else(|| config.eval_results())
    }

    /// Opens results that exist.
    pub(super) fn existing(&self, config: &Config) -> Result<EvalStore, Failure> {
        let path = self.path(config);
        if !path.exists() {
            return Err(Failure::work("there are no results yet")
                .hint("`callboard eval run PATH` makes some; --results names another file"));
        }
        Ok(EvalStore::open(&path)?)
    }
}

/// Where a page is written.
#[derive(Debug, Clone, Args)]
pub(super) struct OutputFlags {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Also write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl OutputFlags {
    pub(super) fn write_page(&self, page: impl FnOnce() -> String) -> Result<(), Failure> {
        let Some(path) = &self.html else {
            return Ok(());
        };
        write_file("the page", path, page().as_bytes())
    }
}

/// The figures of a stored run.
pub(super) fn figures_of(store: &EvalStore, run: &str) -> Result<RunFigures, Failure> {
    let Some(info) = store.run(run)? else {
        let runs = store.runs(1_000)?;
        let names = runs.iter().map(|row| row.run.id.as_str());
        let failure = Failure::work(format!("there is no run `{run}`"));
        return Err(match crate::app::nearest(run, names) {
            Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
            None => failure.hint("`callboard eval list` shows all runs"),
        });
    };
    Ok(figures(info, store.results(run)?))
}

/// Mistakes that are printed; a data set can have thousands.
const MISTAKES_MAX: usize = 50;

/// Reads a data set. Prints each mistake in it, one line each.
pub(super) async fn read(path: &Path, only: &[String]) -> Result<DataSet, Failure> {
    let at = path.to_owned();
    let read = tokio::task::spawn_blocking(move || data_set(&at)).await;
    let read = read.map_err(|error| Failure::work(error.to_string()))?;
    let mut set = read.map_err(|errors| mistakes(&errors))?;
    if only.is_empty() {
        return Ok(set);
    }
    for name in only {
        if !set.tasks.iter().any(|task| task.id == *name) {
            let names = set.tasks.iter().map(|task| task.id.as_str());
            let failure = Failure::usage(format!("there is no task `{name}`"));
            return Err(match crate::app::nearest(name, names) {
                Some(nearest) => failure.hint(format!("did you mean `{nearest}`?")),
                None => failure,
            });
        }
    }
    set.tasks.retain(|task| only.contains(&task.id));
    Ok(set)
}

fn mistakes(errors: &[TaskError]) -> Failure {
    let (last, others) = match errors.split_last() {
        Some((last, others)) => (last.to_string(), others),
        None => (String::new(), errors),
    };
    for error in others.iter().take(MISTAKES_MAX) {
        err_line(&visible_line(&error.to_string(), 1_000));
    }
    if others.len() > MISTAKES_MAX {
        err_line(&format!("and {} more", others.len() - MISTAKES_MAX));
    }
    Failure::usage(last)
}
