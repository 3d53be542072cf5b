//! Decides which failures count for a circuit breaker that tenants share. A tenant whose requests
//! fail by their contents must not open it for the others.
//!
//! Pure.

use std::time::Duration;

use crate::ids::TenantId;

/// How long a success of one tenant shows that the failures of another are its own.
const SUCCESS_COUNTS_FOR: Duration = Duration::from_secs(30);

/// What recent calls of several tenants showed about one provider. Times are durations since any
/// fixed instant.
#[derive(Debug, Default)]
pub(crate) struct SharedFailures {
    /// The last successes of the two tenants that succeeded last, the newer one first.
    successes: [Option<(TenantId, Duration)>; 2],
    row: Row,
}

/// Whose calls failed since the last success.
#[derive(Debug, Default)]
enum Row {
    #[default]
    Empty,
    One(TenantId),
    Several,
}

impl SharedFailures {
    /// Records that the provider answered a call of `tenant`.
    pub(crate) fn succeeded(&mut self, tenant: &TenantId, now: Duration) {
        self.row = Row::Empty;
        let [newer, older] = &mut self.successes;
        if newer.as_ref().is_some_and(|(who, _)| who != tenant) {
            *older = newer.take();
        }
        *newer = Some((tenant.clone(), now));
    }

    /// Records that a call of `tenant` failed. Returns whether the failure counts: not if all calls
    /// that failed since the last success are this tenant's, while the provider answered another
    /// tenant less than 30 seconds ago.
    pub(crate) fn failed(&mut self, tenant: &TenantId, now: Duration) -> bool {
        match &self.row {
            Row::Empty => self.row = Row::One(tenant.clone()),
            Row::One(who) if who == tenant => {}
            Row::One(_) | Row::Several => self.row = Row::Several,
        }
        let answered_another = self
            .successes
            .iter()
            .flatten()
            .any(|(who, at)| who != tenant && now.saturating_sub(*at) < SUCCESS_COUNTS_FOR);
        matches!(self.row, Row::Several) || !answered_another
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn failures_of_a_tenant_alone_count() {
        let (a, mut shared) = (tenant("a"), SharedFailures::default());

        assert!(shared.failed(&a, at(0)));
        shared.succeeded(&a, at(1));
        assert!(shared.failed(&a, at(2)));
    }

    #[test]
    fn failures_of_one_tenant_do_not_count_while_another_is_answered() {
        let (a, b, mut shared) = (tenant("a"), tenant("b"), SharedFailures::default());
        shared.succeeded(&b, at(0));
        shared.succeeded(&a, at(1));
        shared.succeeded(&a, at(2));

        assert!(!shared.failed(&a, at(3)));
        assert!(!shared.failed(&a, at(29)));
        assert!(shared.failed(&a, at(30)), "the success is too old");
    }

    #[test]
    fn failures_count_once_a_second_tenant_fails_and_until_a_success() {
        let (a, b, mut shared) = (tenant("a"), tenant("b"), SharedFailures::default());
        shared.succeeded(&b, at(0));

        assert!(!shared.failed(&a, at(1)));
        assert!(shared.failed(&b, at(1)));
        assert!(shared.failed(&a, at(1)));
        shared.succeeded(&b, at(2));
        assert!(!shared.failed(&a, at(3)));
    }
}
