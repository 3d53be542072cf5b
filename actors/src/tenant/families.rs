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
pub(super) struct Families(Mutex<HashMap<ConversationId, Weak<Family>>>);

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
        let mut families = self.0.lock();
        let name = conversation.family();
        if let Some(family) = families.get(&name).and_then(Weak::upgrade) {
            family.counter.set(budget);
            return family;
        }
        families.retain(|_, family| family.strong_count() > 0);
        let counter = tenant.below(BudgetLevel::Conversation, budget);
        let family = Arc::new(Family::new(counter));
        families.insert(name, Arc::downgrade(&family));
        family
    }
}
