//! A round as it is told: its events one by one, and its end. Holding a watch keeps no host alive.

use std::{collections::VecDeque, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::{
    OutcomeError,
    projection::{self, bounded},
};
use crate::{
    conversation::Ports,
    ids::{EventId, RoundId, Scope},
    limits::WATCHED_EVENTS_MAX,
    ports::{EventStoreError, StreamKey, StreamStatus},
    stream::{EventKind, Failure, RoundEnd, StreamEvent},
};

/// Reads one round. Pulls: nothing is queued for it.
pub(super) struct RoundWatch {
    ports: Ports,
    stopped: CancellationToken,
    key: StreamKey,
    after: Option<EventId>,
    ahead: VecDeque<Arc<StreamEvent>>,
    end: Option<Result<Arc<RoundEnd>, Failure>>,
}

impl RoundWatch {
    /// A watch from the round's start. `stopped` is cancelled once nothing more comes of this host.
    pub(super) fn new(ports: Ports, stopped: CancellationToken, scope: Scope, round: RoundId) -> Self {
        Self { ports, stopped, key: StreamKey { scope, round }, after: None, ahead: VecDeque::new(), end: None }
    }

    /// The same round behind this event.
    pub(super) fn after(self, cursor: EventId) -> Self {
        Self { after: Some(cursor), ahead: VecDeque::new(), ..self }
    }

    /// Which round, of which conversation.
    pub(super) fn key(&self) -> &StreamKey {
        &self.key
    }

    /// The next event; `None` after the last one.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Option<Arc<StreamEvent>> {
        loop {
            if let Some(event) = self.ahead.pop_front() {
                self.after = Some(event.id);
                self.note(&event);
                return Some(event);
            }
            if self.end.is_some() {
                return None;
            }
            let is_stopped = self.stopped.is_cancelled(); // Before the look: what was told until the stop is still read.
            let events = self.ports.events.clone();
            match events.read(&self.key, self.after, WATCHED_EVENTS_MAX).await {
                Ok(batch) if !batch.is_empty() => self.ahead = bounded(batch),
                Ok(_) if matches!(events.get_status(&self.key).await, Ok(Some(StreamStatus::Running))) => {
                    if is_stopped {
                        return None;
                    }
                    self.wait().await;
                }
                // An end may have come between the two looks; otherwise the ring has nothing more for this cursor.
                Ok(_) => match events.read(&self.key, self.after, WATCHED_EVENTS_MAX).await {
                    Ok(batch) if !batch.is_empty() => self.ahead = bounded(batch),
                    _ => return None,
                },
                // Too slow for the ring, or a stream that began in another process: the journal tells the same events.
                Err(EventStoreError::Expired | EventStoreError::Unknown) => {
                    let told = projection::read_round(&*self.ports.sessions, &self.key.scope, self.key.round, self.after).await;
                    self.ahead = told.unwrap_or_default();
                    if self.ahead.is_empty() {
                        match events.get_status(&self.key).await {
                            Ok(Some(StreamStatus::Running)) if !is_stopped => self.wait().await,
                            _ => return None,
                        }
                    }
                }
                Err(_) => return None,
            }
        }
    }

    /// Waits for more, or for the host's stop.
    async fn wait(&self) {
        tokio::select! {
            biased;
            () = self.ports.events.changed(&self.key, self.after) => {}
            () = self.stopped.cancelled() => {}
        }
    }

    fn note(&mut self, event: &StreamEvent) {
        match &event.kind {
            EventKind::RoundFinished { end } => self.end = Some(Ok(end.clone())),
            EventKind::Error { failure } => self.end = Some(Err(failure.clone())),
            _ => {}
        }
    }

    /// Waits for the round's end.
    ///
    /// # Errors
    /// [`OutcomeError::Failed`] carries what was said until the failure.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the round.
    pub(super) async fn outcome(&mut self) -> Result<RoundEnd, OutcomeError> {
        while self.end.is_none() && self.next().await.is_some() {}
        match &self.end {
            Some(Ok(end)) if end.error.is_some() && end.stop_reason == crate::stream::StopReason::Error => {
                Err(OutcomeError::Failed { end: Box::new(RoundEnd::clone(end)) })
            }
            Some(Ok(end)) => Ok(RoundEnd::clone(end)),
            Some(Err(failure)) => Err(OutcomeError::Ended { failure: failure.clone() }),
            None if self.stopped.is_cancelled() => Err(OutcomeError::Stopped),
            None => Err(OutcomeError::Expired),
        }
    }
}
