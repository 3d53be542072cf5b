//! Journals in one SQLite file: a writer thread with group commit, a few reader threads, a
//! checkpoint thread.
//!
//! - An awaited append is committed at once; appends that arrive meanwhile share the next commit.
//!   Each member of a commit has its own savepoint, so a conflict fails that member only. Tenants
//!   are served round-robin.
//! - A long emptying or deletion is done in pieces, each in another commit. Reads see it whole from
//!   the first piece on.
//! - `done` runs on the writer thread, after the commit.
//! - Entries of any size are stored in the file; none is moved to an artifact store.
//! - Several processes may open one file: an append's guards are evaluated under the file's write
//!   lock. `created_at` and `updated_at` are times of the host's clock.
//! - A committed append survives `kill -9`, and with [`CommitMode::Sync`] a power cut.
//! - Deleted data is overwritten in the file at once, and removed from the log within a second.

mod options;
mod open;
mod log;
mod error;
mod outbox;
mod write;
mod writer;
mod chain;
mod read;
mod readers;
mod verify;
mod checkpoint;
mod gate;
mod watch;
mod lock;

pub use lock::{LockError, SessionLock};
#[cfg(feature = "evals")]
pub(crate) use open::harden;
#[cfg(feature = "cli")]
pub(crate) use open::is_of_another;
pub use options::{Check, CommitMode, SqliteOptions};
pub use verify::Verified;
pub use writer::SqliteStats;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use callboard_actors::{
    ids::{Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    policy::Amount,
    ports::{
        Append, BoxFuture, ListQuery, Outbox, Salvaged, SessionBackend, SessionSummary, StoreError,
    },
    stream::Open,
    time::Timestamp,
};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::commit::{
    job::{Answer, Job},
    queue::Queue,
    stored::Stored,
};
use checkpoint::Checkpoints;
use error::{describe, unavailable};
use gate::Gate;
use readers::Readers;
use watch::Files;
use writer::{Counters, Writer};

/// Journals in a SQLite file.
///
/// Dropping it does not block: queued appends are still written, by threads that then end. A
/// program that is about to exit calls [`SessionBackend::close`].
///
/// ```no_run
/// # async fn example() -> Result<(), callboard::ports::StoreError> {
/// let sessions = callboard::storage::Sqlite::open("callboard.db").await?;
/// # Ok(()) }
/// ```
pub struct Sqlite {
    path: PathBuf,
    queue: Arc<Queue>,
    readers: Arc<Readers>,
    checkpoints: Arc<Checkpoints>,
    counters: Arc<Counters>,
    stored: Arc<Stored>,
    gate: Arc<Gate>,
    files: Arc<Files>,
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sqlite({:?})", self.path.file_name().unwrap_or_default())
    }
}

impl Sqlite {
    /// Opens a file. A missing file is created with mode 0600, a missing folder with 0700.
    ///
    /// # Errors
    /// `Unavailable` with a one-line reason and the file's name; `NewerSchema` for a file of a
    /// newer version.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most an empty store behind.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// Opens a file with options; otherwise like [`Sqlite::open`].
    ///
    /// # Errors
    /// Those of [`Sqlite::open`].
    pub async fn open_with(
        path: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> Result<Self, StoreError> {
        let path = open::locate(path.as_ref())?;
        let (sender, receiver) = oneshot::channel();
        // Opening may block for seconds on another process, so it gets its own thread; the runtime
        // may have no blocking pool.
        let opening = std::thread::Builder::new().name("callboard-sqlite-open".into());
        opening
            .spawn(move || drop(sender.send(Self::open_now(path, &options))))
            .map_err(|error| {
                unavailable(format!("no thread: {}", crate::os_error::words(&error)))
            })?;
        receiver
            .await
            .unwrap_or_else(|_| Err(unavailable("opening the store failed")))
    }

    fn open_now(path: PathBuf, options: &SqliteOptions) -> Result<Self, StoreError> {
        let has_log = open::has_log(&path);
        let conn = open::writer(&path, options)?;
        let files = Arc::new(Files::of(&path)?);
        files.look(&conn).map_err(|lost| unavailable(lost.why()))?;
        let store = Self {
            queue: Arc::new(Queue::new(options.queue_bytes_max)),
            readers: Arc::new(Readers::new(options.readers.max(1))),
            checkpoints: Arc::default(),
            counters: Arc::default(),
            stored: Arc::default(),
            gate: Arc::default(),
            files,
            path,
        };
        let no_thread = |error: std::io::Error| unavailable(crate::os_error::words(&error));
        // If a step fails, dropping `store` ends the threads started before it.
        for _ in 0..options.readers.max(1) {
            let readers = Arc::clone(&store.readers);
            let conn = open::another(&store.path, options, false)?;
            gate::spawn(&store.gate, "callboard-sqlite-read", move || {
                readers.run(conn)
            })
            .map_err(no_thread)?;
        }
        let checkpoints = Arc::clone(&store.checkpoints);
        let aside = open::another(&store.path, options, true)?;
        if has_log && open::has_log(&store.path) {
            // Opening could not empty it. After a crash it may contain data deleted before it.
            store.checkpoints.note_erased();
        }
        let files = Arc::clone(&store.files);
        gate::spawn(&store.gate, "callboard-sqlite-log", move || {
            checkpoints.run(&aside, &files)
        })
        .map_err(no_thread)?;
        // A store that cannot be read says so to those who read it.
        let unfinished = write::unfinished(&conn).unwrap_or_default();
        for job in unfinished.jobs() {
            store.queue.push(job);
        }
        let writer = Writer {
            conn,
            queue: Arc::clone(&store.queue),
            counters: Arc::clone(&store.counters),
            checkpoints: Arc::clone(&store.checkpoints),
            stored: Arc::clone(&store.stored),
            gate: Arc::clone(&store.gate),
            files: Arc::clone(&store.files),
            commit_delay: options.commit_delay,
        };
        gate::spawn(&store.gate, "callboard-sqlite-write", move || writer.run())
            .map_err(no_thread)?;
        Ok(store)
    }

    /// Counters since the store was opened.
    pub fn stats(&self) -> SqliteStats {
        self.counters.read()
    }

    /// Reads every stored conversation and checks it against its digests.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be read; damaged conversations are part of the result.
    pub async fn verify(&self) -> Result<Verified, StoreError> {
        self.read(None, verify::verify).await
    }

    /// Locks a session and its subagents for this process until the lock is dropped. For interactive
    /// programs.
    ///
    /// # Errors
    /// [`LockError::SessionInUse`] when this or another process holds it.
    pub fn lock_session(&self, scope: &Scope) -> Result<SessionLock, LockError> {
        SessionLock::take(&self.path, scope)
    }

    /// Whether a process that lives has locked a session, or the session whose subagent it is.
    pub fn is_session_locked(&self, scope: &Scope) -> bool {
        SessionLock::is_held(&self.path, scope)
    }

    fn signal_end(&self) {
        self.readers.close();
        self.checkpoints.close();
        self.queue.close();
    }

    fn read<T: Send + 'static>(
        &self,
        owner: Option<&TenantId>,
        read: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let files = Arc::clone(&self.files);
        self.readers.read(owner, move |conn| {
            files.check()?;
            read(conn).map_err(|error| {
                // Of a lost file SQLite says only which system call failed.
                let is_unavailable = matches!(error, StoreError::Unavailable { .. });
                match is_unavailable.then(|| files.look(conn)) {
                    Some(Err(lost)) => unavailable(lost.why()),
                    Some(Ok(())) | None => error,
                }
            })
        })
    }

    fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(Answer<T>) -> Job,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        self.queue.push(job(sender));
        Box::pin(async move {
            receiver
                .await
                .unwrap_or_else(|_| Err(unavailable("the store's writer has ended")))
        })
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.signal_end();
    }
}

impl SessionBackend for Sqlite {
    fn append(&self, append: Append) {
        self.queue.push(Job::Append(append));
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        let place = scope.clone();
        self.read(Some(&scope.tenant), move |conn| read::head(conn, &place))
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        let place = scope.clone();
        self.read(Some(&scope.tenant), move |conn| read::load(conn, &place))
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        let place = scope.clone();
        self.read(Some(&scope.tenant), move |conn| {
            read::entries(conn, &place, after, count)
        })
    }

    fn salvage<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<Salvaged>, StoreError>> {
        let place = scope.clone();
        self.read(Some(&scope.tenant), move |conn| {
            read::salvage(conn, &place, after, count)
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
        self.read(Some(tenant), move |conn| read::list(conn, &owner, &query))
    }

    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        let owner = tenant.clone();
        self.read(Some(tenant), move |conn| read::count(conn, &owner))
    }

    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        match self.stored.bytes(tenant) {
            Some(bytes) => Box::pin(std::future::ready(Ok(bytes))),
            None => self.write(|answer| Job::Count(tenant.clone(), answer)),
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
        self.read(None, move |conn| {
            read::list_open(conn, open, due, after.as_ref(), count)
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

    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let path = self.path.clone();
        let checkpoints = Arc::clone(&self.checkpoints);
        let files = Arc::clone(&self.files);
        let (sender, receiver) = oneshot::channel();
        let scrub = move || {
            let scrubbed = files.check().and_then(|()| {
                let conn = open::another(&path, &SqliteOptions::default(), true)?;
                checkpoints.empty_log(&conn)
            });
            drop(sender.send(scrubbed));
        };
        let scrubbing = std::thread::Builder::new()
            .name("callboard-sqlite-scrub".into())
            .spawn(scrub);
        Box::pin(async move {
            scrubbing.map_err(|error| unavailable(crate::os_error::words(&error)))?;
            receiver
                .await
                .unwrap_or_else(|_| Err(unavailable("the erasure's thread has ended")))
        })
    }

    fn try_write(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let path = self.path.clone();
        let files = Arc::clone(&self.files);
        let (sender, receiver) = oneshot::channel();
        let trial = move || {
            let wrote = files.check().and_then(|()| {
                // What the writer waits for is not waited for here too.
                let options = SqliteOptions {
                    busy: Duration::from_millis(100),
                    ..SqliteOptions::default()
                };
                let conn = open::another(&path, &options, true)?;
                write::try_write(&conn).map_err(|error| unavailable(describe(&error)))
            });
            drop(sender.send(wrote));
        };
        let trial = std::thread::Builder::new()
            .name("callboard-sqlite-trial".into())
            .spawn(trial);
        Box::pin(async move {
            trial.map_err(|error| unavailable(crate::os_error::words(&error)))?;
            receiver
                .await
                .unwrap_or_else(|_| Err(unavailable("the trial's thread has ended")))
        })
    }

    fn close(&self, within: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.signal_end();
        let gate = Arc::clone(&self.gate);
        let queue = Arc::clone(&self.queue);
        let (sender, receiver) = oneshot::channel();
        // Real time, not `tokio::time`: a test that pauses the clock does not pause the disk.
        let wait = move || {
            let result = if gate.wait(0, within) {
                Ok(())
            } else {
                let left = queue.abandon("the store was closed before this was written");
                Err(unavailable(format!(
                    "the store did not close in time; pending changes that were discarded: {left}"
                )))
            };
            drop(sender.send(result));
        };
        let waiting = std::thread::Builder::new()
            .name("callboard-sqlite-close".into())
            .spawn(wait);
        Box::pin(async move {
            waiting.map_err(|error| unavailable(crate::os_error::words(&error)))?;
            receiver
                .await
                .unwrap_or_else(|_| Err(unavailable("the store did not close")))
        })
    }
}
