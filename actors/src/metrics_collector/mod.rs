//! Counts what the host does. Counters are sharded atomics that any task may increment. The actor
//! reads them on a tick and on request; events never send it messages.
//!
//! State: the last two readings. Supervised by the HostSupervisor; a restart loses nothing but the
//! last tick, since the counters live outside of the actor.

mod counters;
mod latency;
mod shards;
mod message;
mod tenant;

use std::{sync::Arc, time::Duration};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

pub use counters::{Counter, Counters, Reading};
pub use latency::{BOUNDS_US, Distribution, Histogram, Latencies, LatencyReading};
pub(crate) use message::MetricsCollectorMsg;
pub(crate) use tenant::TenantFigures;
pub use tenant::{REFUSALS, TenantReading};

/// Tracing target of the spans of rounds, model calls and tool calls (level info).
pub const SPANS: &str = "callboard::spans";

/// Tracing target of the events with the figures of each round and call, whether sampled or not
/// (level debug).
pub const FIGURES: &str = "callboard::figures";

/// How often the counters are read.
const TICK: Duration = Duration::from_secs(10);

/// A handle to the metrics collector.
#[derive(Clone)]
pub struct MetricsCollectorRef(ActorRef<MetricsCollectorMsg>);

/// The figures that the collector reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Totals since the host started.
    pub total: Reading,
    /// The increase during the last complete tick.
    pub last_tick: Reading,
}

impl MetricsCollectorRef {
    /// Wraps the actor's reference.
    pub(crate) fn new(actor: ActorRef<MetricsCollectorMsg>) -> Self {
        Self(actor)
    }

    /// Requests the figures; `None` once the host has stopped.
    pub(crate) async fn report(&self) -> Option<Report> {
        let (reply, answer) = oneshot::channel();
        self.0.cast(MetricsCollectorMsg::Report { reply }).ok()?;
        answer.await.ok()
    }
}

/// The actor that reads the counters.
pub(crate) struct MetricsCollector;

pub(crate) struct State {
    counters: Arc<Counters>,
    last: Reading,
    last_tick: Reading,
    _ticker: crate::task::AbortOnDrop,
}

impl Actor for MetricsCollector {
    type Msg = MetricsCollectorMsg;
    type State = State;
    type Arguments = Arc<Counters>;

    async fn pre_start(
        &self,
        me: ActorRef<Self::Msg>,
        counters: Arc<Counters>,
    ) -> Result<State, ActorProcessingErr> {
        let ticker = tokio::spawn(async move {
            let mut interval = tokio::time::interval(TICK);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                interval.tick().await;
                if me.cast(MetricsCollectorMsg::Tick).is_err() {
                    return;
                }
            }
        });
        Ok(State {
            counters,
            last: Reading::default(),
            last_tick: Reading::default(),
            _ticker: crate::task::AbortOnDrop(ticker),
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            MetricsCollectorMsg::Tick => {
                let now = state.counters.read();
                state.last_tick = now.since(&state.last);
                state.last = now;
            }
            MetricsCollectorMsg::Report { reply } => {
                let report = Report {
                    total: state.counters.read(),
                    last_tick: state.last_tick,
                };
                let _ = reply.send(report);
            }
        }
        Ok(())
    }
}
