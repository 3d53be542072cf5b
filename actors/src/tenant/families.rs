//! What a conversation and its subagents spend together (DESIGN §4.5: tenant → conversation → subagent). Kept while one of them is awake;
//! who wakes first of a family brings what it has spent along, by its journal.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{
    ids::ConversationId,
    policy::{Amount, Budget, BudgetCounter, BudgetLevel},
};

/// One family.
#[derive(Debug)]
pub(crate) struct Family {
    counter: Arc<BudgetCounter>,
    /// Whose spending is in the counter.
    known: Mutex<HashSet<ConversationId>>,
}

impl Family {
    /// One that spends to this counter.
    pub(crate) fn new(counter: Arc<BudgetCounter>) -> Self {
        Self { counter, known: Mutex::default() }
    }

    /// What they spend to.
    pub(crate) fn counter(&self) -> &Arc<BudgetCounter> {
        &self.counter
    }

    /// Whether this member's spending is counted.
    pub(crate) fn knows(&self, member: &ConversationId) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(member)
    }

    /// Brings along what a member has spent before; once.
    pub(crate) fn enter(&self, member: &ConversationId, spent: Amount) {
        if self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(member.clone()) {
            self.counter.recall(&Amount { wall_ms: 0, ..spent });
        }
    }
}

/// The families of a tenant that are awake.
#[derive(Debug, Default)]
pub(super) struct Families(Mutex<HashMap<ConversationId, Weak<Family>>>);

impl Families {
    /// The family of a conversation, below `tenant`. Its bounds are those of `budget`, but for time: the parent's round has that.
    pub(super) fn of(&self, conversation: &ConversationId, tenant: &Arc<BudgetCounter>, budget: Budget) -> Arc<Family> {
        let budget = Budget { wall_ms: None, ..budget };
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
