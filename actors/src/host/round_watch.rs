//! A round as it is told: its events one by one, and its end. Holding a watch keeps no host alive.

use std::{collections::VecDeque, pin::Pin, sync::Arc};

use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    OutcomeError,
    projection::{self, STORE_RETRY, bounded},
};
use crate::{
    conversation::{LoadFailure, Ports},
    ids::{EventId, RoundId, Scope},
    limits::WATCHED_EVENTS_MAX,
    ports::{EventStoreError, StreamKey, StreamStatus},
    stream::{EventKind, Failure, RoundEnd, StreamEvent},
};

/// Reads one round. Pulls: nothing is queued for it.
pub(super) struct RoundWatch {
    ports: Ports,
    /// The host's stop, for this watch alone: each look and each wait takes its lock, and no watch is to wait for another one's.
    stopped: CancellationToken,
    /// Made for the first wait, and asked again by the next ones.
    stop: Option<Stop>,
    key: StreamKey,
    after: Option<EventId>,
    ahead: VecDeque<Arc<StreamEvent>>,
    /// Whether nothing stood behind what was read last.
    is_all: bool,
    end: Option<Result<Arc<RoundEnd>, Failure>>,
}

/// What a look finds behind a cursor.
enum Look {
    /// These events; `is_all` when there were no more.
    Told { events: VecDeque<Arc<StreamEvent>>, is_all: bool },
    /// Nothing yet: the round's stream is open.
    Running,
    /// Nothing yet: the round is not over, and no life of this host has taken it up. What comes next is behind `told`.
    Asleep { told: EventId },
    /// The store cannot be read now.
    Away,
    /// Nothing, and nothing will come.
    Over,
}

impl RoundWatch {
    /// A watch from the round's start. `stopped` is cancelled once nothing more comes of this host.
    pub(super) fn new(ports: Ports, stopped: &CancellationToken, scope: Scope, round: RoundId) -> Self {
        let (stopped, key) = (stopped.child_token(), StreamKey { scope, round });
        Self { ports, stopped, stop: None, key, after: None, ahead: VecDeque::new(), is_all: false, end: None }
    }

    /// The same round behind this event.
    pub(super) fn after(self, cursor: EventId) -> Self {
        Self { after: Some(cursor), ahead: VecDeque::new(), is_all: false, ..self }
    }

    /// Which round, of which conversation.
    pub(super) fn key(&self) -> &StreamKey {
        &self.key
    }

    /// The next event; `None` after the last one, and once the host has stopped. A round that is not over is waited for, whether or not
    /// its conversation is awake; it is not woken.
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
            if std::mem::take(&mut self.is_all) && !is_stopped {
                // Comes back at once if there is more by now.
                unless(stop(&mut self.stop, &self.stopped), self.ports.events.changed(&self.key, self.after)).await;
            }
            match self.look().await {
                Look::Told { events, is_all } => (self.ahead, self.is_all) = (events, is_all),
                Look::Over => return None,
                Look::Running | Look::Asleep { .. } | Look::Away if is_stopped => return None,
                Look::Running => {
                    unless(stop(&mut self.stop, &self.stopped), self.ports.events.changed(&self.key, self.after)).await;
                }
                Look::Asleep { told } => {
                    unless(stop(&mut self.stop, &self.stopped), self.ports.events.watch(&self.key.scope, told)).await;
                }
                Look::Away => unless(stop(&mut self.stop, &self.stopped), tokio::time::sleep(STORE_RETRY)).await,
            }
        }
    }

    /// Whether all of the round was told: it has ended, and nothing stands behind the cursor. A look, not a wait.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn is_over(&mut self) -> bool {
        if !self.ahead.is_empty() || self.end.is_some() {
            return self.ahead.is_empty();
        }
        match self.look().await {
            Look::Over => true,
            Look::Told { events, is_all } => {
                (self.ahead, self.is_all) = (events, is_all);
                false
            }
            Look::Running | Look::Asleep { .. } | Look::Away => false,
        }
    }

    /// Looks what stands behind the cursor.
    async fn look(&self) -> Look {
        let events = &self.ports.events;
        for status_known in [false, true] {
            match events.read(&self.key, self.after, WATCHED_EVENTS_MAX).await {
                Ok(batch) if !batch.is_empty() => {
                    let read = batch.len();
                    let events = bounded(batch);
                    let is_all = read < WATCHED_EVENTS_MAX && events.len() == read;
                    return Look::Told { events, is_all };
                }
                Ok(_) if status_known => return Look::Over,
                // Its end may have come between: what was told before it is then read.
                Ok(_) if matches!(events.get_status(&self.key).await, Ok(Some(StreamStatus::Running))) => return Look::Running,
                Ok(_) => {}
                // Too slow for the ring, or a stream that began in another process: the journal tells the same events.
                Err(EventStoreError::Expired | EventStoreError::Unknown) => return self.look_back().await,
                Err(_) => return Look::Over,
            }
        }
        Look::Over
    }

    /// Looks into the journal, and puts what the ring still has between.
    async fn look_back(&self) -> Look {
        let (Ports { events, sessions, .. }, StreamKey { scope, round }) = (&self.ports, &self.key);
        match projection::read_round(&**sessions, scope, *round, self.after).await {
            Ok(told) if !told.events.is_empty() => {
                let mut kept = events.kept(scope, self.after.unwrap_or_default(), usize::MAX).await;
                kept.retain(|event| event.round_id == Some(*round));
                kept.truncate(WATCHED_EVENTS_MAX);
                Look::Told { events: projection::joined(told.events, told.upto, kept).0, is_all: false }
            }
            Ok(told) if told.goes_on => Look::Asleep { told: EventId { epoch: told.epoch, seq: told.upto, n: u32::MAX } },
            Ok(_) => Look::Over,
            Err(LoadFailure::Store(error)) if error.is_retryable() => Look::Away,
            Err(LoadFailure::Store(_) | LoadFailure::Unreadable(_)) => Look::Over,
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

type Stop = Pin<Box<WaitForCancellationFutureOwned>>;

/// The wait for the host's stop.
fn stop<'a>(made: &'a mut Option<Stop>, stopped: &CancellationToken) -> &'a mut Stop {
    made.get_or_insert_with(|| Box::pin(stopped.clone().cancelled_owned()))
}

/// Waits for more, or for the host's stop.
async fn unless(stop: &mut Stop, more: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = more => {}
        () = stop => {}
    }
}
