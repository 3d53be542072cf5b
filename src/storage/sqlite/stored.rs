//! Bytes that each tenant has stored: counted in the file once a tenant, then kept in step by the writer. Another process that writes
//! the same file is seen at the next start.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use callboard_actors::ids::TenantId;

#[derive(Debug, Default)]
pub(super) struct Stored(Mutex<HashMap<TenantId, u64>>);

impl Stored {
    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a tenant that was counted.
    pub(super) fn of(&self, tenant: &TenantId) -> Option<u64> {
        self.lock().get(tenant).copied()
    }

    /// The writer counted a tenant.
    pub(super) fn counted(&self, tenant: &TenantId, bytes: u64) {
        self.lock().insert(tenant.clone(), bytes);
    }

    /// The writer committed a change; a tenant that was not counted yet is counted with it later.
    pub(super) fn changed(&self, tenant: &TenantId, by: i64) {
        if by != 0
            && let Some(bytes) = self.lock().get_mut(tenant)
        {
            *bytes = bytes.saturating_add_signed(by);
        }
    }
}
