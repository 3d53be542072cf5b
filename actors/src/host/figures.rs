//! All figures of a host at one moment, for whoever shows them. Reading wakes nobody and waits for nobody.

use super::Host;
use crate::{
    ids::TenantId,
    metrics_collector::{LatencyReading, Reading, TenantReading},
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
    /// The tenants that were named since the host began, by id.
    pub tenants: Vec<(TenantId, TenantReading)>,
}

impl Host {
    /// Reads the figures of the host and of each tenant.
    pub fn figures(&self) -> HostFigures {
        let counters = &self.0.ports.counters;
        let of = |tenant: std::sync::Arc<crate::tenant::Tenant>| (tenant.id().clone(), tenant.figures().read(tenant.seats_taken()));
        let mut tenants: Vec<_> = self.0.tenants.all().into_iter().map(of).collect();
        tenants.sort_by(|(a, _), (b, _)| a.cmp(b));
        HostFigures { total: counters.read(), latencies: counters.latencies.read(), awake: self.awake(), tenants }
    }
}
