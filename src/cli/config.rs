//! `callboard config`: whether the configuration is right, and what it comes to.

use clap::Subcommand;

use super::{
    failure::{Done, Failure},
    terminal::{err_line, out, out_line, tame},
};
use crate::config::Config;

pub(super) const EXAMPLE: &str = "Example:\n  callboard --config callboard.toml config check";

/// What to do with it.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Say whether it is right; the first mistake with file, line and the nearest right key
    #[command(after_help = EXAMPLE)]
    Check,
    /// Print the effective configuration as TOML, each value with its origin, keys masked
    #[command(after_help = "Example:\n  callboard config show > callboard.toml")]
    Show,
}

pub(super) fn run(config: &Config, command: &ConfigCommand) -> Result<Done, Failure> {
    match command {
        ConfigCommand::Check => {
            config.check()?;
            let files: Vec<String> = config.files().iter().map(|file| file.display().to_string()).collect();
            let read = if files.is_empty() { "no file, only defaults and the environment".to_owned() } else { files.join(", ") };
            for warning in config.warnings() {
                err_line(&format!("warning: {}", tame(&warning)));
            }
            out_line(&format!("the configuration is right ({read})"));
        }
        ConfigCommand::Show => out(&config.show()),
    }
    Ok(Done::Well)
}
