//! The store of journals: append-only, ordered, and guarded by epoch and head.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{BoxFuture, Outbox, OutboxMessage, StoreError};
use crate::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    policy::Amount,
    stream::Open,
    time::Timestamp,
};

/// Whether a caller waits for an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// A caller waits: commit at once.
    Awaited,
    /// No caller waits: the append may join a later commit, within 5 ms.
    Deferred,
}

/// The callback of an append. Called exactly once with the result, on any thread; must not block.
pub type Done = Box<dyn FnOnce(Result<(), AppendError>) + Send>;

/// Entries of one conversation, stored completely or not at all.
pub struct Append {
    /// The conversation whose journal grows.
    pub scope: Scope,
    /// The head that the journal must have for this append to be stored.
    pub expected: Head,
    /// Epoch of the writer: equal to `expected.epoch` within an activation, one higher for the
    /// first append of an activation. The first append of a journal may have any epoch above 0.
    pub epoch: Epoch,
    /// The entries, with consecutive seqs that follow `expected.seq`. Not empty.
    pub entries: Vec<StoredEntry>,
    /// The state that the head row records after this append.
    pub open: Open,
    /// When a sweep should look at the conversation again, such as the deadline of a parked round.
    pub wake_at: Option<Timestamp>,
    /// Messages for receivers outside, stored with the entries.
    pub messages: Vec<OutboxMessage>,
    /// Whether a caller waits.
    pub durability: Durability,
    /// The callback for the result.
    pub done: Done,
}

impl std::fmt::Debug for Append {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Append({} {:?} +{})",
            self.scope,
            self.expected,
            self.entries.len()
        )
    }
}

impl Append {
    /// Checks this append against a journal whose head is `found`, and returns the head after it.
    /// Adapters call this function inside their transaction, so that the rule exists once.
    ///
    /// # Errors
    /// `Conflict` when the head differs from the expected one, the epoch is neither the expected
    /// one nor the next (a journal may start with any), or the seqs are not consecutive.
    pub fn check(&self, found: Head) -> Result<Head, AppendError> {
        let conflict = || AppendError::Conflict {
            scope: self.scope.clone(),
            found,
        };
        let mut seq = self.expected.seq;
        let follows = self.entries.iter().all(|entry| {
            let last = std::mem::replace(&mut seq, entry.seq);
            last.0.checked_add(1) == Some(entry.seq.0)
        });
        let is_first = self.expected == Head::default() && self.epoch > Epoch(0);
        let may_write = is_first
            || self.epoch == self.expected.epoch
            || self.expected.epoch.0.checked_add(1) == Some(self.epoch.0);
        if found == self.expected && may_write && follows && !self.entries.is_empty() {
            Ok(Head {
                epoch: self.epoch,
                seq,
            })
        } else {
            Err(conflict())
        }
    }

    /// Estimates the bytes of this append in a queue.
    pub fn size(&self) -> usize {
        let messages = self.messages.iter().map(|message| message.body.len());
        self.entries
            .iter()
            .map(|entry| entry.bytes.len())
            .chain(messages)
            .map(|bytes| bytes.saturating_add(64))
            .fold(256, usize::saturating_add)
    }
}

/// Why an append was not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The journal has another head: another activation wrote to it.
    #[error("the journal of {scope} ends at epoch {} seq {}, not where this life left it", found.epoch, found.seq)]
    Conflict {
        /// The conversation whose journal it is.
        scope: Scope,
        /// The head of the journal.
        found: Head,
    },
    /// Too much waits for the store already. Nothing was stored; the store takes the writes of
    /// others.
    #[error("the store is overloaded: {message}")]
    Overloaded {
        /// The bound that is reached.
        message: String,
    },
    /// The store refused or did not answer. The entries may or may not be stored; the head shows
    /// which.
    #[error("the store is not available: {message}")]
    Unavailable {
        /// What happened, without paths.
        message: String,
    },
}

/// One row of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct SessionSummary {
    pub conversation: ConversationId,
    /// The end of the journal.
    pub head: Head,
    /// What the conversation waits for.
    pub open: Open,
    /// When a sweep should look at the conversation. `None` if no deadline is set.
    pub wake_at: Option<Timestamp>,
    /// When the first entry was stored.
    pub created_at: Timestamp,
    /// When the last entry was stored.
    pub updated_at: Timestamp,
    /// Why the journal could not be read. `None` for a readable journal.
    pub failed: Option<String>,
}

/// A stored row of a journal that may be damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// The row; of one that cannot be read, no bytes.
    pub entry: StoredEntry,
    /// What is wrong with it, as a clause; `None` for an intact row.
    pub fault: Option<String>,
}

/// A query for a page of conversations, sorted by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only ids after this one.
    pub after: Option<ConversationId>,
    /// Largest number of rows; 0 means 1000.
    pub count: usize,
    /// Only conversations in this state.
    pub open: Option<Open>,
    /// Whether to include the conversations of subagents.
    pub subagents: bool,
}

/// A store of journals.
///
/// Its contract: `crate::testing::contract::session_backend`.
pub trait SessionBackend: Send + Sync + 'static {
    /// Queues an append, in the order of the calls, and returns at once. The result goes to `done`.
    ///
    /// Appends of one conversation are stored in the order in which they were queued. After a
    /// failed append, the later ones of the same activation fail too, because the head is not the
    /// expected one.
    fn append(&self, append: Append);

    /// Returns the head; `Head::default()` for an unknown conversation.
    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>>;

    /// Loads a conversation; an unknown one is empty. Returns a snapshot only together with all
    /// entries after it.
    ///
    /// What is returned is what was appended, byte for byte: a store on a medium that can fail finds
    /// damage when it reads. A damaged snapshot is left out, in favour of the entries it replaces.
    ///
    /// # Errors
    /// `Damaged`, with the seq of the first damaged entry in the message.
    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>>;

    /// Loads a conversation for an activation, which will append to it. The default is
    /// [`SessionBackend::load`].
    ///
    /// A store of several hosts records with the first append of an activation which host owns the
    /// conversation, and refuses appends of others until the owner gives it up or is gone.
    ///
    /// # Errors
    /// `Elsewhere` while another host that is alive owns the conversation; those of `load`.
    fn load_to_own<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        self.load(scope)
    }

    /// Gives a conversation up: its activation has ended in order and appends nothing more. Returns
    /// at once. An append that is queued later takes it again. One whose round is open may stay with
    /// its host until that host is gone. The default is for stores of one host.
    fn release(&self, scope: &Scope) {
        let _ = scope;
    }

    /// Whether this host can still be sure that no other one took its conversations over. While it
    /// cannot, an activation starts no work before it has read the head of its journal. The default
    /// is for stores of one host.
    fn is_sure_to_own(&self) -> bool {
        true
    }

    /// Returns at most `count` entries after `after`, ignoring snapshots: for exports and
    /// projections. A store may return fewer, to bound the bytes of a page; none means that the
    /// journal ends at `after`. Of a damaged journal, the entries before the first damaged one.
    ///
    /// # Errors
    /// `Damaged` if the first entry to return is damaged or missing.
    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>>;

    /// Returns at most `count` rows after `after` as they are, damaged ones too, for exports and
    /// repairs of damaged journals. The default is for stores that cannot be damaged.
    fn salvage<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<Salvaged>, StoreError>> {
        Box::pin(async move {
            let entries = self.entries(scope, after, count).await?;
            let intact = |entry| Salvaged { entry, fault: None };
            Ok(entries.into_iter().map(intact).collect())
        })
    }

    /// Ends a journal at `to`, which must be the seq and epoch of one of its intact entries, or the
    /// default for none: then the conversation is deleted. Deletes the entries after `to`, damaged
    /// ones too, snapshots of later states and a failed mark; `open` is the state of the head row.
    /// Only for repairs, while no activation writes the conversation. The default is for stores that
    /// cannot be damaged.
    ///
    /// # Errors
    /// `NotFound` for an unknown conversation; `Unavailable` if entry `to` is not there.
    fn cut<'a>(
        &'a self,
        scope: &'a Scope,
        to: Head,
        open: Open,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let _ = (scope, to, open);
        Box::pin(std::future::ready(Err(StoreError::Unavailable {
            message: "this store does not cut journals".into(),
        })))
    }

    /// Stores a snapshot of the state after entry `upto`. A snapshot is a cache and may be lost. It
    /// is ignored for an unknown conversation, for a state that the journal has not reached, or if
    /// a newer snapshot is stored.
    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        upto: Seq,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Deletes a conversation and everything stored with it. Returns whether it existed. It is gone
    /// at once; a store may remove its bytes in pieces, between which it makes other changes. The
    /// answer comes after the last.
    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Lists a tenant's conversations.
    fn list<'a>(
        &'a self,
        tenant: &'a TenantId,
        query: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>>;

    /// Counts a tenant's conversations.
    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Returns the stored bytes of a tenant: entries and snapshots of all its conversations, as of
    /// the last acknowledged change. Called before every prompt, so a store should count once per
    /// tenant and maintain the count.
    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Adds to what a tenant has spent of its budget, and returns what it has spent in all, on every
    /// host of this store and before their restarts. An amount of 0 changes nothing. `None` means
    /// that the store keeps no such sum, as the default does: then a host counts from its start.
    ///
    /// # Errors
    /// `Unavailable`; the amount may be added or not.
    fn spend<'a>(
        &'a self,
        tenant: &'a TenantId,
        amount: Amount,
    ) -> BoxFuture<'a, Result<Option<Amount>, StoreError>> {
        let _ = (tenant, amount);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Whether the store keeps appended entries, which then count as stored bytes of their tenant.
    fn keeps_entries(&self) -> bool {
        true
    }

    /// Empties the entries up to `upto` and removes snapshots of states up to there. An emptied
    /// entry keeps its position and has no bytes. A later snapshot of a state up to `upto` is
    /// ignored. Does nothing for an unknown conversation. Costs what is not empty yet. No read sees
    /// a part of the entries emptied; a store may remove their bytes in pieces, between which it
    /// makes other changes. The answer comes after the last, and after a failure the next call
    /// removes what is left.
    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Lists the conversations of all tenants that are open in the given state, for the start of a
    /// host and its sweep. Sorted by scope, at most `count` (0 means 1000). With `due`, only those
    /// whose `wake_at` is not later; one without a `wake_at` is never due. Conversations marked as
    /// failed are left out, because they cannot resume, and so are those that another host owns.
    fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<Scope>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>>;

    /// Marks a conversation whose journal cannot be read, or clears the mark with `None`.
    /// `NotFound` for an unknown conversation.
    fn mark_failed<'a>(
        &'a self,
        scope: &'a Scope,
        reason: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Deletes rows of a tenant that no list returns and so no deletion by id reaches, and the sum of
    /// what it has spent. Called after the tenant's conversations were deleted one by one. Returns
    /// whether there were any conversations. The
    /// default is for stores that list all their rows.
    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        let _ = tenant;
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Overwrites deleted data on its medium. The default is for stores that keep no deleted data.
    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Writes something that changes no data, to learn whether writes succeed. A host asks in an
    /// outage in which nothing else is written. The default is for stores that cannot try: they say
    /// yes, and the next append decides.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    fn try_write(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The messages for receivers outside. `None` for a store that keeps none: then it ignores those
    /// of an append, as the default does.
    fn outbox(&self) -> Option<&dyn Outbox> {
        None
    }

    /// Writes queued appends and closes the store; later appends fail as unavailable. Appends that
    /// are not written `within` that time fail too: afterwards every `done` was called, or is about
    /// to be for one commit that hangs.
    fn close(&self, within: Duration) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Appends with a future for the result, for tools and tests.
pub trait AppendExt {
    /// Appends entries and waits until they are stored.
    fn append_and_wait(
        &self,
        scope: &Scope,
        expected: Head,
        epoch: Epoch,
        entries: Vec<StoredEntry>,
        open: Open,
    ) -> BoxFuture<'static, Result<(), AppendError>>;
}

impl<T: SessionBackend + ?Sized> AppendExt for T {
    fn append_and_wait(
        &self,
        scope: &Scope,
        expected: Head,
        epoch: Epoch,
        entries: Vec<StoredEntry>,
        open: Open,
    ) -> BoxFuture<'static, Result<(), AppendError>> {
        let (reply, answer) = oneshot::channel();
        let done: Done = Box::new(move |result| drop(reply.send(result)));
        let durability = Durability::Awaited;
        self.append(Append {
            scope: scope.clone(),
            expected,
            epoch,
            entries,
            open,
            wake_at: None,
            messages: Vec::new(),
            durability,
            done,
        });
        Box::pin(async move {
            answer.await.unwrap_or(Err(AppendError::Unavailable {
                message: "the store went away".into(),
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::SessionBackend) {}
        let _ = takes;
    }
}
