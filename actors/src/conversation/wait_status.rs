//! What a conversation waits for and how large it is, in shared memory: reading the status sends no
//! mail and wakes no conversation.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use serde::{Deserialize, Serialize};

use crate::{
    limits::CONVERSATION_READS_MAX, model_gateway::ProviderWait, ports::Clock, time::Timestamp,
};

/// What a conversation waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// Nothing: no round is open.
    #[default]
    Nothing,
    /// A person's decision about tool calls.
    Person {
        /// The calls that await approval.
        tool_call_ids: Vec<String>,
        /// When the first of them counts as denied; `None` if unknown.
        expires_at: Option<Timestamp>,
    },
    /// The caller's results of calls of its own tools.
    Client {
        /// The calls that wait.
        tool_call_ids: Vec<String>,
        /// When the first of them ends without a result; `None` if unknown.
        expires_at: Option<Timestamp>,
    },
    /// The tenant already runs as many rounds at once as its quota allows.
    TenantTurn {
        /// The position in the tenant's queue, from 1; 0 if unknown.
        position: usize,
    },
    /// The gateway of the model's provider admits no call now.
    Provider {
        /// The position in the gateway's queue, from 1; 0 if unknown.
        position: usize,
        /// The limit that holds the call back.
        reason: ProviderWait,
    },
    /// A model call failed and will be retried.
    Retry {
        /// The number of the coming attempt, from 1.
        attempt: u32,
        /// The delay before the attempt, in milliseconds.
        delay_ms: u64,
        /// The error code of the failed attempt.
        reason: String,
    },
    /// The model generates its answer.
    Model,
    /// Tools run.
    Tools {
        /// The names of the tools, in the order of their calls.
        names: Vec<String>,
    },
    /// The store, which is unavailable.
    Store,
    /// The context is being measured or compacted.
    Compaction,
}

impl WaitsFor {
    /// Whether both values describe one wait, perhaps at another position of the same queue.
    pub(crate) fn is_same_queue(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// The status slot: written by the shell and its model call, read by
/// [`crate::host::ConversationHandle::status`].
#[derive(Debug, Default)]
pub(crate) struct WaitStatus {
    waits_for: Mutex<Option<(WaitsFor, Timestamp)>>,
    /// Bytes of the conversation's history in memory.
    history_bytes: AtomicUsize,
    /// Reads in the mailbox, or behind entries that are not stored yet.
    reads: AtomicUsize,
}

/// The place of a read among those that wait for one conversation. Dropping it frees the place.
#[derive(Debug)]
pub struct ReadPlace(Arc<WaitStatus>);

impl Drop for ReadPlace {
    fn drop(&mut self) {
        self.0.reads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WaitStatus {
    /// Sets what the conversation waits for, from now on. The start time is kept if the wait is the
    /// same or only its position in the queue changed.
    pub(crate) fn set(&self, waits_for: WaitsFor, clock: &dyn Clock) {
        let mut held = self.waits_for.lock();
        let since = held
            .as_ref()
            .filter(|(before, _)| before.is_same_queue(&waits_for))
            .map_or_else(|| clock.now(), |(_, since)| *since);
        *held = Some((waits_for, since));
    }

    /// Clears the status: readers derive it from the journal again.
    pub(crate) fn clear(&self) {
        *self.waits_for.lock() = None;
    }

    /// Takes a place for a read; `None` if as many as allowed wait already.
    pub(crate) fn begin_read(self: &Arc<Self>) -> Option<ReadPlace> {
        let place = ReadPlace(self.clone());
        let waiting = self.reads.fetch_add(1, Ordering::Relaxed);
        (waiting < CONVERSATION_READS_MAX).then_some(place)
    }

    /// Notes the bytes of the conversation's history.
    pub(crate) fn note_history(&self, bytes: usize) {
        self.history_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The bytes of the conversation's history, as of its last round.
    pub(crate) fn history_bytes(&self) -> usize {
        self.history_bytes.load(Ordering::Relaxed)
    }

    /// The last status and when that wait began; `None` after [`WaitStatus::clear`].
    pub(crate) fn get(&self) -> Option<(WaitsFor, Timestamp)> {
        self.waits_for.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_wait_for_a_conversation_are_bounded() {
        let status = Arc::new(WaitStatus::default());

        let mut places: Vec<_> = std::iter::from_fn(|| status.begin_read()).collect();
        assert_eq!(places.len(), CONVERSATION_READS_MAX);
        assert!(status.begin_read().is_none());

        places.pop();
        assert!(
            status.begin_read().is_some(),
            "an answered read frees its place"
        );
    }
}
