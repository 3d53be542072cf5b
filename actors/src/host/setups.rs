//! The setup of each tenant's conversations: the host's, unless the tenant has another one.

use std::sync::Arc;

use dashmap::DashMap;

use crate::{conversation::Setup, ids::TenantId};

/// Setups by tenant. A tenant keeps its setup while it is out of service, and after its data was
/// erased.
pub(super) struct TenantSetups {
    default: Arc<Setup>,
    own: DashMap<TenantId, Arc<Setup>>,
}

impl TenantSetups {
    /// Creates the table. Every tenant has the setup `default` at first.
    pub(super) fn new(default: Arc<Setup>) -> Self {
        Self {
            default,
            own: DashMap::default(),
        }
    }

    /// The setup of a tenant's conversations.
    pub(super) fn get(&self, tenant: &TenantId) -> Arc<Setup> {
        self.own
            .get(tenant)
            .map_or_else(|| self.default.clone(), |own| own.clone())
    }

    /// Sets a tenant's own setup.
    pub(super) fn set(&self, tenant: TenantId, setup: Arc<Setup>) {
        self.own.insert(tenant, setup);
    }
}
