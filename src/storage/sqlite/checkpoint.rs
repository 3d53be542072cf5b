//! Moves what was committed from the log into the database, on a thread of its own: no commit waits for it.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use callboard_actors::ports::StoreError;
use rusqlite::Connection;

use super::error::{failed_read, unavailable};

/// Bytes of log, by estimate, after which a checkpoint is made: what a start after a crash has to read.
const LOG_BYTES: usize = 4 * 1024 * 1024;
/// A log that is still longer after a checkpoint never found a moment without commits: the writer must make one.
const LOG_PAGES_MAX: i64 = 4096;

/// How long a deletion waits for others before the log is emptied: one emptying serves them all.
const ERASED_DELAY: Duration = Duration::from_millis(500);

/// How long emptying the log may hold up commits while it waits for a reader; then it is tried again later.
const READERS_WAIT: Duration = Duration::from_millis(20);

/// The notes that writer and checkpointer pass to each other.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    notes: Mutex<Notes>,
    bell: Condvar,
    is_log_long: AtomicBool,
    /// Held while a checkpoint is made: SQLite lets one at a time, and refuses the other.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Notes {
    bytes: usize,
    /// The log holds what was deleted.
    has_erased: bool,
    is_closed: bool,
}

/// What the checkpointer is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Move the log into the database.
    Move,
    /// The same, and leave nothing in the log.
    Empty,
}

impl Checkpoints {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer: a commit added this much to the log.
    pub(super) fn note(&self, bytes: usize) {
        let mut notes = self.lock();
        notes.bytes = notes.bytes.saturating_add(bytes);
        if notes.bytes >= LOG_BYTES {
            drop(notes);
            self.bell.notify_one();
        }
    }

    /// The writer: a commit deleted something, which the log still holds.
    pub(super) fn note_erased(&self) {
        if !std::mem::replace(&mut self.lock().has_erased, true) {
            self.bell.notify_one();
        }
    }

    /// The writer, between commits: makes a checkpoint itself if the log is long. Nothing is written meanwhile, so the
    /// log is used from its start again; that is worth waiting for one checkpoint that is under way.
    pub(super) fn make_if_long(&self, conn: &Connection) {
        if self.is_log_long.swap(false, Ordering::Relaxed) {
            drop(self.make(conn));
            self.lock().bytes = 0;
        }
    }

    fn make(&self, conn: &Connection) -> rusqlite::Result<i64> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Passive: waits for no reader. Tells the pages of the log.
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))
    }

    /// Leaves nothing in the log: what was deleted there is readable no longer. Waits for readers as long as the connection does.
    pub(super) fn empty_log(&self, conn: &Connection) -> Result<(), StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_busy =
            conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0)).map_err(|error| failed_read(&error))?;
        if is_busy == 0 { Ok(()) } else { Err(unavailable("its log is in use; ask again")) }
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.bell.notify_all();
    }

    /// Waits for something to do; `None` once closed.
    fn wait(&self) -> Option<Task> {
        let is_idle = |notes: &mut Notes| notes.bytes < LOG_BYTES && !notes.has_erased && !notes.is_closed;
        let mut notes = self.bell.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        if notes.bytes < LOG_BYTES && !notes.is_closed {
            let goes_on = |notes: &mut Notes| notes.bytes < LOG_BYTES && !notes.is_closed;
            notes = self.bell.wait_timeout_while(notes, ERASED_DELAY, goes_on).unwrap_or_else(PoisonError::into_inner).0;
        }
        notes.bytes = 0;
        let task = if std::mem::take(&mut notes.has_erased) { Task::Empty } else { Task::Move };
        (!notes.is_closed).then_some(task)
    }

    /// The checkpointer's life.
    pub(super) fn run(self: Arc<Self>, conn: &Connection) {
        drop(conn.busy_timeout(READERS_WAIT));
        while let Some(task) = self.wait() {
            // A failure is no matter: the log keeps everything, and the next checkpoint takes it.
            if self.make(conn).is_ok_and(|pages| pages > LOG_PAGES_MAX) {
                self.is_log_long.store(true, Ordering::Relaxed);
            }
            if task == Task::Empty && self.empty_log(conn).is_err() {
                self.note_erased(); // A reader held it; the next try is a moment later.
            }
        }
    }
}
