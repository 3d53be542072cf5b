//! When the stored bytes of a tenant are counted again, because other hosts store some as well.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use callboard_actors::ids::TenantId;
use parking_lot::Mutex;

/// How long a count is trusted.
const TRUSTED: Duration = Duration::from_secs(2);

/// A count is trusted for as many times what it took, so that counting takes a fiftieth of the time.
const TIMES: u32 = 50;

/// When each tenant is counted next.
#[derive(Debug, Default)]
pub(super) struct Recounts(Mutex<HashMap<TenantId, Instant>>);

impl Recounts {
    /// Whether a tenant is to be counted now. One caller gets `true`; the others go on with the last
    /// count meanwhile.
    pub(super) fn is_due(&self, tenant: &TenantId) -> bool {
        let mut next = self.0.lock();
        let now = Instant::now();
        let due = next.get(tenant).is_none_or(|next| *next <= now);
        if due {
            next.insert(tenant.clone(), now + TRUSTED);
        }
        due
    }

    /// Notes how long a count took.
    pub(super) fn took(&self, tenant: &TenantId, took: Duration) {
        let trusted = TRUSTED.max(took.saturating_mul(TIMES));
        self.0
            .lock()
            .insert(tenant.clone(), Instant::now() + trusted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_counts_and_a_long_count_is_trusted_for_longer() {
        let recounts = Recounts::default();
        let tenant = TenantId::new("acme").unwrap();

        assert!(recounts.is_due(&tenant));
        assert!(!recounts.is_due(&tenant));
        recounts.took(&tenant, Duration::from_secs(1));

        let next = recounts.0.lock()[&tenant];
        assert!(next > Instant::now() + Duration::from_secs(40));
    }
}
