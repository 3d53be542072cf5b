//! All figures of a host at one moment, for exporters and status pages. Reading them activates no
//! conversation: it asks the metrics collector, and reads the gauges where they are.

use std::sync::{Arc, Weak};

use super::{Host, HostInner};
use crate::{
    ids::TenantId,
    metrics_collector::{LatencyReading, Reading, TenantReading, Totals},
    model_gateway::GatewayStatus,
    tenant::{Refused, Tenant},
};

/// What was counted since a host started, and its current load.
#[derive(Debug, Clone, Default)]
pub struct HostFigures {
    /// Totals since the host started.
    pub total: Reading,
    /// Latency histograms since the host started.
    pub latencies: LatencyReading,
    /// Conversations that are not asleep.
    pub awake: usize,
    /// The same conversations, by state.
    pub slots: SlotCounts,
    /// The status of each gateway, by name, the host's own first.
    pub gateways: Vec<(String, GatewayStatus)>,
    /// The figures of each tenant that was used since the host started, by id.
    pub tenants: Vec<(TenantId, TenantReading)>,
}

/// The number of conversations in each state of the directory. Sleeping conversations are not in
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCounts {
    /// Conversations whose journal is being read.
    pub starting: usize,
    /// With a running actor.
    pub live: usize,
    /// Going to sleep, or between two activations.
    pub closing: usize,
    /// Waiting for a restart after a crash, or for a store that is unavailable.
    pub backoff: usize,
    /// Refusing messages for a while, since they crashed repeatedly or their journals cannot be
    /// read.
    pub failed: usize,
    /// Conversations whose entries and artifacts are being deleted.
    pub deleting: usize,
}

impl SlotCounts {
    /// The name and count of each state.
    pub fn by_state(&self) -> [(&'static str, usize); 6] {
        let Self {
            starting,
            live,
            closing,
            backoff,
            failed,
            deleting,
        } = *self;
        [
            ("starting", starting),
            ("live", live),
            ("closing", closing),
            ("backoff", backoff),
            ("failed", failed),
            ("deleting", deleting),
        ]
    }
}

/// Reads a host's figures without keeping the host running.
#[derive(Clone)]
pub struct FiguresReader(Weak<HostInner>);

impl std::fmt::Debug for FiguresReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FiguresReader")
    }
}

impl FiguresReader {
    /// The figures; `None` after the host was dropped.
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    pub async fn read(&self) -> Option<HostFigures> {
        let host = Host(self.0.upgrade()?);
        Some(host.figures().await)
    }
}

impl Host {
    /// Returns a reader of the figures, for an exporter that may outlive the host.
    pub fn figures_reader(&self) -> FiguresReader {
        FiguresReader(Arc::downgrade(&self.0))
    }

    /// The figures of the host and of each tenant. They hold whatever was published before this
    /// call: who saw the end of a round finds it here.
    ///
    /// # Cancel safety
    /// Reading changes nothing.
    pub async fn figures(&self) -> HostFigures {
        let Totals {
            host: total,
            latencies,
            tenants: mut counted,
        } = self.0.ports.collector.read().await;
        let of = |tenant: Arc<Tenant>| {
            let usage = tenant.usage();
            let Refused {
                prompts,
                requests,
                tokens,
                memory,
                conversations,
                stored,
                closed,
            } = usage.refused;
            let mut figures = TenantReading {
                awake: tenant.awake(),
                under_way: usage.prompts,
                stored_bytes: usage.stored_bytes,
                ..counted.remove(tenant.id()).unwrap_or_default()
            };
            figures.add_not_admitted([
                prompts,
                requests,
                tokens,
                memory,
                conversations,
                stored,
                closed,
            ]);
            (tenant.id().clone(), figures)
        };
        let mut tenants: Vec<_> = self.0.tenants.all().into_iter().map(of).collect();
        tenants.sort_by(|(a, _), (b, _)| a.cmp(b));
        HostFigures {
            total,
            latencies,
            awake: self.awake(),
            slots: self.0.directory.slots(),
            gateways: self.gateways(),
            tenants,
        }
    }
}
