//! Reader threads, each with a read-only connection. A read is one transaction and ends with its
//! call.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use callboard_actors::ports::{BoxFuture, StoreError};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::unavailable;

/// Most waiting reads; further ones are refused, since a late answer would be useless.
const WAITING_MAX: usize = 4096;

type Task = Box<dyn FnOnce(&mut Connection) + Send>;

/// The waiting reads.
#[derive(Default)]
pub(super) struct Readers {
    line: Mutex<Line>,
    bell: Condvar,
}

#[derive(Default)]
struct Line {
    tasks: VecDeque<Task>,
    is_closed: bool,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    /// Runs a read on one of the threads. A read whose caller was dropped is skipped.
    pub(super) fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        let task: Task = Box::new(move |conn| {
            if !sender.is_closed() {
                drop(sender.send(read(conn)));
            }
        });
        let mut line = self.lock();
        let refusal = if line.is_closed {
            Some("the store is closed")
        } else if line.tasks.len() >= WAITING_MAX {
            Some("too many reads are waiting for the disk")
        } else {
            line.tasks.push_back(task);
            None
        };
        drop(line);
        self.bell.notify_one();
        Box::pin(async move {
            match refusal {
                Some(why) => Err(unavailable(why)),
                None => receiver
                    .await
                    .unwrap_or_else(|_| Err(unavailable("the store is closed"))),
            }
        })
    }

    /// Main loop of a reader thread.
    pub(super) fn run(self: Arc<Self>, mut conn: Connection) {
        while let Some(task) = self.next() {
            // The dropped channel reports the failure to the caller; the thread continues with
            // other reads.
            if catch_unwind(AssertUnwindSafe(|| task(&mut conn))).is_err() {
                tracing::error!("a read of the session store panicked");
            }
        }
    }

    fn next(&self) -> Option<Task> {
        let is_idle = |line: &mut Line| line.tasks.is_empty() && !line.is_closed;
        let mut line = self.lock();
        self.bell.wait_while(&mut line, is_idle);
        if line.is_closed {
            None
        } else {
            line.tasks.pop_front()
        }
    }

    /// Ends the threads after their current reads; waiting reads fail as unavailable.
    pub(super) fn close(&self) {
        let mut line = self.lock();
        line.is_closed = true;
        let left = std::mem::take(&mut line.tasks);
        drop(line);
        drop(left);
        self.bell.notify_all();
    }
}
