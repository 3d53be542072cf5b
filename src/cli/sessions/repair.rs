//! `callboard sessions repair`: cuts a damaged journal at its first bad entry, after saving the whole
//! journal to a file, and accepts the loss behind a damaged log.

use std::{
    fs::OpenOptions,
    io::Write,
    path::{Path, PathBuf},
};

use callboard_actors::{
    ids::{ConversationId, Scope, Seq},
    journal::restore,
    ports::SessionBackend,
};
use clap::Args;
use serde::Serialize;

use super::{Found, OneArgs, ServedArgs, TenantFlag, export::Export, journal};
use crate::{
    app::Opening,
    cli::{
        failure::{Done, Failure},
        flags::StoreFlag,
        run::SHUTDOWN,
        terminal::{err_line, out_json},
    },
    config::Config,
    storage::{Sqlite, SqliteOptions},
};

/// The text of `--help`.
pub(super) const ABOUT: &str = "\
Repair a conversation whose journal cannot be read, or accept a damaged log.

First, everything stored of the conversation, readable or not, is written to a new file next to the database \
(<database>.<id>.damaged-<n>.json). Then its journal is cut at the first entry that cannot be read. The file holds the raw \
journal and is an export that `sessions import` reads. An intact conversation is not changed, and neither is one that an \
intact snapshot still serves.

With --accept-log-loss, a database whose log is damaged is opened although later commits of all conversations are lost. The log is first \
copied to a new file next to it (<database>-wal.damaged-<n>).";

/// Arguments of `sessions repair`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RepairArgs {
    /// Id of the conversation
    #[arg(value_name = "ID", required_unless_present = "accept_log_loss")]
    id: Option<ConversationId>,
    /// Accept the loss of commits behind a damaged part of the database's log
    #[arg(long, conflicts_with = "id")]
    accept_log_loss: bool,
    #[command(flatten)]
    store: StoreFlag,
    #[command(flatten)]
    of: TenantFlag,
}

/// The result, as printed.
#[derive(Debug, Serialize)]
struct Repaired {
    conversation_id: ConversationId,
    /// Entries that the journal holds now.
    entries: u64,
    messages: usize,
    /// Stored entries that were cut off.
    cut: usize,
}

pub(super) async fn run(config: &Config, args: &RepairArgs) -> Result<Done, Failure> {
    let Some(id) = &args.id else {
        return accept_log(config, args).await;
    };
    let served = ServedArgs {
        one: OneArgs {
            id: id.clone(),
            store: args.store.clone(),
        },
        of: args.of.clone(),
    };
    let found = Found::open(config, &served).await?;
    let _lock = found.sessions.lock(&found.scope)?;
    let backend = found.sessions.backend();
    let readable = journal::read(&*backend, &found.scope).await?;
    let Some(fault) = &readable.fault else {
        // A mark that was left by a damage that is gone.
        backend.mark_failed(&found.scope, None).await?;
        backend.close(SHUTDOWN).await?;
        err_line(&format!(
            "session {id} is intact: {} entries, all readable",
            readable.entries.len()
        ));
        return Ok(Done::Well);
    };
    if let Some(upto) = snapshot_that_serves(&*backend, &found.scope).await {
        backend.mark_failed(&found.scope, None).await?;
        backend.close(SHUTDOWN).await?;
        err_line(&format!(
            "{fault}; the conversation is served from its snapshot after entry {upto}, so nothing was cut \
             (hint: `callboard sessions export {id}{}` prints what is readable before)",
            args.of.repeated()
        ));
        return Ok(Done::Well);
    }
    let kept = Export::new(&found.id, &readable, &readable.state.history)
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
        "{fault}; {} saved in {}",
        if readable.rows_lost {
            "what the database returns of the journal is"
        } else {
            "the whole journal is"
        },
        file.display()
    ));
    let end = readable.end();
    let cut = backend.cut(&found.scope, end, readable.open()).await;
    cut.map_err(|error| {
        Failure::work(format!(
            "the journal cannot be cut: {error}; nothing was changed"
        ))
        .hint("restore the database from a backup, or `sessions delete` the conversation and import the saved file")
    })?;
    backend.close(SHUTDOWN).await?;
    let repaired = Repaired {
        conversation_id: found.id.clone(),
        entries: end.seq.0,
        messages: readable.state.history.messages().len(),
        cut: readable.stored.len().saturating_sub(readable.entries.len()),
    };
    out_json(&serde_json::to_string(&repaired).unwrap_or_default());
    Ok(Done::Well)
}

/// The last entry of a snapshot from which a host restores the conversation, although entries
/// before it are damaged.
async fn snapshot_that_serves(backend: &dyn SessionBackend, scope: &Scope) -> Option<Seq> {
    let loaded = backend.load(scope).await.ok()?;
    let (upto, _) = loaded.snapshot.as_ref()?;
    let state = restore(&loaded)?.ok()?;
    (state.head == loaded.head.seq && state.epoch == loaded.head.epoch).then_some(*upto)
}

/// Opens the store once, accepting that its log is damaged.
async fn accept_log(config: &Config, args: &RepairArgs) -> Result<Done, Failure> {
    let damaged = match args.store.open(config, Opening::Existing).await {
        Ok(sessions) => {
            sessions.backend().close(SHUTDOWN).await?;
            None
        }
        Err(failure) => Some(failure),
    };
    let Some(failure) = damaged else {
        err_line("the database opens: its log is intact");
        return Ok(Done::Well);
    };
    let Some(path) = args.store.path(config) else {
        return Err(failure);
    };
    let options = SqliteOptions {
        accept_log_loss: true,
        ..SqliteOptions::default()
    };
    let store = Sqlite::open_with(&path, options).await?;
    store.close(SHUTDOWN).await?;
    err_line(&format!(
        "{} is open again; the damaged log is kept beside it",
        path.display()
    ));
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
