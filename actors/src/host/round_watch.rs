//! Watching one round: its events one by one, and its outcome. Holding a watch does not keep the
//! host running.

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

/// Reads the events of one round. The watch pulls; nothing is queued for it.
pub(super) struct RoundWatch {
    ports: Ports,
    /// Cancelled when the host stops. A child token per watch: each check and each wait locks its
    /// token, and watches must not contend for one lock.
    stopped: CancellationToken,
    /// The future of that cancellation, created at the first wait and reused by later ones.
    stop: Option<Stop>,
    key: StreamKey,
    after: Option<EventId>,
    ahead: VecDeque<Arc<StreamEvent>>,
    /// Whether the last read returned everything up to the end of the stream.
    is_all: bool,
    end: Option<Result<Arc<RoundEnd>, Failure>>,
}

/// The outcome of one read after the cursor.
enum ReadOutcome {
    /// Events; `is_all` when there were no more.
    Events {
        events: VecDeque<Arc<StreamEvent>>,
        is_all: bool,
    },
    /// Nothing yet, and the round's stream is open.
    Running,
    /// Nothing yet, and the round is open, but no activation on this host has resumed it. The next
    /// event comes after `upto`.
    Asleep { upto: EventId },
    /// The store is unavailable.
    StoreUnavailable,
    /// No event is left, and none will follow.
    Over,
}

impl RoundWatch {
    /// Creates a watch from the round's start. `stopped` is the host's token.
    pub(super) fn new(
        ports: Ports,
        stopped: &CancellationToken,
        scope: Scope,
        round: RoundId,
    ) -> Self {
        let stopped = stopped.child_token();
        let key = StreamKey { scope, round };
        Self {
            ports,
            stopped,
            stop: None,
            key,
            after: None,
            ahead: VecDeque::new(),
            is_all: false,
            end: None,
        }
    }

    /// Continues after this event.
    pub(super) fn after(self, cursor: EventId) -> Self {
        Self {
            after: Some(cursor),
            ahead: VecDeque::new(),
            is_all: false,
            ..self
        }
    }

    /// The round and its conversation.
    pub(super) fn key(&self) -> &StreamKey {
        &self.key
    }

    /// Returns the next event; `None` after the last one, and once the host has stopped. Waits
    /// while the round is open, whether or not its conversation is active, and does not activate
    /// it.
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
            let is_stopped = self.stopped.is_cancelled(); // Read once more after the stop.
            if std::mem::take(&mut self.is_all) && !is_stopped {
                // Returns at once if there are more events by now.
                unless(
                    stop(&mut self.stop, &self.stopped),
                    self.ports.events.changed(&self.key, self.after),
                )
                .await;
            }
            match self.read().await {
                ReadOutcome::Events { events, is_all } => {
                    (self.ahead, self.is_all) = (events, is_all)
                }
                ReadOutcome::Over => return None,
                ReadOutcome::Running
                | ReadOutcome::Asleep { .. }
                | ReadOutcome::StoreUnavailable
                    if is_stopped =>
                {
                    return None;
                }
                ReadOutcome::Running => {
                    unless(
                        stop(&mut self.stop, &self.stopped),
                        self.ports.events.changed(&self.key, self.after),
                    )
                    .await;
                }
                ReadOutcome::Asleep { upto } => {
                    unless(
                        stop(&mut self.stop, &self.stopped),
                        self.ports.events.watch(&self.key.scope, upto),
                    )
                    .await;
                }
                ReadOutcome::StoreUnavailable => {
                    unless(
                        stop(&mut self.stop, &self.stopped),
                        tokio::time::sleep(STORE_RETRY),
                    )
                    .await
                }
            }
        }
    }

    /// Whether the round has ended and all of its events were returned. Does not wait for the
    /// round.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn is_over(&mut self) -> bool {
        if !self.ahead.is_empty() || self.end.is_some() {
            return self.ahead.is_empty();
        }
        match self.read().await {
            ReadOutcome::Over => true,
            ReadOutcome::Events { events, is_all } => {
                (self.ahead, self.is_all) = (events, is_all);
                false
            }
            ReadOutcome::Running | ReadOutcome::Asleep { .. } | ReadOutcome::StoreUnavailable => {
                false
            }
        }
    }

    /// Reads what follows the cursor, from the ring or else from the journal. An empty read is
    /// ambiguous: the round may have ended between the read and the status check. Hence a second
    /// read once the stream is known to have ended.
    async fn read(&self) -> ReadOutcome {
        let events = &self.ports.events;
        for status_known in [false, true] {
            match events.read(&self.key, self.after, WATCHED_EVENTS_MAX).await {
                Ok(batch) if !batch.is_empty() => {
                    let read = batch.len();
                    let events = bounded(batch);
                    let is_all = read < WATCHED_EVENTS_MAX && events.len() == read;
                    return ReadOutcome::Events { events, is_all };
                }
                Ok(_) if status_known => return ReadOutcome::Over,
                Ok(_)
                    if matches!(
                        events.get_status(&self.key).await,
                        Ok(Some(StreamStatus::Running))
                    ) =>
                {
                    return ReadOutcome::Running;
                }
                Ok(_) => {}
                // The ring dropped the cursor, or the stream began in another process. The journal
                // has the same durable events.
                Err(EventStoreError::Expired | EventStoreError::Unknown) => {
                    return self.read_journal().await;
                }
                Err(_) => return ReadOutcome::Over,
            }
        }
        ReadOutcome::Over
    }

    /// Reads the journal after the cursor, merged with what the ring still has of this round.
    async fn read_journal(&self) -> ReadOutcome {
        let (
            Ports {
                events, sessions, ..
            },
            StreamKey { scope, round },
        ) = (&self.ports, &self.key);
        match projection::read_round(&**sessions, scope, *round, self.after).await {
            Ok(read) if !read.events.is_empty() => {
                let mut kept = events
                    .kept(scope, self.after.unwrap_or_default(), usize::MAX)
                    .await;
                kept.retain(|event| event.round_id == Some(*round));
                kept.truncate(WATCHED_EVENTS_MAX);
                ReadOutcome::Events {
                    events: projection::joined(read.events, read.upto, kept).0,
                    is_all: false,
                }
            }
            Ok(read) if read.is_open => ReadOutcome::Asleep {
                upto: EventId {
                    epoch: read.epoch,
                    seq: read.upto,
                    n: u32::MAX,
                },
            },
            Ok(_) => ReadOutcome::Over,
            Err(LoadFailure::Store(error)) if error.is_retryable() => ReadOutcome::StoreUnavailable,
            Err(LoadFailure::Store(_) | LoadFailure::Unreadable(_)) => ReadOutcome::Over,
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
    /// [`OutcomeError::Failed`] carries the text that was generated until the failure.
    ///
    /// # Cancel safety
    /// Dropping the future does not cancel the round.
    pub(super) async fn outcome(&mut self) -> Result<RoundEnd, OutcomeError> {
        while self.end.is_none() && self.next().await.is_some() {}
        match &self.end {
            Some(Ok(end))
                if end.error.is_some() && end.stop_reason == crate::stream::StopReason::Error =>
            {
                Err(OutcomeError::Failed {
                    end: Box::new(RoundEnd::clone(end)),
                })
            }
            Some(Ok(end)) => Ok(RoundEnd::clone(end)),
            Some(Err(failure)) => Err(OutcomeError::Ended {
                failure: failure.clone(),
            }),
            None if self.stopped.is_cancelled() => Err(OutcomeError::Stopped),
            None => Err(OutcomeError::Expired),
        }
    }
}

type Stop = Pin<Box<WaitForCancellationFutureOwned>>;

/// The future of the host's stop, created once per watch.
fn stop<'a>(made: &'a mut Option<Stop>, stopped: &CancellationToken) -> &'a mut Stop {
    made.get_or_insert_with(|| Box::pin(stopped.clone().cancelled_owned()))
}

/// Waits for more events, or for the host's stop.
async fn unless(stop: &mut Stop, more: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = more => {}
        () = stop => {}
    }
}
