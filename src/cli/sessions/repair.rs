//! `callboard sessions repair`: a damaged journal gives way to what of it is readable, and nothing is lost on the way.

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

/// What `--help` says.
pub(super) const ABOUT: &str = "\
Mend a conversation whose journal cannot be read.

First everything that is stored of it, readable or not, is written to a new file next to the database \
(<database>.<id>.damaged-<n>.json). Only then its journal is replaced by the messages up to the first entry that cannot be read, \
made valid. The file holds the raw journal and is itself an export that `sessions import` takes. A conversation that is well is \
left alone; one of which the database cannot give all rows is left alone too, and that is said.";

pub(super) async fn run(config: &Config, args: &OneArgs) -> Result<Done, Failure> {
    let found = Found::open(config, args).await?;
    let _lock = found.sessions.lock(&found.scope)?;
    let backend = found.sessions.backend();
    let readable = journal::read(&*backend, &found.scope).await?;
    let Some(fault) = readable.fault.clone() else {
        err_line(&format!("session {} is well: {} entries, all readable", found.id, readable.entries.len()));
        return Ok(Done::Well);
    };
    if readable.rows_lost {
        return Err(Failure::work(format!("the database cannot give all of `{}`: {fault}; nothing was changed", found.id))
            .hint(format!("copy the file first; `callboard sessions export {}` gives what is readable", found.id)));
    }
    let (history, mut repairs) = readable.whole_history();
    let rounds = fitting(Some(readable.rounds()), &history, &mut repairs);
    let kept = Export::of(&found.id, &readable, &history).with_journal(&readable).to_json();
    let beside = found.sessions.path().unwrap_or_else(|| Path::new("sessions.db"));
    let file = keep(beside, found.id.as_str(), &kept)
        .map_err(|error| Failure::work(format!("the damaged journal cannot be kept: {}; nothing was changed", error.kind())))?;
    err_line(&format!("{fault}; the whole journal is kept in {}", file.display()));
    // From here on a stop leaves the file, which `sessions import` takes.
    backend.delete(&scope(&found.id)?).await?;
    store(config, &found.sessions, &found.id, &history, rounds, false).await?;
    backend.close(SHUTDOWN).await?;
    let imported = Imported { conversation_id: found.id, messages: history.messages().len(), repairs };
    out_json(&serde_json::to_string(&imported).unwrap_or_default());
    Ok(Done::Well)
}

/// Writes a file that was not there before, and waits until it is on the disk.
fn keep(beside: &Path, id: &str, text: &str) -> std::io::Result<PathBuf> {
    for n in 1..u32::MAX {
        let mut name = beside.as_os_str().to_owned();
        // Ids may hold a colon and are short enough for a file name.
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
