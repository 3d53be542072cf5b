//! Artifacts in PostgreSQL: a row of metadata for each, and its content in chunks.
//!
//! - All hosts of a database read and write the same artifacts.
//! - A transaction stores an artifact, so a reader sees a whole one or none. The tenant's row is
//!   locked for the last statements, so quotas hold over all hosts.
//! - Each owner has its own copy, even of equal content, so that deleting one owner's leaves the
//!   others'.
//! - Whole reads are compared with the id, which is a hash of the content; an artifact that differs
//!   is removed.
//!
//! Times are those of the host's clock.

mod cleaner;
mod rows;

use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use callboard_actors::{
    ids::{ArtifactId, ConversationId, Scope, TenantId},
    limits::ARTIFACT_BYTES_MAX,
    policy::IndexedArtifact,
    ports::{ArtifactError, ArtifactMeta, ArtifactStore, BoxFuture, Cleaned, Clock, StoreError},
    time::Timestamp,
};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    read::{Failed, Reader},
    readers::Readers,
};
use crate::storage::artifacts::ArtifactSettings;
use cleaner::Cleaner;
use rows::{Stored, Use, before};

/// Bytes of contents that may wait for the database; further ones are refused at once.
const WAITING_BYTES_MAX: usize = 4 * ARTIFACT_BYTES_MAX;

/// Content up to this size is hashed in place, and larger one on a thread of the blocking pool.
const QUICK_BYTES: usize = 256 * 1024;

/// Artifacts in a PostgreSQL database, beside the sessions. Made by
/// [`Postgres::artifacts`](super::Postgres::artifacts). Dropping it stops its cleaner.
pub struct PostgresArtifacts {
    inner: Arc<Inner>,
    cleaner: Cleaner,
}

impl fmt::Debug for PostgresArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresArtifacts")
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

struct Inner {
    readers: Arc<Readers>,
    clock: Arc<dyn Clock>,
    settings: ArtifactSettings,
    /// Quotas of tenants that differ from the default.
    bounds: Mutex<BTreeMap<TenantId, u64>>,
    waiting_bytes: AtomicUsize,
}

/// Bytes of a content that waits for the database.
struct Waiting<'a>(&'a AtomicUsize, usize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

fn away(error: &StoreError) -> ArtifactError {
    ArtifactError::Unavailable(match error {
        StoreError::Unavailable { message } => message.clone(),
        other => other.to_string(),
    })
}

async fn digest(content: &Bytes) -> Result<Vec<u8>, ArtifactError> {
    if content.len() <= QUICK_BYTES {
        return Ok(Sha256::digest(content).to_vec());
    }
    let content = content.clone();
    let hashing = tokio::task::spawn_blocking(move || Sha256::digest(&content).to_vec());
    let stopping = |_| ArtifactError::Unavailable("the host is stopping".to_owned());
    hashing.await.map_err(stopping)
}

impl PostgresArtifacts {
    pub(super) fn new(
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
        settings: ArtifactSettings,
    ) -> Self {
        let inner = Arc::new(Inner {
            readers,
            clock,
            settings,
            bounds: Mutex::default(),
            waiting_bytes: AtomicUsize::new(0),
        });
        let cleaner = match inner.settings.auto_start {
            true => Cleaner::start(&inner),
            false => Cleaner::default(),
        };
        Self { inner, cleaner }
    }
}

impl Inner {
    /// Runs statements on one of the connections; those of a tenant are served in turn with those of
    /// others.
    async fn on<T: Send + 'static>(
        &self,
        tenant: Option<&TenantId>,
        work: impl for<'a> FnOnce(Reader<'a>) -> BoxFuture<'a, Result<T, Failed>> + Send + 'static,
    ) -> Result<T, ArtifactError> {
        let done = self.readers.read(tenant, work).await;
        done.map_err(|error| away(&error))
    }

    fn wait(&self, bytes: usize) -> Result<Waiting<'_>, ArtifactError> {
        let before = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting_bytes, bytes);
        if before > 0 && before.saturating_add(bytes) > WAITING_BYTES_MAX {
            let why = "too many bytes of artifacts are waiting for the database";
            return Err(ArtifactError::Unavailable(why.to_owned()));
        }
        Ok(waiting)
    }

    async fn store(
        &self,
        owner: Scope,
        tool_call_id: String,
        content: Bytes,
    ) -> Result<ArtifactId, ArtifactError> {
        let (size, max) = (content.len() as u64, ARTIFACT_BYTES_MAX as u64);
        if size > max {
            return Err(ArtifactError::TooLarge { size, max });
        }
        let _waiting = self.wait(content.len())?;
        let digest = digest(&content).await?;
        let id = ArtifactId::from_digest(&digest);
        let bound = self.bounds.lock().get(&owner.tenant).copied();
        let stored = Stored {
            id: id.clone(),
            digest,
            tool_call_id: tool_call_id.replace('\0', " "), // PostgreSQL's text holds no zero byte.
            content,
            now: self.clock.now(),
            max_age: self.settings.max_age,
            tenant_bytes_max: bound.unwrap_or(self.settings.tenant_bytes_max),
            owner,
        };
        let tenant = stored.owner.tenant.clone();
        let storing = self.on(Some(&tenant), move |reader| {
            Box::pin(async move { reader.store_artifact(&stored).await })
        });
        storing.await??;
        tracing::debug!("Stored as {id}");
        Ok(id)
    }

    async fn read(
        &self,
        owner: Scope,
        id: ArtifactId,
        range: Range<u64>,
    ) -> Result<(u64, Bytes), ArtifactError> {
        let now = self.clock.now();
        let of = Use {
            oldest: before(now, self.settings.max_age),
            now,
            owner,
            id,
        };
        let tenant = of.owner.tenant.clone();
        self.on(Some(&tenant), move |reader| {
            Box::pin(async move { reader.read_artifact(&of, range).await })
        })
        .await?
    }

    async fn retrieve(&self, owner: Scope, id: ArtifactId) -> Result<Bytes, ArtifactError> {
        let (_, content) = self.read(owner.clone(), id.clone(), 0..u64::MAX).await?;
        if ArtifactId::from_digest(&digest(&content).await?) == id {
            return Ok(content);
        }
        Err(self.damaged(owner, id).await)
    }

    async fn read_range(
        &self,
        owner: Scope,
        id: ArtifactId,
        range: Range<u64>,
    ) -> Result<Bytes, ArtifactError> {
        let (start, end) = (range.start, range.end);
        let (size, content) = self.read(owner.clone(), id.clone(), range).await?;
        let expected = end.min(size).saturating_sub(start.min(size));
        if content.len() as u64 == expected {
            return Ok(content);
        }
        Err(self.damaged(owner, id).await)
    }

    /// Removes an artifact that is not what its id says.
    async fn damaged(&self, owner: Scope, id: ArtifactId) -> ArtifactError {
        tracing::warn!("{id} is damaged; removing it");
        let of = id.clone();
        let tenant = owner.tenant.clone();
        let removing = self.on(Some(&tenant), move |reader| {
            let oldest = Timestamp(u64::MAX); // However young it is.
            Box::pin(async move { reader.remove_artifact(&owner, &of, oldest).await })
        });
        match removing.await {
            Ok(()) => ArtifactError::NotFound(id),
            Err(error) => error,
        }
    }

    async fn known(&self, owner: Scope, id: ArtifactId) -> Result<IndexedArtifact, ArtifactError> {
        let oldest = before(self.clock.now(), self.settings.max_age);
        let tenant = owner.tenant.clone();
        self.on(Some(&tenant), move |reader| {
            Box::pin(async move { reader.artifact_meta(&owner, &id, oldest).await })
        })
        .await?
    }

    /// Removes expired artifacts, and if the rest is too large, those that were not used for longest.
    async fn clean(
        &self,
        max_age: Duration,
        stop: &CancellationToken,
    ) -> Result<Cleaned, ArtifactError> {
        let oldest = before(self.clock.now(), max_age.min(self.settings.max_age));
        let mut all = Cleaned::default();
        let add = |all: &mut Cleaned, some: Cleaned| {
            all.removed += some.removed;
            all.bytes += some.bytes;
        };
        while !stop.is_cancelled() {
            let finding = self.on(None, move |reader| {
                Box::pin(async move { reader.tenant_with_expired(oldest).await })
            });
            let Some(tenant) = finding.await?.and_then(|id| TenantId::new(id).ok()) else {
                break;
            };
            let cleaning = self.on(None, move |reader| {
                Box::pin(async move { reader.clean_expired(&tenant, oldest).await })
            });
            add(&mut all, cleaning.await?);
        }
        let max = self.settings.max_size_bytes;
        let measuring = || {
            self.on(None, |reader| {
                Box::pin(async move { reader.all_artifact_bytes().await })
            })
        };
        let mut total = measuring().await?;
        let target = max / 5 * 4 + max % 5 * 4 / 5; // 80 % without overflow and without rounding up.
        if total > max {
            while total > target && !stop.is_cancelled() {
                let excess = total - target;
                let cleaning = self.on(None, move |reader| {
                    Box::pin(async move { reader.clean_unused(excess).await })
                });
                let some = cleaning.await?;
                if some.removed == 0 {
                    break;
                }
                add(&mut all, some);
                total = measuring().await?;
            }
        }
        if all.removed > 0 {
            let mb = all.bytes as f64 / (1024.0 * 1024.0);
            tracing::info!(
                removed = all.removed,
                "artifacts cleaned up, {mb:.1} MB freed"
            );
        }
        Ok(all)
    }
}

impl ArtifactStore for PostgresArtifacts {
    fn store(
        &self,
        owner: Scope,
        tool_call_id: String,
        content: Bytes,
    ) -> BoxFuture<'_, Result<ArtifactId, ArtifactError>> {
        Box::pin(self.inner.store(owner, tool_call_id, content))
    }

    fn retrieve(
        &self,
        owner: Scope,
        id: ArtifactId,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        Box::pin(self.inner.retrieve(owner, id))
    }

    fn read_range(
        &self,
        owner: Scope,
        id: ArtifactId,
        range: Range<u64>,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        Box::pin(self.inner.read_range(owner, id, range))
    }

    fn meta(
        &self,
        owner: Scope,
        id: ArtifactId,
    ) -> BoxFuture<'_, Result<ArtifactMeta, ArtifactError>> {
        Box::pin(async move {
            let IndexedArtifact {
                size_bytes,
                tool_call_id,
                created_at,
                accessed_at,
            } = self.inner.known(owner.clone(), id.clone()).await?;
            Ok(ArtifactMeta {
                id,
                size_bytes,
                tool_call_id,
                conversation_id: owner.conversation,
                created_at,
                accessed_at,
            })
        })
    }

    fn touch(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<(), ArtifactError>> {
        Box::pin(async move { self.inner.read(owner, id, 0..0).await.map(drop) })
    }

    fn release(
        &self,
        tenant: TenantId,
        conversation: Option<ConversationId>,
    ) -> BoxFuture<'_, Result<(), ArtifactError>> {
        let owner = tenant.clone();
        Box::pin(async move {
            self.inner
                .on(Some(&owner), move |reader| {
                    Box::pin(async move {
                        let conversation = conversation.as_ref().map(ConversationId::as_str);
                        reader.release_artifacts(&tenant, conversation).await
                    })
                })
                .await
        })
    }

    fn bound(&self, tenant: &TenantId, bytes_max: Option<u64>) {
        let mut bounds = self.inner.bounds.lock();
        match bytes_max {
            Some(bytes_max) => drop(bounds.insert(tenant.clone(), bytes_max)),
            None => drop(bounds.remove(tenant)),
        }
    }

    fn cleanup(&self, max_age: Duration) -> BoxFuture<'_, Result<Cleaned, ArtifactError>> {
        Box::pin(async move { self.inner.clean(max_age, &CancellationToken::new()).await })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.cleaner.stop();
        Box::pin(std::future::ready(()))
    }
}
