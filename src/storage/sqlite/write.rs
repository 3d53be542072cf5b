//! The statements that change the file. Each runs inside of a savepoint of the writer's transaction.

use callboard_actors::{
    ids::{Epoch, Scope, Seq, TenantId},
    ports::{Append, Head, Open},
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{error::WriteError, queue::Job};

/// How a state is stored.
pub(super) fn code(open: Open) -> i64 {
    match open {
        Open::None => 0,
        Open::Running => 1,
        Open::Parked => 2,
    }
}

/// SQLite's integers are signed; no counter of ours comes near the difference.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The reverse of [`int`].
pub(super) fn nat(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Runs a statement that is used again and again.
pub(super) fn run(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}

/// Makes one change; true when there was such a conversation.
pub(super) fn perform(conn: &Connection, job: &Job, now: i64) -> Result<bool, WriteError> {
    match job {
        Job::Append(given) => append(conn, given, now).map(|()| true),
        Job::Delete(scope, _) => delete(conn, scope),
        Job::Snapshot(scope, upto, bytes, _) => snapshot(conn, scope, *upto, bytes).map(|()| true),
        Job::Erase(tenant, _) => erase(conn, tenant),
        Job::Mark(scope, reason, _) => mark(conn, scope, reason.as_deref()).map(|()| true),
    }
}

/// A conversation's row number and head.
pub(super) fn find(conn: &Connection, scope: &Scope) -> rusqlite::Result<Option<(i64, Head)>> {
    let mut statement = conn.prepare_cached("SELECT conv, epoch, head_seq FROM conversation WHERE tenant = ?1 AND id = ?2")?;
    let row = statement.query_row(params![scope.tenant.as_str(), scope.conversation.as_str()], |row| {
        let head = Head { epoch: Epoch(nat(row.get(1)?)), seq: Seq(nat(row.get(2)?)) };
        Ok((row.get(0)?, head))
    });
    row.optional()
}

fn append(conn: &Connection, append: &Append, now: i64) -> Result<(), WriteError> {
    let place = find(conn, &append.scope)?;
    let found = place.map(|(_, head)| head).unwrap_or_default();
    let head = append.judge(found).map_err(WriteError::Append)?;
    let (epoch, seq, open, wake_at) = (int(head.epoch.0), int(head.seq.0), code(append.open), append.wake_at.map(|at| int(at.0)));
    let conv = match place {
        Some((conv, _)) => {
            // A clock that goes back does not make a conversation older than it is.
            let sql = "UPDATE conversation SET epoch = ?2, head_seq = ?3, open = ?4, wake_at = ?5, updated_at = max(updated_at, ?6) \
                       WHERE conv = ?1";
            conn.prepare_cached(sql)?.execute(params![conv, epoch, seq, open, wake_at, now])?;
            conv
        }
        None => {
            let sql = "INSERT INTO conversation (tenant, id, epoch, head_seq, open, wake_at, created_at, updated_at) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)";
            let (tenant, id) = (append.scope.tenant.as_str(), append.scope.conversation.as_str());
            conn.prepare_cached(sql)?.insert(params![tenant, id, epoch, seq, open, wake_at, now])?
        }
    };
    let mut insert = conn.prepare_cached("INSERT INTO journal (conv, seq, body) VALUES (?1, ?2, ?3)")?;
    for entry in &append.entries {
        insert.execute(params![conv, int(entry.seq.0), &*entry.bytes])?;
    }
    Ok(())
}

fn delete(conn: &Connection, scope: &Scope) -> Result<bool, WriteError> {
    let Some((conv, _)) = find(conn, scope)? else { return Ok(false) };
    for sql in ["DELETE FROM journal WHERE conv = ?1", "DELETE FROM snapshot WHERE conv = ?1", "DELETE FROM conversation WHERE conv = ?1"] {
        conn.prepare_cached(sql)?.execute([conv])?;
    }
    Ok(true)
}

/// By the tenant's column alone: a row whose id is none of ours goes too.
fn erase(conn: &Connection, tenant: &TenantId) -> Result<bool, WriteError> {
    for table in ["journal", "snapshot"] {
        let sql = format!("DELETE FROM {table} WHERE conv IN (SELECT conv FROM conversation WHERE tenant = ?1)");
        conn.prepare_cached(&sql)?.execute([tenant.as_str()])?;
    }
    let rows = conn.prepare_cached("DELETE FROM conversation WHERE tenant = ?1")?.execute([tenant.as_str()])?;
    Ok(rows > 0)
}

fn snapshot(conn: &Connection, scope: &Scope, upto: Seq, bytes: &[u8]) -> Result<(), WriteError> {
    let sql = "INSERT INTO snapshot (conv, upto, body) \
               SELECT conv, ?3, ?4 FROM conversation WHERE tenant = ?1 AND id = ?2 AND ?3 BETWEEN 1 AND head_seq \
               ON CONFLICT (conv) DO UPDATE SET upto = excluded.upto, body = excluded.body WHERE excluded.upto >= snapshot.upto";
    let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
    conn.prepare_cached(sql)?.execute(params![tenant, id, int(upto.0), bytes])?;
    Ok(())
}

fn mark(conn: &Connection, scope: &Scope, reason: Option<&str>) -> Result<(), WriteError> {
    let sql = "UPDATE conversation SET failed = ?3 WHERE tenant = ?1 AND id = ?2";
    let changed = conn.prepare_cached(sql)?.execute(params![scope.tenant.as_str(), scope.conversation.as_str(), reason])?;
    if changed == 0 { Err(WriteError::NotFound) } else { Ok(()) }
}
