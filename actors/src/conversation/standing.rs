//! What a life last said of what it waits for: a few bytes that it shares with whoever asks, so that asking is no mail and wakes nobody.

use std::sync::{Mutex, PoisonError};

use crate::{
    host::WaitsFor,
    ports::{Clock, Timestamp},
};

/// Written by the shell and by its model call, read by [`crate::host::ConversationHandle::status`].
#[derive(Debug, Default)]
pub(crate) struct Standing(Mutex<Option<(WaitsFor, Timestamp)>>);

impl Standing {
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
