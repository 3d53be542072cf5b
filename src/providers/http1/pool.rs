//! Keeps connections between calls. If a caller stopped reading before the end of an answer, the
//! rest is read when the connection is wanted again, so no task waits for it.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{runtime, time::Instant};

use super::connection::{Connection, Free};

/// Longest idle time of a connection: the usual value of HTTP clients.
const IDLE_MAX: Duration = Duration::from_secs(90);

/// How often expired connections, and those that the server closed, are dropped.
const SWEEP: Duration = Duration::from_secs(30);

/// How long the rest of an answer may take before the connection is not reused.
const REST_WAIT: Duration = Duration::from_millis(500);

/// Connections of one provider.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<IdleConnections>,
}

#[derive(Default)]
struct IdleConnections {
    /// Idle connections, the most recently used at the back.
    connections: VecDeque<Idle>,
    is_swept: bool,
}

struct Idle {
    connection: Connection,
    since: Instant,
    /// The runtime that opened the socket. A socket works in no other runtime.
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
    /// Returns a connection that can serve a call.
    pub(super) fn take(&self) -> Option<Connection> {
        let here = runtime::Handle::current().id();
        let now = Instant::now();
        // Prefer the newest, which is warm. If its last answer is still arriving, try the oldest,
        // whose answer has probably ended; if that one is not free either, give up. Connections are
        // taken out under the lock but polled without it, since polling reads from the socket.
        let mut not_yet = None;
        loop {
            let next = {
                let mut idle = self.idle();
                let newest = not_yet.is_none();
                let next = if newest {
                    idle.connections.pop_back()
                } else {
                    idle.connections.pop_front()
                };
                match next {
                    Some(next) => next,
                    None => {
                        idle.connections.extend(not_yet);
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
                    self.idle().connections.extend(not_yet);
                    return Some(next.connection);
                }
                Free::NotYet if not_yet.is_none() => not_yet = Some(next),
                Free::NotYet => {
                    let mut idle = self.idle();
                    idle.connections.push_front(next);
                    idle.connections.extend(not_yet);
                    return None;
                }
            }
        }
    }

    /// Returns a connection whose caller has read as much of the answer as it wanted.
    pub(super) fn keep(self: &Arc<Self>, mut connection: Connection) {
        // Polling also drops the waker of the previous caller.
        if connection.free() == Free::Never {
            return;
        }
        let Ok(here) = runtime::Handle::try_current() else {
            return;
        };
        let idle = Idle {
            connection,
            since: Instant::now(),
            runtime: here.id(),
        };
        let mut pooled = self.idle();
        pooled.connections.push_back(idle);
        if !std::mem::replace(&mut pooled.is_swept, true) {
            drop(pooled);
            here.spawn(Sweeper(Arc::downgrade(self)).sweep());
        }
    }

    fn idle(&self) -> MutexGuard<'_, IdleConnections> {
        self.idle.lock()
    }
}

/// Sweeps until the pool is empty. If its runtime is dropped, the next connection starts a new
/// sweeper.
struct Sweeper(Weak<Pool>);

impl Sweeper {
    async fn sweep(self) {
        while self.sweep_once().await {}
    }

    async fn sweep_once(&self) -> bool {
        tokio::time::sleep(SWEEP).await;
        let Some(pool) = self.0.upgrade() else {
            return false;
        };
        let now = Instant::now();
        let mut idle = pool.idle();
        idle.connections
            .retain_mut(|idle| idle.free(now) != Free::Never);
        // Set under the lock, so that the next connection that is kept starts the next sweeper.
        idle.is_swept = !idle.connections.is_empty();
        idle.is_swept
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.idle().is_swept = false;
        }
    }
}
