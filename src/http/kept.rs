//! The room of copies of request bodies that are kept in case that another host takes the
//! conversation. Its bytes are taken before a body arrives, so a tenant whose bodies never come holds
//! them: it may have at most half of what the other tenants leave, and so never all.

use std::{collections::HashMap, sync::Arc};

use callboard_actors::ids::TenantId;
use parking_lot::Mutex;

/// Bytes of the copies of all tenants together.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// A copy counts in whole units of this many bytes, because a small one takes more than its text.
const UNIT_BYTES: usize = 1024;

/// The room of all copies. Its clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptRooms(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    tenants: HashMap<TenantId, usize>,
}

/// Reserved bytes of one copy. Dropping it frees them.
#[derive(Debug)]
pub(super) struct KeptRoom {
    rooms: KeptRooms,
    tenant: TenantId,
    bytes: usize,
}

impl KeptRooms {
    /// Room for a copy of a body of `bytes`; `None` when there is none for the tenant at this moment.
    pub(super) fn take(&self, tenant: &TenantId, bytes: usize) -> Option<KeptRoom> {
        let bytes = bytes.next_multiple_of(UNIT_BYTES);
        let mut held = self.0.lock();
        let mine = held.tenants.get(tenant).copied().unwrap_or_default();
        let left_by_others = BYTES_MAX.saturating_sub(held.bytes.saturating_sub(mine));
        if mine.saturating_add(bytes) > left_by_others / 2 {
            return None;
        }
        held.bytes += bytes;
        held.tenants.insert(tenant.clone(), mine + bytes);
        Some(KeptRoom {
            rooms: self.clone(),
            tenant: tenant.clone(),
            bytes,
        })
    }
}

impl Drop for KeptRoom {
    fn drop(&mut self) {
        let mut held = self.rooms.0.lock();
        held.bytes = held.bytes.saturating_sub(self.bytes);
        let Some(mine) = held.tenants.get_mut(&self.tenant) else {
            return;
        };
        *mine = mine.saturating_sub(self.bytes);
        if *mine == 0 {
            held.tenants.remove(&self.tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_half_of_what_the_others_leave() {
        const COPY: usize = 256 * 1024;
        let rooms = KeptRooms::default();
        let [acme, zeta, late] = ["acme", "zeta", "late"].map(|id| TenantId::new(id).unwrap());
        let all = |tenant| std::iter::from_fn(|| rooms.take(tenant, COPY)).collect::<Vec<_>>();

        let held = [&acme, &zeta, &late].map(&all);
        assert_eq!(held.each_ref().map(Vec::len), [128, 64, 32]);

        drop(held);
        assert_eq!(all(&late).len(), 128);
        assert!(rooms.0.lock().tenants.is_empty());
        assert!(rooms.take(&acme, 0).is_some(), "a request without a body");
    }
}
