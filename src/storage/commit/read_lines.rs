//! Reads of all tenants that wait for a connection: one line for each tenant, served in turn.
//! Fewer connections than all serve one tenant at the same time, so that a tenant that reads long
//! conversations delays no other's wake-up.
//!
//! Pure.

use std::collections::{HashMap, VecDeque};

use callboard_actors::ids::TenantId;

/// Most waiting reads; further ones are refused, since a late answer would be useless.
const WAITING_MAX: usize = 4096;

/// Most waiting reads of one tenant, so that one alone does not get the reads of others refused.
const TENANT_WAITING_MAX: usize = WAITING_MAX / 4;

/// Whose read it is; `None` for reads over all tenants.
pub(in crate::storage) type Owner = Option<TenantId>;

/// The waiting reads, each a `T`.
pub(in crate::storage) struct ReadLines<T> {
    owners: HashMap<Owner, Line<T>>,
    /// Owners with waiting reads, each once, in the order of service.
    turn: VecDeque<Owner>,
    waiting: usize,
    is_closed: bool,
}

struct Line<T> {
    tasks: VecDeque<T>,
    /// Connections that read for this owner now.
    running: usize,
}

impl<T> Default for ReadLines<T> {
    fn default() -> Self {
        Self {
            owners: HashMap::new(),
            turn: VecDeque::new(),
            waiting: 0,
            is_closed: false,
        }
    }
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            tasks: VecDeque::new(),
            running: 0,
        }
    }
}

impl<T> ReadLines<T> {
    /// Adds a read, or returns why it is refused.
    pub(in crate::storage) fn push(&mut self, owner: Owner, task: T) -> Option<&'static str> {
        if self.is_closed {
            return Some("the store is closed");
        }
        if self.waiting >= WAITING_MAX {
            return Some("too many reads are waiting for the store");
        }
        let line = self.owners.entry(owner.clone()).or_default();
        if owner.is_some() && line.tasks.len() >= TENANT_WAITING_MAX {
            return Some("too many reads of this tenant are waiting for the store");
        }
        if line.tasks.is_empty() {
            self.turn.push_back(owner);
        }
        line.tasks.push_back(task);
        self.waiting += 1;
        None
    }

    /// The next read of the first owner that has fewer than `running_max` connections.
    pub(in crate::storage) fn next(&mut self, running_max: usize) -> Option<(Owner, T)> {
        let place = self.turn.iter().position(|owner| {
            let line = self.owners.get(owner);
            line.is_some_and(|line| line.running < running_max)
        })?;
        let owner = self.turn.remove(place)?;
        let line = self.owners.get_mut(&owner)?;
        let task = line.tasks.pop_front()?;
        line.running += 1;
        self.waiting -= 1;
        if !line.tasks.is_empty() {
            self.turn.push_back(owner.clone());
        }
        Some((owner, task))
    }

    /// Notes the end of a read. Owners without reads are forgotten.
    pub(in crate::storage) fn ended(&mut self, owner: &Owner) {
        if let Some(line) = self.owners.get_mut(owner) {
            line.running -= 1;
            if line.running == 0 && line.tasks.is_empty() {
                self.owners.remove(owner);
            }
        }
    }

    pub(in crate::storage) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes no more reads; returns those that wait.
    pub(in crate::storage) fn close(&mut self) -> Vec<T> {
        self.is_closed = true;
        self.turn.clear();
        let owners = std::mem::take(&mut self.owners);
        owners.into_values().flat_map(|line| line.tasks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Owner {
        Some(TenantId::new(name).unwrap())
    }

    #[test]
    fn reads_of_a_tenant_that_polls_delay_no_other_tenant() {
        let mut lines = ReadLines::default();
        for _ in 0..100 {
            assert_eq!(lines.push(tenant("a"), ()), None);
        }
        let two = [lines.next(2), lines.next(2)].map(|next| next.map(|(owner, _)| owner));
        assert_eq!(two, [Some(tenant("a")), Some(tenant("a"))]);
        assert!(lines.next(2).is_none(), "the third connection stays free");

        assert_eq!(lines.push(tenant("b"), ()), None);
        let (owner, _) = lines.next(2).unwrap();
        assert_eq!(owner, tenant("b"));
        lines.ended(&owner);

        lines.ended(&tenant("a"));
        assert_eq!(lines.push(tenant("b"), ()), None);
        let (first, _) = lines.next(2).unwrap();
        let (second, _) = lines.next(2).unwrap();
        assert_eq!((first, second), (tenant("a"), tenant("b")), "in turn");
    }

    #[test]
    fn reads_of_one_tenant_that_wait_are_bounded() {
        let mut lines = ReadLines::default();
        for _ in 0..TENANT_WAITING_MAX {
            assert_eq!(lines.push(tenant("a"), ()), None);
        }

        assert!(lines.push(tenant("a"), ()).is_some());
        assert_eq!(lines.push(tenant("b"), ()), None);
    }

    #[test]
    fn a_tenant_without_reads_is_forgotten() {
        let mut lines = ReadLines::default();
        assert_eq!(lines.push(tenant("a"), ()), None);

        let (owner, _) = lines.next(1).unwrap();
        lines.ended(&owner);

        assert!(lines.owners.is_empty() && lines.turn.is_empty());
        assert_eq!(lines.waiting, 0);
    }
}
