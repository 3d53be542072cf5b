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
    /// Gateways by name, the host's own first.
    pub gateways: Vec<(String, GatewayStatus)>,
    /// The tenants that were named since the host began, by id.
    pub tenants: Vec<(TenantId, TenantReading)>,
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
            let Refused { prompts, requests, tokens, memory, conversations, closed } = usage.refused;
            let refused = [prompts, requests, tokens, memory, conversations, closed];
            (tenant.id().clone(), tenant.figures().read(usage.prompts, refused))
        };
        let mut tenants: Vec<_> = self.0.tenants.all().into_iter().map(of).collect();
        tenants.sort_by(|(a, _), (b, _)| a.cmp(b));
        HostFigures {
            total: counters.read(),
            latencies: counters.latencies.read(),
            awake: self.awake(),
            gateways: self.gateways(),
            tenants,
        }
    }
}
