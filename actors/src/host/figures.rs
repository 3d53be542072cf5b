//! All figures of a host at one moment, for whoever shows them. Reading wakes nobody and waits for nobody.

use std::sync::{Arc, Weak};

use super::{Host, HostInner};
use crate::{
    ids::TenantId,
    metrics_collector::{LatencyReading, Reading, TenantReading},
    model_gateway::GatewayStatus,
    tenant::{Refused, Tenant},
};

/// What a host counts, and how much it carries just now.
#[derive(Debug, Clone, Default)]
pub struct HostFigures {
    /// Totals since the host began.
    pub total: Reading,
    /// How long things took.
    pub latencies: LatencyReading,
    /// Conversations in memory.
    pub awake: usize,
    /// The same by state.
    pub slots: SlotCounts,
    /// Gateways by name, the host's own first.
    pub gateways: Vec<(String, GatewayStatus)>,
    /// The tenants that were named since the host began, by id.
    pub tenants: Vec<(TenantId, TenantReading)>,
}

/// How many conversations stand how in the directory; those that sleep are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCounts {
    /// Being loaded.
    pub starting: usize,
    /// In memory.
    pub live: usize,
    /// About to sleep, or between two lives.
    pub closing: usize,
    /// Waiting to be started again after a crash or for a store that is away.
    pub backoff: usize,
    /// Given up for a while: it crashes again and again, or its journal cannot be read.
    pub failed: usize,
    /// Being deleted.
    pub deleting: usize,
}

impl SlotCounts {
    /// Each state's name and count.
    pub fn by_state(&self) -> [(&'static str, usize); 6] {
        let Self { starting, live, closing, backoff, failed, deleting } = *self;
        [("starting", starting), ("live", live), ("closing", closing), ("backoff", backoff), ("failed", failed), ("deleting", deleting)]
    }
}

/// Reads a host's figures without keeping it alive.
#[derive(Clone)]
pub struct FiguresReader(Weak<HostInner>);

impl std::fmt::Debug for FiguresReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FiguresReader")
    }
}

impl FiguresReader {
    /// The figures; `None` when the host is gone.
    pub fn read(&self) -> Option<HostFigures> {
        self.0.upgrade().map(|inner| Host(inner).figures())
    }
}

impl Host {
    /// What reads the figures later, for an exporter that outlives the host.
    pub fn figures_reader(&self) -> FiguresReader {
        FiguresReader(Arc::downgrade(&self.0))
    }

    /// Reads the figures of the host and of each tenant.
    pub fn figures(&self) -> HostFigures {
        let counters = &self.0.ports.counters;
        let of = |tenant: Arc<Tenant>| {
            let usage = tenant.usage();
            let Refused { prompts, requests, tokens, memory, conversations, stored, closed } = usage.refused;
            let refused = [prompts, requests, tokens, memory, conversations, stored, closed];
            (tenant.id().clone(), tenant.figures().read(usage.prompts, usage.stored_bytes, refused))
        };
        let mut tenants: Vec<_> = self.0.tenants.all().into_iter().map(of).collect();
        tenants.sort_by(|(a, _), (b, _)| a.cmp(b));
        HostFigures {
            total: counters.read(),
            latencies: counters.latencies.read(),
            awake: self.awake(),
            slots: self.0.directory.slots(),
            gateways: self.gateways(),
            tenants,
        }
    }
}
