//! `callboard completions`: prints a completion script for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{
    Cli,
    failure::{Done, Failure},
    terminal::out_data,
};

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  callboard completions bash > ~/.local/share/bash-completion/completions/callboard"
)]
pub(super) struct CompletionsArgs {
    /// Shell that the script is for
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<Done, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "callboard", &mut script);
    out_data(&String::from_utf8_lossy(&script));
    Ok(Done::Well)
}
