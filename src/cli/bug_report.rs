//! `callboard bug-report`: what a maintainer needs to know about a setup, as Markdown that can be
//! pasted into an issue. Keys are masked, and the home folder and the current one are shown as `~`
//! and `.`.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    doctor,
    failure::{Done, Failure},
    terminal::{out_data, sanitize},
};
use crate::{config::Config, observe::Redactor};

/// How much of the end of the log file is searched for errors.
const LOG_BYTES: u64 = 256 * 1024;

/// How many of the last warnings and errors are shown.
const LOG_LINES: usize = 20;

/// Print a report for an issue: version, system, health, configuration and last errors, keys masked
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  callboard bug-report > report.md\n\nRead it before you send it: names of models, tenants and hosts are in it."
)]
pub(super) struct BugReportArgs {}

pub(super) async fn run(
    file: Option<PathBuf>,
    config: Result<Config, crate::config::ConfigError>,
) -> Result<Done, Failure> {
    let health = doctor::lines(file.as_deref()).await.join("\n");
    let (shown, log) = match &config {
        Ok(config) => (config.show(), last_errors(config)),
        Err(error) => (format!("# {error}"), NO_LOG.to_owned()),
    };
    let report = format!(
        "# Callboard bug report\n\n\
         What happened, and what did you expect? (Write here.)\n\n\
         ## Program and system\n\n```text\n{}\n```\n\n\
         ## Health\n\n```text\n{health}\n```\n\n\
         ## Configuration\n\n```toml\n{}\n```\n\n\
         ## Last warnings and errors\n\n```text\n{log}\n```\n",
        system(),
        shown.trim_end(),
    );
    let secrets = config.iter().flat_map(Config::masked_texts);
    let masked = Redactor::new(secrets).mask(&report);
    let places = [
        (std::env::home_dir(), "~"),
        (std::env::current_dir().ok(), "."),
    ];
    out_data(&without_places(&masked, &places));
    Ok(Done::Well)
}

/// The program's version and the machine.
fn system() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    format!(
        "callboard {} ({build})\n{} {} {}\nprocessors: {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        sanitize(kernel.trim()),
        std::env::consts::ARCH,
        std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get),
    )
}

const NO_LOG: &str = "no log file; `[observability] log_output = [\"stderr\", \"file\"]` keeps one";

/// The last warnings and errors of the log file.
fn last_errors(config: &Config) -> String {
    let Some(path) = &config.observability.log_file else {
        return NO_LOG.to_owned();
    };
    match end_of(path) {
        Ok(text) => {
            let found = worst_lines(&text);
            match found.is_empty() {
                true => "none in the log file".to_owned(),
                false => found.join("\n"),
            }
        }
        Err(error) => format!(
            "the log file cannot be read: {}",
            crate::os_error::words(&error)
        ),
    }
}

fn end_of(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The last lines of level `WARN` or `ERROR`, in either form of the log.
fn worst_lines(log: &str) -> Vec<String> {
    let is_worst = |line: &&str| {
        [
            " WARN ",
            " ERROR ",
            "\"level\":\"WARN\"",
            "\"level\":\"ERROR\"",
        ]
        .iter()
        .any(|level| line.contains(level))
    };
    let mut lines: Vec<String> = log.lines().filter(is_worst).map(sanitize).collect();
    lines.drain(..lines.len().saturating_sub(LOG_LINES));
    lines
}

/// Replaces the paths of folders by short names, the longest path first.
fn without_places(text: &str, places: &[(Option<PathBuf>, &str)]) -> String {
    let known = places
        .iter()
        .filter_map(|(path, name)| Some((path.as_deref()?.to_str()?, *name)));
    let mut known: Vec<(&str, &str)> = known.filter(|(path, _)| path.len() > 1).collect();
    known.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    known.iter().fold(text.to_owned(), |text, (path, name)| {
        text.replace(path, name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_warnings_and_errors_of_a_log_are_shown() {
        let mut log = "2026 INFO started\n{\"level\":\"ERROR\",\"message\":\"first\"}\n".to_owned();
        for number in 0..LOG_LINES {
            log.push_str(&format!("2026  WARN late {number}\n"));
        }

        let lines = worst_lines(&log);

        assert_eq!(lines.len(), LOG_LINES);
        assert!(lines.iter().all(|line| line.contains("late")));
    }

    #[test]
    fn folders_of_the_user_are_not_in_a_report() {
        let places = [
            (Some(PathBuf::from("/home/ann")), "~"),
            (Some(PathBuf::from("/home/ann/project")), "."),
        ];

        assert_eq!(
            without_places("/home/ann/project/a, /home/ann/.config, /", &places),
            "./a, ~/.config, /"
        );
    }
}
