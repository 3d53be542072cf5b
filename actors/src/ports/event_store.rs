//! The store of event streams, from which watchers read.

use std::sync::Arc;

use super::BoxFuture;
use crate::{
    ids::{EventId, RoundId, Scope, Seq, TenantId},
    stream::StreamEvent,
};

/// Key of a stream: one round of one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct StreamKey {
    /// Tenant and conversation.
    pub scope: Scope,
    pub round: RoundId,
}

/// Status of a stream. Unknown and expired streams have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStatus {
    /// The stream may grow.
    Running,
    /// Ended with `round_finished`.
    Complete,
    /// Ended with `error`.
    Failed,
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventStoreError {
    /// The stream is unknown or expired.
    #[error("the event stream is unknown or expired")]
    Unknown,
    /// Events after the cursor were dropped.
    #[error("events after the cursor are no longer kept")]
    Expired,
    /// The store cannot be reached.
    #[error("the event store is not available: {message}")]
    Unavailable {
        /// The store's own description, without paths or keys.
        message: String,
    },
}

/// A store of event streams. Its contract: `crate::testing::contract::event_store`.
pub trait EventStore: Send + Sync + 'static {
    /// Appends events in order of id. The first append creates the stream. A full store may drop
    /// ephemeral events.
    fn append(
        &self,
        stream: &StreamKey,
        events: Vec<Arc<StreamEvent>>,
    ) -> BoxFuture<'_, Result<(), EventStoreError>>;

    /// Returns at most `count` events strictly after `after`, or from the start if `after` is
    /// `None`.
    ///
    /// # Errors
    /// `Expired` when a durable event after the cursor was dropped or never stored; a stream that
    /// starts with `turn_restarted` continues one of a lost store. Dropped ephemeral events are
    /// skipped, because the next durable event replaces them. `Unknown`.
    fn read(
        &self,
        stream: &StreamKey,
        after: Option<EventId>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>>;

    /// Waits until the stream has an event after `after`, has ended, or is unknown. Returns at once
    /// if that is already so. Spurious returns are allowed: a watcher that then reads nothing waits
    /// again.
    fn changed(&self, stream: &StreamKey, after: Option<EventId>) -> BoxFuture<'_, ()>;

    /// Returns the status; `None` for an unknown or expired stream. A watcher asks for the status
    /// before it reads: after a status other than `Running`, one read to the end returns every
    /// event.
    fn get_status(
        &self,
        stream: &StreamKey,
    ) -> BoxFuture<'_, Result<Option<StreamStatus>, EventStoreError>>;

    /// Ends a stream as complete. Its retention time starts.
    fn mark_complete(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>>;

    /// Ends a stream as failed. Its retention time starts.
    fn mark_failed(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>>;

    /// Returns at most `count` events of all kept streams of a conversation strictly after `after`,
    /// in order of id. `seen_upto` is the last journal entry that the reader has seen, whatever its
    /// cursor.
    ///
    /// # Errors
    /// `Expired` when an event after the cursor may exist in the journal only. The reader then
    /// reads the journal and calls again with its last entry as `seen_upto`. Without `seen_upto`,
    /// also for a cursor beyond the last event. `Unknown` when no stream was ever kept.
    fn read_conversation(
        &self,
        scope: &Scope,
        after: EventId,
        seen_upto: Option<Seq>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>>;

    /// Like [`EventStore::read_conversation`], without an error for missing events. For a reader
    /// that takes durable events from the journal and wants the other events that are kept.
    fn kept<'a>(
        &'a self,
        scope: &'a Scope,
        after: EventId,
        count: usize,
    ) -> BoxFuture<'a, Vec<Arc<StreamEvent>>>;

    /// Waits until a stream of the conversation has an event after `after`, or the conversation is
    /// forgotten. Returns at once if there is such an event. Also waits for a conversation without
    /// streams; the store frees what the wait needs with the last watcher.
    fn watch(&self, scope: &Scope, after: EventId) -> BoxFuture<'_, ()>;

    /// Removes all streams of a deleted conversation.
    fn forget(&self, scope: &Scope);

    /// Returns the bytes of the kept events of a tenant's conversations.
    fn bytes(&self, tenant: &TenantId) -> usize;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::EventStore) {}
        let _ = takes;
    }
}
