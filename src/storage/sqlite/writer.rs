//! The writer thread: takes waiting jobs, commits them together, then reports the results.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rusqlite::Connection;

use super::{
    checkpoint::Checkpoints,
    error::WriteError,
    gate::Gate,
    log,
    watch::{Files, Lost},
    write::{perform, run},
};
use crate::storage::commit::{
    columns::now,
    job::{Change, Job},
    queue::Queue,
    stored::Stored,
    turn::Turn,
};

/// Estimated bytes that a member adds to the log beside its content: two pages.
const LOG_BYTES_A_JOB: usize = 8192;
/// What the erasures of a commit may cost, in rows and pages.
const ERASURES_WORK_MAX: usize = 1000;
/// How long the writer waits for the readers at the end, so that the last connection can remove the
/// log.
const READERS_END: Duration = Duration::from_millis(200);

/// How often the writer looks at the files while nothing is written.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Counters since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SqliteStats {
    /// Number of commits; with [`CommitMode::Sync`](super::CommitMode::Sync) each waited for the
    /// disk.
    pub commits: u64,
    /// Number of stored appends.
    pub appends: u64,
    /// Bytes of the entries in those appends.
    pub bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    commits: AtomicU64,
    appends: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> SqliteStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SqliteStats {
            commits: read(&self.commits),
            appends: read(&self.appends),
            bytes: read(&self.bytes),
        }
    }
}

pub(super) struct Writer {
    pub(super) conn: Connection,
    pub(super) queue: Arc<Queue>,
    pub(super) counters: Arc<Counters>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) stored: Arc<Stored>,
    pub(super) gate: Arc<Gate>,
    pub(super) files: Arc<Files>,
    pub(super) commit_delay: Duration,
}

/// What became of each member of a commit.
type Outcomes = Vec<Outcome>;

enum Outcome {
    Ended(Result<Change, WriteError>),
    /// It was not begun.
    Waits,
}

impl Writer {
    /// Main loop of the writer thread, until the queue is closed and empty.
    pub(super) fn run(self) {
        while let Some(jobs) = self.queue.next(LOOK_EVERY) {
            if let Err(lost) = self.files.look(&self.conn) {
                self.give_up(&lost);
                jobs.into_iter().for_each(|job| job.refuse(lost.why()));
                continue;
            }
            if jobs.is_empty() {
                continue;
            }
            // Every job gets an outcome even after a panic: a conversation that waits forever is
            // worse than one that has to read its head again.
            let outcomes = catch_unwind(AssertUnwindSafe(|| self.commit(&jobs)));
            let broken = || WriteError::Store("the writer failed".into());
            let outcomes = outcomes.unwrap_or_else(|_| self.fail(&jobs, &broken()));
            self.count(&jobs, &outcomes);
            // A file that was lost during the commit took it along.
            let outcomes = match self.files.look(&self.conn) {
                Ok(()) => outcomes,
                Err(lost) => {
                    self.give_up(&lost);
                    all(&jobs, &WriteError::Store(lost.why().to_owned()))
                }
            };
            let mut ended = Vec::with_capacity(jobs.len());
            let mut left = Vec::new();
            for (job, outcome) in jobs.into_iter().zip(outcomes) {
                match outcome {
                    Outcome::Ended(Ok(change)) if change.is_partial => left.push(job.rest(&change)),
                    Outcome::Ended(result) => ended.push((job, result)),
                    Outcome::Waits => left.push(job),
                }
            }
            self.queue.put_back(left);
            for (job, result) in ended {
                if catch_unwind(AssertUnwindSafe(|| job.finish(result))).is_err() {
                    tracing::error!("a caller of the session store panicked in its callback");
                }
            }
            self.checkpoints.make_if_long(&self.conn);
        }
        self.gate.wait(1, READERS_END);
        if self.files.lost().is_some() {
            return;
        }
        // Truncates the log, leaving one file, unless another process has it open; then that
        // process will do it.
        drop(self.conn.busy_timeout(Duration::ZERO));
        drop(
            self.conn
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())),
        );
    }

    /// After a file was lost: rescues into the database what only the log holds, if it still is in
    /// its place, and leaves everything else as it is.
    fn give_up(&self, lost: &Lost) {
        drop(log::keep(&self.conn, true));
        if lost.is_log_whole {
            drop(
                self.conn
                    .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())),
            );
        }
    }

    /// Stores the members that can be stored; returns one result for each.
    fn commit(&self, jobs: &[Job]) -> Outcomes {
        self.try_commit(jobs)
            .unwrap_or_else(|error| self.fail(jobs, &WriteError::from(error)))
    }

    fn try_commit(&self, jobs: &[Job]) -> rusqlite::Result<Outcomes> {
        let now = now();
        let mut outcomes = Vec::with_capacity(jobs.len());
        let mut turn = Turn::new(ERASURES_WORK_MAX);
        // Takes the file's write lock at once, so that every guard is evaluated against the state
        // that the commit builds on.
        run(&self.conn, "BEGIN IMMEDIATE")?;
        for job in jobs {
            if !turn.admits(job) {
                outcomes.push(Outcome::Waits);
                continue;
            }
            run(&self.conn, "SAVEPOINT member")?;
            let result = perform(&self.conn, job, now);
            if result.is_err() {
                // When SQLite has already rolled back (disk full, I/O error), this fails and with
                // it the whole commit.
                run(&self.conn, "ROLLBACK TO member")?;
            }
            run(&self.conn, "RELEASE member")?;
            turn.spend(result.as_ref().map_or(0, |change| change.work));
            outcomes.push(Outcome::Ended(result));
        }
        if !self.commit_delay.is_zero() {
            std::thread::sleep(self.commit_delay);
        }
        run(&self.conn, "COMMIT")?;
        Ok(outcomes)
    }

    /// Rolls the transaction back.
    fn fail(&self, jobs: &[Job], error: &WriteError) -> Outcomes {
        if !self.conn.is_autocommit()
            && let Err(error) = run(&self.conn, "ROLLBACK")
        {
            tracing::error!(%error, "the session store could not roll back a commit");
        }
        all(jobs, error)
    }

    fn count(&self, jobs: &[Job], outcomes: &Outcomes) {
        let mut appends = 0;
        let mut bytes = 0;
        let mut written = 0;
        let mut has_erased = false;
        for (job, outcome) in jobs.iter().zip(outcomes) {
            let Outcome::Ended(Ok(change)) = outcome else {
                continue;
            };
            self.stored.changed(job.tenant(), change.bytes);
            if let Some(bytes) = change.counted {
                self.stored.counted(job.tenant(), bytes);
            }
            if matches!(job, Job::Count(..)) {
                continue;
            }
            has_erased |= job.is_erasure() && (change.found || change.work > 0);
            written += job.size().saturating_add(LOG_BYTES_A_JOB);
            if let Job::Append(append) = job {
                appends += 1;
                bytes += append
                    .entries
                    .iter()
                    .map(|entry| entry.bytes.len() as u64)
                    .sum::<u64>();
            }
        }
        if written > 0 {
            self.counters.commits.fetch_add(1, Ordering::Relaxed);
            self.counters.appends.fetch_add(appends, Ordering::Relaxed);
            self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.checkpoints.note(written);
        }
        if has_erased {
            self.checkpoints.note_erased();
        }
    }
}

/// The same error for each member.
fn all(jobs: &[Job], error: &WriteError) -> Outcomes {
    jobs.iter()
        .map(|_| Outcome::Ended(Err(error.clone())))
        .collect()
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After a regular end the queue is empty; only after a panic in the loop itself are jobs
        // left to refuse.
        self.queue.abandon("the store is closed");
    }
}

#[cfg(test)]
mod tests;
