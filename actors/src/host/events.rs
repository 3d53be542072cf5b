//! Watching a conversation: its events across rounds, from a cursor or from now on, until the
//! [`Events`] are dropped.
//!
//! State: a cursor, events that were read ahead, and a position in the journal during catch-up.
//! Events come from the in-memory ring while the ring still holds the cursor. Otherwise they come
//! from the journal, merged with what the ring has left, until the watcher has caught up with the
//! ring.
//!
//! A watcher pulls and nothing is queued for it. A watcher that stops reading costs only the events
//! that it holds, and delays neither the conversation nor other watchers.
//!
//! Bounds: `WATCHER_BYTES_MAX` of events read ahead, or the events of one entry; as much again for
//! the position in the journal.

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    ConversationHandle, SendError,
    projection::{self, JournalPosition, ReadResult, STORE_RETRY},
};
use crate::{
    conversation::{LoadFailure, Ports},
    ids::{EventId, RoundId, Scope, Seq},
    limits::WATCHED_EVENTS_MAX,
    ports::{StoreError, StreamKey},
    reads::permit,
    stream::{EventKind, StreamEvent},
};

/// The position from which a watcher reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventsFrom {
    /// The start of the running round; the next event when no round runs.
    #[default]
    Now,
    /// After this event, usually the last one that the watcher saw. `0.0.0` yields all durable
    /// events, oldest first.
    After(EventId),
}

/// The events of a conversation, round after round. Dropping it cancels nothing, and holding it
/// does not keep the host running.
pub struct Events {
    ports: Ports,
    scope: Scope,
    stopped: CancellationToken,
    /// The tenant's places for reads of journals.
    reads: Arc<Semaphore>,
    after: EventId,
    /// The last journal entry whose events were returned; `None` before the first read of the
    /// journal.
    returned_upto: Option<Seq>,
    /// Where the next page of the journal begins, during catch-up.
    position: Option<JournalPosition>,
    ahead: VecDeque<Arc<StreamEvent>>,
    is_over: bool,
}

impl Events {
    /// Returns the next event. Waits while there is none, without activating the conversation.
    /// Returns `None` once the host has stopped (the next host on its store continues after the
    /// last event) and once the conversation is deleted.
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
            let is_stopped = self.stopped.is_cancelled(); // Read once more after the stop.
            let events = self.ports.events.clone();
            // The ring first. An error means that the ring no longer holds the cursor: catch up
            // from the journal, merged with what the ring has left.
            match events
                .read_conversation(
                    &self.scope,
                    self.after,
                    self.returned_upto,
                    WATCHED_EVENTS_MAX,
                )
                .await
            {
                Ok(batch) if !batch.is_empty() => {
                    self.ahead = projection::bounded(batch);
                    continue;
                }
                Ok(_) => {}
                Err(_) => match self.read_journal().await {
                    Ok(ReadResult::Events {
                        events: journal,
                        upto,
                        position,
                    }) => {
                        let kept = events
                            .kept(&self.scope, self.after, WATCHED_EVENTS_MAX)
                            .await;
                        let (ahead, is_all) = projection::joined(journal, upto, kept);
                        self.ahead = ahead;
                        if is_all {
                            self.returned_upto = Some(upto);
                        }
                        self.position = position;
                        if !self.ahead.is_empty() {
                            continue;
                        }
                    }
                    Ok(ReadResult::Snapshot { event, upto }) => {
                        (self.ahead, self.returned_upto) = (VecDeque::from([event]), Some(upto));
                        continue;
                    }
                    Ok(ReadResult::Gone) => {
                        self.is_over = true;
                        continue;
                    }
                    Err(
                        LoadFailure::NeedsNewerVersion(reason) | LoadFailure::Unreadable(reason),
                    ) => {
                        tracing::error!(conversation = %self.scope.conversation, reason, "a watcher cannot read the journal");
                        self.is_over = true;
                        continue;
                    }
                    Err(LoadFailure::Store(error)) if !is_stopped => {
                        tracing::debug!(%error, "a watcher waits for the store");
                        let _ = tokio::time::timeout(STORE_RETRY, self.stopped.cancelled()).await;
                        continue;
                    }
                    Err(LoadFailure::Store(_) | LoadFailure::Elsewhere(_)) => {}
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

    /// Reads the journal after the cursor, a few watchers of a tenant at a time.
    async fn read_journal(&mut self) -> Result<ReadResult, LoadFailure> {
        let permit = permit(&self.reads).await;
        let position = self.position.take();
        let sessions = &*self.ports.sessions;
        projection::read_after(sessions, &self.scope, &permit, self.after, position).await
    }

    /// Bytes of the events that were read ahead: the memory that a watcher holds when it stops
    /// reading.
    pub fn bytes_ahead(&self) -> usize {
        self.ahead.iter().map(|event| event.kind.size()).sum()
    }

    /// The cursor: the last event that was returned, or where the watcher began.
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
    /// Watches the conversation across rounds, until the [`Events`] are dropped. Does not activate
    /// the conversation, and costs no work while nothing happens.
    ///
    /// Durable events are returned exactly once, in the order of their ids. Ephemeral events are
    /// returned as far as the ring still has them, since the next `message` event replaces them. A
    /// cursor that is no longer valid (the conversation was reset since, was deleted and created
    /// again, or never got that far) yields exactly one `snapshot` event.
    ///
    /// # Errors
    /// `NotFound` for a conversation that is not stored, [`SendError`] for a failing store.
    pub async fn events(&self, from: EventsFrom) -> Result<Events, SendError> {
        let scope = self.scope()?;
        let (ports, stopped) = self.watching();
        let reads = self.reads()?;
        let (after, returned_upto) = match from {
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
                    Some(round) => start(&ports, &reads, &scope, round.id).await?,
                    None => None,
                };
                let after = after.unwrap_or(EventId {
                    epoch: state.epoch,
                    seq: state.head,
                    n: u32::MAX,
                });
                (after, Some(after.seq))
            }
        };
        Ok(Events {
            ports,
            scope,
            stopped,
            reads,
            after,
            returned_upto,
            position: None,
            ahead: VecDeque::new(),
            is_over: false,
        })
    }
}

/// The cursor before the first event of a round.
async fn start(
    ports: &Ports,
    reads: &Arc<Semaphore>,
    scope: &Scope,
    round: RoundId,
) -> Result<Option<EventId>, SendError> {
    let key = StreamKey {
        scope: scope.clone(),
        round,
    };
    let kept = ports
        .events
        .read(&key, None, WATCHED_EVENTS_MAX)
        .await
        .unwrap_or_default();
    if let Some(first) = kept
        .iter()
        .find(|event| matches!(event.kind, EventKind::RoundStarted {}))
    {
        return Ok(Some(projection::before(first.id.epoch, first.id.seq)));
    }
    let permit = permit(reads).await;
    match projection::start_of(&*ports.sessions, scope, &permit, round).await {
        Ok(start) => Ok(start.map(|(epoch, seq)| projection::before(epoch, seq))),
        Err(failure) => Err(failure.into()),
    }
}
