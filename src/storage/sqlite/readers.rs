//! Reader threads, each with a read-only connection. A read is one transaction and ends with its
//! call. The tenants' reads are served in turn ([`Lines`]).

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use callboard_actors::{
    ids::TenantId,
    ports::{BoxFuture, StoreError},
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::unavailable;
use crate::{
    fair::{Lines, Owner},
    storage::commit::{READS_WAITING, read_refusal},
};

type Task = Box<dyn FnOnce(&mut Connection) + Send>;

/// The waiting reads.
pub(super) struct Readers {
    lines: Mutex<Lines<Task>>,
    bell: Condvar,
    /// Threads that may read for one tenant at the same time.
    running_max: usize,
}

impl Readers {
    /// The lines before this number of threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            lines: Mutex::new(Lines::new(READS_WAITING)),
            bell: Condvar::new(),
            running_max: threads.saturating_sub(1).max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines<Task>> {
        self.lines.lock()
    }

    /// Runs a read on one of the threads. A read whose caller was dropped is skipped.
    pub(super) fn read<T: Send + 'static>(
        &self,
        owner: Option<&TenantId>,
        read: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        let task: Task = Box::new(move |conn| {
            if !sender.is_closed() {
                drop(sender.send(read(conn)));
            }
        });
        let pushed = self.lock().push(owner.cloned(), task);
        self.bell.notify_one();
        Box::pin(async move {
            match pushed {
                Err(refused) => Err(unavailable(read_refusal(refused))),
                Ok(()) => receiver
                    .await
                    .unwrap_or_else(|_| Err(unavailable("the store is closed"))),
            }
        })
    }

    /// Main loop of a reader thread.
    pub(super) fn run(self: Arc<Self>, mut conn: Connection) {
        while let Some((owner, task)) = self.next() {
            // The dropped channel reports the failure to the caller; the thread continues with
            // other reads.
            if catch_unwind(AssertUnwindSafe(|| task(&mut conn))).is_err() {
                tracing::error!("a read of the session store panicked");
            }
            self.lock().ended(&owner);
            // A thread that waits may now serve this owner, whose other threads were too many.
            self.bell.notify_one();
        }
    }

    fn next(&self) -> Option<(Owner, Task)> {
        let mut lines = self.lock();
        loop {
            if lines.is_closed() {
                return None;
            }
            if let Some(next) = lines.next(self.running_max) {
                return Some(next);
            }
            self.bell.wait(&mut lines);
        }
    }

    /// Ends the threads after their current reads; waiting reads fail as unavailable.
    pub(super) fn close(&self) {
        let left = self.lock().close();
        drop(left); // Outside of the lock: each informs its caller.
        self.bell.notify_all();
    }
}
