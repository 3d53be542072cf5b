//! Parses the command line. A mistake is reported in one line with a hint, not as clap's page.

use std::process::ExitCode;

use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{failure::Failure, help};

/// Parses the arguments of this process; on an error or for `--help`, returns the exit code.
pub(super) fn parse<T: Parser>() -> Result<T, ExitCode> {
    parsed::<T>().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => failure(&error).report(),
    })
}

fn parsed<T: Parser>() -> Result<T, clap::Error> {
    let mut command = help::grouped(T::command());
    let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
    T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Converts clap's error: its first line, its suggestion, and where to read more.
fn failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default().trim();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let failure = Failure::usage(first);
    let suggested = error
        .context()
        .find_map(|(kind, value)| match (kind, value) {
            (
                ContextKind::SuggestedArg
                | ContextKind::SuggestedSubcommand
                | ContextKind::SuggestedValue,
                ContextValue::String(word),
            ) => Some(word.clone()),
            (
                ContextKind::SuggestedArg
                | ContextKind::SuggestedSubcommand
                | ContextKind::SuggestedValue,
                ContextValue::Strings(words),
            ) => words.first().cloned(),
            _ => None,
        });
    match suggested {
        Some(word) => failure.hint(format!("did you mean `{word}`?")),
        None => failure.hint(format!("see `{} --help`", command_of(&text))),
    }
}

/// The command in clap's usage line, up to its first argument.
fn command_of(text: &str) -> String {
    let usage = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Usage: "))
        .unwrap_or("callboard");
    let is_of_command = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = usage
        .split_whitespace()
        .take_while(|word| word.chars().all(is_of_command));
    words
        .filter(|word| !word.starts_with('-'))
        .collect::<Vec<_>>()
        .join(" ")
}
