//! Reader threads, each with a read-only connection. A read is one transaction and ends with its
//! call. The tenants' reads wait in lines that are served in turn, and one thread stays free of any
//! single tenant: a tenant that reads long conversations delays no other's wake-up.

use std::{
    collections::{HashMap, VecDeque},
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

/// Most waiting reads; further ones are refused, since a late answer would be useless.
const WAITING_MAX: usize = 4096;

/// Most waiting reads of one tenant, so that one alone does not get the reads of others refused.
const TENANT_WAITING_MAX: usize = WAITING_MAX / 4;

type Task = Box<dyn FnOnce(&mut Connection) + Send>;

/// Whose read it is; `None` for reads over all tenants.
type Owner = Option<TenantId>;

/// The waiting reads.
pub(super) struct Readers {
    lines: Mutex<Lines>,
    bell: Condvar,
    /// Threads that may read for one tenant at the same time.
    running_max: usize,
}

#[derive(Default)]
struct Lines {
    owners: HashMap<Owner, Line>,
    /// Owners with waiting reads, each once, in the order of service.
    turn: VecDeque<Owner>,
    waiting: usize,
    is_closed: bool,
}

#[derive(Default)]
struct Line {
    tasks: VecDeque<Task>,
    /// Threads that read for this owner now.
    running: usize,
}

impl Lines {
    /// Adds a read, or returns why it is refused.
    fn push(&mut self, owner: Owner, task: Task) -> Option<&'static str> {
        if self.is_closed {
            return Some("the store is closed");
        }
        if self.waiting >= WAITING_MAX {
            return Some("too many reads are waiting for the disk");
        }
        let line = self.owners.entry(owner.clone()).or_default();
        if owner.is_some() && line.tasks.len() >= TENANT_WAITING_MAX {
            return Some("too many reads of this tenant are waiting for the disk");
        }
        if line.tasks.is_empty() {
            self.turn.push_back(owner);
        }
        line.tasks.push_back(task);
        self.waiting += 1;
        None
    }

    /// The next read of the first owner that has fewer than `running_max` threads.
    fn next(&mut self, running_max: usize) -> Option<(Owner, Task)> {
        let place = self.turn.iter().position(|owner| {
            let line = self.owners.get(owner);
            line.is_some_and(|line| line.running < running_max)
        })?;
        let owner = self.turn.remove(place)?;
        let line = self.owners.get_mut(&owner)?;
        let task = line.tasks.pop_front()?;
        line.running += 1;
        self.waiting -= 1;
        if !line.tasks.is_empty() {
            self.turn.push_back(owner.clone());
        }
        Some((owner, task))
    }

    /// Notes the end of a read. Owners without reads are forgotten.
    fn ended(&mut self, owner: &Owner) {
        if let Some(line) = self.owners.get_mut(owner) {
            line.running -= 1;
            if line.running == 0 && line.tasks.is_empty() {
                self.owners.remove(owner);
            }
        }
    }
}

impl Readers {
    /// The lines before this number of threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            lines: Mutex::default(),
            bell: Condvar::new(),
            running_max: threads.saturating_sub(1).max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
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
        let refusal = self.lock().push(owner.cloned(), task);
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
            if lines.is_closed {
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
        let mut lines = self.lock();
        lines.is_closed = true;
        lines.turn.clear();
        let left = std::mem::take(&mut lines.owners);
        drop(lines);
        drop(left);
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Owner {
        Some(TenantId::new(name).unwrap())
    }

    fn task() -> Task {
        Box::new(|_| {})
    }

    #[test]
    fn reads_of_a_tenant_that_polls_delay_no_other_tenant() {
        let mut lines = Lines::default();
        for _ in 0..100 {
            assert_eq!(lines.push(tenant("a"), task()), None);
        }
        let two = [lines.next(2), lines.next(2)].map(|next| next.map(|(owner, _)| owner));
        assert_eq!(two, [Some(tenant("a")), Some(tenant("a"))]);
        assert!(lines.next(2).is_none(), "the third thread stays free");

        assert_eq!(lines.push(tenant("b"), task()), None);
        let (owner, _) = lines.next(2).unwrap();
        assert_eq!(owner, tenant("b"));
        lines.ended(&owner);

        lines.ended(&tenant("a"));
        assert_eq!(lines.push(tenant("b"), task()), None);
        let (first, _) = lines.next(2).unwrap();
        let (second, _) = lines.next(2).unwrap();
        assert_eq!((first, second), (tenant("a"), tenant("b")), "in turn");
    }

    #[test]
    fn reads_of_one_tenant_that_wait_are_bounded() {
        let mut lines = Lines::default();
        for _ in 0..TENANT_WAITING_MAX {
            assert_eq!(lines.push(tenant("a"), task()), None);
        }

        assert!(lines.push(tenant("a"), task()).is_some());
        assert_eq!(lines.push(tenant("b"), task()), None);
    }

    #[test]
    fn a_tenant_without_reads_is_forgotten() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(tenant("a"), task()), None);

        let (owner, _) = lines.next(1).unwrap();
        lines.ended(&owner);

        assert!(lines.owners.is_empty() && lines.turn.is_empty());
        assert_eq!(lines.waiting, 0);
    }
}
