//! Keeps the connections to one server and lends them to calls. An HTTP/1.1 connection carries one
//! call at a time, an HTTP/2 connection as many as the server allows; when those are used up, the
//! next connection is opened. A call that finds none waits, in the order of arrival.
//!
//! If a caller of HTTP/1.1 stopped reading before the end of an answer, the rest is read when the
//! connection is wanted again, so no task waits for it.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use callboard_actors::ports::ProviderError;
use parking_lot::{Mutex, MutexGuard};
use tokio::{runtime, sync::oneshot, time::Instant};

use super::{
    dial::{Dialed, Dialer},
    http1::{Connection, Free},
    http2::Http2,
    plan::{Demand, STREAMS_ASSUMED},
};

/// Longest idle time of a connection: the usual value of HTTP clients.
const IDLE_MAX: Duration = Duration::from_secs(90);

/// How often expired connections, and those that the server closed, are dropped.
const SWEEP: Duration = Duration::from_secs(30);

/// How long the rest of an answer may take before the connection is not reused.
const REST_WAIT: Duration = Duration::from_millis(500);

/// Connections to one server.
pub(super) struct Pool {
    dialer: Dialer,
    connections_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Idle HTTP/1.1 connections, the most recently used at the back.
    idle: VecDeque<Idle>,
    http2: Vec<OpenHttp2>,
    /// Number of open HTTP/1.1 connections, idle or lent.
    http1_open: usize,
    /// Number of connections that are being opened.
    opening: usize,
    /// Calls that one connection carried at the same time when that was last known; 0 before.
    calls_each: usize,
    waiting: VecDeque<Waiting>,
    next_id: u64,
    is_swept: bool,
}

/// A call that waits for a connection.
struct Waiting {
    lease: oneshot::Sender<Result<Lease, ProviderError>>,
    /// Where a connection is opened for it. Room may be made by a thread without a runtime, for
    /// example when an answer is dropped by a callback of the store.
    runtime: runtime::Handle,
}

struct Idle {
    connection: Connection,
    slot: Http1Slot,
    since: Instant,
    /// The runtime that opened the socket. A socket works in no other runtime.
    runtime: runtime::Id,
}

struct OpenHttp2 {
    id: u64,
    connection: Http2,
    calls: usize,
    /// When the last call ended.
    since: Instant,
    runtime: runtime::Id,
}

/// A connection for one call.
pub(super) enum Lease {
    Http1(Box<Http1Lease>),
    Http2(Http2Lease),
}

pub(super) struct Http1Lease {
    pub(super) connection: Connection,
    /// Whether it has served calls before, so that the server may have closed it meanwhile.
    pub(super) is_rested: bool,
    slot: Http1Slot,
}

/// One call of an HTTP/2 connection. Dropping it makes room for the next.
pub(super) struct Http2Lease {
    pub(super) connection: Http2,
    id: u64,
    pool: Weak<Pool>,
}

/// The place of an HTTP/1.1 connection in the bound of open connections.
struct Http1Slot(Weak<Pool>);

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
    pub(super) fn new(dialer: Dialer, connections_max: usize) -> Self {
        Self {
            dialer,
            connections_max: connections_max.max(1),
            state: Mutex::default(),
        }
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Waits for a connection. Cancel safe: a connection that is not taken serves the next caller.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, ProviderError> {
        if let Some(connection) = self.take_idle() {
            return Ok(connection);
        }
        let receiver = {
            let mut state = self.state();
            match self.free_stream(&mut state) {
                Some(lease) => return Ok(lease),
                None => {
                    let (sender, receiver) = oneshot::channel();
                    state.waiting.push_back(Waiting {
                        lease: sender,
                        runtime: runtime::Handle::current(),
                    });
                    receiver
                }
            }
        };
        // A connection may have become idle before this call was seen to wait.
        if let Some(lease) = self.take_idle() {
            self.hand_out(lease);
        }
        self.open_more();
        receiver.await.unwrap_or_else(|_| {
            Err(ProviderError::Connection {
                message: "the client was closed".to_owned(),
            })
        })
    }

    /// Opens an HTTP/1.1 connection for a call whose idle connection had been closed. It takes the
    /// place of that one.
    pub(super) async fn fresh_http1(self: &Arc<Self>) -> Result<Box<Http1Lease>, ProviderError> {
        let slot = self.http1_slot();
        let dialed = self.dialer.dial().await?;
        if dialed.is_http2 {
            return Err(ProviderError::Protocol {
                message: "the server changed to HTTP/2 between two calls".to_owned(),
            });
        }
        Ok(Box::new(Http1Lease {
            connection: Connection::new(dialed.socket),
            is_rested: false,
            slot,
        }))
    }

    fn http1_slot(self: &Arc<Self>) -> Http1Slot {
        let mut state = self.state();
        state.http1_open += 1;
        Http1Slot(Arc::downgrade(self))
    }

    /// Returns an idle HTTP/1.1 connection that can serve a call.
    pub(super) fn take_idle(&self) -> Option<Lease> {
        let here = runtime::Handle::current().id();
        let now = Instant::now();
        // Prefer the newest, which is warm. If its last answer is still arriving, try the oldest,
        // whose answer has probably ended; if that one is not free either, give up. Connections are
        // taken out under the lock but polled without it, since polling reads from the socket.
        let mut not_yet = None;
        loop {
            let next = {
                let mut state = self.state();
                let newest = not_yet.is_none();
                let next = if newest {
                    state.idle.pop_back()
                } else {
                    state.idle.pop_front()
                };
                match next {
                    Some(next) => next,
                    None => {
                        state.idle.extend(not_yet);
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
                    self.state().idle.extend(not_yet);
                    return Some(Lease::Http1(Box::new(Http1Lease {
                        connection: next.connection,
                        is_rested: true,
                        slot: next.slot,
                    })));
                }
                Free::NotYet if not_yet.is_none() => not_yet = Some(next),
                Free::NotYet => {
                    let mut state = self.state();
                    state.idle.push_front(next);
                    state.idle.extend(not_yet);
                    return None;
                }
            }
        }
    }

    /// Takes a stream of the HTTP/2 connection that carries the fewest calls.
    fn free_stream(self: &Arc<Self>, state: &mut State) -> Option<Lease> {
        let here = runtime::Handle::try_current().ok()?.id();
        let open = state
            .http2
            .iter_mut()
            .filter(|open| open.runtime == here && open.calls < open.connection.streams_max())
            .min_by_key(|open| open.calls)?;
        open.calls += 1;
        open.connection.carries(open.calls);
        Some(Lease::Http2(Http2Lease {
            connection: open.connection.clone(),
            id: open.id,
            pool: Arc::downgrade(self),
        }))
    }

    /// Opens as many connections as the waiting calls need. Without room for one, a connection whose
    /// last answer is still arriving is closed, since nothing else would end the wait.
    fn open_more(self: &Arc<Self>) {
        let (runtimes, in_the_way) = {
            let mut state = self.state();
            state.waiting.retain(|waiting| !waiting.lease.is_closed());
            let demand = self.demand(&state);
            let count = demand.to_open();
            state.opening += count;
            let runtimes = state.waiting.iter().map(|waiting| waiting.runtime.clone());
            let runtimes: Vec<_> = runtimes.take(count).collect();
            let is_stuck = count == 0 && demand.waiting > 0 && demand.opening == 0;
            let in_the_way = is_stuck.then(|| state.idle.pop_front()).flatten();
            (runtimes, in_the_way)
        };
        for runtime in runtimes {
            runtime.spawn(Opening(self.clone()).open());
        }
        drop(in_the_way); // Its place is given back under the lock, and then opens the next.
    }

    fn demand(&self, state: &State) -> Demand {
        Demand {
            waiting: state.waiting.len(),
            opening: state.opening,
            open: state.http1_open + state.http2.len(),
            calls_each: self.calls_each(state),
            connections_max: self.connections_max,
        }
    }

    /// Calls that all connections carry at the same time, if as many are open as may be.
    pub(super) fn calls_max(&self) -> usize {
        self.calls_each(&self.state())
            .saturating_mul(self.connections_max)
    }

    /// Calls that one connection carries at the same time, as far as that is known.
    fn calls_each(&self, state: &State) -> usize {
        let announced = state
            .http2
            .iter()
            .map(|open| open.connection.streams_max())
            .min();
        match announced.unwrap_or(state.calls_each) {
            0 if self.dialer.is_tls() => STREAMS_ASSUMED,
            0 => 1,
            known => known,
        }
    }

    /// Gives a connection that was just opened to the calls that wait.
    async fn opened(self: &Arc<Self>, dialed: Dialed) -> Result<(), ProviderError> {
        let here = runtime::Handle::current();
        if !dialed.is_http2 {
            let slot = self.http1_slot();
            self.state().calls_each = 1;
            self.hand_out(Lease::Http1(Box::new(Http1Lease {
                connection: Connection::new(dialed.socket),
                is_rested: false,
                slot,
            })));
            return Ok(());
        }
        let id = {
            let mut state = self.state();
            state.next_id += 1;
            state.next_id
        };
        let pool = Arc::downgrade(self);
        let is_used = move || {
            pool.upgrade()
                .is_some_and(|pool| pool.state().calls_of(id) > 0)
        };
        let streams_max = self.calls_each(&self.state());
        let (connection, driven) = Http2::open(dialed.socket, streams_max, is_used)
            .await
            .map_err(|error| ProviderError::Connection {
                message: crate::providers::errors::with_sources(&error),
            })?;
        {
            let mut state = self.state();
            state.http2.push(OpenHttp2 {
                id,
                connection,
                calls: 0,
                since: Instant::now(),
                runtime: here.id(),
            });
        }
        let pool = Arc::downgrade(self);
        here.spawn(async move {
            driven.await;
            if let Some(pool) = pool.upgrade() {
                pool.forget(id);
            }
        });
        self.sweep_from_now_on();
        Ok(())
    }

    /// Serves waiting calls with the streams that are free.
    fn serve(self: &Arc<Self>) {
        loop {
            let (waiting, lease) = {
                let mut state = self.state();
                state.waiting.retain(|waiting| !waiting.lease.is_closed());
                if state.waiting.is_empty() {
                    return;
                }
                let Some(lease) = self.free_stream(&mut state) else {
                    break;
                };
                (state.waiting.pop_front(), lease)
            };
            // A lease without a taker is dropped without the lock and makes room again.
            if let Some(waiting) = waiting {
                drop(waiting.lease.send(Ok(lease)));
            }
        }
        self.open_more();
    }

    /// Gives an HTTP/1.1 connection to the first call that waits, or keeps it.
    fn hand_out(self: &Arc<Self>, lease: Lease) {
        let mut lease = lease;
        loop {
            let Some(waiting) = self.state().waiting.pop_front() else {
                break;
            };
            match waiting.lease.send(Ok(lease)) {
                Ok(()) => return,
                Err(Ok(back)) => lease = back,
                Err(Err(_)) => return,
            }
        }
        if let Lease::Http1(lease) = lease {
            self.keep(*lease);
        }
    }

    /// Takes back a connection whose caller has read as much of the answer as it wanted.
    pub(super) fn keep(self: &Arc<Self>, mut lease: Http1Lease) {
        // Polling also drops the waker of the previous caller.
        let free = lease.connection.free();
        if free == Free::Never {
            return;
        }
        let mut state = self.state();
        if !state.waiting.is_empty() {
            drop(state);
            if free == Free::Yes {
                lease.is_rested = true;
                self.hand_out(Lease::Http1(Box::new(lease)));
            } // Else its place is given back, and a connection is opened in it.
            return;
        }
        // Under the same lock, so that a call that begins to wait finds it.
        let Ok(here) = runtime::Handle::try_current() else {
            return;
        };
        state.idle.push_back(Idle {
            connection: lease.connection,
            slot: lease.slot,
            since: Instant::now(),
            runtime: here.id(),
        });
        drop(state);
        self.sweep_from_now_on();
    }

    /// Lends no further stream of a connection.
    pub(super) fn forget(self: &Arc<Self>, id: u64) {
        self.state().http2.retain(|open| open.id != id);
        self.serve();
    }

    fn sweep_from_now_on(self: &Arc<Self>) {
        let Ok(here) = runtime::Handle::try_current() else {
            return;
        };
        if !std::mem::replace(&mut self.state().is_swept, true) {
            here.spawn(Sweeper(Arc::downgrade(self)).sweep());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn calls_of(&self, id: u64) -> usize {
        self.http2
            .iter()
            .find(|open| open.id == id)
            .map_or(0, |open| open.calls)
    }
}

impl Drop for Http2Lease {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else {
            return;
        };
        let is_wanted = {
            let mut state = pool.state();
            if let Some(open) = state.http2.iter_mut().find(|open| open.id == self.id) {
                open.calls -= 1;
                open.since = Instant::now();
                let streams_max = open.connection.streams_max();
                state.calls_each = streams_max;
            }
            !state.waiting.is_empty()
        };
        if is_wanted {
            pool.serve();
        }
    }
}

impl Http2Lease {
    /// Lends no further stream of this connection.
    pub(super) fn forget(&self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.forget(self.id);
        }
    }
}

impl Drop for Http1Slot {
    fn drop(&mut self) {
        let Some(pool) = self.0.upgrade() else {
            return;
        };
        let is_wanted = {
            let mut state = pool.state();
            state.http1_open -= 1;
            !state.waiting.is_empty()
        };
        if is_wanted {
            pool.open_more();
        }
    }
}

/// A connection that is being opened.
struct Opening(Arc<Pool>);

impl Opening {
    async fn open(self) {
        let pool = self.0.clone();
        let opened = match pool.dialer.dial().await {
            Ok(dialed) => pool.opened(dialed).await,
            Err(error) => Err(error),
        };
        // It counts as being opened until here, so that no second one is opened for the same calls.
        drop(self);
        match opened {
            Ok(()) => pool.serve(),
            Err(error) => pool.fail(error),
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.state().opening -= 1;
    }
}

impl Pool {
    /// Fails the calls that a connection was opened for. One of them reports the error; if it may be
    /// tried again, the circuit breaker does not count the others.
    fn fail(self: &Arc<Self>, error: ProviderError) {
        let failed: Vec<_> = {
            let mut state = self.state();
            let calls_each = self.demand(&state).calls_each;
            let count = calls_each.min(state.waiting.len());
            state.waiting.drain(..count).collect()
        };
        let shared = match &error {
            ProviderError::Connection { message } | ProviderError::Timeout { message } => {
                ProviderError::SharedConnection {
                    message: message.clone(),
                }
            }
            other => other.clone(),
        };
        let errors = std::iter::once(error).chain(std::iter::repeat(shared));
        for (waiting, error) in failed.into_iter().zip(errors) {
            drop(waiting.lease.send(Err(error)));
        }
        self.serve();
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
        let mut state = pool.state();
        let idle = std::mem::take(&mut state.idle);
        let http2 = std::mem::take(&mut state.http2);
        let mut kept = VecDeque::new();
        let mut closed = Vec::new();
        for mut connection in idle {
            if connection.free(now) == Free::Never {
                closed.push(connection);
            } else {
                kept.push_back(connection);
            }
        }
        let (used, unused): (Vec<_>, Vec<_>) = http2.into_iter().partition(|open| {
            open.calls > 0 || now.saturating_duration_since(open.since) <= IDLE_MAX
        });
        state.idle = kept;
        state.http2 = used;
        // Set under the lock, so that the next connection that is kept starts the next sweeper.
        state.is_swept = !(state.idle.is_empty() && state.http2.is_empty());
        let goes_on = state.is_swept;
        drop(state);
        drop((closed, unused)); // Their places are given back under the lock.
        goes_on
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade() {
            pool.state().is_swept = false;
        }
    }
}
