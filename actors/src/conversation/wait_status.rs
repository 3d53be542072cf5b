//! What a conversation last reported to wait for: shared memory, so that asking costs no mail and wakes nothing.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::{model_gateway::ProviderWait, ports::Clock, time::Timestamp};

/// What a conversation waits for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// Nothing: no round is open.
    #[default]
    Nothing,
    /// Answers of people.
    Person {
        /// The calls that need one.
        tool_call_ids: Vec<String>,
        /// When no answer counts as no.
        expires_at: Option<Timestamp>,
    },
    /// Its tenant runs as many turns as it may.
    TenantTurn {
        /// Its place in the tenant's queue, from 1; 0 if unknown.
        position: usize,
    },
    /// Its model's provider takes no call now.
    Provider {
        /// Its place in the queue, from 1; 0 if unknown.
        position: usize,
        /// Which bound holds it back.
        reason: ProviderWait,
    },
    /// A model call failed and is tried again.
    Retry {
        /// Which attempt comes, from 1.
        attempt: u32,
        /// The pause before it, in milliseconds.
        delay_ms: u64,
        /// The code of the failure.
        reason: String,
    },
    /// The model speaks, or thinks.
    Model,
    /// Tools run.
    Tools {
        /// Their names, in order of calls.
        names: Vec<String>,
    },
    /// Its store.
    Store,
    /// Its context is measured or made smaller.
    Compaction,
}

impl WaitsFor {
    /// Whether the other is a later word of the same wait.
    pub(crate) fn is_same_queue(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// Written by the shell and by its model call, read by [`crate::host::ConversationHandle::status`].
#[derive(Debug, Default)]
pub(crate) struct WaitStatus(Mutex<Option<(WaitsFor, Timestamp)>>);

impl WaitStatus {
    /// Says what it waits for since now. Saying the same again, or of another place in the same queue, begins no new wait.
    pub(crate) fn set(&self, waits_for: WaitsFor, clock: &dyn Clock) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = held.as_ref().filter(|(before, _)| before.is_same_queue(&waits_for)).map_or_else(|| clock.now(), |(_, since)| *since);
        *held = Some((waits_for, since));
    }

    /// Says that its journal tells enough.
    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What it last said, and since when.
    pub(crate) fn get(&self) -> Option<(WaitsFor, Timestamp)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
