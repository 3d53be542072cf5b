//! The statements that change the file. Each runs inside of a savepoint of the writer's
//! transaction.

use callboard_actors::{
    ids::{Epoch, Scope, Seq, TenantId},
    journal::Head,
    ports::Append,
    stream::Open,
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    error::WriteError,
    job::{Change, Job},
};

/// The stored form of a state.
pub(super) fn code(open: Open) -> i64 {
    match open {
        Open::None => 0,
        Open::Running => 1,
        Open::Parked => 2,
    }
}

/// SQLite's integers are signed; no counter here comes near 2^63.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The inverse of [`int`].
pub(super) fn nat(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Runs a cached statement without parameters.
pub(super) fn run(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}

/// Executes one job.
pub(super) fn perform(conn: &Connection, job: &Job, now: i64) -> Result<Change, WriteError> {
    match job {
        Job::Append(given) => append(conn, given, now).map(Change::found),
        Job::Delete(scope, _) => delete(conn, scope),
        Job::Snapshot(scope, upto, bytes, _) => {
            snapshot(conn, scope, *upto, bytes).map(Change::found)
        }
        Job::Erase(tenant, _) => erase(conn, tenant),
        Job::Mark(scope, reason, _) => {
            mark(conn, scope, reason.as_deref()).map(|()| Change::found(0))
        }
        Job::Empty(scope, upto, _) => empty(conn, scope, *upto),
        Job::Count(tenant, _) => count(conn, tenant),
    }
}

/// Counts a tenant's bytes: reads its head rows by their index.
fn count(conn: &Connection, tenant: &TenantId) -> Result<Change, WriteError> {
    let mut statement =
        conn.prepare_cached("SELECT coalesce(sum(bytes), 0) FROM conversation WHERE tenant = ?1")?;
    let bytes = statement.query_row([tenant.as_str()], |row| row.get(0).map(nat))?;
    Ok(Change {
        counted: Some(bytes),
        ..Change::default()
    })
}

/// A conversation's stored bytes.
fn bytes_of(conn: &Connection, conv: i64) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT bytes FROM conversation WHERE conv = ?1")?
        .query_row([conv], |row| row.get(0))
}

/// A conversation's row number and head.
pub(super) fn find(conn: &Connection, scope: &Scope) -> rusqlite::Result<Option<(i64, Head)>> {
    let mut statement = conn.prepare_cached(
        "SELECT conv, epoch, head_seq FROM conversation WHERE tenant = ?1 AND id = ?2",
    )?;
    let row = statement.query_row(
        params![scope.tenant.as_str(), scope.conversation.as_str()],
        |row| {
            let head = Head {
                epoch: Epoch(nat(row.get(1)?)),
                seq: Seq(nat(row.get(2)?)),
            };
            Ok((row.get(0)?, head))
        },
    );
    row.optional()
}

/// Stores an append; returns the added bytes.
fn append(conn: &Connection, append: &Append, now: i64) -> Result<i64, WriteError> {
    let place = find(conn, &append.scope)?;
    let found = place.map(|(_, head)| head).unwrap_or_default();
    let head = append.check(found).map_err(WriteError::Append)?;
    let epoch = int(head.epoch.0);
    let seq = int(head.seq.0);
    let open = code(append.open);
    let wake_at = append.wake_at.map(|at| int(at.0));
    let bytes = int(append
        .entries
        .iter()
        .map(|entry| entry.bytes.len() as u64)
        .sum());
    let conv = match place {
        Some((conv, _)) => {
            // `max`: a clock that goes back must not decrease `updated_at`.
            let sql = "UPDATE conversation SET epoch = ?2, head_seq = ?3, open = ?4, wake_at = ?5, updated_at = max(updated_at, ?6), \
                       bytes = bytes + ?7 WHERE conv = ?1";
            conn.prepare_cached(sql)?
                .execute(params![conv, epoch, seq, open, wake_at, now, bytes])?;
            conv
        }
        None => {
            let sql = "INSERT INTO conversation (tenant, id, epoch, head_seq, open, wake_at, created_at, updated_at, bytes) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8)";
            let tenant = append.scope.tenant.as_str();
            let id = append.scope.conversation.as_str();
            conn.prepare_cached(sql)?
                .insert(params![tenant, id, epoch, seq, open, wake_at, now, bytes])?
        }
    };
    let mut insert =
        conn.prepare_cached("INSERT INTO journal (conv, seq, body) VALUES (?1, ?2, ?3)")?;
    for entry in &append.entries {
        insert.execute(params![conv, int(entry.seq.0), &*entry.bytes])?;
    }
    Ok(bytes)
}

fn delete(conn: &Connection, scope: &Scope) -> Result<Change, WriteError> {
    let Some((conv, _)) = find(conn, scope)? else {
        return Ok(Change::default());
    };
    let bytes = bytes_of(conn, conv)?;
    for sql in [
        "DELETE FROM journal WHERE conv = ?1",
        "DELETE FROM snapshot WHERE conv = ?1",
        "DELETE FROM conversation WHERE conv = ?1",
    ] {
        conn.prepare_cached(sql)?.execute([conv])?;
    }
    Ok(Change::found(bytes.saturating_neg()))
}

/// Deletes by the tenant's column alone, so that rows with an invalid id are deleted too.
fn erase(conn: &Connection, tenant: &TenantId) -> Result<Change, WriteError> {
    for table in ["journal", "snapshot"] {
        let sql = format!(
            "DELETE FROM {table} WHERE conv IN (SELECT conv FROM conversation WHERE tenant = ?1)"
        );
        conn.prepare_cached(&sql)?.execute([tenant.as_str()])?;
    }
    let rows = conn
        .prepare_cached("DELETE FROM conversation WHERE tenant = ?1")?
        .execute([tenant.as_str()])?;
    Ok(Change {
        found: rows > 0,
        bytes: 0,
        counted: Some(0),
    })
}

/// The stored snapshot: its sequence number and size in bytes.
fn snapshot_of(conn: &Connection, conv: i64) -> rusqlite::Result<Option<(Seq, i64)>> {
    let mut statement =
        conn.prepare_cached("SELECT upto, length(body) FROM snapshot WHERE conv = ?1")?;
    statement
        .query_row([conv], |row| Ok((Seq(nat(row.get(0)?)), row.get(1)?)))
        .optional()
}

/// Whether the entry's body was emptied.
fn is_empty(conn: &Connection, conv: i64, seq: Seq) -> rusqlite::Result<bool> {
    let mut statement =
        conn.prepare_cached("SELECT length(body) = 0 FROM journal WHERE conv = ?1 AND seq = ?2")?;
    Ok(statement
        .query_row(params![conv, int(seq.0)], |row| row.get(0))
        .optional()?
        .unwrap_or_default())
}

/// Stores a snapshot unless it is older than the stored one; returns the change in bytes.
fn snapshot(conn: &Connection, scope: &Scope, upto: Seq, bytes: &[u8]) -> Result<i64, WriteError> {
    let Some((conv, head)) = find(conn, scope)? else {
        return Ok(0);
    };
    let kept = snapshot_of(conn, conv)?;
    let is_late = kept.is_some_and(|(kept, _)| kept > upto);
    if upto == Seq(0) || upto > head.seq || is_late || is_empty(conn, conv, upto)? {
        return Ok(0);
    }
    conn.prepare_cached("INSERT OR REPLACE INTO snapshot (conv, upto, body) VALUES (?1, ?2, ?3)")?
        .execute(params![conv, int(upto.0), bytes])?;
    let added = int(bytes.len() as u64).saturating_sub(kept.map_or(0, |(_, bytes)| bytes));
    grow(conn, conv, added)?;
    Ok(added)
}

fn grow(conn: &Connection, conv: i64, bytes: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE conversation SET bytes = max(bytes + ?2, 0) WHERE conv = ?1")?
        .execute([conv, bytes])
        .map(drop)
}

/// Empties the bodies of entries. The rows stay, so that the journal has no gap.
fn empty(conn: &Connection, scope: &Scope, upto: Seq) -> Result<Change, WriteError> {
    let Some((conv, _)) = find(conn, scope)? else {
        return Ok(Change::default());
    };
    let range = params![conv, int(upto.0)];
    let mut sum = conn.prepare_cached(
        "SELECT coalesce(sum(length(body)), 0) FROM journal WHERE conv = ?1 AND seq <= ?2",
    )?;
    let mut freed: i64 = sum.query_row(range, |row| row.get(0))?;
    conn.prepare_cached(
        "UPDATE journal SET body = x'' WHERE conv = ?1 AND seq <= ?2 AND length(body) > 0",
    )?
    .execute(range)?;
    if let Some((_, bytes)) = snapshot_of(conn, conv)?.filter(|(kept, _)| *kept <= upto) {
        conn.prepare_cached("DELETE FROM snapshot WHERE conv = ?1")?
            .execute([conv])?;
        freed = freed.saturating_add(bytes);
    }
    grow(conn, conv, freed.saturating_neg())?;
    Ok(Change::found(freed.saturating_neg()))
}

fn mark(conn: &Connection, scope: &Scope, reason: Option<&str>) -> Result<(), WriteError> {
    let sql = "UPDATE conversation SET failed = ?3 WHERE tenant = ?1 AND id = ?2";
    let changed = conn.prepare_cached(sql)?.execute(params![
        scope.tenant.as_str(),
        scope.conversation.as_str(),
        reason
    ])?;
    if changed == 0 {
        Err(WriteError::NotFound)
    } else {
        Ok(())
    }
}
