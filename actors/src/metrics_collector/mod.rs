//! Counts what the host does. Conversations, gateways, tool executors and the compactor count in a
//! `Tally` of their own and send it as one message for each piece of work; the collector adds the
//! messages up. `/metrics`, OTLP and [`crate::host::Host::figures`] ask it for the sums.
//!
//! State: the sums. Supervised by the HostSupervisor. Nothing that was counted is lost with a
//! collector: it leaves its sums to its replacement, and messages that it did not read are added to
//! them.
//!
//! Its mailbox is bounded: with 4,096 messages unread, senders add to a sum beside it, which
//! the collector takes over.

mod figure;
mod latency;
mod message;
mod tally;
mod tenant;
mod totals;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::{Mutex, RwLock};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::sync::oneshot;

pub(crate) use figure::{CallTimes, Figure, PrefixBreak};
pub use latency::{BOUNDS_US, Distribution, LatencyReading};
pub(crate) use tally::Tally;
pub use tenant::{REFUSALS, TenantReading};
pub use totals::Reading;
pub(crate) use totals::Totals;

use figure::Batch;
use message::MetricsCollectorMsg;

use crate::ids::TenantId;

/// Tracing target of the spans of rounds, model calls and tool calls (level info).
pub const SPANS: &str = "callboard::spans";

/// Tracing target of the events with the figures of each round and call, whether sampled or not
/// (level debug).
pub const FIGURES: &str = "callboard::figures";

/// Messages that may wait in the collector's mailbox: a few milliseconds of its work.
const UNREAD_MAX: usize = 4096;

/// A shared handle to the metrics collector.
#[derive(Clone, Default)]
pub(crate) struct MetricsCollectorRef(Arc<Shared>);

#[derive(Default)]
struct Shared {
    actor: RwLock<Option<ActorRef<MetricsCollectorMsg>>>,
    unread: AtomicUsize,
    /// What no collector has: counted while there was none or its mailbox was full, and what the
    /// last one left.
    beside: Mutex<Totals>,
}

/// A batch on its way to the collector. Dropped unread, it is added beside the collector's sums.
pub(crate) struct Posted {
    batch: Batch,
    shared: Arc<Shared>,
}

impl Posted {
    /// Takes the batch out, for the collector.
    fn read(mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        self.shared.unread.fetch_sub(1, Ordering::Relaxed);
        if !self.batch.figures.is_empty() {
            self.shared.beside.lock().add(&self.batch);
        }
    }
}

impl MetricsCollectorRef {
    /// Starts the actor, or its replacement after a failure.
    pub(crate) async fn start(&self, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
        let (actor, _) =
            Actor::spawn_linked(None, MetricsCollector, self.clone(), supervisor).await?;
        let cell = actor.get_cell();
        *self.0.actor.write() = Some(actor);
        Ok(cell)
    }

    /// Counts one figure at once, for senders that count rarely.
    pub(crate) fn count(&self, tenant: Option<&TenantId>, figure: Figure) {
        self.send(Batch {
            tenant: tenant.cloned(),
            figures: vec![figure],
        });
    }

    fn send(&self, batch: Batch) {
        if self.0.unread.load(Ordering::Relaxed) >= UNREAD_MAX {
            self.0.beside.lock().add(&batch);
            return;
        }
        self.0.unread.fetch_add(1, Ordering::Relaxed);
        let posted = Posted {
            batch,
            shared: self.0.clone(),
        };
        self.cast(MetricsCollectorMsg::Counted(posted));
    }

    /// Sends a message. Without an actor it is dropped: a batch then counts beside, and a reader
    /// learns it.
    fn cast(&self, message: MetricsCollectorMsg) {
        if let Some(actor) = &*self.0.actor.read() {
            let _ = actor.cast(message);
        }
    }

    /// The sums at this moment. They hold whatever was sent before. Without a collector, as after the
    /// end of the host, those that the last one left.
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    pub(crate) async fn read(&self) -> Totals {
        let (reply, answer) = oneshot::channel();
        self.cast(MetricsCollectorMsg::Read { reply });
        match answer.await {
            Ok(totals) => *totals,
            Err(_) => self.0.beside.lock().clone(),
        }
    }

    /// Sets the sums of a tenant to 0.
    pub(crate) fn forget(&self, tenant: &TenantId) {
        self.cast(MetricsCollectorMsg::Forget {
            tenant: tenant.clone(),
        });
    }
}

/// The actor that adds figures up.
struct MetricsCollector;

struct State {
    totals: Totals,
    shared: Arc<Shared>,
}

impl State {
    /// Takes over what was counted beside.
    fn take_beside(&mut self) {
        let beside = std::mem::take(&mut *self.shared.beside.lock());
        self.totals.merge(beside);
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let totals = std::mem::take(&mut self.totals);
        self.shared.beside.lock().merge(totals);
    }
}

impl Actor for MetricsCollector {
    type Msg = MetricsCollectorMsg;
    /// Boxed: ractor holds the state in two futures.
    type State = Box<State>;
    type Arguments = MetricsCollectorRef;

    async fn pre_start(
        &self,
        _: ActorRef<Self::Msg>,
        MetricsCollectorRef(shared): MetricsCollectorRef,
    ) -> Result<Box<State>, ActorProcessingErr> {
        Ok(Box::new(State {
            totals: Totals::default(),
            shared,
        }))
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Box<State>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            MetricsCollectorMsg::Counted(posted) => state.totals.add(&posted.read()),
            MetricsCollectorMsg::Read { reply } => {
                state.take_beside();
                let _ = reply.send(Box::new(state.totals.clone()));
            }
            MetricsCollectorMsg::Forget { tenant } => {
                state.take_beside();
                state.totals.forget(&tenant);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
