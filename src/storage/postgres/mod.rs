//! Journals in PostgreSQL: a few tasks that write with group commit, and a few that read.
//!
//! - One statement stores the waiting appends of up to 256 conversations; each is compared with the
//!   head of its journal, and a conflict fails that append only. Tenants are served in turn.
//! - A conversation always uses the same writing connection, so its appends stay in order.
//! - Several processes may use one database: the head of a journal is compared by the statement that
//!   moves it, and so is the host that owns it ([`Postgres::serving_lease`]). `created_at` and `updated_at` are times of the host's clock.
//! - Nothing depends on a session of the server: no named statement, no `SET`, no advisory lock, no
//!   `LISTEN`. A pooler in transaction mode may stand between.
//! - Whether a commit survives a power cut is decided by the server (`synchronous_commit`).
//! - Every entry has a digest that is checked when it is read.

mod options;
mod error;
mod connect;
mod schema;
mod stages;
mod append;
mod change;
mod writer;
mod read;
mod readers;
mod transaction;
mod artifacts;
mod notes;
mod outbox;
mod control;
mod info;
mod recounts;
mod lease;

pub use artifacts::PostgresArtifacts;
pub use control::{PostgresControl, TenantChange, TenantChanges};
pub use info::{DatabaseHost, DatabaseInfo, HeadTable};
pub use lease::ServingLease;
pub use notes::PostgresNotes;
pub use options::PostgresOptions;
pub use read::Orphan;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use callboard_actors::{
    ids::{Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    policy::Amount,
    ports::{
        Append, BoxFuture, Clock, ListQuery, Outbox, Salvaged, SessionBackend, SessionSummary,
        StoreError,
    },
    stream::Open,
    time::Timestamp,
};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet};

use super::artifacts::ArtifactSettings;
use super::commit::{
    job::{Answer, Job},
    queue::Queue,
    stored::Stored,
};
use connect::{Connector, STATEMENT_MAX, within};
use error::unavailable;
use lease::Membership;
use readers::Readers;
use recounts::Recounts;
use writer::Writer;

/// Journals in a PostgreSQL database, version 13 or newer.
///
/// Its tasks belong to the runtime that opened it. Dropping it does not block: queued appends are
/// still written while that runtime lives. A program that is about to exit calls
/// [`SessionBackend::close`].
///
/// ```no_run
/// # async fn example() -> Result<(), callboard::ports::StoreError> {
/// let sessions = callboard::storage::Postgres::open("postgres://callboard@localhost/callboard").await?;
/// # Ok(()) }
/// ```
pub struct Postgres {
    connector: Arc<Connector>,
    queues: Vec<Arc<Queue>>,
    readers: Arc<Readers>,
    /// The connections of everything but journals.
    assets: Arc<Readers>,
    stored: Arc<Stored>,
    recounts: Recounts,
    membership: Arc<Membership>,
    writers: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Postgres") // The address may hold a password.
    }
}

impl Postgres {
    /// Connects to a database and creates the tables if they do not exist.
    ///
    /// The address is a URL or a list of `key=value` as `psql` takes them. Without `sslmode`, TLS is
    /// required unless the server is on this machine.
    ///
    /// # Errors
    /// `Unavailable` with a one-line reason, without the address; `NewerSchema` for a database of a
    /// newer version.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most empty tables behind.
    pub async fn open(address: &str) -> Result<Self, StoreError> {
        Self::open_with(address, PostgresOptions::default()).await
    }

    /// Connects with options; otherwise like [`Postgres::open`].
    ///
    /// # Errors
    /// Those of [`Postgres::open`].
    pub async fn open_with(address: &str, options: PostgresOptions) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(address, &options)?);
        let mut first = connector.connect().await.map_err(unavailable)?;
        schema::migrate(&connector, &mut first).await?;
        let writers_max = options.writers.max(1);
        let readers_max = options.readers.max(1);
        let stored = Arc::<Stored>::default();
        let membership = Arc::new(Membership::new()?);
        let readers = Arc::new(Readers::new(readers_max));
        let mut writers = JoinSet::new();
        let mut queues = Vec::with_capacity(writers_max);
        let unfinished = change::unfinished(&connector, &first).await;
        let unfinished = unfinished.map_err(|failure| unavailable(failure.describe()))?;
        let mut client = Some(first);
        for _ in 0..writers_max {
            let queue = Arc::new(Queue::new(options.queue_bytes_max / writers_max));
            let writer = Writer {
                connector: Arc::clone(&connector),
                queue: Arc::clone(&queue),
                stored: Arc::clone(&stored),
                membership: Arc::clone(&membership),
                client: client.take(),
            };
            writers.spawn(writer.run());
            queues.push(queue);
        }
        for _ in 0..readers_max {
            let (connector, membership) = (Arc::clone(&connector), Arc::clone(&membership));
            tokio::spawn(Arc::clone(&readers).run(connector, membership));
        }
        let assets_max = options.asset_connections.max(1);
        let assets = Arc::new(Readers::new(assets_max));
        for _ in 0..assets_max {
            let (connector, membership) = (Arc::clone(&connector), Arc::clone(&membership));
            tokio::spawn(Arc::clone(&assets).run(connector, membership));
        }
        let store = Self {
            connector,
            queues,
            readers,
            assets,
            stored,
            recounts: Recounts::default(),
            membership,
            writers: Mutex::new(writers),
        };
        for job in unfinished.jobs() {
            store.push(job);
        }
        Ok(store)
    }

    /// Takes the right to serve this database: to resume its rounds and to sweep its conversations.
    /// Hosts with an `address`, under which the others reach them, share the right, and each
    /// conversation belongs to the host that activated it; without an address a host serves alone.
    /// `None` while others have the right who do not share it; a host loses it 12 s after its end at
    /// the latest.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn serving_lease(
        &self,
        address: Option<&str>,
    ) -> Result<Option<ServingLease>, StoreError> {
        let (connector, membership) = (Arc::clone(&self.connector), Arc::clone(&self.membership));
        ServingLease::take(connector, membership, address).await
    }

    /// The addresses of the other hosts that serve this database, as of the last beat of this one.
    #[cfg_attr(not(feature = "cli"), allow(dead_code))]
    pub(crate) fn other_hosts(&self) -> Vec<String> {
        self.membership.others()
    }

    /// Returns those of these conversations that another host owns, with its address.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn owned_elsewhere(
        &self,
        scopes: Vec<Scope>,
    ) -> Result<Vec<(Scope, String)>, StoreError> {
        self.readers
            .read(None, move |reader| {
                Box::pin(async move { reader.owned_elsewhere(scopes).await })
            })
            .await
    }

    /// Returns at most `count` conversations whose round runs and whose host is gone. None in the first
    /// 12 s after the database was away: no host had the time to say that it is there.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn orphans(&self, count: usize) -> Result<Vec<Orphan>, StoreError> {
        if !self.membership.may_take_over() {
            return Ok(Vec::new());
        }
        self.readers
            .read(None, move |reader| {
                Box::pin(async move { reader.orphans(count).await })
            })
            .await
    }

    /// The artifacts in this database, which all its hosts share. Closing the sessions closes them
    /// too.
    pub fn artifacts(
        &self,
        clock: Arc<dyn Clock>,
        settings: ArtifactSettings,
    ) -> PostgresArtifacts {
        PostgresArtifacts::new(Arc::clone(&self.assets), clock, settings)
    }

    /// The notes of the tool `memory` in this database, which all its hosts share. Closing the sessions
    /// closes them too.
    pub fn notes(&self) -> PostgresNotes {
        PostgresNotes::new(Arc::clone(&self.assets))
    }

    /// What operators change about tenants while hosts run, for all hosts of this database.
    pub fn control(&self) -> PostgresControl {
        PostgresControl::new(Arc::clone(&self.assets))
    }

    /// Describes the database.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn info(&self) -> Result<DatabaseInfo, StoreError> {
        self.readers
            .read(None, move |reader| {
                Box::pin(async move { reader.info().await })
            })
            .await
    }

    /// Queues a change at the writer of its conversation. Changes of a whole tenant go to the first
    /// one: callers make them when the tenant's conversations are at rest.
    fn push(&self, job: Job) {
        let place = job.scope().map_or(0, |scope| {
            let mut hasher = DefaultHasher::new();
            scope.hash(&mut hasher);
            usize::try_from(hasher.finish() % self.queues.len().max(1) as u64).unwrap_or_default()
        });
        match self.queues.get(place) {
            Some(queue) => queue.push(job),
            None => job.refuse("the store has no writer"),
        }
    }

    fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(Answer<T>) -> Job,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        self.push(job(sender));
        Box::pin(async move {
            receiver
                .await
                .unwrap_or_else(|_| Err(unavailable("the store's writer has ended")))
        })
    }

    fn signal_end(&self) {
        self.readers.close();
        self.assets.close();
        self.queues.iter().for_each(|queue| queue.close());
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal_end();
        self.writers.get_mut().detach_all();
    }
}

impl SessionBackend for Postgres {
    fn append(&self, append: Append) {
        self.push(Job::Append(append));
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        let place = scope.clone();
        self.readers.read(Some(&scope.tenant), move |reader| {
            Box::pin(async move { reader.head(&place).await })
        })
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        let place = scope.clone();
        self.readers.read(Some(&scope.tenant), move |reader| {
            Box::pin(async move { reader.load(&place).await })
        })
    }

    fn load_to_own<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        let place = scope.clone();
        self.readers.read(Some(&scope.tenant), move |reader| {
            Box::pin(async move { reader.load_to_own(&place).await })
        })
    }

    fn release(&self, scope: &Scope) {
        if self.membership.owner().is_some() {
            self.push(Job::Release(scope.clone()));
        }
    }

    fn is_sure_to_own(&self) -> bool {
        self.membership.is_sure()
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        let place = scope.clone();
        self.readers.read(Some(&scope.tenant), move |reader| {
            Box::pin(async move { reader.entries(&place, after, count).await })
        })
    }

    fn salvage<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<Salvaged>, StoreError>> {
        let place = scope.clone();
        self.readers.read(Some(&scope.tenant), move |reader| {
            Box::pin(async move { reader.salvage(&place, after, count).await })
        })
    }

    fn cut<'a>(
        &'a self,
        scope: &'a Scope,
        to: Head,
        open: Open,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(|answer| Job::Cut(scope.clone(), to, open, answer))
    }

    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        upto: Seq,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(|answer| Job::Snapshot(scope.clone(), upto, bytes, answer))
    }

    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.write(|answer| Job::Delete(scope.clone(), answer))
    }

    fn list<'a>(
        &'a self,
        tenant: &'a TenantId,
        query: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        let owner = tenant.clone();
        self.readers.read(Some(tenant), move |reader| {
            Box::pin(async move { reader.list(&owner, &query).await })
        })
    }

    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        let owner = tenant.clone();
        self.readers.read(Some(tenant), move |reader| {
            Box::pin(async move { reader.count(&owner).await })
        })
    }

    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        // What other hosts store is only in the database.
        let is_old = self.membership.has_others() && self.recounts.is_due(tenant);
        match self.stored.bytes(tenant).filter(|_| !is_old) {
            Some(bytes) => Box::pin(std::future::ready(Ok(bytes))),
            None => Box::pin(async move {
                let began = Instant::now();
                let counted = self
                    .write(|answer| Job::Count(tenant.clone(), answer))
                    .await;
                self.recounts.took(tenant, began.elapsed());
                counted
            }),
        }
    }

    fn spend<'a>(
        &'a self,
        tenant: &'a TenantId,
        amount: Amount,
    ) -> BoxFuture<'a, Result<Option<Amount>, StoreError>> {
        self.write(|answer| Job::Spend(tenant.clone(), amount, answer))
    }

    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(|answer| Job::Empty(scope.clone(), upto, answer))
    }

    fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<Scope>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>> {
        self.readers.read(None, move |reader| {
            Box::pin(async move { reader.list_open(open, due, after.as_ref(), count).await })
        })
    }

    fn mark_failed<'a>(
        &'a self,
        scope: &'a Scope,
        reason: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.write(|answer| Job::Mark(scope.clone(), reason, answer))
    }

    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.write(|answer| Job::Erase(tenant.clone(), answer))
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(self)
    }

    fn try_write(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            // A connection of its own: one of the writers' may be one that leads nowhere.
            let client = self.connector.connect().await.map_err(unavailable)?;
            let sql = self
                .connector
                .sql("UPDATE callboard.version SET version = version");
            let tried = within(STATEMENT_MAX, client.query_typed(&sql, &[])).await;
            tried
                .map(drop)
                .map_err(|failure| unavailable(failure.describe()))
        })
    }

    fn close(&self, within: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.signal_end();
        let mut writers = std::mem::take(&mut *self.writers.lock());
        Box::pin(async move {
            let all = async { while writers.join_next().await.is_some() {} };
            if tokio::time::timeout(within, all).await.is_ok() {
                return Ok(());
            }
            writers.abort_all();
            let left: usize = self
                .queues
                .iter()
                .map(|queue| queue.abandon("the store was closed before this was written"))
                .sum();
            Err(unavailable(format!(
                "the store did not close in time; pending changes that were discarded: {left}"
            )))
        })
    }
}
