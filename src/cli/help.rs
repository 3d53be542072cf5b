//! The page of `callboard --help`: the commands in groups, in the order in which people meet them.

use clap::Command;

/// The groups of the page, and their commands.
const GROUPS: &[(&str, &[&str])] = &[
    ("Work with a model", &["run", "chat", "fanout", "eval"]),
    ("Stored conversations", &["sessions", "metrics"]),
    (
        "What models may use",
        &["tools", "mcp", "skills", "trust", "tokens"],
    ),
    (
        "As a server",
        &["serve", "acp", "keys", "load", "mock-model"],
    ),
    (
        "Setup and help",
        &[
            "config",
            "doctor",
            "explain",
            "bug-report",
            "completions",
            "manual",
            "help",
        ],
    ),
];

/// Adds the groups to the page in place of one long list.
pub(super) fn grouped(command: Command) -> Command {
    let page = format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{{options-heading}}\n{{options}}{{after-help}}",
        groups(&command)
    )
    .replace("{options-heading}", "Options:");
    command.help_template(page)
}

fn groups(command: &Command) -> String {
    let about = |name: &str| {
        if name == "help" {
            return Some("Print this page, or the one of a command".to_owned());
        }
        let found = command.find_subcommand(name)?;
        Some(found.get_about()?.to_string())
    };
    let names = GROUPS.iter().flat_map(|(_, names)| names.iter());
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{heading}:\n"));
        for name in *names {
            // Commands for load tests are missing in programs without their feature.
            if let Some(about) = about(name) {
                text.push_str(&format!("  {name:width$}  {about}\n"));
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = crate::cli::Cli::command();
        let mut listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        listed.sort_unstable();

        let mut all: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        all.push("help");
        all.sort_unstable();

        assert_eq!(listed, all);
    }
}
