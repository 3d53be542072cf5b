//! What a watcher of a conversation holds: its events over the borders of rounds, from a cursor or from now on, until it is dropped.

use std::{collections::VecDeque, sync::Arc};

use super::{ConversationHandle, Reply, SendError};
use crate::{ids::EventId, ports::StoreError, stream::StreamEvent};

/// Where a watcher begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventsFrom {
    /// With the running round from its start; with what comes next when none runs.
    #[default]
    Now,
    /// Behind the last event that it saw.
    After(EventId),
}

/// A conversation as its watchers see it, round after round. Dropping it cancels nothing.
pub struct Events {
    ahead: VecDeque<Arc<StreamEvent>>,
    round: Option<Reply>,
}

impl Events {
    /// The next event. Waits while nothing happens, and wakes nobody; `None` once the host has stopped: the next host on its store goes
    /// on after the last event.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<StreamEvent>> {
        match self.ahead.pop_front() {
            Some(event) => Some(event),
            None => self.round.as_mut()?.next().await,
        }
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Events({:?})", self.round)
    }
}

impl ConversationHandle {
    /// Watches the conversation over many rounds, until the [`Events`] are dropped. Wakes nothing, and costs nothing while nothing happens
    /// (DESIGN §4.6).
    ///
    /// A cursor that can be told of no more (the conversation was emptied, deleted and made anew, or never was so far) is answered by
    /// exactly one `snapshot`.
    ///
    /// # Errors
    /// `NotFound` for a conversation of which nothing is stored, [`SendError`] for a failing store.
    pub async fn events(&self, from: EventsFrom) -> Result<Events, SendError> {
        let state = self.state().await?;
        if state.head.0 == 0 {
            return Err(StoreError::NotFound.into());
        }
        let round = state.round.map(|round| self.watch(round.id)).transpose()?;
        let round = match from {
            EventsFrom::Now => round,
            EventsFrom::After(after) => round.map(|round| round.after(after)),
        };
        Ok(Events { ahead: VecDeque::new(), round })
    }
}
