//! The statements that change the file. Each runs inside of a savepoint of the writer's
//! transaction.

use callboard_actors::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::Head,
    policy::Amount,
    ports::Append,
    stream::Open,
};
use rusqlite::{
    Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params, types::ValueRef,
};

use super::{
    chain::Kept,
    error::{FindError, WriteError},
    outbox,
};
use crate::storage::commit::{
    columns::{PIECE, PIECE_BYTES, code, int, limit, nat},
    digest::{Digest, Digests, missing},
    job::{Change, Job, Unfinished, work},
};

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
        Job::Clear(tenant, ..) => clear(conn, tenant),
        Job::Erase(tenant, _) => erase(conn, tenant),
        Job::Mark(scope, reason, _) => {
            mark(conn, scope, reason.as_deref()).map(|()| Change::found(0))
        }
        Job::Empty(scope, upto, _) => empty(conn, scope, *upto),
        Job::Cut(scope, to, open, _) => cut(conn, scope, *to, *open),
        Job::Count(tenant, _) => count(conn, tenant),
        Job::Spend(tenant, amount, _) => spend(conn, tenant, *amount),
        Job::Outbox(tenant, change) => outbox::change(conn, tenant, change),
        // The file belongs to the processes of one machine, and no conversation to one of them.
        Job::Release(_) => Ok(Change::default()),
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

/// Adds to what a tenant has spent; a sum stops at the largest number.
fn spend(conn: &Connection, tenant: &TenantId, amount: Amount) -> Result<Change, WriteError> {
    if amount != Amount::default() {
        let sql = "INSERT INTO spending (tenant, tokens, micro_usd, wall_ms) VALUES (?1, ?2, ?3, ?4) \
                   ON CONFLICT (tenant) DO UPDATE SET \
                   tokens = tokens + min(excluded.tokens, 9223372036854775807 - tokens), \
                   micro_usd = micro_usd + min(excluded.micro_usd, 9223372036854775807 - micro_usd), \
                   wall_ms = wall_ms + min(excluded.wall_ms, 9223372036854775807 - wall_ms)";
        conn.prepare_cached(sql)?.execute(params![
            tenant.as_str(),
            int(amount.tokens),
            int(amount.micro_usd),
            int(amount.wall_ms)
        ])?;
    }
    let sql = "SELECT tokens, micro_usd, wall_ms FROM spending WHERE tenant = ?1";
    let spent = conn
        .prepare_cached(sql)?
        .query_row([tenant.as_str()], |row| {
            Ok(Amount {
                tokens: nat(row.get(0)?),
                micro_usd: nat(row.get(1)?),
                wall_ms: nat(row.get(2)?),
            })
        })
        .optional()?;
    Ok(Change {
        spent: Some(spent.unwrap_or_default()),
        ..Change::default()
    })
}

/// A conversation's stored bytes.
fn bytes_of(conn: &Connection, conv: i64) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT bytes FROM conversation WHERE conv = ?1")?
        .query_row([conv], |row| row.get(0))
}

/// Where a conversation is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Its row number.
    pub(super) conv: i64,
    pub(super) head: Head,
    /// The last entry that is read as empty.
    pub(super) emptied: Seq,
    /// The last entry whose row, with all before it, holds no bytes any more.
    wiped: Seq,
    /// The digest of its last entry, as the head row says.
    pub(super) digest: Kept,
}

/// A digest column as it is stored.
pub(super) fn kept(row: &Row<'_>, column: usize) -> rusqlite::Result<Kept> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => Kept::Absent,
        ValueRef::Blob(bytes) => Kept::of(Some(bytes)),
        ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Text(_) => Kept::Broken,
    })
}

/// Finds a conversation by its name; `None` if it does not exist.
pub(super) fn find(
    conn: &Connection,
    scope: &Scope,
    digests: &Digests,
) -> Result<Option<Place>, FindError> {
    let mut statement = conn.prepare_cached(
        "SELECT conv, epoch, head_seq, digest, name_digest, emptied, wiped FROM conversation \
         WHERE tenant = ?1 AND id = ?2",
    )?;
    let row = statement.query_row(
        params![scope.tenant.as_str(), scope.conversation.as_str()],
        |row| {
            let head = Head {
                epoch: Epoch(nat(row.get(1)?)),
                seq: Seq(nat(row.get(2)?)),
            };
            let place = Place {
                conv: row.get(0)?,
                head,
                emptied: Seq(nat(row.get(5)?)),
                wiped: Seq(nat(row.get(6)?)),
                digest: kept(row, 3)?,
            };
            Ok((place, kept(row, 4)?))
        },
    );
    match row.optional()? {
        Some((place, Kept::Absent)) => Ok(Some(place)), // A host of an earlier version stored it.
        Some((place, Kept::Whole(name))) if name == *digests.name() => Ok(Some(place)),
        Some((_, Kept::Whole(_) | Kept::Broken)) => Err(FindError::Lost),
        // A damaged index of the names must not make a conversation look as if it never existed.
        None => {
            let mut statement =
                conn.prepare_cached("SELECT 1 FROM conversation WHERE name_digest = ?1")?;
            match statement.exists([digests.name()])? {
                true => Err(FindError::Lost),
                false => Ok(None),
            }
        }
    }
}

/// Stores an append; returns the added bytes.
fn append(conn: &Connection, append: &Append, now: i64) -> Result<i64, WriteError> {
    let digests = Digests::of(&append.scope);
    let place = find(conn, &append.scope, &digests)?;
    let found = place.map(|place| place.head).unwrap_or_default();
    let head = append.check(found).map_err(WriteError::Append)?;
    let mut last = match place.map(|place| place.digest) {
        None | Some(Kept::Absent) => None,
        Some(Kept::Whole(digest)) => Some(digest),
        Some(Kept::Broken) => return Err(FindError::Lost.into()),
    };
    let mut stored: Vec<Digest> = Vec::with_capacity(append.entries.len());
    for entry in &append.entries {
        let digest = digests.entry(last.as_ref(), entry.seq, &entry.bytes);
        stored.push(digest);
        last = Some(digest);
    }
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
        Some(Place { conv, .. }) => {
            // `max`: a clock that goes back must not decrease `updated_at`.
            let sql = "UPDATE conversation SET epoch = ?2, head_seq = ?3, open = ?4, wake_at = ?5, updated_at = max(updated_at, ?6), \
                       bytes = bytes + ?7, digest = ?8 WHERE conv = ?1";
            conn.prepare_cached(sql)?
                .execute(params![conv, epoch, seq, open, wake_at, now, bytes, last])?;
            conv
        }
        None => {
            let sql = "INSERT INTO conversation (conv, tenant, id, epoch, head_seq, open, wake_at, created_at, updated_at, bytes, \
                       digest, name_digest) VALUES (1 + max(coalesce((SELECT max(conv) FROM conversation), 0), \
                       coalesce((SELECT max(conv) FROM doomed), 0)), ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10)";
            let tenant = append.scope.tenant.as_str();
            let id = append.scope.conversation.as_str();
            let name = digests.name();
            conn.prepare_cached(sql)?.insert(params![
                tenant, id, epoch, seq, open, wake_at, now, bytes, last, name
            ])?
        }
    };
    let mut insert = conn
        .prepare_cached("INSERT INTO journal (conv, seq, body, digest) VALUES (?1, ?2, ?3, ?4)")?;
    for (entry, digest) in append.entries.iter().zip(&stored) {
        insert.execute(params![conv, int(entry.seq.0), &*entry.bytes, digest])?;
    }
    outbox::put(conn, &append.messages)?;
    Ok(bytes)
}

/// Deletes a conversation. It is gone at once; of a long journal the first piece is removed, and the
/// others by [`clear`].
fn delete(conn: &Connection, scope: &Scope) -> Result<Change, WriteError> {
    let removed = match find(conn, scope, &Digests::of(scope))? {
        Some(place) => remove(conn, scope, &place, true)?,
        None => Change::default(),
    };
    let cleared = clear(conn, &scope.tenant)?;
    Ok(Change {
        work: removed.work.saturating_add(cleared.work),
        is_partial: cleared.is_partial,
        ..removed
    })
}

/// Removes a conversation and, unless the journal is long and may stay for [`clear`], its entries.
fn remove(
    conn: &Connection,
    scope: &Scope,
    place: &Place,
    in_pieces: bool,
) -> rusqlite::Result<Change> {
    let bytes = bytes_of(conn, place.conv)?;
    let is_long = place.head.seq.0 > PIECE as u64 || nat(bytes) > PIECE_BYTES as u64;
    outbox::remove(conn, scope)?;
    let (journal, removed) = match in_pieces && is_long {
        true => (
            "INSERT INTO doomed (conv, tenant) SELECT conv, tenant FROM conversation WHERE conv = ?1",
            0,
        ),
        false => ("DELETE FROM journal WHERE conv = ?1", bytes),
    };
    let mut rows = 0;
    for sql in [
        journal,
        "DELETE FROM snapshot WHERE conv = ?1",
        "DELETE FROM conversation WHERE conv = ?1",
    ] {
        rows += conn.prepare_cached(sql)?.execute([place.conv])?;
    }
    Ok(Change {
        work: work(rows, removed),
        ..Change::found(bytes.saturating_neg())
    })
}

/// Removes a piece of the entries of the tenant's deleted conversations.
fn clear(conn: &Connection, tenant: &TenantId) -> Result<Change, WriteError> {
    let first = || {
        conn.prepare_cached("SELECT conv FROM doomed WHERE tenant = ?1 LIMIT 1")?
            .query_row([tenant.as_str()], |row| row.get::<_, i64>(0))
            .optional()
    };
    let Some(conv) = first()? else {
        return Ok(Change::default());
    };
    let piece = piece_of(conn, conv, i64::MIN, i64::MAX)?;
    let rows = conn
        .prepare_cached("DELETE FROM journal WHERE conv = ?1 AND seq <= ?2")?
        .execute([conv, piece.last])?;
    if piece.last == i64::MAX {
        conn.prepare_cached("DELETE FROM doomed WHERE conv = ?1")?
            .execute([conv])?;
    }
    Ok(Change {
        found: true,
        work: work(rows, piece.bytes),
        is_partial: first()?.is_some(),
        ..Change::default()
    })
}

/// What erasures have left that the end of a host cut off.
pub(super) fn unfinished(conn: &Connection) -> rusqlite::Result<Unfinished> {
    let tenant = |row: &Row<'_>| Ok(TenantId::new(row.get_ref(0)?.as_str()?).ok());
    let deleted = conn
        .prepare("SELECT DISTINCT tenant FROM doomed LIMIT ?1")?
        .query_map([limit(Unfinished::MAX)], tenant)?
        .filter_map(Result::transpose)
        .collect::<rusqlite::Result<_>>()?;
    let scope = |row: &Row<'_>| {
        let conversation = ConversationId::new(row.get_ref(1)?.as_str()?).ok();
        Ok(tenant(row)?.zip(conversation))
    };
    let emptied = conn
        .prepare("SELECT tenant, id FROM conversation WHERE wiped < emptied LIMIT ?1")?
        .query_map([limit(Unfinished::MAX)], scope)?
        .filter_map(Result::transpose)
        .map(|found| found.map(|(tenant, conversation)| Scope::new(tenant, conversation)))
        .collect::<rusqlite::Result<_>>()?;
    Ok(Unfinished { deleted, emptied })
}

/// Writes the version of the schema again: one page that says the same.
pub(super) fn try_write(conn: &Connection) -> rusqlite::Result<()> {
    let transaction = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    let version: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    transaction.pragma_update(None, "user_version", version)?;
    transaction.commit()
}

/// Deletes by the tenant's column alone, so that rows with an invalid id are deleted too.
fn erase(conn: &Connection, tenant: &TenantId) -> Result<Change, WriteError> {
    let mut removed = 0;
    for table in ["journal", "snapshot"] {
        let sql = format!(
            "DELETE FROM {table} WHERE conv IN (SELECT conv FROM conversation WHERE tenant = ?1 \
             UNION ALL SELECT conv FROM doomed WHERE tenant = ?1)"
        );
        removed += conn.prepare_cached(&sql)?.execute([tenant.as_str()])?;
    }
    let rows = conn
        .prepare_cached("DELETE FROM conversation WHERE tenant = ?1")?
        .execute([tenant.as_str()])?;
    for sql in [
        "DELETE FROM doomed WHERE tenant = ?1",
        "DELETE FROM spending WHERE tenant = ?1",
        "DELETE FROM outbox WHERE tenant = ?1",
    ] {
        conn.prepare_cached(sql)?.execute([tenant.as_str()])?;
    }
    Ok(Change {
        found: rows > 0,
        counted: Some(0),
        work: work(rows.saturating_add(removed), 0),
        ..Change::default()
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

/// Whether the entry's body was emptied, and its digest.
fn entry_of(conn: &Connection, conv: i64, seq: Seq) -> rusqlite::Result<Option<(bool, Kept)>> {
    let mut statement = conn.prepare_cached(
        "SELECT length(body) = 0, digest FROM journal WHERE conv = ?1 AND seq = ?2",
    )?;
    statement
        .query_row(params![conv, int(seq.0)], |row| {
            Ok((row.get(0)?, kept(row, 1)?))
        })
        .optional()
}

/// Stores a snapshot unless it is older than the stored one; returns the change in bytes.
fn snapshot(conn: &Connection, scope: &Scope, upto: Seq, bytes: &[u8]) -> Result<i64, WriteError> {
    let digests = Digests::of(scope);
    let Some(Place {
        conv,
        head,
        emptied,
        ..
    }) = find(conn, scope, &digests)?
    else {
        return Ok(0);
    };
    let held = snapshot_of(conn, conv)?;
    let is_late = held.is_some_and(|(held, _)| held > upto);
    if upto <= emptied || upto > head.seq || is_late {
        return Ok(0);
    }
    let at = match entry_of(conn, conv, upto)? {
        Some((false, Kept::Absent)) => None,
        Some((false, Kept::Whole(digest))) => Some(digest),
        // Emptied, or damaged: then the journal has to show it.
        Some((true, _) | (false, Kept::Broken)) | None => return Ok(0),
    };
    let digest = digests.snapshot(at.as_ref(), upto, bytes);
    conn.prepare_cached(
        "INSERT OR REPLACE INTO snapshot (conv, upto, body, digest) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![conv, int(upto.0), bytes, digest])?;
    let added = int(bytes.len() as u64).saturating_sub(held.map_or(0, |(_, bytes)| bytes));
    grow(conn, conv, added)?;
    Ok(added)
}

fn grow(conn: &Connection, conv: i64, bytes: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE conversation SET bytes = max(bytes + ?2, 0) WHERE conv = ?1")?
        .execute([conv, bytes])
        .map(drop)
}

/// Empties the bodies of entries. The rows stay, so that the journal has no gap. From the first piece
/// on, all of them are read as empty.
fn empty(conn: &Connection, scope: &Scope, upto: Seq) -> Result<Change, WriteError> {
    let Some(place) = find(conn, scope, &Digests::of(scope))? else {
        return Ok(Change::default());
    };
    let conv = place.conv;
    let emptied = place.emptied.max(upto.min(place.head.seq));
    let (wiped, end) = (int(place.wiped.0), int(emptied.0));
    let piece = match wiped < end {
        true => piece_of(conn, conv, wiped, end)?,
        false => Piece::none(wiped),
    };
    conn.prepare_cached(WIPE)?
        .execute([conv, wiped, piece.last])?;
    let mut freed = piece.bytes;
    if let Some((_, bytes)) = snapshot_of(conn, conv)?.filter(|(kept, _)| *kept <= emptied) {
        conn.prepare_cached("DELETE FROM snapshot WHERE conv = ?1")?
            .execute([conv])?;
        freed = freed.saturating_add(bytes);
    }
    let sql = "UPDATE conversation SET emptied = ?2, wiped = ?3, bytes = max(bytes - ?4, 0) WHERE conv = ?1";
    conn.prepare_cached(sql)?
        .execute([conv, end, piece.last, freed])?;
    Ok(Change {
        work: work(EMPTYING.saturating_add(piece.rows), freed),
        is_partial: piece.last < end,
        ..Change::found(freed.saturating_neg())
    })
}

/// What emptying costs beside the rows of entries.
const EMPTYING: usize = 3;

/// Entries of a journal that one piece of its emptying or deletion takes.
struct Piece {
    last: i64,
    rows: usize,
    bytes: i64,
}

impl Piece {
    fn none(after: i64) -> Self {
        Self {
            last: after,
            rows: 0,
            bytes: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.rows >= PIECE || nat(self.bytes) >= PIECE_BYTES as u64
    }
}

const PIECE_OF: &str = "SELECT seq, length(body) FROM journal WHERE conv = ?1 AND seq > ?2 AND seq <= ?3 \
                        ORDER BY seq LIMIT ?4";
const WIPE: &str =
    "UPDATE journal SET body = x'' WHERE conv = ?1 AND seq > ?2 AND seq <= ?3 AND length(body) > 0";

/// The first piece of the entries after `after` and up to `upto`, which is its last if no more are
/// left.
fn piece_of(conn: &Connection, conv: i64, after: i64, upto: i64) -> rusqlite::Result<Piece> {
    let mut piece = Piece::none(after);
    let mut statement = conn.prepare_cached(PIECE_OF)?;
    let mut rows = statement.query(params![conv, after, upto, limit(PIECE)])?;
    while !piece.is_full()
        && let Some(row) = rows.next()?
    {
        piece.last = row.get(0)?;
        piece.rows += 1;
        // A row that holds no bytes at all is damaged, and has nothing to remove.
        let bytes: Option<i64> = row.get(1)?;
        piece.bytes = piece.bytes.saturating_add(bytes.unwrap_or(0));
    }
    if !piece.is_full() {
        piece.last = upto;
    }
    Ok(piece)
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

/// Ends a journal at `to`: deletes the entries after it, in whatever state they are, snapshots of
/// later states and the mark of a failed journal.
fn cut(conn: &Connection, scope: &Scope, to: Head, open: Open) -> Result<Change, WriteError> {
    let Some(place) = find(conn, scope, &Digests::of(scope))? else {
        return Err(WriteError::NotFound);
    };
    if to.seq == Seq(0) {
        return Ok(remove(conn, scope, &place, false)?);
    }
    let conv = place.conv;
    let digest = match entry_of(conn, conv, to.seq)? {
        Some((_, Kept::Whole(digest))) => Some(digest),
        Some((_, Kept::Absent)) => None,
        Some((_, Kept::Broken)) | None => {
            return Err(WriteError::Store(missing(to.seq)));
        }
    };
    let before = bytes_of(conn, conv)?;
    let end = int(to.seq.0);
    let mut rows = 0;
    for sql in [
        "DELETE FROM journal WHERE conv = ?1 AND seq > ?2",
        "DELETE FROM snapshot WHERE conv = ?1 AND upto > ?2",
    ] {
        rows += conn.prepare_cached(sql)?.execute([conv, end])?;
    }
    let sql = "UPDATE conversation SET epoch = ?2, head_seq = ?3, digest = ?4, open = ?5, wake_at = NULL, failed = NULL, \
               emptied = min(emptied, ?3), wiped = min(wiped, ?3), bytes = \
               (SELECT coalesce(sum(length(body)), 0) FROM journal WHERE conv = ?1) + \
               (SELECT coalesce(sum(length(body)), 0) FROM snapshot WHERE conv = ?1) WHERE conv = ?1";
    conn.prepare_cached(sql)?
        .execute(params![conv, int(to.epoch.0), end, digest, code(open)])?;
    let change = bytes_of(conn, conv)?.saturating_sub(before);
    Ok(Change {
        work: work(rows, change.saturating_neg()),
        ..Change::found(change)
    })
}

#[cfg(test)]
mod tests;
