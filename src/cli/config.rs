//! `callboard config`: checks the configuration, prints its effective values, and writes a first
//! file.

mod init;

use clap::Subcommand;

use super::{
    failure::{Done, Failure},
    terminal::{err_line, out_data, out_line, sanitize},
    trust,
};
use crate::config::Config;

pub(super) const EXAMPLE: &str = "Example:\n  callboard --config callboard.toml config check";

/// Subcommands of `config`.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check the configuration; print the first mistake with its file, line and the nearest correct
    /// key
    #[command(after_help = EXAMPLE)]
    Check,
    /// Print the effective configuration as TOML, each value with its origin, keys masked
    #[command(after_help = "Example:\n  callboard config show > callboard.toml")]
    Show,
    Init(init::InitArgs),
}

pub(super) fn run(config: &Config, command: &ConfigCommand) -> Result<Done, Failure> {
    match command {
        ConfigCommand::Check => {
            trust::mistakes(config)?;
            config.check()?;
            let files: Vec<String> = config
                .files()
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            let read = if files.is_empty() {
                "no file, only defaults and the environment".to_owned()
            } else {
                files.join(", ")
            };
            config
                .project_files()
                .iter()
                .for_each(|file| err_line(&sanitize(&file.line())));
            for warning in config.warnings() {
                err_line(&format!("warning: {warning}"));
            }
            out_line(&format!("the configuration is valid ({read})"));
        }
        ConfigCommand::Show => out_data(&config.show()),
        ConfigCommand::Init(args) => init::run(args)?,
    }
    Ok(Done::Well)
}
