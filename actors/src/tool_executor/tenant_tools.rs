//! State that the tool calls of one tenant share: cached results, shared runs, circuit breakers,
//! file locks. It is never shared between tenants, and it is only an optimization, apart from the
//! file locks: losing a result costs another run.

use std::sync::Arc;

use super::{IdempotencyCache, breakers::Breakers, file_locks::FileLocks, shared_runs::SharedRuns};

/// The state shared by all tool calls of a tenant.
#[derive(Default)]
pub struct TenantTools {
    pub(super) results: IdempotencyCache,
    pub(super) runs: Arc<SharedRuns>,
    pub(super) breakers: Breakers,
    pub(super) files: FileLocks,
}

impl TenantTools {
    /// Removes all cached results of the tenant. A key does not name its conversation, so those of
    /// a single conversation cannot be removed separately.
    pub(crate) fn forget_results(&self) {
        self.results.clear();
    }
}

impl std::fmt::Debug for TenantTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantTools")
    }
}
