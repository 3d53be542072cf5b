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

#[cfg(test)]
mod tests {
    use super::*;

    type Row = (Open, Option<Timestamp>, bool);

    /// What a scan over all conversations answers.
    fn scan(rows: &BTreeMap<Scope, Row>, wanted: Open, due: Option<Timestamp>) -> Vec<Scope> {
        let is_due = |wake_at: Option<Timestamp>| {
            due.is_none_or(|due| wake_at.is_some_and(|wake_at| wake_at <= due))
        };
        let found = rows.iter().filter(|(_, (open, wake_at, failed))| {
            *open == wanted && !failed && is_due(*wake_at) && wanted != Open::None
        });
        found.map(|(scope, _)| scope.clone()).collect()
    }

    #[test]
    fn after_every_order_of_changes_a_sweep_finds_exactly_what_is_open_and_due() {
        let scope = |id: &str| Scope::new("t".parse().unwrap(), id.parse().unwrap());
        let scopes = [scope("a"), scope("b")];
        let states = [Open::None, Open::Running, Open::Parked];
        let wakes = [None, Some(Timestamp(1)), Some(Timestamp(3))];
        let rows = states.iter().flat_map(|open| {
            let wakes = wakes.iter();
            wakes.flat_map(move |wake| [false, true].map(|failed| Some((*open, *wake, failed))))
        });
        let changes: Vec<Option<Row>> = rows.chain([None]).collect();
        let all = scopes.len() * changes.len();
        for number in 0..all.pow(3) {
            let (mut index, mut kept) = (Index::default(), BTreeMap::new());
            for place in 0..3 {
                let nth = number / all.pow(place) % all;
                let scope = &scopes[nth % scopes.len()];
                match changes[nth / scopes.len()] {
                    Some((open, wake_at, failed)) => {
                        index.put(scope, open, wake_at, failed);
                        kept.insert(scope.clone(), (open, wake_at, failed));
                    }
                    None => {
                        index.remove(scope);
                        kept.remove(scope);
                    }
                }
            }
            for open in states {
                for due in [
                    None,
                    Some(Timestamp(0)),
                    Some(Timestamp(1)),
                    Some(Timestamp(9)),
                ] {
                    let expected = scan(&kept, open, due);
                    assert_eq!(index.open(open, due, None, 9), expected, "{kept:?}");
                    let first = expected.first();
                    let rest = expected.iter().skip(1).cloned().collect::<Vec<_>>();
                    if first.is_some() {
                        assert_eq!(index.open(open, due, first, 9), rest, "{kept:?}");
                    }
                }
            }
            assert_eq!(index.count(&scopes[0].tenant), kept.len() as u64);
            assert_eq!(index.scopes(None), kept.into_keys().collect::<Vec<_>>());
        }
    }
}
