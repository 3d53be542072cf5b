//! Checkpoints of the write-ahead log, on a separate thread so that no commit waits for one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use callboard_actors::ports::StoreError;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::Connection;

use super::{
    error::{failed_read, unavailable},
    log::{self, READERS_WAIT},
    watch::Files,
};

/// Estimated size of the log, in bytes, that triggers a checkpoint. It bounds what a start after a
/// crash has to read.
const LOG_BYTES: usize = 4 * 1024 * 1024;
/// Log size, in pages, after a passive checkpoint above which the writer makes the next one. A
/// passive checkpoint cannot restart the log while commits keep coming.
const LOG_PAGES_MAX: i64 = 4096;

/// Delay before deleted data is erased from the log: one truncation serves several deletions.
const ERASED_DELAY: Duration = Duration::from_millis(500);

/// State shared by the writer and the checkpoint thread.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    notes: Mutex<Notes>,
    bell: Condvar,
    is_log_long: AtomicBool,
    /// Held during a checkpoint: SQLite allows one at a time and refuses a second.
    running: Mutex<()>,
}

#[derive(Debug, Default)]
struct Notes {
    bytes: usize,
    /// Whether the log still contains deleted data.
    has_erased: bool,
    is_closed: bool,
}

/// Work of the checkpoint thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    /// Copy the log into the database.
    Move,
    /// The same, and truncate the log.
    Empty,
}

impl Checkpoints {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock()
    }

    /// Called by the writer: a commit added `bytes` to the log.
    pub(super) fn note(&self, bytes: usize) {
        let mut notes = self.lock();
        notes.bytes = notes.bytes.saturating_add(bytes);
        if notes.bytes >= LOG_BYTES {
            drop(notes);
            self.bell.notify_one();
        }
    }

    /// Called by the writer: a commit deleted data that the log still contains.
    pub(super) fn note_erased(&self) {
        if !std::mem::replace(&mut self.lock().has_erased, true) {
            self.bell.notify_one();
        }
    }

    /// Called by the writer between commits: makes a checkpoint itself if the log is long. Since
    /// nothing is written meanwhile, the log restarts at its beginning, which is worth waiting for
    /// a running checkpoint.
    pub(super) fn make_if_long(&self, conn: &Connection) {
        if self.is_log_long.swap(false, Ordering::Relaxed) {
            drop(self.make(conn));
            self.lock().bytes = 0;
        }
    }

    fn make(&self, conn: &Connection) -> rusqlite::Result<i64> {
        let _running = self.running.lock();
        // Passive: does not wait for readers. Returns the number of pages in the log.
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))
    }

    /// Truncates the log, so that deleted data is no longer readable in it. Waits for readers as
    /// long as the connection's busy timeout.
    pub(super) fn empty_log(&self, conn: &Connection) -> Result<(), StoreError> {
        let _running = self.running.lock();
        let is_busy = conn
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
                row.get::<_, i64>(0)
            })
            .map_err(|error| failed_read(&error))?;
        if is_busy == 0 {
            Ok(())
        } else {
            Err(unavailable("its log is in use; try again"))
        }
    }

    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.bell.notify_all();
    }

    /// Waits for work; `None` once closed.
    fn wait(&self) -> Option<Task> {
        // Wakes at once for a long log or for closing. For deleted data alone it waits
        // `ERASED_DELAY` more, so that one truncation serves several deletions.
        let is_idle =
            |notes: &mut Notes| notes.bytes < LOG_BYTES && !notes.has_erased && !notes.is_closed;
        let mut notes = self.lock();
        self.bell.wait_while(&mut notes, is_idle);
        if notes.bytes < LOG_BYTES && !notes.is_closed {
            let goes_on = |notes: &mut Notes| notes.bytes < LOG_BYTES && !notes.is_closed;
            self.bell.wait_while_for(&mut notes, goes_on, ERASED_DELAY);
        }
        notes.bytes = 0;
        let task = if std::mem::take(&mut notes.has_erased) {
            Task::Empty
        } else {
            Task::Move
        };
        (!notes.is_closed).then_some(task)
    }

    /// Main loop of the checkpoint thread.
    pub(super) fn run(self: Arc<Self>, conn: &Connection, files: &Files) {
        drop(conn.busy_timeout(READERS_WAIT));
        while let Some(task) = self.wait() {
            // Half a log must not be copied into the database.
            if files.look(conn).is_err() {
                drop(log::keep(conn, true));
                continue;
            }
            // A failed checkpoint loses nothing: the log keeps everything, and the next one covers
            // it.
            if self.make(conn).is_ok_and(|pages| pages > LOG_PAGES_MAX) {
                self.is_log_long.store(true, Ordering::Relaxed);
            }
            if task == Task::Empty && self.empty_log(conn).is_err() {
                self.note_erased(); // A reader blocked it; the next attempt follows shortly.
            }
        }
        if files.lost().is_some() {
            drop(log::keep(conn, true));
        }
    }
}
