//! Opens the file: permissions, owner, schema version, integrity check. Blocks; callers run it on a
//! separate thread.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use callboard_actors::{
    ids::{ConversationId, Scope, TenantId},
    ports::StoreError,
};
use rusqlite::{Connection, Error, OpenFlags, TransactionBehavior, config::DbConfig, params};

use super::{
    error::{NOT_A_DATABASE, corrupt, describe, is_busy, unavailable},
    log::{self, READERS_WAIT},
    options::{Check, CommitMode, SqliteOptions},
};
use crate::{
    private::{self, make_folder},
    storage::commit::digest::Digests,
};

/// Migrations from an empty file to the newest version; `user_version` is the number of those
/// applied.
const SCHEMAS: &[&str] = &[
    include_str!("schema.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
];

/// "CBRD" in ASCII: distinguishes Callboard's files from those of other programs.
const APPLICATION_ID: i64 = 0x4342_5244;

/// Largest file that is checked after a crash, so that a start stays quick.
const CHECKED_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Size to which SQLite truncates the WAL file after a complete checkpoint.
const WAL_BYTES_KEPT: i64 = 16 * 1024 * 1024;

/// Capacity of a connection's cache of prepared statements; above the number of statements.
const STATEMENTS: usize = 64;

/// The file's name, for messages.
pub(super) fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

fn cannot_open(path: &Path, why: impl std::fmt::Display) -> StoreError {
    let why = why.to_string();
    // A file of something else stays as it is, and no permission changes that.
    let hint = match is_of_another(&why) {
        true => "",
        false => "; the file and its folder must be writable by this user, or name another file",
    };
    unavailable(format!("cannot open {}: {why}{hint}", name(path)))
}

/// Whether an error says that a file belongs to something else.
pub(crate) fn is_of_another(message: &str) -> bool {
    message.ends_with(NOT_A_DATABASE) || message.ends_with(ANOTHER_PROGRAM)
}

const ANOTHER_PROGRAM: &str = "it is a database of another program";

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
    if let Some(odd) = odd_companion(path) {
        let name = odd.file_name().unwrap_or_default().to_string_lossy();
        return Err(cannot_open(
            path,
            format!("{name} beside it is no regular file; move it away"),
        ));
    }
    let is_empty = fs::metadata(path).map_or(true, |file| file.len() == 0);
    if is_empty && has_log(path) {
        check_orphan(path, options)?;
    }
    make_file(path).map_err(|error| cannot_open(path, crate::os_error::words(&error)))?;
    let was_closed = !has_log(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags)
        .map_err(|error| cannot_open(path, describe(&error)))?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    harden(&conn).map_err(|error| cannot_open(path, describe(&error)))?;
    // If opening fails, closing the connection must not copy half of a damaged log into the
    // database and remove it.
    log::keep(&conn, true).map_err(|error| cannot_open(path, describe(&error)))?;
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
    if !was_closed {
        // Hosts that end within seconds of each start would otherwise let the log grow for good.
        drop(conn.busy_timeout(READERS_WAIT));
        drop(conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
    }
    let failed = |error| cannot_open(path, describe(&error));
    conn.busy_timeout(options.busy).map_err(failed)?;
    log::keep(&conn, false).map_err(failed)?;
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
        harden(&conn)?;
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        Ok(conn)
    };
    open().map_err(|error: Error| cannot_open(path, describe(&error)))
}

/// This program makes no view; one in the place of a table, in a file by a stranger, could run without
/// end.
pub(crate) fn harden(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    Ok(())
}

/// Whether one of SQLite's companion files is something else, such as a pipe, which would be waited
/// for.
fn odd_companion(path: &Path) -> Option<PathBuf> {
    ["-wal", "-shm", "-journal"]
        .map(|suffix| beside(path, suffix))
        .into_iter()
        .find(|file| fs::metadata(file).is_ok_and(|status| !status.is_file()))
}

/// The path with a suffix, as SQLite names its companion files.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut with = path.as_os_str().to_owned();
    with.push(suffix);
    with.into()
}

/// Creates the file if it does not exist. One that does is not opened: on Unix, closing any handle
/// of a file releases the locks that another connection of this process holds.
fn make_file(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        make_folder(parent).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => io::ErrorKind::NotADirectory.into(), // the parent is a file
            _ => error,
        })?;
    }
    // SQLite's companion files inherit the mode.
    match private::file().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match path.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok(()),
        },
        made => made.map(drop),
    }
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
    check_log(conn, path, options)?;
    migrate(conn, path)
}

/// Refuses a log that lost commits, before anything is written.
fn check_log(
    conn: &mut Connection,
    path: &Path,
    options: &SqliteOptions,
) -> Result<(), StoreError> {
    let failed = |error: Error| cannot_open(path, describe(&error));
    // Keeps other processes from writing while the log is read.
    let locked = conn
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(failed)?;
    let log = beside(path, "-wal");
    let found =
        log::inspect(&log).map_err(|error| cannot_open(path, crate::os_error::words(&error)))?;
    let Some(damage) = found.damage else {
        return locked.rollback().map_err(failed);
    };
    if options.accept_log_loss {
        let kept =
            keep_copy(&log).map_err(|error| cannot_open(path, crate::os_error::words(&error)))?;
        tracing::warn!(
            file = %name(&kept), frame = damage.frame, commits = damage.commits,
            "the store's log was damaged; it is kept in this file, and what followed the damage is lost"
        );
        return locked.rollback().map_err(failed);
    }
    let commits = match damage.commits {
        0 | 1 => "at least 1 acknowledged commit".to_owned(),
        n => format!("at least {n} acknowledged commits"),
    };
    Err(corrupt(format!(
        "{} cannot be read from frame {} on, and {commits} of all conversations would be lost; restore a backup, \
         or accept the loss with `callboard sessions repair --accept-log-loss`, which keeps a copy of the log",
        name(&log),
        damage.frame,
    )))
}

/// Refuses a log without its database: SQLite would delete the log and begin an empty database.
fn check_orphan(path: &Path, options: &SqliteOptions) -> Result<(), StoreError> {
    let log = beside(path, "-wal");
    if options.accept_log_loss {
        return keep_copy(&log)
            .map(drop)
            .map_err(|error| cannot_open(path, crate::os_error::words(&error)));
    }
    Err(corrupt(format!(
        "{} is missing or empty, but its log {} is there; put the database back beside its log, \
         or accept the loss with `callboard sessions repair --accept-log-loss`, which keeps a copy of the log",
        name(path),
        name(&log),
    )))
}

/// Copies a file to a new one beside it.
fn keep_copy(log: &Path) -> io::Result<PathBuf> {
    for n in 1..u32::MAX {
        let path = beside(log, &format!(".damaged-{n}"));
        let copy = private::file().create_new(true).open(&path);
        match copy {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(mut copy) => {
                io::copy(&mut fs::File::open(log)?, &mut copy)?;
                copy.sync_all()?;
                return Ok(path);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
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
        Err(cannot_open(path, ANOTHER_PROGRAM))
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
    let named = name_all(&transaction);
    if found < known {
        // Otherwise a failure is damage of single rows, which reading them reports.
        named.map_err(failed)?;
        transaction
            .pragma_update(None, "user_version", known)
            .map_err(failed)?;
        transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(failed)?;
    }
    transaction.commit().map_err(failed)
}

/// Fills the digests of the names that are not there: those of earlier versions, also of a host of
/// an earlier version that still runs. A row with an invalid id gets none: no call can name it.
fn name_all(conn: &Connection) -> rusqlite::Result<()> {
    let mut rows =
        conn.prepare("SELECT conv, tenant, id FROM conversation WHERE name_digest IS NULL")?;
    let mut update = conn.prepare("UPDATE conversation SET name_digest = ?2 WHERE conv = ?1")?;
    let mut rows = rows.query([])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        let tenant = TenantId::new(row.get_ref(1)?.as_str()?).ok();
        let id = ConversationId::new(row.get_ref(2)?.as_str()?).ok();
        if let Some((tenant, id)) = tenant.zip(id) {
            let digests = Digests::of(&Scope::new(tenant, id));
            names.push((row.get::<_, i64>(0)?, *digests.name()));
        }
    }
    for (conv, name) in names {
        update.execute(params![conv, name])?;
    }
    Ok(())
}

fn check(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let found: String = conn
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| cannot_open(path, describe(&error)))?;
    if found == "ok" {
        return Ok(());
    }
    Err(corrupt(format!(
        "{} is damaged; restore a backup, or salvage it with `sqlite3 {0} .recover`",
        name(path)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_in_the_place_of_a_table_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        let options = SqliteOptions::default();
        drop(writer(&path, &options).unwrap());
        let stranger = Connection::open(&path).unwrap();
        stranger
            .execute_batch(
                "DROP TABLE conversation;
                 CREATE VIEW conversation AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x AS id FROM n;",
            )
            .unwrap();
        drop(stranger);

        let refused = writer(&path, &options).and_then(|conn| {
            conn.query_row("SELECT count(*) FROM conversation", [], |_| Ok(()))
                .map_err(|error| cannot_open(&path, describe(&error)))
        });

        assert!(refused.is_err(), "the view was computed");
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_in_place_of_the_log_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.db");
        let log = beside(&path, "-wal");
        std::os::unix::net::UnixListener::bind(&log).unwrap();

        let refused = writer(&path, &SqliteOptions::default()).unwrap_err();

        assert!(refused.to_string().contains("s.db-wal"), "{refused}");
    }

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
