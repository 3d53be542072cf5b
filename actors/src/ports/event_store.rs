//! The store of event streams, from which watchers read.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};

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

    /// Returns a handle that writes to one stream. It finds the stream once, so that each event
    /// costs no look-up. It creates no stream before its first append, and stays valid if the stream
    /// expires or is forgotten: its next append then starts a new stream under the key.
    fn open(self: Arc<Self>, stream: &StreamKey) -> Box<dyn StreamSink>;

    /// Returns a handle that reads one stream. It finds the stream once, so that a reader that keeps
    /// up pays no look-up for each event. It creates no stream.
    fn follow(self: Arc<Self>, stream: &StreamKey) -> Box<dyn StreamSource>;

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

    /// Returns the bytes that the streams of a tenant take: their kept events, and what a stream takes
    /// itself (less than a kilobyte).
    fn bytes(&self, tenant: &TenantId) -> usize;

    /// Frees some of what has expired, and returns whether there is more. The host calls it every
    /// second, so that a host without traffic frees what its last rounds left. A store that expires
    /// its events elsewhere has nothing to do.
    fn sweep(&self) -> bool {
        false
    }
}

/// A writer of one stream ([`EventStore::open`]). Its methods return at once: a remote store keeps
/// what they take and sends it later, in the order of the calls.
pub trait StreamSink: Send + 'static {
    /// Appends events as [`EventStore::append`] does: all of them become readable together.
    /// `events` is then empty and keeps its allocation for the next call.
    ///
    /// # Errors
    /// As [`EventStore::append`]. The events are lost.
    fn append(&mut self, events: &mut Vec<Arc<StreamEvent>>) -> Result<(), EventStoreError>;

    /// Adds text to the newest event, whose id becomes `id`, if that event has text of this kind
    /// and no reader has received it. Returns whether it did; a store may always refuse. Readers
    /// that keep up are not affected, and for others one event replaces many.
    fn extend(&mut self, id: EventId, kind: TextKind, text: &str) -> bool {
        let _ = (id, kind, text);
        false
    }

    /// Whether the store keeps or reads ephemeral events from now on. If not, the writer does not
    /// build them.
    fn takes_ephemeral(&self) -> bool {
        true
    }
}

/// A reader of one stream ([`EventStore::follow`]).
pub trait StreamSource: Send + Sync + 'static {
    /// Moves at most `count` events strictly after `after` to the end of `events`, or from the
    /// start if `after` is `None`. Waits while the stream is running and has none.
    ///
    /// Returns the status from before the read. If it is not [`StreamStatus::Running`] and `count`
    /// was not reached, no event is left. If it is, at least one event was moved.
    ///
    /// # Errors
    /// As [`EventStore::read`].
    ///
    /// # Cancel safety
    /// A poll that is not repeated loses nothing. Dropping the source ends the wait.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        after: Option<EventId>,
        count: usize,
        events: &mut VecDeque<Arc<StreamEvent>>,
    ) -> Poll<Result<StreamStatus, EventStoreError>>;
}

/// The kind of text in an event that [`StreamSink::extend`] may extend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// [`EventKind::TextDelta`](crate::stream::EventKind::TextDelta).
    Text,
    /// [`EventKind::ThinkingDelta`](crate::stream::EventKind::ThinkingDelta).
    Thinking,
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_ports_are_dyn_compatible() {
        fn takes(
            _: &dyn super::EventStore,
            _: &dyn super::StreamSink,
            _: &dyn super::StreamSource,
        ) {
        }
        let _ = takes;
    }
}
