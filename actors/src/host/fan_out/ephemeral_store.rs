//! A `SessionBackend` for ephemeral fan-outs: keeps a journal in memory while its task runs, so
//! that a crashed activation is followed by another one. The journals are in no list, and no quota
//! counts them.

use std::{future::ready, time::Duration};

use bytes::Bytes;
use dashmap::{DashMap, Entry};

use crate::{
    ids::{ConversationId, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    ports::{
        Append, AppendError, BoxFuture, ListQuery, SessionBackend, SessionSummary, StoreError,
    },
    stream::Open,
    time::Timestamp,
};

/// The journal of one conversation.
#[derive(Default)]
struct Journal {
    head: Head,
    /// The entry with seq n is at n - 1.
    entries: Vec<StoredEntry>,
}

/// The journals of one fan-out. A fan-out has one tenant, so the conversation's id is the key.
#[derive(Default)]
pub(super) struct EphemeralStore(DashMap<ConversationId, Journal>);

impl EphemeralStore {
    /// Drops the journal of a conversation.
    pub(super) fn forget(&self, conversation: &ConversationId) {
        drop(self.0.remove(conversation));
    }

    fn store(&self, append: &mut Append) -> Result<(), AppendError> {
        let place = self.0.entry(append.scope.conversation.clone());
        let found = match &place {
            Entry::Occupied(held) => held.get().head,
            Entry::Vacant(_) => Head::default(),
        };
        let head = append.check(found)?;
        let mut journal = place.or_default();
        journal.head = head;
        match journal.entries.is_empty() {
            true => journal.entries = std::mem::take(&mut append.entries),
            false => journal.entries.append(&mut append.entries),
        }
        Ok(())
    }

    fn read<T: Default>(&self, scope: &Scope, of: impl FnOnce(&Journal) -> T) -> T {
        self.0
            .get(&scope.conversation)
            .map(|journal| of(&journal))
            .unwrap_or_default()
    }
}

impl SessionBackend for EphemeralStore {
    fn append(&self, mut append: Append) {
        let result = self.store(&mut append);
        (append.done)(result); // After the map guard is released.
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(ready(Ok(self.read(scope, |journal| journal.head))))
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        let load = |journal: &Journal| Loaded {
            head: journal.head,
            snapshot: None,
            entries: journal.entries.clone(),
        };
        Box::pin(ready(Ok(self.read(scope, load))))
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        let from = usize::try_from(after.0).unwrap_or(usize::MAX);
        Box::pin(ready(Ok(self.read(scope, |journal| {
            journal
                .entries
                .iter()
                .skip(from)
                .take(count)
                .cloned()
                .collect()
        }))))
    }

    /// Snapshots are not kept, since reading the entries from memory is as fast.
    fn snapshot<'a>(
        &'a self,
        _: &'a Scope,
        _: Seq,
        _: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(ready(Ok(self.0.remove(&scope.conversation).is_some())))
    }

    fn list<'a>(
        &'a self,
        _: &'a TenantId,
        _: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn count<'a>(&'a self, _: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(ready(Ok(0)))
    }

    fn stored_bytes<'a>(&'a self, _: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(ready(Ok(0)))
    }

    fn keeps_entries(&self) -> bool {
        false
    }

    /// Does nothing: these conversations are never reset, since only their parent sends them
    /// messages.
    fn empty<'a>(&'a self, _: &'a Scope, _: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn list_open(
        &self,
        _: Open,
        _: Option<Timestamp>,
        _: Option<Scope>,
        _: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    /// Does nothing: no list shows the mark. The activation that found the damage reports it to its
    /// caller.
    fn mark_failed<'a>(
        &'a self,
        _: &'a Scope,
        _: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }

    fn close(&self, _: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::Epoch, ports::AppendExt};

    #[tokio::test]
    async fn a_stale_life_cannot_write_here_either_and_what_is_let_go_of_is_gone() {
        let scope = Scope::new("t".parse().unwrap(), "subagent:1".parse().unwrap());
        let entry = |seq| StoredEntry {
            seq: Seq(seq),
            bytes: Bytes::from_static(b"{}"),
        };
        let at = |epoch, seq| Head {
            epoch: Epoch(epoch),
            seq: Seq(seq),
        };
        let store = EphemeralStore::default();
        let append = async |expected: Head, epoch, seq| {
            let appended = store
                .append_and_wait(
                    &scope,
                    expected,
                    Epoch(epoch),
                    vec![entry(seq)],
                    Open::Running,
                )
                .await;
            appended.map_err(|error| matches!(error, AppendError::Conflict { .. }))
        };

        assert_eq!(
            [append(at(0, 0), 1, 1).await, append(at(1, 1), 2, 2).await],
            [Ok(()), Ok(())]
        );
        assert_eq!(
            [append(at(1, 1), 1, 2).await, append(at(0, 0), 1, 1).await],
            [Err(true), Err(true)]
        );

        let loaded = Loaded {
            head: at(2, 2),
            snapshot: None,
            entries: vec![entry(1), entry(2)],
        };
        assert_eq!(
            (store.load(&scope).await, store.head(&scope).await),
            (Ok(loaded), Ok(at(2, 2)))
        );
        assert_eq!(store.entries(&scope, Seq(1), 9).await, Ok(vec![entry(2)]));
        store.forget(&scope.conversation);
        assert_eq!(store.load(&scope).await, Ok(Loaded::default()));
    }
}
