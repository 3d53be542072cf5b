//! Artifacts in files: a folder for each tenant, in it a folder for each owner, in it two files for
//! each artifact, its content and its metadata.
//!
//! Folder and file names are hashes: no id is used as a path, and no path appears in an error, a
//! log or `Debug`. Each owner has its own copy, even of equal content, so that deleting one owner's
//! leaves the others'.
//!
//! The files on disk are authoritative. Each artifact has its own metadata file, so a write costs
//! the same for any number of artifacts, several processes can share a folder, and unreadable
//! metadata is rebuilt from its artifact.
//!
//! Guarantees: a reader sees a whole artifact or none, also after a power cut. A process killed
//! while writing leaves nothing visible; its temporary files are removed at the next start.
//! Clean-up removes no file that is being written or read. Limits: bytes of a tenant, bytes in
//! total, age; file work runs on at most 8 threads.

mod cleaner;
mod files;
mod index;

use std::{collections::BTreeMap, fmt, ops::Range, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use callboard_actors::{
    ids::{ArtifactId, ConversationId, Scope, TenantId},
    limits::ARTIFACT_BYTES_MAX,
    policy::IndexedArtifact,
    ports::{ArtifactError, ArtifactMeta, ArtifactStore, BoxFuture, Cleaned, Clock},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use cleaner::Cleaner;
use files::Owner;
use index::ArtifactIndexes;

/// Threads that work on files concurrently. More would not speed up a disk, but exhaust the
/// runtime's blocking pool.
const FILE_WORKERS: usize = 8;

/// Limits of age and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactSettings {
    /// Age since the last store at which an artifact expires (`max_age_hours`); 24 hours.
    pub max_age: Duration,
    /// Bytes of all artifacts; above it a clean-up removes the least recently used down to 80 %
    /// (`max_size_gb`); 10 GiB.
    pub max_size_bytes: u64,
    /// Time between clean-ups (`cleanup_interval_seconds`); 1 hour.
    pub cleanup_interval: Duration,
    /// Whether opening the store starts the cleaner.
    pub auto_start: bool,
    /// Bytes of one tenant's artifacts; a store above it evicts the tenant's least recently used
    /// ones. 2 GiB: five tenants reach the total.
    pub tenant_bytes_max: u64,
}

impl Default for ArtifactSettings {
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(24 * 60 * 60),
            max_size_bytes: 10 * 1024 * 1024 * 1024,
            cleanup_interval: Duration::from_secs(3600),
            auto_start: true,
            tenant_bytes_max: 2 * 1024 * 1024 * 1024,
        }
    }
}

/// Artifacts in a folder of files. Dropping the store stops its cleaner.
pub struct FileArtifacts {
    inner: Arc<Inner>,
    cleaner: Cleaner,
}

impl fmt::Debug for FileArtifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileArtifacts")
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

/// State shared with the threads that do file work.
struct Inner {
    settings: ArtifactSettings,
    clock: Arc<dyn Clock>,
    index: ArtifactIndexes,
    /// Quotas of tenants that differ from the default, by tenant folder.
    bounds: Mutex<BTreeMap<String, u64>>,
    workers: Arc<Semaphore>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// Converts an I/O error without its path.
fn away(error: &std::io::Error) -> ArtifactError {
    ArtifactError::Unavailable(error.kind().to_string())
}

impl FileArtifacts {
    /// Opens a store in `folder`, which is created with mode 0700 if it does not exist. Removes
    /// temporary files of killed processes, and starts the cleaner if `auto_start` is set.
    ///
    /// # Errors
    /// [`ArtifactError::Unavailable`] when the folder cannot be created or written.
    pub async fn open(
        folder: impl Into<PathBuf>,
        clock: Arc<dyn Clock>,
        settings: ArtifactSettings,
    ) -> Result<Self, ArtifactError> {
        let folder = folder.into();
        let workers = Arc::new(Semaphore::new(FILE_WORKERS));
        let files = run(&workers, move || {
            files::Files::open(folder).map_err(|error| away(&error))
        })
        .await?;
        let auto_start = settings.auto_start;
        let inner = Arc::new(Inner {
            settings,
            clock,
            index: ArtifactIndexes::new(files),
            bounds: Mutex::default(),
            workers,
        });
        let store = Self {
            inner,
            cleaner: Cleaner::default(),
        };
        if auto_start {
            store.start();
        }
        Ok(store)
    }

    /// Starts the cleaner: it runs now and after each interval. Logs a warning if it is already
    /// running.
    pub fn start(&self) {
        self.cleaner.start(&self.inner);
    }

    /// Stops the cleaner and waits at most 5 seconds for a running clean-up. It can be started
    /// again.
    pub async fn stop(&self) {
        self.cleaner.stop().await;
    }

    /// Whether the cleaner is running.
    pub fn is_cleaning(&self) -> bool {
        self.cleaner.is_running()
    }

    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, ArtifactError> + Send + 'static,
    ) -> Result<T, ArtifactError> {
        let inner = self.inner.clone();
        run(&self.inner.workers, move || work(&inner)).await
    }
}

/// Runs file work on a blocking thread. Once started, it completes even if the caller is dropped.
async fn run<T: Send + 'static>(
    workers: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, ArtifactError> + Send + 'static,
) -> Result<T, ArtifactError> {
    let stopping = || ArtifactError::Unavailable("the host is stopping".to_owned());
    let permit = workers
        .clone()
        .acquire_owned()
        .await
        .map_err(|_| stopping())?;
    let working = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    match working.await {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err(ArtifactError::Unavailable(
            "the file work panicked".to_owned(),
        )),
        Err(_) => Err(stopping()),
    }
}

impl Inner {
    fn store(
        &self,
        owner: &Owner,
        tool_call_id: String,
        content: &[u8],
    ) -> Result<ArtifactId, ArtifactError> {
        let id = (self.index.files.name)(content);
        let now = self.clock.now();
        let indexed = IndexedArtifact {
            size_bytes: content.len() as u64,
            tool_call_id,
            created_at: now,
            accessed_at: now,
        };
        let bound = lock(&self.bounds).get(&owner.tenant).copied();
        let tenant_bytes_max = bound.unwrap_or(self.settings.tenant_bytes_max);
        let settings = ArtifactSettings {
            tenant_bytes_max,
            ..self.settings.clone()
        };
        self.index.store(owner, &id, indexed, content, &settings)?;
        tracing::debug!("Stored as {id}");
        Ok(id)
    }

    /// An owner's artifact, unless it has expired.
    fn find(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        is_use: bool,
    ) -> Result<IndexedArtifact, ArtifactError> {
        self.index
            .find(owner, id, is_use, self.clock.now(), self.settings.max_age)
    }

    fn retrieve(&self, owner: &Owner, id: &ArtifactId) -> Result<Bytes, ArtifactError> {
        self.find(owner, id, true)?;
        let content = self
            .index
            .files
            .read(owner, id)
            .map_err(|error| away(&error))?;
        match content {
            Some(content) if (self.index.files.name)(&content) == *id => Ok(Bytes::from(content)),
            Some(_) => {
                tracing::warn!("{id} is damaged; removing it");
                self.index.remove(owner, id);
                Err(ArtifactError::NotFound(id.clone()))
            }
            None => Err(ArtifactError::NotFound(id.clone())),
        }
    }

    fn read_range(
        &self,
        owner: &Owner,
        id: &ArtifactId,
        range: &Range<u64>,
    ) -> Result<Bytes, ArtifactError> {
        self.find(owner, id, true)?;
        let read = self
            .index
            .files
            .read_range(owner, id, range)
            .map_err(|error| away(&error))?;
        read.map(Bytes::from)
            .ok_or_else(|| ArtifactError::NotFound(id.clone()))
    }

    fn clean(&self, max_age: Duration, stop: &CancellationToken) -> Result<Cleaned, ArtifactError> {
        let max_age = max_age.min(self.settings.max_age);
        let cleaned = self
            .index
            .clean(
                max_age,
                self.settings.max_size_bytes,
                self.clock.now(),
                stop,
            )
            .map_err(|error| away(&error))?;
        if cleaned.removed > 0 {
            let mb = cleaned.bytes as f64 / (1024.0 * 1024.0);
            tracing::info!(
                removed = cleaned.removed,
                "artifacts cleaned up, {mb:.1} MB freed"
            );
        }
        Ok(cleaned)
    }
}

impl ArtifactStore for FileArtifacts {
    fn store(
        &self,
        owner: Scope,
        tool_call_id: String,
        content: Bytes,
    ) -> BoxFuture<'_, Result<ArtifactId, ArtifactError>> {
        Box::pin(async move {
            let size = content.len() as u64;
            let max = ARTIFACT_BYTES_MAX as u64;
            if size > max {
                return Err(ArtifactError::TooLarge { size, max });
            }
            self.work(move |inner| inner.store(&Owner::from_scope(&owner), tool_call_id, &content))
                .await
        })
    }

    fn retrieve(
        &self,
        owner: Scope,
        id: ArtifactId,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        Box::pin(self.work(move |inner| inner.retrieve(&Owner::from_scope(&owner), &id)))
    }

    fn read_range(
        &self,
        owner: Scope,
        id: ArtifactId,
        range: Range<u64>,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>> {
        Box::pin(self.work(move |inner| inner.read_range(&Owner::from_scope(&owner), &id, &range)))
    }

    fn meta(
        &self,
        owner: Scope,
        id: ArtifactId,
    ) -> BoxFuture<'_, Result<ArtifactMeta, ArtifactError>> {
        Box::pin(self.work(move |inner| {
            let IndexedArtifact {
                size_bytes,
                tool_call_id,
                created_at,
                accessed_at,
            } = inner.find(&Owner::from_scope(&owner), &id, false)?;
            Ok(ArtifactMeta {
                id,
                size_bytes,
                tool_call_id,
                conversation_id: owner.conversation,
                created_at,
                accessed_at,
            })
        }))
    }

    fn touch(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<(), ArtifactError>> {
        Box::pin(
            self.work(move |inner| inner.find(&Owner::from_scope(&owner), &id, true).map(drop)),
        )
    }

    fn release(
        &self,
        tenant: TenantId,
        conversation: Option<ConversationId>,
    ) -> BoxFuture<'_, Result<(), ArtifactError>> {
        Box::pin(self.work(move |inner| {
            match conversation {
                Some(conversation) => inner
                    .index
                    .release_owner(&Owner::from_scope(&Scope::new(tenant, conversation))),
                None => inner.index.release_tenant(&Owner::tenant_folder(&tenant)),
            }
        }))
    }

    fn bound(&self, tenant: &TenantId, bytes_max: Option<u64>) {
        let mut bounds = lock(&self.inner.bounds);
        let folder = Owner::tenant_folder(tenant);
        match bytes_max {
            Some(bytes_max) => drop(bounds.insert(folder, bytes_max)),
            None => drop(bounds.remove(&folder)),
        }
    }

    fn cleanup(&self, max_age: Duration) -> BoxFuture<'_, Result<Cleaned, ArtifactError>> {
        Box::pin(self.work(move |inner| inner.clean(max_age, &CancellationToken::new())))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.stop())
    }
}

#[cfg(test)]
mod tests;
