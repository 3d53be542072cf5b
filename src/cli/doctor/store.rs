//! Checks of the store: its files, its pages and every stored conversation.

use std::{
    fs,
    path::{Path, PathBuf},
};

use callboard_actors::ports::StoreError;

use super::Finding;
use crate::{
    app::TENANT,
    cli::terminal::{counted, sanitize},
    config::{Config, Store},
    storage::{Check, Sqlite, SqliteOptions},
};

/// Size of the log in bytes above which something keeps it from being emptied.
const LOG_BYTES: u64 = 64 * 1024 * 1024;

/// Damaged conversations that are named; further ones are counted.
const NAMED: usize = 10;

/// Opens the store as `serve` would, checks every page and every conversation.
pub(super) async fn findings(config: &Config) -> Vec<Finding> {
    let path = match &config.store {
        Store::Memory => {
            return vec![Finding::warn(
                "store",
                "sessions are kept in memory",
                "they are lost when the process ends; `sqlite:PATH` stores them",
            )];
        }
        Store::Postgres(address) => return super::database::findings(address).await,
        Store::Sqlite(path) => path,
    };
    let log = log_of(path);
    let log_bytes = fs::metadata(&log).map_or(0, |log| log.len());
    let mut findings: Vec<Finding> = held(path);
    if !path.exists() {
        findings.push(match log_bytes {
            0 => Finding::ok(
                "store",
                "there are no sessions yet; the first start creates the file",
            ),
            _ => Finding::fail(
                "store",
                format!(
                    "{} is missing, but its log {} is there: the database was deleted or moved",
                    path.display(),
                    log.display()
                ),
                "put the database back beside its log before the next start",
            ),
        });
        return findings;
    }
    if log_bytes > LOG_BYTES {
        findings.push(Finding::warn(
            "store log",
            format!("{} has {} MiB", log.display(), log_bytes / (1024 * 1024)),
            "end other programs that have the database open; the next start empties the log",
        ));
    }
    let options = SqliteOptions {
        check: Check::Always,
        ..SqliteOptions::default()
    };
    match Sqlite::open_with(path, options).await {
        Ok(store) => findings.extend(conversations(&store, path).await),
        Err(error) => findings.push(Finding::fail("store", error.to_string(), remedy(&error))),
    }
    findings
}

fn remedy(error: &StoreError) -> &'static str {
    match error {
        StoreError::Corrupt { .. } => "copy its files first, whatever you do next",
        _ => "restore it from a backup, or set another file in `[store] url`",
    }
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

async fn conversations(store: &Sqlite, path: &Path) -> Vec<Finding> {
    let verified = match store.verify().await {
        Ok(verified) => verified,
        Err(error) => {
            return vec![Finding::fail("store", error.to_string(), remedy(&error))];
        }
    };
    let all = counted(verified.conversations, "conversation");
    if verified.damaged.is_empty() {
        return vec![Finding::ok(
            "store",
            format!(
                "{} opens, has the current schema, and all pages and {all} are intact",
                path.display()
            ),
        )];
    }
    let mut findings = vec![Finding::fail(
        "store",
        format!("{} of {all} damaged", verified.damaged.len()),
        "repair them; the others are served as before",
    )];
    let named = verified.damaged.iter().take(NAMED);
    findings.extend(named.map(|(scope, what)| {
        let (tenant, id) = (&scope.tenant, &scope.conversation);
        let flag = match tenant.as_str() {
            TENANT => String::new(),
            tenant => format!(" --tenant {tenant}"),
        };
        Finding::fail(
            format!("conversation {}", sanitize(id.as_str())),
            what.clone(),
            format!("`callboard sessions repair {id}{flag}` cuts it there, after saving all of it"),
        )
    }));
    findings
}

/// Processes that still have a database open which was deleted or replaced at this path. Sees
/// those of this user, on Linux.
fn held(path: &Path) -> Vec<Finding> {
    let Ok(path) = std::path::absolute(path) else {
        return Vec::new();
    };
    let gone = format!("{} (deleted)", path.display());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let held = processes.filter(|process| {
        let files = fs::read_dir(process.path().join("fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| {
            fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == gone.as_str())
        })
    });
    held.map(|process| {
        Finding::fail(
            "store",
            format!(
                "process {} still has a database open that was deleted or replaced at {}",
                process.file_name().to_string_lossy(),
                path.display()
            ),
            "what it stored since is not in the file: stop it, and restore the file it had",
        )
    })
    .collect()
}
