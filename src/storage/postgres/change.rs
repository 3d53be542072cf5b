//! The changes that are not appends. Each is a transaction that locks the conversation's head first,
//! so that no append of any host comes between its statements.

use callboard_actors::{
    ids::{Scope, Seq, TenantId},
    journal::Head,
    policy::Amount,
    stream::Open,
};
use tokio_postgres::{
    Client, Error, Row, Transaction,
    types::{ToSql, Type},
};

use super::connect::{Connector, ERASURE_MAX, Failure, STATEMENT_MAX, within};
use crate::storage::commit::{
    columns::{code, int, nat},
    digest::{Digests, missing},
    error::WriteError,
    job::{Change, Job},
};

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

    /// Locks a conversation; returns its number and its head.
    async fn lock(&self, scope: &Scope) -> Result<Option<(i64, Head)>, Error> {
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
        Ok(Some((row.try_get(0)?, head)))
    }

    /// Deletes everything of one conversation; returns its bytes.
    async fn remove(&self, conv: i64) -> Result<i64, Error> {
        let key: &Parameters<'_> = &[(&conv, Type::INT8)];
        for sql in [
            "DELETE FROM callboard.journal WHERE conv = $1",
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
        Wanted::Snapshot(scope, upto, bytes) => Ok(Ok(snapshot(work, scope, upto, bytes).await?)),
        Wanted::Mark(scope, reason) => mark(work, scope, reason).await,
        Wanted::Erase(tenant) => Ok(Ok(erase(work, tenant).await?)),
        Wanted::Empty(scope, upto) => Ok(Ok(empty(work, scope, upto).await?)),
        Wanted::Cut(scope, to, open) => cut(work, scope, to, open).await,
        Wanted::Count(tenant) => Ok(Ok(count(work, tenant).await?)),
        Wanted::Spend(tenant, amount) => Ok(Ok(spend(work, tenant, amount).await?)),
    }
}

async fn delete(work: &Work<'_>, scope: &Scope) -> Result<Change, Error> {
    let Some((conv, head)) = work.lock(scope).await? else {
        return Ok(Change::default());
    };
    let bytes = work.remove(conv).await?;
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
    let Some((conv, head)) = work.lock(scope).await? else {
        return Ok(Change::default());
    };
    let held = work.snapshot(conv).await?;
    let is_late = held.is_some_and(|(held, _)| held > upto);
    let end = int(upto.0);
    if upto == Seq(0) || upto > head.seq || is_late {
        return Ok(Change::default());
    }
    let emptied = work
        .run(
            "SELECT octet_length(body) = 0 FROM callboard.journal WHERE conv = $1 AND seq = $2",
            &[(&conv, Type::INT8), (&end, Type::INT8)],
        )
        .await?;
    let is_there = emptied.first().map(|row| row.try_get::<_, bool>(0));
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

/// Empties the bodies of entries. The rows stay, so that the journal has no gap.
async fn empty(work: &Work<'_>, scope: &Scope, upto: Seq) -> Result<Change, Error> {
    let Some((conv, _)) = work.lock(scope).await? else {
        return Ok(Change::default());
    };
    let end = int(upto.0);
    let range: &Parameters<'_> = &[(&conv, Type::INT8), (&end, Type::INT8)];
    let sum = work.run(
            "SELECT coalesce(sum(octet_length(body)), 0)::int8 FROM callboard.journal WHERE conv = $1 AND seq <= $2",
            range,
        )
        .await?;
    let mut freed: i64 = sum.first().map_or(Ok(0), |row| row.try_get(0))?;
    work.run(
            "UPDATE callboard.journal SET body = '' WHERE conv = $1 AND seq <= $2 AND octet_length(body) > 0",
            range,
        )
        .await?;
    if let Some((_, bytes)) = work.snapshot(conv).await?.filter(|(held, _)| *held <= upto) {
        work.run(
            "DELETE FROM callboard.snapshot WHERE conv = $1",
            &[(&conv, Type::INT8)],
        )
        .await?;
        freed = freed.saturating_add(bytes);
    }
    work.grow(conv, freed.saturating_neg()).await?;
    Ok(Change::found(freed.saturating_neg()))
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
    let Some((conv, _)) = work.lock(scope).await? else {
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
