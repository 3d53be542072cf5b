//! What the conversations of fan-outs are made of while they run: their own model, journal, events and budget. By family, so that a life
//! finds it by its conversation's id alone.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use crate::{
    conversation::{Ports, Setup},
    ids::Scope,
    tenant::Family,
};

/// One fan-out's.
#[derive(Clone)]
pub(crate) struct Branch {
    pub(crate) setup: Arc<Setup>,
    pub(crate) ports: Ports,
    /// What they spend together, where that is bounded.
    pub(crate) family: Option<Arc<Family>>,
}

/// Those of a host.
#[derive(Default)]
pub(crate) struct Branches(RwLock<HashMap<Scope, Arc<Branch>>>);

/// A fan-out that is among them until this is dropped.
pub(crate) struct Joined {
    branches: Arc<Branches>,
    family: Scope,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let gone = self.branches.0.write().unwrap_or_else(PoisonError::into_inner).remove(&self.family);
        drop(gone); // Its ports after the lock.
    }
}

/// By what a conversation and its siblings are found.
fn family_of(scope: &Scope) -> Scope {
    Scope::new(scope.tenant.clone(), scope.conversation.family())
}

impl Branches {
    /// Adds the one whose conversations have `root` for a parent; `None` while there is one.
    pub(crate) fn join(self: &Arc<Self>, root: &Scope, branch: Branch) -> Option<Joined> {
        let family = family_of(root);
        let mut branches = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if branches.contains_key(&family) {
            return None;
        }
        branches.insert(family.clone(), Arc::new(branch));
        Some(Joined { branches: self.clone(), family })
    }

    /// Whether there is one for the children of `root`.
    pub(crate) fn has(&self, root: &Scope) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&family_of(root))
    }

    /// The one that a conversation belongs to.
    pub(crate) fn of(&self, scope: &Scope) -> Option<Arc<Branch>> {
        if !scope.conversation.is_subagent() {
            return None;
        }
        let branches = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if branches.is_empty() { None } else { branches.get(&family_of(scope)).cloned() }
    }
}
