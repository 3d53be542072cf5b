//! A sorted index of the conversations and of those that are open, so that lists and sweeps do not
//! scan all conversations.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::{
    ids::{ConversationId, Scope, TenantId},
    stream::Open,
    time::Timestamp,
};

/// The index of a [`super::MemorySessions`]. Its lock is taken inside the lock of a conversation,
/// never the other way round.
#[derive(Debug, Default)]
pub(super) struct Index {
    all: BTreeMap<TenantId, BTreeSet<ConversationId>>,
    running: BTreeMap<Scope, Option<Timestamp>>,
    parked: BTreeMap<Scope, Option<Timestamp>>,
}

impl Index {
    /// Records a conversation and its state. A failed conversation is in no state.
    pub(super) fn put(
        &mut self,
        scope: &Scope,
        open: Open,
        wake_at: Option<Timestamp>,
        failed: bool,
    ) {
        match self.all.get_mut(&scope.tenant) {
            Some(conversations) if conversations.contains(&scope.conversation) => {}
            Some(conversations) => drop(conversations.insert(scope.conversation.clone())),
            None => drop(self.all.insert(
                scope.tenant.clone(),
                BTreeSet::from([scope.conversation.clone()]),
            )),
        }
        self.running.remove(scope);
        self.parked.remove(scope);
        match open {
            Open::Running if !failed => drop(self.running.insert(scope.clone(), wake_at)),
            Open::Parked if !failed => drop(self.parked.insert(scope.clone(), wake_at)),
            Open::None | Open::Running | Open::Parked => {}
        }
    }

    /// Removes a conversation.
    pub(super) fn remove(&mut self, scope: &Scope) {
        if let Some(conversations) = self.all.get_mut(&scope.tenant) {
            conversations.remove(&scope.conversation);
            if conversations.is_empty() {
                self.all.remove(&scope.tenant);
            }
        }
        self.running.remove(scope);
        self.parked.remove(scope);
    }

    /// Returns a page of a tenant's conversations after `after`, sorted by id.
    pub(super) fn page(
        &self,
        tenant: &TenantId,
        after: Option<&ConversationId>,
        count: usize,
    ) -> Vec<ConversationId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let of = self.all.get(tenant).into_iter();
        of.flat_map(|conversations| {
            conversations.range::<ConversationId, _>((from, Bound::Unbounded))
        })
        .take(count)
        .cloned()
        .collect()
    }

    /// Returns the number of a tenant's conversations.
    pub(super) fn count(&self, tenant: &TenantId) -> u64 {
        self.all.get(tenant).map_or(0, BTreeSet::len) as u64
    }

    /// Returns a page of the open conversations of a state after `after`, sorted; empty for
    /// [`Open::None`].
    pub(super) fn open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<&Scope>,
        count: usize,
    ) -> Vec<Scope> {
        let set = match open {
            Open::Running => &self.running,
            Open::Parked => &self.parked,
            Open::None => return Vec::new(),
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        set.range::<Scope, _>((from, Bound::Unbounded))
            .filter(|(_, wake_at)| due.is_none_or(|due| wake_at.is_some_and(|at| at <= due)))
            .map(|(scope, _)| scope.clone())
            .take(count)
            .collect()
    }

    /// Returns all conversations after `after`, sorted.
    pub(super) fn scopes(&self, after: Option<&Scope>) -> Vec<Scope> {
        let all = self
            .all
            .iter()
            .flat_map(|(tenant, ids)| ids.iter().map(|id| Scope::new(tenant.clone(), id.clone())));
        all.filter(|scope| after.is_none_or(|after| scope > after))
            .collect()
    }
}
