//! The changes that are not appends. Each is a transaction that locks the conversation's head first,
//! so that no append of any host comes between its statements.

use callboard_actors::{
    ids::{ConversationId, Scope, Seq, TenantId},
    journal::Head,
    policy::Amount,
    stream::Open,
};
use tokio_postgres::{
    Client, Error, Row, Transaction,
    types::{ToSql, Type},
};

use super::connect::{Connector, ERASURE_MAX, Failure, IDLE_MAX, STATEMENT_MAX, within};
use crate::storage::commit::{
    columns::{PIECE, PIECE_BYTES, code, int, limit, nat},
    digest::{Digests, missing},
    error::WriteError,
    job::{Change, Job, Unfinished},
};

/// What erasures have left that the end of a host cut off.
pub(super) async fn unfinished(
    connector: &Connector,
    client: &Client,
) -> Result<Unfinished, Failure> {
    let most = limit(Unfinished::MAX);
    let parameters: &Parameters<'_> = &[(&most, Type::INT8)];
    let rows = async |sql: &str| {
        let sql = connector.sql(sql);
        within(STATEMENT_MAX, client.query_typed(&sql, parameters)).await
    };
    let tenant = |row: &Row| TenantId::new(row.try_get::<_, String>(0).ok()?).ok();
    let deleted = rows("SELECT DISTINCT tenant FROM callboard.doomed LIMIT $1").await?;
    let emptied = rows(
        "SELECT tenant, id FROM callboard.head JOIN callboard.conversation USING (conv) WHERE wiped < emptied LIMIT $1",
    )
    .await?;
    let scope = |row: &Row| {
        let conversation = ConversationId::new(row.try_get::<_, String>(1).ok()?).ok()?;
        Some(Scope::new(tenant(row)?, conversation))
    };
    Ok(Unfinished {
        deleted: deleted.iter().filter_map(tenant).collect(),
        emptied: emptied.iter().filter_map(scope).collect(),
    })
}

/// Why a change was not made.
pub(super) enum Unchanged {
    /// The database failed.
    Failed(Failure),
    /// The change itself is refused.
    Refused(WriteError),
}

impl From<Error> for Unchanged {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

/// A change without the channel for its result, which no task may share.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted<'a> {
    Delete(&'a Scope),
    Clear(&'a TenantId),
    Snapshot(&'a Scope, Seq, &'a [u8]),
    Mark(&'a Scope, Option<&'a str>),
    Erase(&'a TenantId),
    Empty(&'a Scope, Seq),
    Cut(&'a Scope, Head, Open),
    Count(&'a TenantId),
    Spend(&'a TenantId, Amount),
}

impl<'a> Wanted<'a> {
    /// `None` for an append.
    pub(super) fn of(job: &'a Job) -> Option<Self> {
        Some(match job {
            Job::Append(_) | Job::Release(_) => return None,
            #[cfg(feature = "sqlite")]
            Job::Outbox(..) => return None, // This store changes them without its writers.
            Job::Delete(scope, _) => Self::Delete(scope),
            Job::Clear(tenant, ..) => Self::Clear(tenant),
            Job::Snapshot(scope, upto, bytes, _) => Self::Snapshot(scope, *upto, bytes),
            Job::Mark(scope, reason, _) => Self::Mark(scope, reason.as_deref()),
            Job::Erase(tenant, _) => Self::Erase(tenant),
            Job::Empty(scope, upto, _) => Self::Empty(scope, *upto),
            Job::Cut(scope, to, open, _) => Self::Cut(scope, *to, *open),
            Job::Count(tenant, _) => Self::Count(tenant),
            Job::Spend(tenant, amount, _) => Self::Spend(tenant, *amount),
        })
    }
}

/// A conversation that is locked.
struct Locked {
    conv: i64,
    head: Head,
    bytes: i64,
    /// The last entry that is read as empty.
    emptied: Seq,
    /// The last entry whose row, with all before it, holds no bytes any more.
    wiped: Seq,
}

/// A transaction and the texts for it.
struct Work<'a> {
    connector: &'a Connector,
    transaction: Transaction<'a>,
}

type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

impl Work<'_> {
    async fn run(&self, sql: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>, Error> {
        let sql = self.connector.sql(sql);
        self.transaction.query_typed(&sql, parameters).await
    }

    async fn lock(&self, scope: &Scope) -> Result<Option<Locked>, Error> {
        let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
        let rows = self
            .run(
                concat!(include_str!("sql/head.sql"), " FOR UPDATE OF head"),
                &[(&tenant, Type::TEXT), (&id, Type::TEXT)],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let head = Head {
            epoch: callboard_actors::ids::Epoch(nat(row.try_get(1)?)),
            seq: Seq(nat(row.try_get(2)?)),
        };
        Ok(Some(Locked {
            conv: row.try_get(0)?,
            head,
            bytes: row.try_get(3)?,
            emptied: Seq(nat(row.try_get(4)?)),
            wiped: Seq(nat(row.try_get(5)?)),
        }))
    }

    /// Deletes everything of one conversation; returns its bytes.
    async fn remove(&self, conv: i64) -> Result<i64, Error> {
        self.remove_by(conv, "DELETE FROM callboard.journal WHERE conv = $1")
            .await
    }

    /// Deletes everything of one conversation but its entries, which [`clear`] removes; returns its
    /// bytes.
    async fn doom(&self, conv: i64) -> Result<i64, Error> {
        let sql = "INSERT INTO callboard.doomed (conv, tenant) \
                   SELECT conv, tenant FROM callboard.conversation WHERE conv = $1";
        self.remove_by(conv, sql).await
    }

    async fn remove_by(&self, conv: i64, journal: &str) -> Result<i64, Error> {
        let key: &Parameters<'_> = &[(&conv, Type::INT8)];
        for sql in [
            journal,
            "DELETE FROM callboard.snapshot WHERE conv = $1",
            "DELETE FROM callboard.open_round WHERE conv = $1",
            "DELETE FROM callboard.conversation WHERE conv = $1",
        ] {
            self.run(sql, key).await?;
        }
        let rows = self
            .run(
                "DELETE FROM callboard.head WHERE conv = $1 RETURNING bytes",
                key,
            )
            .await?;
        rows.first().map_or(Ok(0), |row| row.try_get(0))
    }

    /// The stored snapshot: its seq and its bytes.
    async fn snapshot(&self, conv: i64) -> Result<Option<(Seq, i64)>, Error> {
        let rows = self
            .run(
                "SELECT upto, octet_length(body)::int8 FROM callboard.snapshot WHERE conv = $1",
                &[(&conv, Type::INT8)],
            )
            .await?;
        let of = |row: &Row| Ok((Seq(nat(row.try_get(0)?)), row.try_get(1)?));
        rows.first().map(of).transpose()
    }

    async fn grow(&self, conv: i64, bytes: i64) -> Result<(), Error> {
        self.run(
            "UPDATE callboard.head SET bytes = greatest(bytes + $2, 0) WHERE conv = $1",
            &[(&conv, Type::INT8), (&bytes, Type::INT8)],
        )
        .await
        .map(drop)
    }
}

/// Makes one change.
pub(super) async fn change(
    connector: &Connector,
    client: &mut Client,
    wanted: Wanted<'_>,
) -> Result<Change, Unchanged> {
    let limit = match wanted {
        Wanted::Erase(_) => ERASURE_MAX,
        _ => STATEMENT_MAX,
    };
    let changing = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(IDLE_MAX).await?;
        let work = Work {
            connector,
            transaction,
        };
        let made = make(&work, wanted).await?;
        if made.is_ok() {
            work.transaction.commit().await?;
        }
        Ok(made)
    };
    within(limit, changing)
        .await
        .map_err(Unchanged::Failed)?
        .map_err(Unchanged::Refused)
}

type Made = Result<Result<Change, WriteError>, Error>;

async fn make(work: &Work<'_>, wanted: Wanted<'_>) -> Made {
    match wanted {
        Wanted::Delete(scope) => Ok(Ok(delete(work, scope).await?)),
        Wanted::Clear(tenant) => Ok(Ok(clear(work, tenant).await?)),
        Wanted::Snapshot(scope, upto, bytes) => Ok(Ok(snapshot(work, scope, upto, bytes).await?)),
        Wanted::Mark(scope, reason) => mark(work, scope, reason).await,
        Wanted::Erase(tenant) => Ok(Ok(erase(work, tenant).await?)),
        Wanted::Empty(scope, upto) => Ok(Ok(empty(work, scope, upto).await?)),
        Wanted::Cut(scope, to, open) => cut(work, scope, to, open).await,
        Wanted::Count(tenant) => Ok(Ok(count(work, tenant).await?)),
        Wanted::Spend(tenant, amount) => Ok(Ok(spend(work, tenant, amount).await?)),
    }
}

/// Deletes a conversation. It is gone at once; of a long journal the first piece is removed, and the
/// others by [`clear`].
async fn delete(work: &Work<'_>, scope: &Scope) -> Result<Change, Error> {
    let removed = match work.lock(scope).await? {
        Some(locked) => remove(work, scope, locked).await?,
        None => Change::default(),
    };
    let cleared = clear(work, &scope.tenant).await?;
    Ok(Change {
        is_partial: cleared.is_partial,
        ..removed
    })
}

/// Removes a piece of the entries of the tenant's deleted conversations.
async fn clear(work: &Work<'_>, tenant: &TenantId) -> Result<Change, Error> {
    let name: &Parameters<'_> = &[(&tenant.as_str(), Type::TEXT)];
    let first = "SELECT conv FROM callboard.doomed WHERE tenant = $1 ORDER BY conv LIMIT 1";
    let Some(row) = work.run(first, name).await?.into_iter().next() else {
        return Ok(Change::default());
    };
    let conv: i64 = row.try_get(0)?;
    let parameters: &Parameters<'_> = &[
        (&conv, Type::INT8),
        (&limit(PIECE), Type::INT8),
        (&int(PIECE_BYTES as u64), Type::INT8),
    ];
    let cleared = work.run(include_str!("sql/clear.sql"), parameters).await?;
    let is_last = cleared.first().map(|row| row.try_get::<_, bool>(0));
    if is_last.transpose()? == Some(true) {
        let key: &Parameters<'_> = &[(&conv, Type::INT8)];
        work.run("DELETE FROM callboard.doomed WHERE conv = $1", key)
            .await?;
    }
    Ok(Change {
        found: true,
        is_partial: !work.run(first, name).await?.is_empty(),
        ..Change::default()
    })
}

async fn remove(work: &Work<'_>, scope: &Scope, locked: Locked) -> Result<Change, Error> {
    let Locked { conv, head, .. } = locked;
    let is_long = head.seq.0 > PIECE as u64 || nat(locked.bytes) > PIECE_BYTES as u64;
    let bytes = match is_long {
        true => work.doom(conv).await?,
        false => work.remove(conv).await?,
    };
    let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
    work.run(
        "DELETE FROM callboard.outbox WHERE tenant = $1 AND conversation = $2",
        &[(&tenant, Type::TEXT), (&id, Type::TEXT)],
    )
    .await?;
    work.run(
        include_str!("sql/delete_mark.sql"),
        &[
            (&tenant, Type::TEXT),
            (&id, Type::TEXT),
            (&int(head.epoch.0), Type::INT8),
        ],
    )
    .await?;
    Ok(Change::found(bytes.saturating_neg()))
}

/// Deletes by the tenant's column alone, so that rows with an invalid id are deleted too.
async fn erase(work: &Work<'_>, tenant: &TenantId) -> Result<Change, Error> {
    let rows = work.run(
            "SELECT conv FROM callboard.conversation JOIN callboard.head USING (conv) WHERE tenant = $1 ORDER BY conv FOR UPDATE OF head",
            &[(&tenant.as_str(), Type::TEXT)],
        )
        .await?;
    for row in &rows {
        work.remove(row.try_get(0)?).await?;
    }
    for sql in [
        "DELETE FROM callboard.journal WHERE conv IN (SELECT conv FROM callboard.doomed WHERE tenant = $1)",
        "DELETE FROM callboard.doomed WHERE tenant = $1",
        "DELETE FROM callboard.spending WHERE tenant = $1",
        "DELETE FROM callboard.outbox WHERE tenant = $1",
    ] {
        work.run(sql, &[(&tenant.as_str(), Type::TEXT)]).await?;
    }
    Ok(Change {
        found: !rows.is_empty(),
        counted: Some(0),
        ..Change::default()
    })
}

/// Counts a tenant's bytes.
async fn count(work: &Work<'_>, tenant: &TenantId) -> Result<Change, Error> {
    let rows = work.run(
            "SELECT coalesce(sum(bytes), 0)::int8 FROM callboard.conversation JOIN callboard.head USING (conv) WHERE tenant = $1",
            &[(&tenant.as_str(), Type::TEXT)],
        )
        .await?;
    let bytes = rows.first().map(|row| row.try_get(0).map(nat));
    Ok(Change {
        counted: bytes.transpose()?,
        ..Change::default()
    })
}

/// Adds to what a tenant has spent. Hosts add about once a second, so its one row is no bottleneck.
async fn spend(work: &Work<'_>, tenant: &TenantId, amount: Amount) -> Result<Change, Error> {
    let tenant = tenant.as_str();
    let rows = if amount == Amount::default() {
        let sql = "SELECT tokens, micro_usd, wall_ms FROM callboard.spending WHERE tenant = $1";
        work.run(sql, &[(&tenant, Type::TEXT)]).await?
    } else {
        let parameters: &Parameters<'_> = &[
            (&tenant, Type::TEXT),
            (&int(amount.tokens), Type::INT8),
            (&int(amount.micro_usd), Type::INT8),
            (&int(amount.wall_ms), Type::INT8),
        ];
        work.run(include_str!("sql/spend.sql"), parameters).await?
    };
    let read = |row: &Row| {
        Ok::<_, Error>(Amount {
            tokens: nat(row.try_get(0)?),
            micro_usd: nat(row.try_get(1)?),
            wall_ms: nat(row.try_get(2)?),
        })
    };
    let spent = rows.first().map_or_else(|| Ok(Amount::default()), read)?;
    Ok(Change {
        spent: Some(spent),
        ..Change::default()
    })
}

/// Stores a snapshot unless it is older than the stored one.
async fn snapshot(
    work: &Work<'_>,
    scope: &Scope,
    upto: Seq,
    bytes: &[u8],
) -> Result<Change, Error> {
    let Some(Locked {
        conv,
        head,
        emptied,
        ..
    }) = work.lock(scope).await?
    else {
        return Ok(Change::default());
    };
    let held = work.snapshot(conv).await?;
    let is_late = held.is_some_and(|(held, _)| held > upto);
    let end = int(upto.0);
    if upto <= emptied || upto > head.seq || is_late {
        return Ok(Change::default());
    }
    let found = work
        .run(
            "SELECT octet_length(body) = 0 FROM callboard.journal WHERE conv = $1 AND seq = $2",
            &[(&conv, Type::INT8), (&end, Type::INT8)],
        )
        .await?;
    let is_there = found.first().map(|row| row.try_get::<_, bool>(0));
    if is_there.transpose()? != Some(false) {
        return Ok(Change::default());
    }
    let digest = Digests::of(scope).snapshot(None, upto, bytes).to_vec();
    work.run(
            "INSERT INTO callboard.snapshot (conv, upto, body, digest) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (conv) DO UPDATE SET upto = excluded.upto, body = excluded.body, digest = excluded.digest",
            &[
                (&conv, Type::INT8),
                (&end, Type::INT8),
                (&bytes, Type::BYTEA),
                (&digest, Type::BYTEA),
            ],
        )
        .await?;
    let added = int(bytes.len() as u64).saturating_sub(held.map_or(0, |(_, bytes)| bytes));
    work.grow(conv, added).await?;
    Ok(Change::found(added))
}

/// Empties the bodies of entries. The rows stay, so that the journal has no gap. From the first piece
/// on, all of them are read as empty.
async fn empty(work: &Work<'_>, scope: &Scope, upto: Seq) -> Result<Change, Error> {
    let Some(locked) = work.lock(scope).await? else {
        return Ok(Change::default());
    };
    let conv = locked.conv;
    let emptied = locked.emptied.max(upto.min(locked.head.seq));
    let piece = wipe(work, conv, locked.wiped, emptied).await?;
    let (end, last) = (int(emptied.0), int(piece.last.0));
    let dropped = work
        .run(
            "DELETE FROM callboard.snapshot WHERE conv = $1 AND upto <= $2 RETURNING octet_length(body)::int8",
            &[(&conv, Type::INT8), (&end, Type::INT8)],
        )
        .await?;
    let snapshot: i64 = dropped.first().map_or(Ok(0), |row| row.try_get(0))?;
    let freed = piece.bytes.saturating_add(snapshot);
    work.run(
        "UPDATE callboard.head SET emptied = $2, wiped = $3, bytes = greatest(bytes - $4, 0) WHERE conv = $1",
        &[
            (&conv, Type::INT8),
            (&end, Type::INT8),
            (&last, Type::INT8),
            (&freed, Type::INT8),
        ],
    )
    .await?;
    Ok(Change {
        is_partial: piece.last < emptied,
        ..Change::found(freed.saturating_neg())
    })
}

/// Entries whose bytes were removed.
struct Piece {
    last: Seq,
    bytes: i64,
}

/// Removes the bytes of a piece of the entries after `after` and up to `upto`.
async fn wipe(work: &Work<'_>, conv: i64, after: Seq, upto: Seq) -> Result<Piece, Error> {
    let mut piece = Piece {
        last: after,
        bytes: 0,
    };
    if after >= upto {
        return Ok(piece);
    }
    let (after, upto) = (int(after.0), int(upto.0));
    let parameters: &Parameters<'_> = &[
        (&conv, Type::INT8),
        (&after, Type::INT8),
        (&upto, Type::INT8),
        (&limit(PIECE), Type::INT8),
        (&int(PIECE_BYTES as u64), Type::INT8),
    ];
    let wiped = work.run(include_str!("sql/wipe.sql"), parameters).await?;
    if let Some(row) = wiped.first() {
        piece.last = Seq(nat(row.try_get(0)?));
        piece.bytes = row.try_get(1)?;
    }
    Ok(piece)
}

async fn mark(work: &Work<'_>, scope: &Scope, reason: Option<&str>) -> Made {
    let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
    let reason = reason.map(|reason| reason.replace('\0', " ")); // PostgreSQL's text holds no zero byte.
    let rows = work.run(
            "UPDATE callboard.conversation SET failed = $3 WHERE tenant = $1 AND id = $2 RETURNING conv",
            &[(&tenant, Type::TEXT), (&id, Type::TEXT), (&reason, Type::TEXT)],
        )
        .await?;
    Ok(match rows.is_empty() {
        true => Err(WriteError::NotFound),
        false => Ok(Change::found(0)),
    })
}

/// Ends a journal at `to`: deletes the entries after it, snapshots of later states and the mark of a
/// failed journal.
async fn cut(work: &Work<'_>, scope: &Scope, to: Head, open: Open) -> Made {
    let Some(Locked { conv, .. }) = work.lock(scope).await? else {
        return Ok(Err(WriteError::NotFound));
    };
    if to.seq == Seq(0) {
        let bytes = work.remove(conv).await?;
        return Ok(Ok(Change::found(bytes.saturating_neg())));
    }
    let (end, epoch) = (int(to.seq.0), int(to.epoch.0));
    let range: &Parameters<'_> = &[(&conv, Type::INT8), (&end, Type::INT8)];
    let last = work
        .run(
            "SELECT 1 FROM callboard.journal WHERE conv = $1 AND seq = $2",
            range,
        )
        .await?;
    if last.is_empty() {
        return Ok(Err(WriteError::Store(missing(to.seq))));
    }
    for sql in [
        "DELETE FROM callboard.journal WHERE conv = $1 AND seq > $2",
        "DELETE FROM callboard.snapshot WHERE conv = $1 AND upto > $2",
    ] {
        work.run(sql, range).await?;
    }
    let key: &Parameters<'_> = &[(&conv, Type::INT8)];
    for sql in [
        "UPDATE callboard.conversation SET failed = NULL WHERE conv = $1",
        "DELETE FROM callboard.open_round WHERE conv = $1",
    ] {
        work.run(sql, key).await?;
    }
    if open != Open::None {
        work.run(
            "INSERT INTO callboard.open_round (conv, kind) VALUES ($1, $2::int8::int2)",
            &[(&conv, Type::INT8), (&code(open), Type::INT8)],
        )
        .await?;
    }
    let rows = work
        .run(
            include_str!("sql/cut_head.sql"),
            &[
                (&conv, Type::INT8),
                (&end, Type::INT8),
                (&epoch, Type::INT8),
            ],
        )
        .await?;
    let by = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(Ok(Change::found(by)))
}
