//! What a watcher of a conversation holds: its events over the borders of rounds, from a cursor or from now on, until it is dropped.
//!
//! State: a cursor, events that were read ahead, and a place in the journal while it tells. The ring tells while it has the cursor, else the journal together with
//! what the ring still has, then the ring again.
//! Nothing is queued for a watcher: it pulls, so one that never reads costs what it holds and stalls nobody (FAULTS F17).
//!
//! Bounds: `WATCHER_BYTES_MAX` read ahead, or one entry's events; as much again for the place.

use std::{collections::VecDeque, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::{
    ConversationHandle, SendError,
    projection::{self, Place, STORE_RETRY, Told},
};
use crate::{
    conversation::{LoadFailure, Ports},
    ids::{EventId, RoundId, Scope, Seq},
    limits::WATCHED_EVENTS_MAX,
    ports::{StoreError, StreamKey},
    stream::{EventKind, StreamEvent},
};

/// Where a watcher begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventsFrom {
    /// With the running round from its start; with what comes next when none runs.
    #[default]
    Now,
    /// Behind the last event that it saw. `0.0.0` is behind none: all durable events are told, the oldest first.
    After(EventId),
}

/// A conversation as its watchers see it, round after round. Dropping it cancels nothing, and holding it keeps no host alive.
pub struct Events {
    ports: Ports,
    scope: Scope,
    stopped: CancellationToken,
    after: EventId,
    /// The journal was told up to this entry.
    told: Option<Seq>,
    /// Where the next page of the journal begins, for one that has far to go.
    place: Option<Place>,
    ahead: VecDeque<Arc<StreamEvent>>,
    is_over: bool,
}

impl Events {
    /// The next event. Waits while nothing happens, and wakes nobody; `None` once the host has stopped, when the next host on its store
    /// goes on behind the last event, and once the conversation is deleted.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<StreamEvent>> {
        loop {
            if let Some(event) = self.ahead.pop_front() {
                self.after = event.id;
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            let is_stopped = self.stopped.is_cancelled(); // Before the look: what was told until the stop is still read.
            let events = self.ports.events.clone();
            match events.read_conversation(&self.scope, self.after, self.told, WATCHED_EVENTS_MAX).await {
                Ok(batch) if !batch.is_empty() => {
                    self.ahead = projection::bounded(batch);
                    continue;
                }
                Ok(_) => {}
                Err(_) => match projection::read_after(&*self.ports.sessions, &self.scope, self.after, self.place.take()).await {
                    Ok(Told::Events { events: told, upto, place }) => {
                        let kept = events.kept(&self.scope, self.after, WATCHED_EVENTS_MAX).await;
                        let (ahead, is_all) = projection::joined(told, upto, kept);
                        self.ahead = ahead;
                        if is_all {
                            self.told = Some(upto);
                        }
                        self.place = place;
                        if !self.ahead.is_empty() {
                            continue;
                        }
                    }
                    Ok(Told::Snapshot { event, upto }) => {
                        (self.ahead, self.told) = (VecDeque::from([event]), Some(upto));
                        continue;
                    }
                    Ok(Told::Gone) => {
                        self.is_over = true;
                        continue;
                    }
                    Err(LoadFailure::Unreadable(reason)) => {
                        tracing::error!(conversation = %self.scope.conversation, reason, "a watcher cannot be told on");
                        self.is_over = true;
                        continue;
                    }
                    Err(LoadFailure::Store(error)) if !is_stopped => {
                        tracing::debug!(%error, "a watcher waits for the store");
                        let _ = tokio::time::timeout(STORE_RETRY, self.stopped.cancelled()).await;
                        continue;
                    }
                    Err(LoadFailure::Store(_)) => {}
                },
            }
            if is_stopped {
                return None;
            }
            tokio::select! {
                biased;
                () = events.watch(&self.scope, self.after) => {}
                () = self.stopped.cancelled() => {}
            }
        }
    }

    /// Bytes of the events that were read ahead: all that a watcher costs that has stopped reading.
    pub fn bytes_ahead(&self) -> usize {
        self.ahead.iter().map(|event| event.kind.size()).sum()
    }

    /// The cursor: the last event that was told, or where the watcher began.
    pub fn after(&self) -> EventId {
        self.after
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Events({} after {})", self.scope, self.after)
    }
}

impl ConversationHandle {
    /// Watches the conversation over many rounds, until the [`Events`] are dropped. Wakes nothing, and costs nothing while nothing happens
    /// (DESIGN §4.6).
    ///
    /// Durable events are told exactly once and in order of id; ephemeral ones as far as the ring has them, since the next `message`
    /// replaces them. A cursor that is of no use (the conversation was emptied since, deleted and made anew, or never was so far) is
    /// answered by exactly one `snapshot`.
    ///
    /// # Errors
    /// `NotFound` for a conversation of which nothing is stored, [`SendError`] for a failing store.
    pub async fn events(&self, from: EventsFrom) -> Result<Events, SendError> {
        let scope = self.scope()?;
        let (ports, stopped) = self.watching();
        let (after, told) = match from {
            EventsFrom::After(after) => {
                if ports.sessions.head(&scope).await?.seq == Seq(0) {
                    return Err(StoreError::NotFound.into());
                }
                (after, None)
            }
            EventsFrom::Now => {
                let state = self.state().await?;
                if state.head == Seq(0) {
                    return Err(StoreError::NotFound.into());
                }
                let after = match &state.round {
                    Some(round) => start(&ports, &scope, round.id).await?,
                    None => None,
                };
                let after = after.unwrap_or(EventId { epoch: state.epoch, seq: state.head, n: u32::MAX });
                (after, Some(after.seq))
            }
        };
        Ok(Events { ports, scope, stopped, after, told, place: None, ahead: VecDeque::new(), is_over: false })
    }
}

/// The cursor before the first event of a round.
async fn start(ports: &Ports, scope: &Scope, round: RoundId) -> Result<Option<EventId>, SendError> {
    let key = StreamKey { scope: scope.clone(), round };
    let kept = ports.events.read(&key, None, WATCHED_EVENTS_MAX).await.unwrap_or_default();
    if let Some(first) = kept.iter().find(|event| matches!(event.kind, EventKind::RoundStarted {})) {
        return Ok(Some(projection::before(first.id.epoch, first.id.seq)));
    }
    match projection::start_of(&*ports.sessions, scope, round).await {
        Ok(start) => Ok(start.map(|(epoch, seq)| projection::before(epoch, seq))),
        Err(failure) => Err(failure.into()),
    }
}
