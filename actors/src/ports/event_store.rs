//! Where the events of a round's stream live for those who watch it (DESIGN §4.6, REQUIREMENTS B-06..B-11).

use std::sync::Arc;

use super::BoxFuture;
use crate::{
    ids::{EventId, RoundId, Scope, Seq, TenantId},
    stream::StreamEvent,
};

/// Names a stream: one round of one conversation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// Whose conversation.
    pub scope: Scope,
    /// Which round.
    pub round: RoundId,
}

/// How far a stream is. An unknown or expired stream has none (B-08, B-09).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamStatus {
    /// More may come.
    Running,
    /// Ended with `round_finished`.
    Complete,
    /// Ended with `error`.
    Failed,
}

/// Why a verb failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventStoreError {
    /// The stream is unknown or expired.
    #[error("the event stream is unknown or expired")]
    Unknown,
    /// Events after the cursor were already dropped.
    #[error("events after the cursor are no longer kept")]
    Expired,
    /// The store cannot be reached.
    #[error("the event store is not available: {message}")]
    Unavailable {
        /// What happened.
        message: String,
    },
}

/// A store of streams. Its contract: `crate::testing::contract::event_store`.
pub trait EventStore: Send + Sync + 'static {
    /// Appends events in order of id; the stream begins with its first append. Ephemeral ones may be dropped when it is full.
    fn append(&self, stream: &StreamKey, events: Vec<Arc<StreamEvent>>) -> BoxFuture<'_, Result<(), EventStoreError>>;

    /// Reads at most `count` events strictly after `after`; from the start without one.
    ///
    /// # Errors
    /// `Expired` when a durable event after the cursor was dropped or never seen: a stream whose first event is
    /// `turn_restarted` goes on from a store that is gone. Dropped ephemeral events are skipped, since the next durable
    /// one replaces them. `Unknown`.
    fn read(
        &self,
        stream: &StreamKey,
        after: Option<EventId>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>>;

    /// Waits until the stream has an event after `after`, or has ended, or is unknown: at once if so already. It may return for less: who
    /// then reads nothing waits again.
    fn changed(&self, stream: &StreamKey, after: Option<EventId>) -> BoxFuture<'_, ()>;

    /// How far it is; `None` when unknown or expired. A watcher asks before it reads: what was appended before the end
    /// is then read after it.
    fn get_status(&self, stream: &StreamKey) -> BoxFuture<'_, Result<Option<StreamStatus>, EventStoreError>>;

    /// Ends a stream well; from now on it ages.
    fn mark_complete(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>>;

    /// Ends a stream badly; from now on it ages.
    fn mark_failed(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>>;

    /// Reads the events of all kept streams of a conversation strictly after `after`, in order of id, at most `count`. `told`: up to
    /// which entry the reader knows the journal, whatever its cursor.
    ///
    /// # Errors
    /// `Expired` when something between the cursor and what is kept may be known to the journal alone: a reader of the journal comes
    /// back with what it was `told`. Without `told` also for a cursor beyond the last event. `Unknown` when nothing was ever kept.
    fn read_conversation(
        &self,
        scope: &Scope,
        after: EventId,
        told: Option<Seq>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>>;

    /// Reads as [`EventStore::read_conversation`], with no word of what is missing: for who reads the durable events from the journal,
    /// and wants what else is kept.
    fn kept<'a>(&'a self, scope: &'a Scope, after: EventId, count: usize) -> BoxFuture<'a, Vec<Arc<StreamEvent>>>;

    /// Waits until a stream of the conversation has an event after `after`: at once if so already; also when nothing is known of it yet.
    /// Returns as well when the conversation is forgotten. What this holds is let go with the last who waits.
    fn watch(&self, scope: &Scope, after: EventId) -> BoxFuture<'_, ()>;

    /// Lets go of all streams of a conversation that was deleted.
    fn forget(&self, scope: &Scope);

    /// Bytes of the events that are kept for a tenant's conversations.
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
