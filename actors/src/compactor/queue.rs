//! The jobs that wait, served by tenant in turn: each tenant that waits has one job begun before
//! any has a second one.
//!
//! Pure.

use std::collections::VecDeque;

use crate::ids::TenantId;

/// Jobs that wait, each with a key that is unique.
#[derive(Debug)]
pub(super) struct TurnQueue<T> {
    /// The tenants that wait, the next one first; none without a job.
    tenants: VecDeque<Waiting<T>>,
    max: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    tenant: TenantId,
    jobs: VecDeque<(String, T)>,
}

impl<T> TurnQueue<T> {
    /// An empty queue for at most `max` jobs.
    pub(super) fn new(max: usize) -> Self {
        Self {
            tenants: VecDeque::new(),
            max,
        }
    }

    /// Whether a job with this key waits.
    pub(super) fn contains(&self, key: &str) -> bool {
        self.tenants
            .iter()
            .flat_map(|waiting| &waiting.jobs)
            .any(|(other, _)| other == key)
    }

    /// Adds a job behind those of its tenant. When the queue is full, the newest job of the tenant
    /// with the most jobs gives way, or this one if no tenant has more than its own. Returns the
    /// key of the job that was dropped.
    pub(super) fn push(&mut self, tenant: &TenantId, key: String, job: T) -> Option<String> {
        let dropped = if self.len() < self.max {
            None
        } else if let Some(dropped) = self.give_way(tenant) {
            Some(dropped)
        } else {
            return Some(key);
        };
        self.add(tenant, key, job);
        dropped
    }

    /// Takes the first job of the next tenant that `may` begin one. That tenant is the last one
    /// afterwards.
    pub(super) fn take(&mut self, may: impl Fn(&TenantId) -> bool) -> Option<(TenantId, T)> {
        let at = self
            .tenants
            .iter()
            .position(|waiting| may(&waiting.tenant))?;
        let mut waiting = self.tenants.remove(at)?;
        let (_, job) = waiting.jobs.pop_front()?;
        let tenant = waiting.tenant.clone();
        if !waiting.jobs.is_empty() {
            self.tenants.push_back(waiting);
        }
        Some((tenant, job))
    }

    /// Removes the jobs whose keys begin with `prefix`.
    pub(super) fn forget(&mut self, prefix: &str) {
        for waiting in &mut self.tenants {
            waiting.jobs.retain(|(key, _)| !key.starts_with(prefix));
        }
        self.tenants.retain(|waiting| !waiting.jobs.is_empty());
    }

    fn len(&self) -> usize {
        self.tenants.iter().map(|waiting| waiting.jobs.len()).sum()
    }

    /// Drops the newest job of the tenant with the most, if those are more than `comer` would have.
    fn give_way(&mut self, comer: &TenantId) -> Option<String> {
        let mine = self.tenants.iter().find(|waiting| waiting.tenant == *comer);
        let mine = mine.map_or(0, |waiting| waiting.jobs.len());
        let most = self
            .tenants
            .iter_mut()
            .max_by_key(|waiting| waiting.jobs.len())?;
        if most.jobs.len() <= mine + 1 {
            return None;
        }
        let (dropped, _) = most.jobs.pop_back()?;
        Some(dropped)
    }

    fn add(&mut self, tenant: &TenantId, key: String, job: T) {
        match self
            .tenants
            .iter_mut()
            .find(|waiting| waiting.tenant == *tenant)
        {
            Some(waiting) => waiting.jobs.push_back((key, job)),
            None => self.tenants.push_back(Waiting {
                tenant: tenant.clone(),
                jobs: VecDeque::from([(key, job)]),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        name.parse().unwrap()
    }

    fn order(queue: &mut TurnQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.take(|_| true).map(|(_, job)| job)).collect()
    }

    #[test]
    fn tenants_are_served_in_turn_and_each_in_its_own_order() {
        let mut queue = TurnQueue::new(10);
        for job in ["a1", "a2", "a3", "b1", "c1", "b2"] {
            let (tenant_of, _) = job.split_at(1);
            assert_eq!(queue.push(&tenant(tenant_of), job.into(), job), None);
        }

        assert_eq!(order(&mut queue), ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }

    #[test]
    fn a_tenant_that_may_not_begin_waits_and_holds_up_no_other() {
        let mut queue = TurnQueue::new(10);
        queue.push(&tenant("a"), "a1".into(), "a1");
        queue.push(&tenant("b"), "b1".into(), "b1");

        let taken = queue.take(|tenant| tenant.as_str() != "a");

        assert_eq!(taken, Some((tenant("b"), "b1")));
        assert_eq!(queue.take(|tenant| tenant.as_str() != "a"), None);
        assert_eq!(order(&mut queue), ["a1"]);
    }

    #[test]
    fn in_a_full_queue_the_tenant_with_the_most_jobs_gives_way() {
        let mut queue = TurnQueue::new(4);
        for job in ["a1", "a2", "a3", "a4"] {
            queue.push(&tenant("a"), job.into(), job);
        }

        assert_eq!(
            queue.push(&tenant("a"), "a5".into(), "a5"),
            Some("a5".into()),
            "no other tenant has more"
        );
        assert_eq!(
            queue.push(&tenant("b"), "b1".into(), "b1"),
            Some("a4".into())
        );
        assert_eq!(
            queue.push(&tenant("b"), "b2".into(), "b2"),
            Some("a3".into())
        );
        assert_eq!(
            queue.push(&tenant("b"), "b3".into(), "b3"),
            Some("b3".into()),
            "both have two"
        );
        assert_eq!(order(&mut queue), ["a1", "b1", "a2", "b2"]);
    }

    #[test]
    fn what_is_forgotten_does_not_wait() {
        let mut queue = TurnQueue::new(4);
        queue.push(&tenant("a"), "a/x:1".into(), "x");
        queue.push(&tenant("a"), "a/y:1".into(), "y");

        queue.forget("a/x:");

        assert!(!queue.contains("a/x:1") && queue.contains("a/y:1"));
        assert_eq!(order(&mut queue), ["y"]);
    }
}
