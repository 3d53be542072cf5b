//! The statements that read. Each read is one statement, and so one point in time.

use bytes::Bytes;
use callboard_actors::{
    ids::{ConversationId, Epoch, SUBAGENT_PREFIX, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{ListQuery, Salvaged, SessionSummary, StoreError},
    stream::Open,
    time::Timestamp,
};
use tokio_postgres::{
    Client, Error, Row,
    types::{ToSql, Type},
};

use super::{
    connect::{Connector, Failure, STATEMENT_MAX, within},
    error::{damaged, failed_read, unavailable},
    lease::Membership,
};
use crate::storage::commit::{
    columns::{PAGE, PAGE_BYTES, code, int, limit, nat, open_of},
    digest::{Digests, missing},
};

/// A read that failed, and whether its connection must be replaced.
pub(super) struct Failed {
    pub(super) error: StoreError,
    pub(super) is_fatal: bool,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self {
            error: unavailable(failure.describe()),
            is_fatal: failure.is_fatal(),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error: failed_read(&error),
            is_fatal: false,
        }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            is_fatal: false,
        }
    }
}

/// Reads over one connection.
pub(super) struct Reader<'a> {
    pub(super) connector: &'a Connector,
    pub(super) client: &'a Client,
    pub(super) membership: &'a Membership,
}

/// A conversation as one statement returned it.
struct Stored {
    head: Head,
    snapshot: Option<(Seq, Bytes, Vec<u8>)>,
    entries: Vec<(Seq, Bytes, Vec<u8>)>,
    /// The address of another host that owns it.
    elsewhere: Option<String>,
}

impl Stored {
    /// `None` for an unknown conversation.
    fn of(rows: &[Row]) -> Result<Option<Self>, Error> {
        let Some((first, rest)) = rows.split_first() else {
            return Ok(None);
        };
        let mut stored = Self {
            head: Head {
                seq: Seq(nat(first.try_get(1)?)),
                epoch: Epoch(nat(first.try_get(2)?)),
            },
            snapshot: None,
            entries: Vec::with_capacity(rest.len()),
            elsewhere: None,
        };
        for row in rest {
            if row.try_get::<_, i64>(0)? == 3 {
                let address = String::from_utf8_lossy(row.try_get(3)?).into_owned();
                stored.elsewhere = Some(address);
                continue;
            }
            let seq = Seq(nat(row.try_get(1)?));
            let body = Bytes::copy_from_slice(row.try_get(3)?);
            let digest = row.try_get(4)?;
            match row.try_get::<_, i64>(0)? {
                1 => stored.snapshot = Some((seq, body, digest)),
                _ => stored.entries.push((seq, body, digest)),
            }
        }
        Ok(Some(stored))
    }
}

/// What is wrong with an entry that should be entry `next`.
fn fault(digests: &Digests, next: Seq, entry: &(Seq, Bytes, Vec<u8>)) -> Option<String> {
    let (seq, body, digest) = entry;
    if *seq != next {
        return Some(missing(next));
    }
    // An emptied entry keeps its digest alone.
    let is_whole = match body.is_empty() {
        true => digest.len() == 16,
        false => digest[..] == digests.entry(None, *seq, body)[..],
    };
    (!is_whole).then(|| format!("entry {seq} is not what was stored: its digest differs"))
}

impl Reader<'_> {
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Failure> {
        let sql = self.connector.sql(sql);
        within(STATEMENT_MAX, self.client.query_typed(&sql, parameters)).await
    }

    pub(super) async fn head(&self, scope: &Scope) -> Result<Head, Failed> {
        let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
        let rows = self
            .query(
                include_str!("sql/head.sql"),
                &[(&tenant, Type::TEXT), (&id, Type::TEXT)],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Head::default());
        };
        Ok(Head {
            epoch: Epoch(nat(row.try_get(1)?)),
            seq: Seq(nat(row.try_get(2)?)),
        })
    }

    async fn stored(&self, scope: &Scope, with_snapshot: bool) -> Result<Option<Stored>, Failed> {
        let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
        let rows = self
            .query(
                include_str!("sql/load.sql"),
                &[
                    (&tenant, Type::TEXT),
                    (&id, Type::TEXT),
                    (&with_snapshot, Type::BOOL),
                    (&self.membership.owner(), Type::TEXT),
                ],
            )
            .await?;
        Ok(Stored::of(&rows)?)
    }

    pub(super) async fn load(&self, scope: &Scope) -> Result<Loaded, Failed> {
        let stored = self.stored(scope, true).await?;
        self.checked(scope, stored).await
    }

    /// Like [`Reader::load`], unless another host owns the conversation.
    pub(super) async fn load_to_own(&self, scope: &Scope) -> Result<Loaded, Failed> {
        let mut stored = self.stored(scope, true).await?;
        let elsewhere = stored.as_mut().and_then(|stored| stored.elsewhere.take());
        match elsewhere {
            Some(host) => Err(StoreError::Elsewhere { host }.into()),
            None => self.checked(scope, stored).await,
        }
    }

    /// Head, snapshot and entries of one point in time, each entry checked against its digest.
    async fn checked(&self, scope: &Scope, stored: Option<Stored>) -> Result<Loaded, Failed> {
        let digests = Digests::of(scope);
        let Some(mut stored) = stored else {
            return Ok(Loaded::default());
        };
        if let Some((upto, body, digest)) = &stored.snapshot
            && digest[..] != digests.snapshot(None, *upto, body)[..]
        {
            tracing::warn!(conversation = %scope.conversation, "a stored snapshot is damaged; reading the whole journal");
            match self.stored(scope, false).await? {
                Some(whole) => stored = whole,
                None => return Ok(Loaded::default()),
            }
        }
        let snapshot = stored.snapshot.map(|(upto, body, _)| (upto, body));
        let mut last = snapshot.as_ref().map_or(Seq(0), |(upto, _)| *upto);
        let mut entries = Vec::with_capacity(stored.entries.len());
        for entry in stored.entries {
            if let Some(what) = fault(&digests, last.next(), &entry) {
                return Err(damaged(scope, what).into());
            }
            let (seq, bytes, _) = entry;
            last = seq;
            entries.push(StoredEntry { seq, bytes });
        }
        match end_fault(last, stored.head.seq) {
            Some(what) => Err(damaged(scope, what).into()),
            None => Ok(Loaded {
                head: stored.head,
                snapshot,
                entries,
            }),
        }
    }

    async fn page(
        &self,
        scope: &Scope,
        after: Seq,
        count: usize,
    ) -> Result<Option<Stored>, Failed> {
        let (tenant, id) = (scope.tenant.as_str(), scope.conversation.as_str());
        let rows = self
            .query(
                include_str!("sql/entries.sql"),
                &[
                    (&tenant, Type::TEXT),
                    (&id, Type::TEXT),
                    (&int(after.0), Type::INT8),
                    (&limit(count), Type::INT8),
                    (&int(PAGE_BYTES as u64), Type::INT8),
                ],
            )
            .await?;
        Ok(Stored::of(&rows)?)
    }

    /// A page of entries, up to the first that is damaged; the page that would begin with it fails.
    pub(super) async fn entries(
        &self,
        scope: &Scope,
        after: Seq,
        count: usize,
    ) -> Result<Vec<StoredEntry>, Failed> {
        let digests = Digests::of(scope);
        let Some(stored) = self.page(scope, after, count).await? else {
            return Ok(Vec::new());
        };
        if after >= stored.head.seq || count == 0 {
            return Ok(Vec::new());
        }
        let is_last = stored.entries.len() < count;
        let (mut last, mut what) = (after, None);
        let mut entries = Vec::with_capacity(stored.entries.len());
        for entry in stored.entries {
            what = fault(&digests, last.next(), &entry);
            if what.is_some() {
                break;
            }
            let (seq, bytes, _) = entry;
            last = seq;
            entries.push(StoredEntry { seq, bytes });
        }
        if what.is_none() && is_last {
            what = end_fault(last, stored.head.seq);
        }
        match what {
            Some(what) if entries.is_empty() => Err(damaged(scope, what).into()),
            Some(_) | None => Ok(entries),
        }
    }

    /// Rows as they are, each with what is wrong with it; gaps are faults of the row behind them.
    pub(super) async fn salvage(
        &self,
        scope: &Scope,
        after: Seq,
        count: usize,
    ) -> Result<Vec<Salvaged>, Failed> {
        let digests = Digests::of(scope);
        let Some(stored) = self.page(scope, after, count).await? else {
            return Ok(Vec::new());
        };
        let mut last = after;
        let salvaged = stored.entries.into_iter().map(|entry| {
            let fault = fault(&digests, last.next(), &entry);
            let (seq, bytes, _) = entry;
            last = seq;
            Salvaged {
                entry: StoredEntry { seq, bytes },
                fault,
            }
        });
        Ok(salvaged.collect())
    }

    pub(super) async fn list(
        &self,
        tenant: &TenantId,
        query: &ListQuery,
    ) -> Result<Vec<SessionSummary>, Failed> {
        let after = query.after.as_ref().map_or("", ConversationId::as_str);
        let count = if query.count == 0 { PAGE } else { query.count };
        let rows = self
            .query(
                include_str!("sql/list.sql"),
                &[
                    (&tenant.as_str(), Type::TEXT),
                    (&after, Type::TEXT),
                    (&query.open.map(code), Type::INT8),
                    (&limit(count), Type::INT8),
                    (&query.subagents, Type::BOOL),
                    (&SUBAGENT_PREFIX, Type::TEXT),
                ],
            )
            .await?;
        let rows: Result<Vec<_>, Error> = rows.iter().map(summary).collect();
        Ok(rows?.into_iter().flatten().collect())
    }

    pub(super) async fn count(&self, tenant: &TenantId) -> Result<u64, Failed> {
        let rows = self
            .query(
                "SELECT count(*) FROM callboard.conversation WHERE tenant = $1",
                &[(&tenant.as_str(), Type::TEXT)],
            )
            .await?;
        let count = rows.first().map(|row| row.try_get(0).map(nat));
        Ok(count.transpose()?.unwrap_or_default())
    }

    pub(super) async fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<&Scope>,
        count: usize,
    ) -> Result<Vec<Scope>, Failed> {
        let (tenant, id) = after.map_or(("", ""), |after| {
            (after.tenant.as_str(), after.conversation.as_str())
        });
        let sql = match open {
            Open::None => include_str!("sql/list_closed.sql"),
            Open::Running | Open::Parked => include_str!("sql/list_open.sql"),
        };
        let count = if count == 0 { PAGE } else { count };
        let rows = self
            .query(
                sql,
                &[
                    (&tenant, Type::TEXT),
                    (&id, Type::TEXT),
                    (&limit(count), Type::INT8),
                    (&due.map(|due| int(due.0)), Type::INT8),
                    (&code(open), Type::INT8),
                    (&self.membership.owner(), Type::TEXT),
                ],
            )
            .await?;
        let of = |row: &Row| {
            let tenant = TenantId::new(row.try_get::<_, &str>(0)?).ok();
            let id = ConversationId::new(row.try_get::<_, &str>(1)?).ok();
            Ok(tenant.zip(id).map(|(tenant, id)| Scope::new(tenant, id)))
        };
        let scopes: Result<Vec<_>, Error> = rows.iter().map(of).collect();
        Ok(scopes?.into_iter().flatten().collect())
    }
}

/// A conversation whose round runs and whose host is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    /// The conversation.
    pub scope: Scope,
    /// Whether it falls to this host. Each family of conversations falls to one of the hosts that
    /// are alive, so that a parent and its subagents stay together.
    pub is_ours: bool,
}

impl Reader<'_> {
    /// At most `count` conversations whose round runs and whose host is gone.
    pub(super) async fn orphans(&self, count: usize) -> Result<Vec<Orphan>, Failed> {
        let rows = self
            .query(
                include_str!("sql/orphans.sql"),
                &[(&limit(count), Type::INT8)],
            )
            .await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let alive = self
            .query(
                "SELECT boot FROM callboard.host WHERE beat_at > now() - interval '12 seconds' ORDER BY boot",
                &[],
            )
            .await?;
        let boots: Result<Vec<&str>, Error> = alive.iter().map(|row| row.try_get(0)).collect();
        let boots = boots?;
        let me = boots
            .iter()
            .position(|boot| Some(*boot) == self.membership.owner());
        let mut orphans = Vec::with_capacity(rows.len());
        for row in &rows {
            let tenant = TenantId::new(row.try_get::<_, &str>(0)?).ok();
            let id = ConversationId::new(row.try_get::<_, &str>(1)?).ok();
            if let Some((tenant, id)) = tenant.zip(id) {
                let scope = Scope::new(tenant, id);
                let is_ours = me.is_some_and(|me| share(&scope, boots.len()) == me);
                orphans.push(Orphan { scope, is_ours });
            }
        }
        Ok(orphans)
    }

    /// Those of the conversations that another host owns, with its address.
    pub(super) async fn owned_elsewhere(
        &self,
        scopes: Vec<Scope>,
    ) -> Result<Vec<(Scope, String)>, Failed> {
        let tenants: Vec<&str> = scopes.iter().map(|scope| scope.tenant.as_str()).collect();
        let ids = scopes.iter().map(|scope| scope.conversation.as_str());
        let ids: Vec<&str> = ids.collect();
        let rows = self
            .query(
                include_str!("sql/owners.sql"),
                &[
                    (&tenants, Type::TEXT_ARRAY),
                    (&ids, Type::TEXT_ARRAY),
                    (&self.membership.owner(), Type::TEXT),
                ],
            )
            .await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let number = usize::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default();
            if let Some(scope) = number.checked_sub(1).and_then(|place| scopes.get(place)) {
                found.push((scope.clone(), row.try_get(1)?));
            }
        }
        Ok(found)
    }
}

/// Which of `hosts` hosts a conversation's family falls to. All hosts compute the same.
fn share(scope: &Scope, hosts: usize) -> usize {
    use std::hash::Hasher as _;
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(scope.tenant.as_str().as_bytes());
    hasher.write(&[0]);
    hasher.write(scope.conversation.family().as_str().as_bytes());
    usize::try_from(hasher.finish() % hosts.max(1) as u64).unwrap_or_default()
}

/// What is wrong if a journal's last row is `last`, and its head row ends it at `end`.
fn end_fault(last: Seq, end: Seq) -> Option<String> {
    match last.cmp(&end) {
        std::cmp::Ordering::Less => Some(missing(last.next())),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!(
            "there are entries after {end}, where its head row ends it"
        )),
    }
}

/// A row with an invalid id cannot be addressed, but must not hide the others.
fn summary(row: &Row) -> Result<Option<SessionSummary>, Error> {
    let Ok(conversation) = ConversationId::new(row.try_get::<_, &str>(0)?) else {
        return Ok(None);
    };
    let at = |column: usize| row.try_get(column).map(|ms| Timestamp(nat(ms)));
    Ok(Some(SessionSummary {
        conversation,
        head: Head {
            epoch: Epoch(nat(row.try_get(1)?)),
            seq: Seq(nat(row.try_get(2)?)),
        },
        open: open_of(row.try_get(3)?),
        wake_at: row
            .try_get::<_, Option<i64>>(4)?
            .map(|ms| Timestamp(nat(ms))),
        created_at: at(5)?,
        updated_at: at(6)?,
        failed: row.try_get(7)?,
    }))
}
