//! `callboard sessions repair`: replaces a damaged journal by its readable part, after saving the
//! whole journal to a file.

use std::{
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
};

use super::{
    Found, OneArgs,
    export::Export,
    import::{Imported, fitting, store},
    journal,
};
use crate::{
    cli::{
        failure::{Done, Failure},
        run::SHUTDOWN,
        session::scope,
        terminal::{err_line, out_json},
    },
    config::Config,
};

/// The text of `--help`.
pub(super) const ABOUT: &str = "\
Repair a conversation whose journal cannot be read.

First, everything stored of it, readable or not, is written to a new file next to the database \
(<database>.<id>.damaged-<n>.json). Then its journal is replaced by a valid history of the messages before the first entry \
that cannot be read. The file holds the raw journal and is an export that `sessions import` reads. An intact conversation is \
not changed. Neither is one whose rows the database cannot all return; that is an error.";

pub(super) async fn run(config: &Config, args: &OneArgs) -> Result<Done, Failure> {
    let found = Found::open(config, args).await?;
    let _lock = found.sessions.lock(&found.scope)?;
    let backend = found.sessions.backend();
    let readable = journal::read(&*backend, &found.scope).await?;
    let Some(fault) = readable.fault.clone() else {
        err_line(&format!(
            "session {} is intact: {} entries, all readable",
            found.id,
            readable.entries.len()
        ));
        return Ok(Done::Well);
    };
    if readable.rows_lost {
        return Err(Failure::work(format!(
            "the database cannot return all rows of `{}`: {fault}; nothing was changed",
            found.id
        ))
        .hint(format!(
            "copy the file first; `callboard sessions export {}` prints what is readable",
            found.id
        )));
    }
    let (history, mut repairs) = readable.whole_history();
    let rounds = fitting(Some(readable.rounds()), &history, &mut repairs);
    let kept = Export::new(&found.id, &readable, &history)
        .with_journal(&readable)
        .to_json();
    let beside = found
        .sessions
        .path()
        .unwrap_or_else(|| Path::new("sessions.db"));
    let file = keep(beside, found.id.as_str(), &kept).map_err(|error| {
        Failure::work(format!(
            "the damaged journal cannot be saved: {}; nothing was changed",
            error.kind()
        ))
    })?;
    err_line(&format!(
        "{fault}; the whole journal is saved in {}",
        file.display()
    ));
    // If the process stops after this line, `sessions import` can read the file.
    backend.delete(&scope(&found.id)?).await?;
    store(config, &found.sessions, &found.id, &history, rounds, false).await?;
    backend.close(SHUTDOWN).await?;
    let imported = Imported {
        conversation_id: found.id,
        messages: history.messages().len(),
        repairs,
    };
    out_json(&serde_json::to_string(&imported).unwrap_or_default());
    Ok(Done::Well)
}

/// Writes a new file, and waits until it is on disk.
fn keep(beside: &Path, id: &str, text: &str) -> std::io::Result<PathBuf> {
    for n in 1..u32::MAX {
        let mut name = beside.as_os_str().to_owned();
        // Ids may contain a colon, which some file systems refuse; they are short enough for a file
        // name.
        name.push(format!(".{}.damaged-{n}.json", id.replace(':', "_")));
        let path = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(mut file) => {
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                return Ok(path);
            }
        }
    }
    Err(std::io::ErrorKind::AlreadyExists.into())
}
