//! Tasks that read, each with a connection of its own. The tenants' reads are served in turn
//! ([`Lines`]).

use std::sync::Arc;

use callboard_actors::{
    ids::TenantId,
    ports::{BoxFuture, StoreError},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio_postgres::Client;

use super::{
    connect::Connector,
    error::unavailable,
    lease::Membership,
    read::{Failed, Reader},
};
use crate::{
    fair::{Lines, Owner},
    storage::commit::{READS_WAITING, read_refusal},
};

/// A read over a connection, or the reason why there is none; returns whether the connection must be
/// replaced.
type Task = Box<dyn for<'a> FnOnce(Result<Reader<'a>, String>) -> BoxFuture<'a, bool> + Send>;

/// The waiting reads.
pub(super) struct Readers {
    lines: Mutex<Lines<Task>>,
    bell: Notify,
    /// Tasks that may read for one tenant at the same time.
    running_max: usize,
}

/// Notes the end of a read, also of one whose task was ended.
struct Running<'a> {
    readers: &'a Readers,
    owner: Owner,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.readers.lock().ended(&self.owner);
        // A task that waits may now serve this owner, whose other reads were too many.
        self.readers.bell.notify_one();
    }
}

impl Readers {
    /// The lines before this number of tasks.
    pub(super) fn new(tasks: usize) -> Self {
        Self {
            lines: Mutex::new(Lines::new(READS_WAITING)),
            bell: Notify::new(),
            running_max: tasks.saturating_sub(1).max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines<Task>> {
        self.lines.lock()
    }

    /// Runs a read on one of the connections. A read whose caller was dropped is skipped.
    pub(super) fn read<T: Send + 'static>(
        &self,
        owner: Option<&TenantId>,
        read: impl for<'a> FnOnce(Reader<'a>) -> BoxFuture<'a, Result<T, Failed>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StoreError>> {
        let (sender, receiver) = oneshot::channel();
        let task: Task = Box::new(move |reader| {
            Box::pin(async move {
                let (result, is_fatal) = match reader {
                    _ if sender.is_closed() => return false,
                    Err(why) => (Err(unavailable(why)), false),
                    Ok(reader) => match read(reader).await {
                        Ok(found) => (Ok(found), false),
                        Err(failed) => (Err(failed.error), failed.is_fatal),
                    },
                };
                drop(sender.send(result));
                is_fatal
            })
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

    /// Main loop of a reading task.
    pub(super) async fn run(
        self: Arc<Self>,
        connector: Arc<Connector>,
        membership: Arc<Membership>,
    ) {
        let mut client: Option<Client> = None;
        while let Some((owner, task)) = self.next().await {
            let _running = Running {
                readers: &self,
                owner,
            };
            if client.as_ref().is_none_or(Client::is_closed) {
                client = None;
            }
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => connector.connect().await,
            };
            match connected {
                Ok(open) => {
                    let connector = &connector;
                    let is_fatal = task(Ok(Reader {
                        connector,
                        client: &open,
                        membership: &membership,
                    }))
                    .await;
                    client = (!is_fatal).then_some(open);
                }
                Err(why) => {
                    task(Err(why)).await;
                }
            }
        }
    }

    async fn next(&self) -> Option<(Owner, Task)> {
        loop {
            {
                let mut lines = self.lock();
                if lines.is_closed() {
                    // The next task learns it too.
                    self.bell.notify_one();
                    return None;
                }
                if let Some(next) = lines.next(self.running_max) {
                    // A permit rings once, and there may be more reads than one.
                    self.bell.notify_one();
                    return Some(next);
                }
            }
            self.bell.notified().await;
        }
    }

    /// Ends the tasks after their current reads; waiting reads fail as unavailable.
    pub(super) fn close(&self) {
        let left = self.lock().close();
        drop(left); // Outside of the lock: each informs its caller.
        self.bell.notify_one();
    }
}
