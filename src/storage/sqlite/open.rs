//! Opens the file: permissions, owner, schema version, integrity check. Blocks; callers run it on a
//! separate thread.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use callboard_actors::ports::StoreError;
use rusqlite::{Connection, Error, OpenFlags, TransactionBehavior};

use super::{
    error::{describe, is_busy, unavailable},
    options::{Check, CommitMode, SqliteOptions},
};
use crate::private::make_folder;

/// Migrations from an empty file to the newest version; `user_version` is the number of those
/// applied.
const SCHEMAS: &[&str] = &[include_str!("schema.sql"), include_str!("schema_2.sql")];

/// "CBRD" in ASCII: distinguishes Callboard's files from those of other programs.
const APPLICATION_ID: i64 = 0x4342_5244;

/// Largest file that is checked after a crash, so that a start stays quick.
const CHECKED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Size to which SQLite truncates the WAL file after a complete checkpoint.
const WAL_BYTES_KEPT: i64 = 16 * 1024 * 1024;

/// Capacity of a connection's cache of prepared statements; above the number of statements.
const STATEMENTS: usize = 32;

/// The file's name, for messages.
fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn cannot_open(path: &Path, why: impl std::fmt::Display) -> StoreError {
    unavailable(format!(
        "cannot open {}: {why}; the file and its folder must be writable by this user, or name another file",
        name(path)
    ))
}

/// The absolute path, so that neither a change of the working directory nor SQLite's special file
/// names matter.
pub(super) fn locate(path: &Path) -> Result<PathBuf, StoreError> {
    std::path::absolute(path).map_err(|error| cannot_open(path, crate::os_error::words(&error)))
}

/// Whether the file has a non-empty log: it was not closed cleanly, or is open in another process.
pub(super) fn has_log(path: &Path) -> bool {
    fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0)
}

/// Opens the writing connection, and creates the file if it does not exist.
pub(super) fn writer(path: &Path, options: &SqliteOptions) -> Result<Connection, StoreError> {
    make_file(path).map_err(|error| cannot_open(path, crate::os_error::words(&error)))?;
    let was_closed = !has_log(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags)
        .map_err(|error| cannot_open(path, describe(&error)))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    prepare(&mut conn, path, options)?;
    let bytes = fs::metadata(path).map_or(0, |file| file.len());
    let is_checked = match options.check {
        Check::AfterCrash => !was_closed && bytes <= CHECKED_BYTES_MAX,
        Check::Always => true,
        Check::Never => false,
    };
    if is_checked {
        check(&conn, path)?;
    }
    Ok(conn)
}

/// Opens a further connection, for a reader or the checkpoint thread. [`writer`] must have opened
/// the file before.
pub(super) fn another(
    path: &Path,
    options: &SqliteOptions,
    may_write: bool,
) -> Result<Connection, StoreError> {
    let access = if may_write {
        OpenFlags::SQLITE_OPEN_READ_WRITE
    } else {
        OpenFlags::SQLITE_OPEN_READ_ONLY
    };
    let open = || {
        let conn = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        conn.busy_timeout(options.busy)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        Ok(conn)
    };
    open().map_err(|error: Error| cannot_open(path, describe(&error)))
}

/// The path with a suffix, as SQLite names its companion files.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut with = path.as_os_str().to_owned();
    with.push(suffix);
    with.into()
}

fn make_file(path: &Path) -> io::Result<()> {
    let mut file = fs::OpenOptions::new();
    #[cfg(unix)]
    // SQLite's companion files inherit the mode
    std::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
    if let Some(parent) = path.parent() {
        make_folder(parent).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::ErrorKind::NotADirectory.into(), // the parent is a file
            _ => error,
        })?;
    }
    file.read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map(drop)
}

fn prepare(conn: &mut Connection, path: &Path, options: &SqliteOptions) -> Result<(), StoreError> {
    let failed = |error: Error| cannot_open(path, describe(&error));
    conn.busy_timeout(options.busy).map_err(failed)?;
    // Before anything is changed, so that another program's file stays untouched.
    check_owner(conn, path)?;
    let mode = journal_mode(conn, options.busy).map_err(failed)?;
    if mode != "wal" {
        return Err(cannot_open(
            path,
            "its file system cannot hold a write-ahead log",
        ));
    }
    let synchronous = match options.durability {
        CommitMode::Sync => "FULL",
        CommitMode::Batched => "NORMAL",
    };
    conn.pragma_update(None, "synchronous", synchronous)
        .map_err(failed)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)
        .map_err(failed)?;
    // Overwrites deleted data, so that an erased tenant's texts do not remain in free pages.
    conn.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))
        .map_err(failed)?;
    conn.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES_KEPT, |_| Ok(()))
        .map_err(failed)?;
    migrate(conn, path)
}

fn number(conn: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    conn.pragma_query_value(None, pragma, |row| row.get(0))
}

fn check_owner(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |error: Error| cannot_open(path, describe(&error));
    // One snapshot for all three values: another process may be creating this file.
    let snapshot = conn.transaction().map_err(failed)?;
    let version = number(&snapshot, "user_version").map_err(failed)?;
    let owner = number(&snapshot, "application_id").map_err(failed)?;
    let tables: i64 = snapshot
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(failed)?;
    let is_new = owner == 0 && version == 0 && tables == 0;
    if owner == APPLICATION_ID || is_new {
        Ok(())
    } else {
        Err(cannot_open(path, "it is a database of another program"))
    }
}

/// Enables the write-ahead log. SQLite's busy timeout does not apply here, so the wait is explicit.
fn journal_mode(conn: &Connection, busy: Duration) -> rusqlite::Result<String> {
    let started = Instant::now();
    loop {
        match conn.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)) {
            Err(error) if is_busy(&error) && started.elapsed() < busy => {
                std::thread::sleep(Duration::from_millis(10))
            }
            result => return result,
        }
    }
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |error: Error| cannot_open(path, describe(&error));
    let known = u32::try_from(SCHEMAS.len()).unwrap_or(u32::MAX);
    // In one transaction with reading the version: two processes may open a new file at the same
    // time.
    let transaction = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(failed)?;
    let found = number(&transaction, "user_version").map_err(failed)?;
    let found = u32::try_from(found).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::NewerSchema { found, known });
    }
    for (step, _) in SCHEMAS
        .iter()
        .zip(1..)
        .filter(|(_, version)| *version > found)
    {
        transaction.execute_batch(step).map_err(failed)?;
    }
    if found < known {
        transaction
            .pragma_update(None, "user_version", known)
            .map_err(failed)?;
        transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

fn check(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let found: String = conn
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| cannot_open(path, describe(&error)))?;
    if found == "ok" {
        return Ok(());
    }
    Err(unavailable(format!(
        "{} is damaged; restore a backup, or salvage it with `sqlite3 {0} .recover`",
        name(path)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_commit_waits_for_the_disk_and_a_batched_one_for_the_operating_system() {
        let folder = tempfile::tempdir().unwrap();
        for (durability, synchronous) in [(CommitMode::Sync, 2), (CommitMode::Batched, 1)] {
            let options = SqliteOptions {
                durability,
                ..SqliteOptions::default()
            };

            let conn = writer(&folder.path().join("s.db"), &options).unwrap();

            assert_eq!(number(&conn, "synchronous"), Ok(synchronous));
            assert_eq!(
                number(&conn, "wal_autocheckpoint"),
                Ok(0),
                "no commit pays for a checkpoint"
            );
        }
    }
}
