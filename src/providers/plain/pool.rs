//! Connections between calls. What is left of an answer when its reader has all it wants is read when the connection is wanted again:
//! no task waits for it.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{runtime, time::Instant};

use super::connection::{Connection, Free};

/// How long a connection may rest: what most clients take.
const IDLE_MAX: Duration = Duration::from_secs(90);

/// How often what is old or was closed by the server is let go.
const SWEEP: Duration = Duration::from_secs(30);

/// How long the end of an answer may take before the connection is not used again.
const REST_WAIT: Duration = Duration::from_millis(500);

/// Connections of one provider.
#[derive(Default)]
pub(super) struct Pool {
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    /// The newest at the back.
    idle: VecDeque<Idle>,
    is_swept: bool,
}

struct Idle {
    connection: Connection,
    since: Instant,
    /// A socket belongs to the runtime it was opened in.
    runtime: runtime::Id,
}

impl Idle {
    fn free(&mut self, now: Instant) -> Free {
        let age = now.saturating_duration_since(self.since);
        match self.connection.free() {
            Free::NotYet if age > REST_WAIT => Free::Never,
            Free::Yes if age > IDLE_MAX => Free::Never,
            free => free,
        }
    }
}

impl Pool {
    /// A connection that can take a call.
    pub(super) fn take(&self) -> Option<Connection> {
        let (here, now) = (runtime::Handle::current().id(), Instant::now());
        // The newest is warm. If its last answer has not quite ended, the oldest likely has.
        let mut not_yet = None;
        loop {
            let next = {
                let mut shelf = self.shelf();
                let newest = not_yet.is_none();
                let next = if newest { shelf.idle.pop_back() } else { shelf.idle.pop_front() };
                match next {
                    Some(next) => next,
                    None => {
                        shelf.idle.extend(not_yet);
                        return None;
                    }
                }
            };
            let mut next = next;
            if next.runtime != here {
                continue;
            }
            match next.free(now) {
                Free::Never => {}
                Free::Yes => {
                    self.shelf().idle.extend(not_yet);
                    return Some(next.connection);
                }
                Free::NotYet if not_yet.is_none() => not_yet = Some(next),
                Free::NotYet => {
                    let mut shelf = self.shelf();
                    shelf.idle.push_front(next);
                    shelf.idle.extend(not_yet);
                    return None;
                }
            }
        }
    }

    /// Keeps a connection whose answer was read as far as somebody wanted it.
    pub(super) fn keep(self: &Arc<Self>, mut connection: Connection) {
        // Also lets go of whoever was to be woken for it.
        if connection.free() == Free::Never {
            return;
        }
        let Ok(here) = runtime::Handle::try_current() else { return };
        let idle = Idle { connection, since: Instant::now(), runtime: here.id() };
        let mut shelf = self.shelf();
        shelf.idle.push_back(idle);
        if !std::mem::replace(&mut shelf.is_swept, true) {
            drop(shelf);
            here.spawn(Sweeper(Arc::downgrade(self)).sweep());
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sweeps until nothing is left; dropped with its runtime, it leaves the shelf to the next.
struct Sweeper(Weak<Pool>);

impl Sweeper {
    async fn sweep(self) {
        while self.sweep_once().await {}
    }

    async fn sweep_once(&self) -> bool {
        tokio::time::sleep(SWEEP).await;
        let Some(pool) = self.0.upgrade() else { return false };
        let now = Instant::now();
        let mut shelf = pool.shelf();
        shelf.idle.retain_mut(|idle| idle.free(now) != Free::Never);
        // Under the lock: whoever keeps a connection next starts the next sweeper.
        shelf.is_swept = !shelf.idle.is_empty();
        shelf.is_swept
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.shelf().is_swept = false;
        }
    }
}
