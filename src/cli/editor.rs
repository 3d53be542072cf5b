//! The person's editor, for a prompt of many lines. It is the only process that gets the terminal.

use std::io::{Read as _, Write as _};

use super::failure::Failure;
use crate::config::{Config, process_environment};

/// Largest prompt from an editor, in bytes: one more than a prompt may have.
const EDITED_BYTES_MAX: u64 = callboard_actors::limits::PROMPT_BYTES_MAX as u64 + 1;

/// Opens the person's editor on a file that only this user can read, and returns what was saved.
pub(super) async fn edited(config: &Config, text: &str) -> Result<String, Failure> {
    let variable = |name: &str| {
        process_environment().find_map(|(known, value)| (known == name).then_some(value))
    };
    let editor = variable("VISUAL")
        .filter(|editor| !editor.trim().is_empty())
        .or_else(|| variable("EDITOR"))
        .filter(|editor| !editor.trim().is_empty())
        .ok_or_else(|| Failure::usage("no editor is set").hint("set VISUAL or EDITOR"))?;
    let file = config
        .data_dir
        .join(format!("prompt-{}.md", std::process::id()));
    let text = text.to_owned();
    let edit = tokio::task::spawn_blocking(move || {
        let failed = |error: std::io::Error| {
            Failure::work(format!("the editor cannot be used: {}", error.kind()))
        };
        let edit = || {
            let mut opened = crate::private::file()
                .create(true)
                .truncate(true)
                .open(&file)
                .map_err(failed)?;
            opened.write_all(text.as_bytes()).map_err(failed)?;
            drop(opened);
            let mut words = editor.split_whitespace();
            let status = std::process::Command::new(words.next().unwrap_or_default())
                .args(words)
                .arg(&file)
                .status()
                .map_err(failed)?;
            if !status.success() {
                return Err(Failure::work("the editor failed; nothing was sent"));
            }
            let mut saved = String::new();
            std::fs::File::open(&file)
                .and_then(|file| file.take(EDITED_BYTES_MAX).read_to_string(&mut saved))
                .map_err(failed)?;
            Ok(saved.trim().to_owned())
        };
        let saved = edit();
        let _ = std::fs::remove_file(&file); // It may never have been made.
        saved
    });
    edit.await
        .map_err(|error| Failure::work(error.to_string()))?
}
