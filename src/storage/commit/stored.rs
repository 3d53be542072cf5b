//! Stored bytes of each tenant: counted in the file once, then updated by the writer. Changes by
//! another process are seen after a restart.

use std::collections::HashMap;

use callboard_actors::ids::TenantId;
use parking_lot::{Mutex, MutexGuard};

#[derive(Debug, Default)]
pub(in crate::storage) struct Stored(Mutex<HashMap<TenantId, u64>>);

impl Stored {
    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.0.lock()
    }

    /// The stored bytes of a tenant, if they were counted.
    pub(in crate::storage) fn bytes(&self, tenant: &TenantId) -> Option<u64> {
        self.lock().get(tenant).copied()
    }

    /// Called by the writer after counting a tenant.
    pub(in crate::storage) fn counted(&self, tenant: &TenantId, bytes: u64) {
        self.lock().insert(tenant.clone(), bytes);
    }

    /// Called by the writer after a commit. A tenant that was not counted yet is skipped; its count
    /// will include the change.
    pub(in crate::storage) fn changed(&self, tenant: &TenantId, by: i64) {
        if by != 0
            && let Some(bytes) = self.lock().get_mut(tenant)
        {
            *bytes = bytes.saturating_add_signed(by);
        }
    }
}
