//! `callboard manual`: writes the manual pages, one for each command.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use super::{
    Cli,
    failure::{Done, Failure},
    output::refuse_links,
    terminal::{counted, out_line, sanitize},
};

/// Write the manual pages into a folder
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  callboard manual ~/.local/share/man/man1 && man callboard-run")]
pub(super) struct ManualArgs {
    /// The folder; it is created if it is missing
    folder: PathBuf,
}

pub(super) fn run(args: &ManualArgs) -> Result<Done, Failure> {
    let shown = sanitize(&args.folder.display().to_string());
    let is_page = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("callboard");
    let failed = |error: std::io::Error| {
        Failure::work(format!(
            "the manual cannot be written to {shown}: {}",
            crate::os_error::words(&error)
        ))
    };
    refuse_links("the manual in", &args.folder)?;
    std::fs::create_dir_all(&args.folder).map_err(failed)?;
    for entry in std::fs::read_dir(&args.folder).map_err(failed)?.flatten() {
        if is_page(&entry.file_name()) {
            refuse_links("the page", &entry.path())?;
        }
    }
    clap_mangen::generate_to(Cli::command(), &args.folder).map_err(failed)?;
    let pages = std::fs::read_dir(&args.folder)
        .map_err(failed)?
        .filter_map(Result::ok)
        .filter(|entry| is_page(&entry.file_name()))
        .count();
    out_line(&format!("{} in {shown}", counted(pages, "manual page")));
    Ok(Done::Well)
}
