//! What the tool calls of a tenant share: results that may answer later calls, runs that are under way, breakers, files in use.
//! Nothing here is another tenant's, and nothing of it is needed to be right: losing it costs a run more.

use std::sync::Arc;

use super::{IdempotencyCache, breakers::Breakers, file_locks::FileLocks, shared_runs::SharedRuns};

/// Shared by all tool calls of a tenant (DESIGN §4.5).
#[derive(Default)]
pub struct TenantTools {
    pub(super) results: IdempotencyCache,
    pub(super) runs: Arc<SharedRuns>,
    pub(super) breakers: Breakers,
    pub(super) files: FileLocks,
}

impl TenantTools {
    /// Forgets the results that could answer later calls: of all conversations, since a key does not tell its own. Losing them costs
    /// a run more.
    pub(crate) fn forget_results(&self) {
        self.results.clear();
    }
}

impl std::fmt::Debug for TenantTools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TenantTools")
    }
}
