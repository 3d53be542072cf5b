//! Work of all tenants that waits for a place: one line for each tenant, served in turn. Fewer places
//! than all serve one tenant at the same time, so that one tenant's long work delays no other's. Other
//! owners than tenants are possible.
//!
//! Pure.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

use callboard_actors::ids::TenantId;

/// Whose work it is; `None` for work of the host.
pub(crate) type Owner = Option<TenantId>;

/// Whose lines there are.
pub(crate) trait Owns: Clone + Eq + Hash {
    /// Whether its line has the bound of one tenant.
    fn is_bounded(&self) -> bool {
        true
    }
}

impl Owns for Owner {
    fn is_bounded(&self) -> bool {
        self.is_some()
    }
}

/// Why work is not taken into a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No more work is taken.
    Closed,
    /// Too much work waits.
    Full,
    /// Too much work of this tenant waits.
    TenantFull,
}

/// Most work that waits. What comes later is refused, since a late answer would be useless.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    /// Of all tenants.
    pub(crate) all: usize,
    /// Of one tenant, so that one alone does not get the work of others refused.
    pub(crate) tenant: usize,
}

/// The waiting work, each a `T`.
#[derive(Debug)]
pub(crate) struct Lines<T, O = Owner> {
    max: Waiting,
    owners: HashMap<O, Line<T>>,
    /// Owners with waiting work, each once, in the order of service.
    turn: VecDeque<O>,
    waiting: usize,
    is_closed: bool,
}

#[derive(Debug)]
struct Line<T> {
    tasks: VecDeque<T>,
    /// Places that this owner holds now.
    running: usize,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self {
            tasks: VecDeque::new(),
            running: 0,
        }
    }
}

impl<T, O: Owns> Lines<T, O> {
    pub(crate) fn new(max: Waiting) -> Self {
        Self {
            max,
            owners: HashMap::new(),
            turn: VecDeque::new(),
            waiting: 0,
            is_closed: false,
        }
    }

    /// Adds work at the end of its owner's line.
    ///
    /// # Errors
    /// Why it is refused.
    pub(crate) fn push(&mut self, owner: O, task: T) -> Result<(), Refused> {
        if self.is_closed {
            return Err(Refused::Closed);
        }
        if self.waiting >= self.max.all {
            return Err(Refused::Full);
        }
        let waits = self.owners.get(&owner).map_or(0, |line| line.tasks.len());
        if owner.is_bounded() && waits >= self.max.tenant {
            return Err(Refused::TenantFull);
        }
        let line = self.owners.entry(owner.clone()).or_default();
        if line.tasks.is_empty() {
            self.turn.push_back(owner);
        }
        line.tasks.push_back(task);
        self.waiting += 1;
        Ok(())
    }

    /// The next work of the first owner that holds fewer than `running_max` places.
    pub(crate) fn next(&mut self, running_max: usize) -> Option<(O, T)> {
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

    /// Notes that work has ended. Owners without work are forgotten.
    pub(crate) fn ended(&mut self, owner: &O) {
        if let Some(line) = self.owners.get_mut(owner) {
            line.running -= 1;
            if line.running == 0 && line.tasks.is_empty() {
                self.owners.remove(owner);
            }
        }
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes no more work; returns what waits.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn close(&mut self) -> Vec<T> {
        self.is_closed = true;
        self.turn.clear();
        let owners = std::mem::take(&mut self.owners);
        owners.into_values().flat_map(|line| line.tasks).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Waiting = Waiting {
        all: 4096,
        tenant: 1024,
    };

    fn lines() -> Lines<()> {
        Lines::new(MAX)
    }

    fn tenant(name: &str) -> Owner {
        Some(TenantId::new(name).unwrap())
    }

    #[test]
    fn reads_of_a_tenant_that_polls_delay_no_other_tenant() {
        let mut lines = lines();
        for _ in 0..100 {
            assert_eq!(lines.push(tenant("a"), ()), Ok(()));
        }
        let two = [lines.next(2), lines.next(2)].map(|next| next.map(|(owner, _)| owner));
        assert_eq!(two, [Some(tenant("a")), Some(tenant("a"))]);
        assert!(lines.next(2).is_none(), "the third connection stays free");

        assert_eq!(lines.push(tenant("b"), ()), Ok(()));
        let (owner, _) = lines.next(2).unwrap();
        assert_eq!(owner, tenant("b"));
        lines.ended(&owner);

        lines.ended(&tenant("a"));
        assert_eq!(lines.push(tenant("b"), ()), Ok(()));
        let (first, _) = lines.next(2).unwrap();
        let (second, _) = lines.next(2).unwrap();
        assert_eq!((first, second), (tenant("a"), tenant("b")), "in turn");
    }

    #[test]
    fn reads_of_one_tenant_that_wait_are_bounded() {
        let mut lines = lines();
        for _ in 0..MAX.tenant {
            assert_eq!(lines.push(tenant("a"), ()), Ok(()));
        }

        assert_eq!(lines.push(tenant("a"), ()), Err(Refused::TenantFull));
        assert_eq!(lines.push(tenant("b"), ()), Ok(()));
    }

    #[test]
    fn a_tenant_without_reads_is_forgotten() {
        let mut lines = lines();
        assert_eq!(lines.push(tenant("a"), ()), Ok(()));

        let (owner, _) = lines.next(1).unwrap();
        lines.ended(&owner);

        assert!(lines.owners.is_empty() && lines.turn.is_empty());
        assert_eq!(lines.waiting, 0);
    }
}
