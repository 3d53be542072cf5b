//! Where journals live. Append-only, ordered, guarded by epoch and head; the memory of everything a conversation is.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::BoxFuture;
use crate::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    stream::Open,
    time::Timestamp,
};

/// Whether somebody waits for an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Somebody waits: commit at once.
    Awaited,
    /// Nobody waits: ride along with another commit, 5 ms at most.
    Unwatched,
}

/// Told exactly once what became of an append, on any thread; must not block.
pub type Done = Box<dyn FnOnce(Result<(), AppendError>) + Send>;

/// A batch of entries of one conversation; stored whole or not at all.
pub struct Append {
    /// Whose journal.
    pub scope: Scope,
    /// Where the journal must end for this to be stored.
    pub expected: Head,
    /// The writer's epoch: `expected.epoch` inside a life, one more in a life's first append; any above 0 in a journal's first.
    pub epoch: Epoch,
    /// The entries, with seqs that follow `expected.seq` one by one. Not empty.
    pub entries: Vec<StoredEntry>,
    /// What the head row says after this.
    pub open: Open,
    /// When a sweep should look at the conversation again (a parked round's deadline).
    pub wake_at: Option<Timestamp>,
    /// Whether somebody waits.
    pub durability: Durability,
    /// Who is told.
    pub done: Done,
}

impl std::fmt::Debug for Append {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Append({} {:?} +{})", self.scope, self.expected, self.entries.len())
    }
}

impl Append {
    /// Judges the guards of this append on a journal that ends at `found`, and tells where it would end after it. The
    /// one place of that rule: adapters call it inside of their transaction.
    ///
    /// # Errors
    /// `Conflict` when the journal ends elsewhere than expected, the epoch is neither the expected one nor the next
    /// (a journal may begin with any), or the seqs do not follow one by one.
    pub fn judge(&self, found: Head) -> Result<Head, AppendError> {
        let conflict = || AppendError::Conflict { scope: self.scope.clone(), found };
        let mut seq = self.expected.seq;
        let follows = self.entries.iter().all(|entry| {
            let last = std::mem::replace(&mut seq, entry.seq);
            last.0.checked_add(1) == Some(entry.seq.0)
        });
        let is_first = self.expected == Head::default() && self.epoch > Epoch(0);
        let may_write = is_first || self.epoch == self.expected.epoch || self.expected.epoch.0.checked_add(1) == Some(self.epoch.0);
        if found == self.expected && may_write && follows && !self.entries.is_empty() {
            Ok(Head { epoch: self.epoch, seq })
        } else {
            Err(conflict())
        }
    }

    /// Bytes that this append roughly takes in a queue.
    pub fn size(&self) -> usize {
        self.entries.iter().map(|entry| entry.bytes.len().saturating_add(64)).fold(256, usize::saturating_add)
    }
}

/// Why an append was not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The journal ends elsewhere: another life writes it, or wrote since.
    #[error("the journal of {scope} ends at epoch {} seq {}, not where this life left it", found.epoch, found.seq)]
    Conflict {
        /// Whose journal.
        scope: Scope,
        /// Where it ends.
        found: Head,
    },
    /// The store said no, or nothing; it may or may not be stored. Read the head to know.
    #[error("the store is not available: {message}")]
    Unavailable {
        /// What happened, without paths.
        message: String,
    },
}

/// Why a read failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached or is broken.
    #[error("the store is not available: {message}")]
    Unavailable {
        /// What happened, without paths.
        message: String,
    },
    /// A row cannot be read.
    #[error("the stored data of {scope} is damaged: {message}")]
    Damaged {
        /// Whose.
        scope: Scope,
        /// What is wrong.
        message: String,
    },
    /// The store was written by a newer program.
    #[error("the store was written by a newer version of callboard (schema {found}, this one knows {known}); use that version")]
    NewerSchema {
        /// The schema found.
        found: u32,
        /// The newest one known.
        known: u32,
    },
    /// There is no such conversation.
    #[error("conversation not found")]
    NotFound,
}

impl StoreError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "store_unavailable",
            Self::Damaged { .. } => "store_damaged",
            Self::NewerSchema { .. } => "store_newer_schema",
            Self::NotFound => "not_found",
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// One row of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Which conversation.
    pub conversation: ConversationId,
    /// Where its journal ends.
    pub head: Head,
    /// What it waits for.
    pub open: Open,
    /// When a sweep should look at it.
    pub wake_at: Option<Timestamp>,
    /// When its first entry was stored.
    pub created_at: Timestamp,
    /// When its last entry was stored.
    pub updated_at: Timestamp,
    /// Set once its journal could not be read.
    pub failed: Option<String>,
}

/// What to list, in order of conversation id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Ids after this one.
    pub after: Option<ConversationId>,
    /// At most this many; 0 means 1000.
    pub count: usize,
    /// Only those in this state.
    pub open: Option<Open>,
    /// Also the conversations of subagents, which are left out otherwise (DESIGN §4.7).
    pub subagents: bool,
}

/// A store of journals.
///
/// Its contract: `crate::testing::contract::session_backend`.
pub trait SessionBackend: Send + Sync + 'static {
    /// Takes an append into the queue in the order of calls, then tells `done`. Returns at once.
    ///
    /// Appends of one conversation are stored in the order they were given. After one failed, later ones of the same
    /// life fail too, since the head is not where they expect it.
    fn append(&self, append: Append);

    /// Reads the head; `Head::default()` for an unknown conversation.
    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>>;

    /// Reads a conversation; an unknown one is empty (REQUIREMENTS B-05). A snapshot is returned only with all entries after it.
    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>>;

    /// Reads all entries after `after`, at most `count`, whatever snapshots exist: for exports and projections.
    fn entries<'a>(&'a self, scope: &'a Scope, after: Seq, count: usize) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>>;

    /// Keeps a snapshot of the state after entry `upto`. A cache: may be lost; one of a state that the journal has not
    /// reached, of an unknown conversation, or older than the kept one is ignored.
    fn snapshot<'a>(&'a self, scope: &'a Scope, upto: Seq, bytes: Bytes) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes a conversation with everything stored of it; tells whether there was one.
    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>>;

    /// Lists a tenant's conversations.
    fn list<'a>(&'a self, tenant: &'a TenantId, query: ListQuery) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>>;

    /// Counts a tenant's conversations.
    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Bytes that are stored of a tenant: the entries and snapshots of all its conversations, as of the last change that was acknowledged.
    /// Asked before every prompt: a store counts a tenant once and keeps the count.
    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Whether appended entries stay and count as stored bytes of their tenant.
    fn keeps_entries(&self) -> bool {
        true
    }

    /// Empties the entries up to `upto` and drops a snapshot of a state that they led to. An emptied entry keeps its place and has no
    /// bytes; a later snapshot of a state up to `upto` is ignored. Does nothing for an unknown conversation.
    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Lists conversations of all tenants that are open in the given state, for the start and the sweep (DESIGN §4.3),
    /// in order of scope, at most `count` (0 means 1000). With `due` only those whose `wake_at` is not later; one
    /// without a `wake_at` is never due. Those marked failed are left out: nothing could be resumed.
    fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<Scope>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>>;

    /// Marks a conversation whose journal cannot be read, or clears the mark; `NotFound` for an unknown one.
    fn mark_failed<'a>(&'a self, scope: &'a Scope, reason: Option<String>) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes what no list shows of a tenant whose conversations were deleted one by one: rows that no id of ours reaches. A store all of
    /// whose rows can be listed has nothing to do. Tells whether there was something.
    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        let _ = tenant;
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Makes what was deleted unreadable where it lay. A store that keeps nothing of it has nothing to do.
    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Writes what is queued and closes; later appends are unavailable. What is not written `within` that time is told
    /// so: after this every `done` has been called, or is about to be for the one commit that hangs.
    fn close(&self, within: Duration) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// Appends with an answer to await, for tools and tests.
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
        let (tell, told) = oneshot::channel();
        let done: Done = Box::new(move |result| drop(tell.send(result)));
        let durability = Durability::Awaited;
        self.append(Append { scope: scope.clone(), expected, epoch, entries, open, wake_at: None, durability, done });
        Box::pin(async move { told.await.unwrap_or(Err(AppendError::Unavailable { message: "the store went away".into() })) })
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
