//! Which hosts answered for which conversations of late. A hint: whoever is asked knows better.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use callboard_actors::ids::Scope;
use parking_lot::Mutex;

/// How long a host is asked again without a look into the database.
const REMEMBERED: Duration = Duration::from_secs(2);

/// Most conversations that are remembered, about a megabyte.
const OWNERS_MAX: usize = 8192;

/// The addresses of the hosts that answered for conversations in the last two seconds.
#[derive(Debug, Default)]
pub(super) struct RecentOwners(Mutex<HashMap<Scope, (Arc<str>, Instant)>>);

impl RecentOwners {
    pub(super) fn get(&self, scope: &Scope, now: Instant) -> Option<Arc<str>> {
        let owners = self.0.lock();
        let (address, since) = owners.get(scope)?;
        is_recent(*since, now).then(|| Arc::clone(address))
    }

    pub(super) fn insert(&self, scope: &Scope, address: &str, now: Instant) {
        let mut owners = self.0.lock();
        if let Some((known, since)) = owners.get_mut(scope)
            && **known == *address
        {
            *since = now;
            return;
        }
        if owners.len() >= OWNERS_MAX {
            owners.retain(|_, (_, since)| is_recent(*since, now));
        }
        if owners.len() >= OWNERS_MAX {
            owners.clear(); // Each costs a query.
        }
        owners.insert(scope.clone(), (address.into(), now));
    }

    pub(super) fn forget(&self, scope: &Scope) {
        self.0.lock().remove(scope);
    }
}

fn is_recent(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(n: usize) -> Scope {
        Scope::new("t".parse().unwrap(), format!("c{n}").parse().unwrap())
    }

    #[test]
    fn an_owner_is_remembered_for_two_seconds_after_its_last_answer() {
        let owners = RecentOwners::default();
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);

        owners.insert(&scope(1), "http://one", start);
        owners.insert(&scope(1), "http://one", after(1500));

        assert_eq!(
            owners.get(&scope(1), after(3400)).as_deref(),
            Some("http://one")
        );
        assert_eq!(owners.get(&scope(1), after(3500)), None);
        owners.insert(&scope(1), "http://two", after(3500));
        assert_eq!(
            owners.get(&scope(1), after(3600)).as_deref(),
            Some("http://two")
        );
        owners.forget(&scope(1));
        assert_eq!(owners.get(&scope(1), after(3600)), None);
    }

    #[test]
    fn the_owners_that_are_remembered_are_bounded() {
        let owners = RecentOwners::default();
        let now = Instant::now();

        (0..OWNERS_MAX * 2 + 5).for_each(|n| owners.insert(&scope(n), "http://one", now));

        assert!(owners.0.lock().len() <= OWNERS_MAX);
        assert!(owners.get(&scope(OWNERS_MAX * 2 + 4), now).is_some());
    }
}
