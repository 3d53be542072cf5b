//! Journals in memory, lost with the process. An append completes in the caller's thread.

use std::{
    future::ready,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bytes::Bytes;
use dashmap::{DashMap, Entry};
use parking_lot::Mutex;
use serde::Deserialize;

use super::{index::Index, lock, outbox::MemoryOutbox};
use crate::{
    ids::{ConversationId, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    policy::Amount,
    ports::{
        Append, AppendError, BoxFuture, ListQuery, Outbox, SessionBackend, SessionSummary,
        StoreError,
    },
    stream::Open,
    time::Timestamp,
};

/// Page size for a `count` of 0.
const PAGE: usize = 1000;

/// Journals in memory. Conversations do not block one another: the map is sharded, and the sorted
/// index changes only when a conversation is created, deleted or changes what it waits for.
///
/// `created_at` and `updated_at` are times from entries, because the kernel has no wall clock; 0
/// for bytes that are not an entry.
#[derive(Debug, Default)]
pub struct MemorySessions {
    sessions: DashMap<Scope, Session>,
    index: Mutex<Index>,
    /// Stored bytes by tenant.
    bytes: DashMap<TenantId, u64>,
    /// What tenants with a budget have spent.
    spent: DashMap<TenantId, Amount>,
    outbox: MemoryOutbox,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Session {
    head: Head,
    /// All entries; the entry with seq n is at index n - 1.
    entries: Vec<StoredEntry>,
    /// Bytes of the entries and the snapshot.
    bytes: u64,
    /// Entries up to this seq are emptied.
    emptied: Seq,
    snapshot: Option<(Seq, Bytes)>,
    open: Open,
    wake_at: Option<Timestamp>,
    failed: Option<String>,
}

impl Session {
    fn after(&self, seq: Seq) -> &[StoredEntry] {
        usize::try_from(seq.0)
            .ok()
            .and_then(|from| self.entries.get(from..))
            .unwrap_or_default()
    }

    fn summary(&self, conversation: ConversationId) -> SessionSummary {
        let Self {
            head,
            open,
            wake_at,
            ref failed,
            ..
        } = *self;
        let kept = self.after(self.emptied);
        let first = kept.iter().find(|entry| !entry.bytes.is_empty());
        let created_at = stored_at(first);
        let updated_at = stored_at(self.entries.last());
        SessionSummary {
            conversation,
            head,
            open,
            wake_at,
            created_at,
            updated_at,
            failed: failed.clone(),
        }
    }
}

/// Returns the time in an entry's envelope.
fn stored_at(entry: Option<&StoredEntry>) -> Timestamp {
    #[derive(Deserialize)]
    struct At {
        at: Timestamp,
    }
    entry
        .and_then(|entry| serde_json::from_slice::<At>(&entry.bytes).ok())
        .map(|envelope| envelope.at)
        .unwrap_or_default()
}

impl MemorySessions {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn store(&self, append: &mut Append) -> Result<(), AppendError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(AppendError::Unavailable {
                message: "the store is closed".into(),
            });
        }
        let place = self.sessions.entry(append.scope.clone());
        let found = match &place {
            Entry::Occupied(held) => held.get().head,
            Entry::Vacant(_) => Head::default(),
        };
        // Checked before any change, so that a refused append leaves no trace.
        let head = append.check(found)?;
        let is_new = matches!(place, Entry::Vacant(_));
        let mut session = place.or_default();
        session.head = head;
        let bytes: usize = append.entries.iter().map(|entry| entry.bytes.len()).sum();
        session.bytes += bytes as u64;
        self.note_bytes(&append.scope.tenant, |held| {
            held.saturating_add(bytes as u64)
        });
        session.entries.append(&mut append.entries);
        self.outbox.put(std::mem::take(&mut append.messages));
        if is_new || (session.open, session.wake_at) != (append.open, append.wake_at) {
            (session.open, session.wake_at) = (append.open, append.wake_at);
            lock(&self.index).put(
                &append.scope,
                append.open,
                append.wake_at,
                session.failed.is_some(),
            );
        }
        Ok(())
    }

    fn note_bytes(&self, tenant: &TenantId, change: impl FnOnce(u64) -> u64) {
        if let Some(mut held) = self.bytes.get_mut(tenant) {
            *held = change(*held);
            return;
        }
        let mut held = self.bytes.entry(tenant.clone()).or_default();
        *held = change(*held);
    }

    fn read<T>(&self, scope: &Scope, of: impl FnOnce(&Session) -> T) -> Option<T> {
        self.sessions.get(scope).map(|session| of(&session))
    }

    fn list_now(&self, tenant: &TenantId, query: &ListQuery) -> Vec<SessionSummary> {
        let count = if query.count == 0 { PAGE } else { query.count };
        let mut found = Vec::new();
        let mut after = query.after.clone();
        while found.len() < count {
            let page = lock(&self.index).page(tenant, after.as_ref(), count);
            let Some(last) = page.last() else { break };
            after = Some(last.clone());
            let summaries = page.into_iter().filter_map(|id| {
                let scope = Scope::new(tenant.clone(), id);
                self.read(&scope, |session| {
                    session.summary(scope.conversation.clone())
                })
            });
            let shown =
                |summary: &SessionSummary| query.subagents || !summary.conversation.is_subagent();
            found.extend(summaries.filter(|summary| {
                shown(summary) && query.open.is_none_or(|open| summary.open == open)
            }));
        }
        found.truncate(count);
        found
    }

    fn list_open_now(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<&Scope>,
        count: usize,
    ) -> Vec<Scope> {
        let count = if count == 0 { PAGE } else { count };
        if open != Open::None {
            return lock(&self.index).open(open, due, after, count);
        }
        let all = lock(&self.index).scopes(after);
        let fits = |session: &Session| {
            let is_due = due.is_none_or(|due| session.wake_at.is_some_and(|at| at <= due));
            session.open == Open::None && session.failed.is_none() && is_due
        };
        all.into_iter()
            .filter(|scope| self.read(scope, fits) == Some(true))
            .take(count)
            .collect()
    }
}

impl SessionBackend for MemorySessions {
    fn append(&self, mut append: Append) {
        let result = self.store(&mut append);
        // Called outside of every lock, because `done` may append again at once.
        (append.done)(result);
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(ready(Ok(self
            .read(scope, |session| session.head)
            .unwrap_or_default())))
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        let loaded = self.read(scope, |session| {
            let upto = session.snapshot.as_ref().map_or(Seq(0), |(upto, _)| *upto);
            Loaded {
                head: session.head,
                snapshot: session.snapshot.clone(),
                entries: session.after(upto).to_vec(),
            }
        });
        Box::pin(ready(Ok(loaded.unwrap_or_default())))
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        let entries = self.read(scope, |session| {
            session.after(after).iter().take(count).cloned().collect()
        });
        Box::pin(ready(Ok(entries.unwrap_or_default())))
    }

    fn cut<'a>(
        &'a self,
        scope: &'a Scope,
        to: Head,
        open: Open,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            if to.seq == Seq(0) {
                return match self.delete(scope).await? {
                    true => Ok(()),
                    false => Err(StoreError::NotFound),
                };
            }
            let Some(mut session) = self.sessions.get_mut(scope) else {
                return Err(StoreError::NotFound);
            };
            let session = &mut *session;
            let left = usize::try_from(to.seq.0).unwrap_or(usize::MAX);
            if left > session.entries.len() {
                return Err(StoreError::Unavailable {
                    message: format!("entry {} is missing", to.seq),
                });
            }
            let later = session.snapshot.take_if(|(upto, _)| *upto > to.seq);
            let dropped = session.entries.drain(left..);
            let freed = dropped
                .map(|entry| entry.bytes.len() as u64)
                .sum::<u64>()
                .saturating_add(later.map_or(0, |(_, bytes)| bytes.len() as u64));
            session.bytes = session.bytes.saturating_sub(freed);
            (session.head, session.open, session.wake_at) = (to, open, None);
            session.failed = None;
            session.emptied = session.emptied.min(to.seq);
            self.note_bytes(&scope.tenant, |held| held.saturating_sub(freed));
            lock(&self.index).put(scope, open, None, false);
            Ok(())
        })
    }

    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        upto: Seq,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        if let Some(mut session) = self.sessions.get_mut(scope) {
            let kept = session.snapshot.as_ref().map_or(Seq(0), |(kept, _)| *kept);
            if upto <= session.head.seq && upto >= kept && upto > session.emptied {
                let freed = session
                    .snapshot
                    .as_ref()
                    .map_or(0, |(_, bytes)| bytes.len() as u64);
                let added = bytes.len() as u64;
                session.bytes = session.bytes.saturating_sub(freed).saturating_add(added);
                self.note_bytes(&scope.tenant, |held| {
                    held.saturating_sub(freed).saturating_add(added)
                });
                session.snapshot = Some((upto, bytes));
            }
        }
        Box::pin(ready(Ok(())))
    }

    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        let was_there = match self.sessions.entry(scope.clone()) {
            Entry::Occupied(held) => {
                lock(&self.index).remove(scope);
                self.outbox.remove(scope);
                let freed = held.remove().bytes;
                self.note_bytes(&scope.tenant, |held| held.saturating_sub(freed));
                true
            }
            Entry::Vacant(_) => false,
        };
        Box::pin(ready(Ok(was_there)))
    }

    fn list<'a>(
        &'a self,
        tenant: &'a TenantId,
        query: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        Box::pin(ready(Ok(self.list_now(tenant, &query))))
    }

    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(ready(Ok(lock(&self.index).count(tenant))))
    }

    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(ready(Ok(self.bytes.get(tenant).map_or(0, |bytes| *bytes))))
    }

    fn spend<'a>(
        &'a self,
        tenant: &'a TenantId,
        amount: Amount,
    ) -> BoxFuture<'a, Result<Option<Amount>, StoreError>> {
        let mut held = self.spent.entry(tenant.clone()).or_default();
        *held = held.plus(&amount);
        Box::pin(ready(Ok(Some(*held))))
    }

    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.spent.remove(tenant);
        Box::pin(ready(Ok(false)))
    }

    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        if let Some(mut session) = self.sessions.get_mut(scope) {
            let session = &mut *session;
            let dropped = session
                .snapshot
                .take_if(|(of, _)| *of <= upto)
                .map_or(0, |(_, bytes)| bytes.len() as u64);
            let emptied_before = usize::try_from(session.emptied.0).unwrap_or(usize::MAX);
            let emptied = session
                .entries
                .iter_mut()
                .skip(emptied_before)
                .take_while(|entry| entry.seq <= upto);
            let freed = emptied
                .map(|entry| std::mem::take(&mut entry.bytes).len() as u64)
                .sum::<u64>()
                .saturating_add(dropped);
            session.emptied = session.emptied.max(upto.min(session.head.seq));
            session.bytes = session.bytes.saturating_sub(freed);
            self.note_bytes(&scope.tenant, |held| held.saturating_sub(freed));
        }
        Box::pin(ready(Ok(())))
    }

    fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<Scope>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>> {
        Box::pin(ready(Ok(self.list_open_now(
            open,
            due,
            after.as_ref(),
            count,
        ))))
    }

    fn mark_failed<'a>(
        &'a self,
        scope: &'a Scope,
        reason: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let marked = self.sessions.get_mut(scope).map(|mut session| {
            session.failed = reason;
            lock(&self.index).put(
                scope,
                session.open,
                session.wake_at,
                session.failed.is_some(),
            );
        });
        Box::pin(ready(marked.ok_or(StoreError::NotFound)))
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        Some(&self.outbox)
    }

    fn close(&self, _within: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.closed.store(true, Ordering::Release);
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        chat::Message,
        ids::Epoch,
        journal::{Entry as JournalEntry, EntryBody},
        ports::AppendExt,
        testing::contract,
    };

    #[tokio::test]
    async fn memory_keeps_the_contract_of_a_session_backend() {
        contract::session_backend(async || {
            Arc::new(MemorySessions::new()) as Arc<dyn SessionBackend>
        })
        .await;
    }

    #[tokio::test]
    async fn times_are_those_of_the_first_and_last_entry() {
        let store = MemorySessions::new();
        let scope = Scope::new(
            TenantId::new("t").unwrap(),
            ConversationId::new("c").unwrap(),
        );
        let entry = |seq, at, body| {
            JournalEntry {
                seq: Seq(seq),
                epoch: Epoch(1),
                at: Timestamp(at),
                body,
            }
            .encode()
        };
        let entries = vec![
            entry(
                1,
                10,
                EntryBody::LifeStarted {
                    nonce: 1,
                    in_order: false,
                },
            ),
            entry(
                2,
                20,
                EntryBody::Imported {
                    messages: vec![Message::user("hello")],
                    rounds: vec![],
                },
            ),
        ];

        store
            .append_and_wait(&scope, Head::default(), Epoch(1), entries, Open::None)
            .await
            .unwrap();

        let listed = store
            .list(&scope.tenant, ListQuery::default())
            .await
            .unwrap();
        assert_eq!(
            listed,
            [SessionSummary {
                conversation: scope.conversation,
                head: Head {
                    epoch: Epoch(1),
                    seq: Seq(2)
                },
                open: Open::None,
                wake_at: None,
                created_at: Timestamp(10),
                updated_at: Timestamp(20),
                failed: None,
            }]
        );
    }

    #[tokio::test]
    async fn an_answered_caller_may_append_again_at_once() {
        let store = Arc::new(MemorySessions::new());
        let scope = Scope::new(
            TenantId::new("t").unwrap(),
            ConversationId::new("c").unwrap(),
        );
        let make = |expected: Head, done| Append {
            scope: scope.clone(),
            expected,
            epoch: Epoch(1),
            entries: vec![StoredEntry {
                seq: expected.seq.next(),
                bytes: Bytes::new(),
            }],
            open: Open::None,
            wake_at: None,
            messages: Vec::new(),
            durability: crate::ports::Durability::Awaited,
            done,
        };
        let first = Head {
            epoch: Epoch(1),
            seq: Seq(1),
        };
        let second = make(first, Box::new(|result| assert_eq!(result, Ok(()))));
        let inner = Arc::clone(&store);

        store.append(make(
            Head::default(),
            Box::new(move |_| inner.append(second)),
        ));

        assert_eq!(
            store.head(&scope).await,
            Ok(Head {
                epoch: Epoch(1),
                seq: Seq(2)
            })
        );
    }
}
