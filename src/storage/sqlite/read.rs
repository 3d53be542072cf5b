//! The statements that read.

use bytes::Bytes;
use callboard_actors::{
    ids::{ConversationId, Epoch, SUBAGENT_PREFIX, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{ListQuery, SessionSummary, StoreError},
    stream::Open,
    time::Timestamp,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{
    error::{damaged, failed_read, failed_read_of},
    write::{code, find, int, nat},
};

/// Page size for a count of 0.
const PAGE: usize = 1000;

fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn head(conn: &Connection, scope: &Scope) -> Result<Head, StoreError> {
    let found = find(conn, scope).map_err(|error| failed_read_of(scope, &error))?;
    Ok(found.map(|(_, head)| head).unwrap_or_default())
}

/// Head, snapshot and entries of one point in time. A gap in the entries is reported as `Damaged`.
pub(super) fn load(conn: &mut Connection, scope: &Scope) -> Result<Loaded, StoreError> {
    let failed = |error: rusqlite::Error| failed_read_of(scope, &error);
    let transaction = conn.transaction().map_err(failed)?;
    let Some((conv, head)) = find(&transaction, scope).map_err(failed)? else {
        return Ok(Loaded::default());
    };
    let snapshot = snapshot(&transaction, conv)
        .map_err(failed)?
        .filter(|(upto, _)| *upto <= head.seq);
    let from = snapshot.as_ref().map_or(Seq(0), |(upto, _)| *upto);
    let entries = page(&transaction, conv, from, usize::MAX).map_err(failed)?;
    transaction.commit().map_err(failed)?;

    let mut next = from.next();
    for entry in &entries {
        if entry.seq != next {
            break;
        }
        next = next.next();
    }
    if next == head.seq.next() {
        Ok(Loaded {
            head,
            snapshot,
            entries,
        })
    } else {
        Err(damaged(
            scope,
            format!("entry {next} is missing or out of order"),
        ))
    }
}

fn snapshot(conn: &Connection, conv: i64) -> rusqlite::Result<Option<(Seq, Bytes)>> {
    let mut statement = conn.prepare_cached("SELECT upto, body FROM snapshot WHERE conv = ?1")?;
    statement
        .query_row([conv], |row| Ok((Seq(nat(row.get(0)?)), blob(row, 1)?)))
        .optional()
}

fn blob(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
}

fn page(
    conn: &Connection,
    conv: i64,
    after: Seq,
    count: usize,
) -> rusqlite::Result<Vec<StoredEntry>> {
    let sql = "SELECT seq, body FROM journal WHERE conv = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map(params![conv, int(after.0), limit(count)], |row| {
        Ok(StoredEntry {
            seq: Seq(nat(row.get(0)?)),
            bytes: blob(row, 1)?,
        })
    })?;
    rows.collect()
}

/// Stored entries, even with gaps: what an export of a damaged journal can still recover.
pub(super) fn entries(
    conn: &mut Connection,
    scope: &Scope,
    after: Seq,
    count: usize,
) -> Result<Vec<StoredEntry>, StoreError> {
    let failed = |error: rusqlite::Error| failed_read_of(scope, &error);
    let transaction = conn.transaction().map_err(failed)?;
    let Some((conv, _)) = find(&transaction, scope).map_err(failed)? else {
        return Ok(Vec::new());
    };
    let entries = page(&transaction, conv, after, count).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    Ok(entries)
}

pub(super) fn list(
    conn: &Connection,
    tenant: &TenantId,
    query: &ListQuery,
) -> Result<Vec<SessionSummary>, StoreError> {
    let sql = "SELECT id, epoch, head_seq, open, wake_at, created_at, updated_at, failed FROM conversation \
               WHERE tenant = ?1 AND id > ?2 AND (?3 IS NULL OR open = ?3) AND (?5 OR substr(id, 1, length(?6)) <> ?6) ORDER BY id LIMIT ?4";
    let read = || {
        let mut statement = conn.prepare_cached(sql)?;
        let after = query.after.as_ref().map_or("", ConversationId::as_str);
        let count = if query.count == 0 { PAGE } else { query.count };
        let rows = statement.query_map(
            params![
                tenant.as_str(),
                after,
                query.open.map(code),
                limit(count),
                query.subagents,
                SUBAGENT_PREFIX
            ],
            summary,
        )?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    // A row with an invalid id cannot be addressed, but must not hide the others.
    read()
        .map(|rows| rows.into_iter().flatten().collect())
        .map_err(|error| failed_read(&error))
}

fn summary(row: &Row<'_>) -> rusqlite::Result<Option<SessionSummary>> {
    let Ok(conversation) = ConversationId::new(row.get_ref(0)?.as_str()?) else {
        return Ok(None);
    };
    let open = match row.get(3)? {
        1 => Open::Running,
        2 => Open::Parked,
        _ => Open::None,
    };
    let at = |column: usize| row.get(column).map(|ms| Timestamp(nat(ms)));
    Ok(Some(SessionSummary {
        conversation,
        head: Head {
            epoch: Epoch(nat(row.get(1)?)),
            seq: Seq(nat(row.get(2)?)),
        },
        open,
        wake_at: row.get::<_, Option<i64>>(4)?.map(|ms| Timestamp(nat(ms))),
        created_at: at(5)?,
        updated_at: at(6)?,
        failed: row.get(7)?,
    }))
}

pub(super) fn count(conn: &Connection, tenant: &TenantId) -> Result<u64, StoreError> {
    let read = || {
        let mut statement =
            conn.prepare_cached("SELECT count(*) FROM conversation WHERE tenant = ?1")?;
        statement.query_row([tenant.as_str()], |row| row.get(0).map(nat))
    };
    read().map_err(|error| failed_read(&error))
}

pub(super) fn list_open(
    conn: &Connection,
    open: Open,
    due: Option<Timestamp>,
    after: Option<&Scope>,
    count: usize,
) -> Result<Vec<Scope>, StoreError> {
    // Force the partial indexes: without them the sweep that runs every second would scan every
    // conversation.
    let index = match open {
        Open::None => "",
        Open::Running => "INDEXED BY conversation_running",
        Open::Parked => "INDEXED BY conversation_parked",
    };
    let is_due = if due.is_some() {
        "wake_at <= ?1"
    } else {
        "?1 IS NULL"
    };
    let sql = format!(
        "SELECT tenant, id FROM conversation {index} WHERE open = {} AND failed IS NULL AND {is_due} AND (tenant, id) > (?2, ?3) \
         ORDER BY tenant, id LIMIT ?4",
        code(open)
    );
    let read = || {
        let mut statement = conn.prepare_cached(&sql)?;
        let (tenant, id) = after.map_or(("", ""), |after| {
            (after.tenant.as_str(), after.conversation.as_str())
        });
        let count = if count == 0 { PAGE } else { count };
        let rows = statement.query_map(
            params![due.map(|due| int(due.0)), tenant, id, limit(count)],
            |row| {
                let tenant = TenantId::new(row.get_ref(0)?.as_str()?).ok();
                let id = ConversationId::new(row.get_ref(1)?.as_str()?).ok();
                Ok(tenant.zip(id).map(|(tenant, id)| Scope::new(tenant, id)))
            },
        )?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    read()
        .map(|rows| rows.into_iter().flatten().collect())
        .map_err(|error| failed_read(&error))
}
