//! A few threads that read, each with a connection that cannot write. A read is one transaction and ends with its call.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use callboard_actors::ports::{BoxFuture, StoreError};
use rusqlite::Connection;
use tokio::sync::oneshot;

use super::error::unavailable;

/// Reads that may wait: beyond it callers are refused, for an answer that comes much later helps nobody.
const WAITING_MAX: usize = 4096;

type Task = Box<dyn FnOnce(&mut Connection) + Send>;

/// The reads that wait.
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
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads on one of the threads. A caller that has gone costs nothing.
    pub(super) fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (tell, told) = oneshot::channel();
        let task: Task = Box::new(move |conn| {
            if !tell.is_closed() {
                drop(tell.send(read(conn)));
            }
        });
        let mut line = self.lock();
        let why_not = if line.is_closed {
            Some("the store is closed")
        } else if line.tasks.len() >= WAITING_MAX {
            Some("too many reads wait for the disk")
        } else {
            line.tasks.push_back(task);
            None
        };
        drop(line);
        self.bell.notify_one();
        Box::pin(async move {
            match why_not {
                Some(why) => Err(unavailable(why)),
                None => told.await.unwrap_or_else(|_| Err(unavailable("the store is closed"))),
            }
        })
    }

    /// A reader's life.
    pub(super) fn run(self: Arc<Self>, mut conn: Connection) {
        while let Some(task) = self.next() {
            // Its caller is told by the dropped channel; the thread serves the others on.
            if catch_unwind(AssertUnwindSafe(|| task(&mut conn))).is_err() {
                tracing::error!("a read of the session store panicked");
            }
        }
    }

    fn next(&self) -> Option<Task> {
        let is_idle = |line: &mut Line| line.tasks.is_empty() && !line.is_closed;
        let mut line = self.bell.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        if line.is_closed { None } else { line.tasks.pop_front() }
    }

    /// Ends the threads after the reads that run; those that wait are unavailable.
    pub(super) fn close(&self) {
        let mut line = self.lock();
        line.is_closed = true;
        let left = std::mem::take(&mut line.tasks);
        drop(line);
        drop(left);
        self.bell.notify_all();
    }
}
