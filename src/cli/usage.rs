//! Parses the command line. A mistake is reported in one line with a hint, not as clap's page.

use std::process::ExitCode;

use clap::{
    Command, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{failure::Failure, help};

/// Parses the arguments of this process; on an error or for `--help`, returns the exit code.
pub(super) fn parse<T: Parser>() -> Result<T, ExitCode> {
    let mut command = help::grouped(T::command());
    let matched = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = matched.and_then(|mut matches| {
        T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    });
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(2)
        }
        _ => failure(&error, &named(&command, std::env::args().skip(1))).report(),
    })
}

/// The command that the arguments name, with the name of this program.
fn named(command: &Command, arguments: impl Iterator<Item = String>) -> String {
    let (mut command, mut name) = (command, "callboard".to_owned());
    for word in arguments {
        if let Some(below) = command.find_subcommand(&word) {
            command = below;
            name.push(' ');
            name.push_str(&word);
        }
    }
    name
}

/// Converts clap's error: its first line, its suggestion, and where to read more. `named` is the
/// command that the arguments name; clap does not say it of a wrong value.
fn failure(error: &clap::Error, named: &str) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let first = paragraphs.next().unwrap_or_default().trim();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let first = first.replace("invalid digit found in string", "it must be a whole number");
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
        None => failure.hint(format!("see `{} --help`", command_of(&text, named))),
    }
}

/// The command in clap's usage line, up to its first argument.
fn command_of(text: &str, named: &str) -> String {
    let usage = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Usage: "))
        .unwrap_or(named);
    let is_of_command = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let words = usage
        .split_whitespace()
        .take_while(|word| word.chars().all(is_of_command));
    words
        .filter(|word| !word.starts_with('-'))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn a_wrong_value_points_at_the_page_of_its_command() {
        let mut command = crate::cli::Cli::command();
        let mut hint = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = command.try_get_matches_from_mut(&words).unwrap_err();
            failure(&error, &named(&command, words.into_iter().skip(1))).plain()
        };

        for (line, page) in [
            ("callboard run --effort foo hi", "`callboard run --help`"),
            (
                "callboard --log info run --max-tokens x",
                "`callboard run --help`",
            ),
            (
                "callboard sessions request a --max-tokens x",
                "`callboard sessions request --help`",
            ),
        ] {
            assert!(hint(line).contains(page), "{}", hint(line));
        }
        assert!(hint("callboard run --max-tokens x").contains("it must be a whole number"));
    }
}
