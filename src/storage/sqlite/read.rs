//! The statements that read.

use bytes::Bytes;
use callboard_actors::{
    ids::{ConversationId, Epoch, SUBAGENT_PREFIX, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{ListQuery, Salvaged, SessionSummary, StoreError},
    stream::Open,
    time::Timestamp,
};
use rusqlite::{Connection, Error, OptionalExtension, Row, params, types::ValueRef};

use super::{
    chain::{Chain, Kept, Row as StoredRow},
    error::{damaged, failed_read, failed_read_of},
    write::{Place, find, kept},
};
use crate::storage::commit::{
    columns::{PAGE, PAGE_BYTES, code, int, limit, nat, open_of},
    digest::{Digest, Digests, missing},
};

pub(super) fn head(conn: &Connection, scope: &Scope) -> Result<Head, StoreError> {
    let found = find(conn, scope, &Digests::of(scope)).map_err(|error| error.of(scope))?;
    Ok(found.map(|place| place.head).unwrap_or_default())
}

/// Head, snapshot and entries of one point in time, each entry checked against its digest.
pub(super) fn load(conn: &mut Connection, scope: &Scope) -> Result<Loaded, StoreError> {
    let failed = |error: Error| failed_read_of(scope, &error);
    let digests = Digests::of(scope);
    let transaction = conn.transaction().map_err(failed)?;
    let Some(place) = find(&transaction, scope, &digests).map_err(|error| error.of(scope))? else {
        return Ok(Loaded::default());
    };
    let (snapshot, at) = match snapshot(&transaction, &place, &digests).map_err(failed)? {
        Found::Whole(upto, bytes, at) => (Some((upto, bytes)), at),
        Found::Nothing => (None, None),
        Found::Damaged => {
            tracing::warn!(conversation = %scope.conversation, "a stored snapshot is damaged; reading the whole journal");
            (None, None)
        }
    };
    let from = snapshot.as_ref().map_or(Seq(0), |(upto, _)| *upto);
    let rows = rows(&transaction, &place, from).map_err(failed)?;
    transaction.commit().map_err(failed)?;

    let mut chain = Chain::after(digests, from, at);
    let mut entries = Vec::with_capacity(rows.len());
    for row in rows {
        entries.push(taken(&mut chain, row).map_err(|what| damaged(scope, what))?);
    }
    match end_fault(&chain, &place) {
        Some(what) => Err(damaged(scope, what)),
        None => Ok(Loaded {
            head: place.head,
            snapshot,
            entries,
        }),
    }
}

/// Takes a row that must be intact.
fn taken(chain: &mut Chain, row: StoredRow) -> Result<StoredEntry, String> {
    chain.take(&row)?;
    Ok(StoredEntry {
        seq: row.seq,
        bytes: row.body.unwrap_or_default(),
    })
}

/// What is wrong if a journal's last row is the last that `chain` took.
fn end_fault(chain: &Chain, place: &Place) -> Option<String> {
    let (last, end) = (chain.last(), place.head.seq);
    let digest = match place.digest {
        Kept::Absent => Some(None),
        Kept::Whole(digest) => Some(Some(digest)),
        Kept::Broken => None,
    };
    if last < end {
        Some(missing(last.next()))
    } else if last > end {
        Some(format!(
            "there are entries after {end}, where its head row ends it"
        ))
    } else if digest != Some(chain.end()) {
        Some(format!("its head row contradicts entry {end}"))
    } else {
        None
    }
}

/// What a conversation has as its snapshot.
enum Found {
    Nothing,
    /// Its seq, its bytes and the digest of the entry with that seq.
    Whole(Seq, Bytes, Option<Digest>),
    Damaged,
}

fn snapshot(conn: &Connection, place: &Place, digests: &Digests) -> rusqlite::Result<Found> {
    let sql = "SELECT snapshot.upto, snapshot.body, snapshot.digest, journal.seq, journal.digest FROM snapshot \
               LEFT JOIN journal ON journal.conv = snapshot.conv AND journal.seq = snapshot.upto WHERE snapshot.conv = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_row([place.conv], |row| {
        let upto = Seq(nat(row.get(0)?));
        let Some(body) = blob(row, 1)? else {
            return Ok(Found::Damaged);
        };
        let (of, at) = (kept(row, 2)?, kept(row, 4)?);
        if upto > place.head.seq {
            return Ok(Found::Nothing);
        }
        let at = match at {
            _ if row.get_ref(3)? == ValueRef::Null => return Ok(Found::Damaged),
            Kept::Absent => None,
            Kept::Whole(digest) => Some(digest),
            Kept::Broken => return Ok(Found::Damaged),
        };
        let is_whole = match of {
            Kept::Absent => at.is_none(),
            Kept::Whole(digest) => digest == digests.snapshot(at.as_ref(), upto, &body),
            Kept::Broken => false,
        };
        Ok(match is_whole {
            true => Found::Whole(upto, body, at),
            false => Found::Damaged,
        })
    });
    Ok(found.optional()?.unwrap_or(Found::Nothing))
}

/// The bytes of a column; `None` if it holds something else.
fn blob(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Bytes>> {
    let value = row.get_ref(column)?;
    Ok(value.as_blob().ok().map(Bytes::copy_from_slice))
}

fn row_of(row: &Row<'_>) -> rusqlite::Result<StoredRow> {
    Ok(StoredRow {
        seq: Seq(nat(row.get(0)?)),
        body: blob(row, 1)?,
        digest: kept(row, 2)?,
    })
}

/// Emptied entries are empty from the first piece of their emptying on.
const ROWS: &str = "SELECT seq, CASE WHEN seq <= ?4 THEN x'' ELSE body END, digest FROM journal \
                    WHERE conv = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3";

fn rows(conn: &Connection, place: &Place, after: Seq) -> rusqlite::Result<Vec<StoredRow>> {
    let (after, emptied) = (int(after.0), int(place.emptied.0));
    let mut statement = conn.prepare_cached(ROWS)?;
    let rows = statement.query_map(
        params![place.conv, after, limit(usize::MAX), emptied],
        row_of,
    )?;
    rows.collect()
}

/// Rows that could be read.
struct Readable {
    rows: Vec<StoredRow>,
    /// The error of the row behind them.
    error: Option<Error>,
    /// Whether they end where their bytes reach [`PAGE_BYTES`].
    is_cut: bool,
}

/// A page of rows, up to the first that SQLite cannot return.
fn readable_rows(conn: &Connection, place: &Place, after: Seq, count: usize) -> Readable {
    let (after, emptied) = (int(after.0), int(place.emptied.0));
    let mut rows = Vec::new();
    let mut is_cut = false;
    let mut read = || {
        let mut statement = conn.prepare_cached(ROWS)?;
        let mut bytes = 0;
        let parameters = params![place.conv, after, limit(count), emptied];
        for row in statement.query_map(parameters, row_of)? {
            let row = row?;
            bytes += row.body.as_ref().map_or(0, Bytes::len);
            rows.push(row);
            if bytes >= PAGE_BYTES {
                is_cut = true;
                break;
            }
        }
        Ok(())
    };
    let error = read().err();
    Readable {
        rows,
        error,
        is_cut,
    }
}

/// A chain that goes on after the stored entry `after`.
fn chain_after(
    conn: &Connection,
    conv: i64,
    digests: Digests,
    after: Seq,
) -> rusqlite::Result<Result<Chain, String>> {
    if after == Seq(0) {
        return Ok(Ok(Chain::after(digests, after, None)));
    }
    let mut statement =
        conn.prepare_cached("SELECT digest FROM journal WHERE conv = ?1 AND seq = ?2")?;
    let found = statement
        .query_row(params![conv, int(after.0)], |row| kept(row, 0))
        .optional()?;
    Ok(match found {
        None | Some(Kept::Broken) => Err(missing(after)),
        Some(Kept::Absent) => Ok(Chain::after(digests, after, None)),
        Some(Kept::Whole(digest)) => Ok(Chain::after(digests, after, Some(digest))),
    })
}

/// A page of entries, up to the first that is damaged; the page that would begin with it fails.
pub(super) fn entries(
    conn: &mut Connection,
    scope: &Scope,
    after: Seq,
    count: usize,
) -> Result<Vec<StoredEntry>, StoreError> {
    let failed = |error: Error| failed_read_of(scope, &error);
    let digests = Digests::of(scope);
    let transaction = conn.transaction().map_err(failed)?;
    let Some(place) = find(&transaction, scope, &digests).map_err(|error| error.of(scope))? else {
        return Ok(Vec::new());
    };
    if after >= place.head.seq || count == 0 {
        return Ok(Vec::new());
    }
    let mut chain = chain_after(&transaction, place.conv, digests, after)
        .map_err(failed)?
        .map_err(|what| damaged(scope, what))?;
    let found = readable_rows(&transaction, &place, after, count);
    let mut fault = found.error.map(failed);
    let is_last = found.rows.len() < count && !found.is_cut && fault.is_none();
    let mut entries = Vec::with_capacity(found.rows.len());
    for row in found.rows {
        match taken(&mut chain, row) {
            Ok(entry) => entries.push(entry),
            Err(what) => {
                fault = Some(damaged(scope, what));
                break;
            }
        }
    }
    if fault.is_none()
        && (is_last || chain.last() >= place.head.seq)
        && let Some(what) = end_fault(&chain, &place)
    {
        // Where entries are missing, those before are intact; otherwise the last one is in doubt.
        if chain.last() >= place.head.seq {
            entries.pop();
        }
        fault = Some(damaged(scope, what));
    }
    match fault {
        Some(error) if entries.is_empty() => Err(error),
        Some(_) | None => Ok(entries),
    }
}

/// Checks a conversation: every entry, also those that a snapshot replaces.
pub(super) fn check(conn: &mut Connection, scope: &Scope) -> Result<(), StoreError> {
    load(conn, scope)?;
    let mut after = Seq(0);
    loop {
        match entries(conn, scope, after, PAGE)?.last() {
            Some(last) => after = last.seq,
            None => return Ok(()),
        }
    }
}

/// Rows as they are, each with what is wrong with it; gaps are faults of the row behind them.
pub(super) fn salvage(
    conn: &mut Connection,
    scope: &Scope,
    after: Seq,
    count: usize,
) -> Result<Vec<Salvaged>, StoreError> {
    let failed = |error: Error| failed_read_of(scope, &error);
    let digests = Digests::of(scope);
    let transaction = conn.transaction().map_err(failed)?;
    let Some(place) = find(&transaction, scope, &digests).map_err(|error| error.of(scope))? else {
        return Ok(Vec::new());
    };
    let mut chain = chain_after(&transaction, place.conv, digests, after)
        .map_err(failed)?
        .unwrap_or(Chain::after(digests, after, None));
    let found = readable_rows(&transaction, &place, after, count);
    match found.error {
        Some(error) if found.rows.is_empty() => Err(failed(error)),
        Some(_) | None => Ok(found
            .rows
            .into_iter()
            .map(|row| Salvaged {
                fault: chain.take(&row).err(),
                entry: StoredEntry {
                    seq: row.seq,
                    bytes: row.body.unwrap_or_default(),
                },
            })
            .collect()),
    }
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
    let open = open_of(row.get(3)?);
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
