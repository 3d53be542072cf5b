//! What a conversation and its subagents spend together: the middle level of tenant → conversation
//! → subagent. A family is kept in memory while one of its members is active; each member adds its
//! earlier spending from its journal when it is first activated.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::{
    ids::ConversationId,
    policy::{Amount, Budget, BudgetCounter, BudgetLevel},
};

/// A conversation and all its descendants, with one shared budget.
#[derive(Debug)]
pub(crate) struct Family {
    counter: Arc<BudgetCounter>,
    /// Members whose earlier spending is already in the counter.
    known: Mutex<HashSet<ConversationId>>,
}

impl Family {
    /// A family that spends from this counter.
    pub(crate) fn new(counter: Arc<BudgetCounter>) -> Self {
        Self {
            counter,
            known: Mutex::default(),
        }
    }

    /// The counter of the family's shared budget.
    pub(crate) fn counter(&self) -> &Arc<BudgetCounter> {
        &self.counter
    }

    /// Whether this member's earlier spending is counted.
    pub(crate) fn knows(&self, member: &ConversationId) -> bool {
        self.known.lock().contains(member)
    }

    /// Adds what a member spent before this host counted it. Later calls for the same member do
    /// nothing.
    pub(crate) fn enter(&self, member: &ConversationId, spent: Amount) {
        if self.known.lock().insert(member.clone()) {
            self.counter.recall(&Amount {
                wall_ms: 0,
                ..spent
            });
        }
    }
}

/// The active families of a tenant.
#[derive(Debug, Default)]
pub(super) struct Families(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    families: HashMap<ConversationId, Weak<Family>>,
    /// At this size, entries of families that are no longer active are removed.
    cleaned_at: usize,
    /// Entries that clean-ups have visited.
    #[cfg(test)]
    visited: usize,
}

/// The smallest size at which a table is cleaned.
const CLEANED_AT_MIN: usize = 64;

impl Table {
    /// Removes families that are no longer active if the table has doubled since the last time, so
    /// that a clean-up costs each new family a constant share.
    fn clean_if_due(&mut self) {
        if self.families.len() < self.cleaned_at.max(CLEANED_AT_MIN) {
            return;
        }
        #[cfg(test)]
        {
            self.visited += self.families.len();
        }
        self.families.retain(|_, family| family.strong_count() > 0);
        self.cleaned_at = self.families.len().saturating_mul(2);
    }
}

impl Families {
    /// The family of a conversation, created below `tenant` if it is not active. `budget` limits
    /// it, except for time, which the parent's round already limits.
    pub(super) fn get(
        &self,
        conversation: &ConversationId,
        tenant: &Arc<BudgetCounter>,
        budget: Budget,
    ) -> Arc<Family> {
        let budget = Budget {
            wall_ms: None,
            ..budget
        };
        let mut table = self.0.lock();
        let name = conversation.family();
        if let Some(family) = table.families.get(&name).and_then(Weak::upgrade) {
            family.counter.set(budget);
            return family;
        }
        table.clean_if_due();
        let counter = tenant.below(BudgetLevel::Conversation, budget);
        let family = Arc::new(Family::new(counter));
        table.families.insert(name, Arc::downgrade(&family));
        family
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ConversationId {
        ConversationId::new(format!("c-{number}")).unwrap()
    }

    #[test]
    fn a_new_family_costs_the_same_however_many_are_active() {
        let tenant = BudgetCounter::root(BudgetLevel::Tenant, Budget::default());
        let families = Families::default();

        let active: Vec<_> = (0..10_000)
            .map(|number| families.get(&id(number), &tenant, Budget::default()))
            .collect();
        let visited = families.0.lock().visited;
        assert!(visited <= 2 * active.len(), "{visited}");

        drop(active);
        for number in 10_000..50_000 {
            families.get(&id(number), &tenant, Budget::default());
        }
        let kept = families.0.lock().families.len();
        assert!(kept <= 20_000, "ended families leave the table: {kept}");
    }
}
