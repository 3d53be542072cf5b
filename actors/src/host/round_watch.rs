//! Watching one round: its events one by one, and its outcome. Holding a watch does not keep the
//! host running.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::FutureExt as _;
use tokio::{sync::Semaphore, task::coop::has_budget_remaining};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    OutcomeError,
    projection::{self, STORE_RETRY, bound},
};
use crate::{
    conversation::{LoadFailure, Ports},
    ids::{EventId, RoundId, Scope},
    limits::WATCHED_EVENTS_MAX,
    ports::{EventStoreError, StreamKey, StreamSource, StreamStatus},
    reads::permit,
    stream::{EventKind, Failure, RoundEnd, StreamEvent},
};

/// Pause before the journal of a round that no activation on this host runs is read again; doubled
/// each time, up to [`LOOK_PAUSE_MAX`]. What another host appends is published there and not here: a
/// host that was dropped, killed or replaced may end the round with an append that was on its way.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Reads the events of one round. The watch pulls; nothing is queued for it.
pub(super) struct RoundWatch {
    ports: Ports,
    /// Cancelled when the host stops. A child token per watch: each check and each wait locks its
    /// token, and watches must not contend for one lock.
    stopped: CancellationToken,
    /// The tenant's places for reads of journals.
    reads: Arc<Semaphore>,
    /// The wait for that cancellation, created at the first wait and reused by later ones.
    stop: Option<Stop>,
    /// The handle of the round's stream.
    source: Option<Box<dyn StreamSource>>,
    key: StreamKey,
    after: Option<EventId>,
    ahead: VecDeque<Arc<StreamEvent>>,
    end: Option<Result<Arc<RoundEnd>, Failure>>,
}

/// The outcome of one read of the ring after the cursor.
enum RingRead {
    /// There are events ahead.
    Events,
    /// Nothing yet, and the round's stream is open.
    Running,
    /// The ring dropped the cursor, or the stream began in another process. The journal has the
    /// same durable events.
    NotKept,
    /// No event is left, and none will follow.
    Over,
}

/// The outcome of one read of the journal after the cursor.
enum JournalRead {
    Events(VecDeque<Arc<StreamEvent>>),
    /// Nothing yet, and the round is open, but no activation on this host has resumed it. The next
    /// event comes after `upto`.
    Asleep {
        upto: EventId,
    },
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
        reads: Arc<Semaphore>,
        scope: Scope,
        round: RoundId,
    ) -> Self {
        let stopped = stopped.child_token();
        let key = StreamKey { scope, round };
        Self {
            ports,
            stopped,
            reads,
            stop: None,
            source: None,
            key,
            after: None,
            ahead: VecDeque::new(),
            end: None,
        }
    }

    /// Continues after this event.
    pub(super) fn after(self, cursor: EventId) -> Self {
        Self {
            after: Some(cursor),
            ahead: VecDeque::new(),
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
        let mut pause = LOOK_PAUSE;
        loop {
            if let Some(event) = self.take_ahead() {
                return Some(event);
            }
            if self.end.is_some() {
                return None;
            }
            let mut is_stopped = false;
            let mut read = self.read_ring(true).await;
            if let RingRead::Running = read {
                is_stopped = true;
                read = self.read_ring(false).await; // Once more after the stop.
            }
            match read {
                RingRead::Events => continue,
                RingRead::Over | RingRead::Running => return None,
                RingRead::NotKept => is_stopped |= self.stopped.is_cancelled(),
            }
            match self.read_journal().await {
                JournalRead::Events(events) => self.ahead = events,
                JournalRead::Over => return None,
                JournalRead::Asleep { .. } | JournalRead::StoreUnavailable if is_stopped => {
                    return None;
                }
                JournalRead::Asleep { upto } => {
                    let stop = Stop::of(&mut self.stop, &self.stopped);
                    let published = self.ports.events.watch(&self.key.scope, upto);
                    let look = tokio::time::timeout(pause, published).map(drop);
                    unless(stop, look).await;
                    pause = (pause * 2).min(LOOK_PAUSE_MAX);
                }
                JournalRead::StoreUnavailable => {
                    let stop = Stop::of(&mut self.stop, &self.stopped);
                    unless(stop, tokio::time::sleep(STORE_RETRY)).await
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
        match self.read_ring(false).await {
            RingRead::Over => return true,
            RingRead::Events | RingRead::Running => return false,
            RingRead::NotKept => {}
        }
        match self.read_journal().await {
            JournalRead::Over => true,
            JournalRead::Events(events) => {
                self.ahead = events;
                false
            }
            JournalRead::Asleep { .. } | JournalRead::StoreUnavailable => false,
        }
    }

    /// Returns the next event if it is there; `None` otherwise.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn next_now(&mut self) -> Option<Arc<StreamEvent>> {
        match self.is_over().await {
            true => None,
            false => self.take_ahead(),
        }
    }

    fn take_ahead(&mut self) -> Option<Arc<StreamEvent>> {
        let event = self.ahead.pop_front()?;
        self.after = Some(event.id);
        self.note(&event);
        Some(event)
    }

    /// Moves what follows the cursor in the ring to `ahead`. If `waits`, it waits for the next event
    /// or for the host's stop.
    async fn read_ring(&mut self, waits: bool) -> RingRead {
        let Self {
            ports,
            stopped,
            stop,
            source,
            key,
            after,
            ahead,
            ..
        } = self;
        let source = source.get_or_insert_with(|| ports.events.clone().follow(key));
        poll_fn(
            |cx| match source.poll_read(cx, *after, WATCHED_EVENTS_MAX, ahead) {
                Poll::Ready(Ok(_)) if !ahead.is_empty() => {
                    bound(ahead);
                    Poll::Ready(RingRead::Events)
                }
                Poll::Ready(Ok(StreamStatus::Complete | StreamStatus::Failed)) => {
                    Poll::Ready(RingRead::Over)
                }
                Poll::Ready(Err(EventStoreError::Expired | EventStoreError::Unknown)) => {
                    Poll::Ready(RingRead::NotKept)
                }
                Poll::Ready(Err(_)) => Poll::Ready(RingRead::Over),
                Poll::Ready(Ok(StreamStatus::Running)) if waits => {
                    cx.waker().wake_by_ref(); // Only from a store that breaks its contract.
                    Poll::Pending
                }
                Poll::Pending if waits => {
                    let is_stopped = Stop::of(stop, stopped).poll(cx, stopped);
                    is_stopped.map(|()| RingRead::Running)
                }
                Poll::Ready(Ok(StreamStatus::Running)) | Poll::Pending => {
                    Poll::Ready(RingRead::Running)
                }
            },
        )
        .await
    }

    /// Reads the journal after the cursor, merged with what the ring still has of this round.
    async fn read_journal(&self) -> JournalRead {
        let (
            Ports {
                events, sessions, ..
            },
            StreamKey { scope, round },
        ) = (&self.ports, &self.key);
        let permit = permit(&self.reads).await;
        let read = projection::read_round(&**sessions, scope, &permit, *round, self.after).await;
        drop(permit);
        match read {
            Ok(read) if !read.events.is_empty() => {
                let mut kept = events
                    .kept(scope, self.after.unwrap_or_default(), usize::MAX)
                    .await;
                kept.retain(|event| event.round_id == Some(*round));
                kept.truncate(WATCHED_EVENTS_MAX);
                JournalRead::Events(projection::joined(read.events, read.upto, kept).0)
            }
            Ok(read) if read.is_open => JournalRead::Asleep {
                upto: EventId {
                    epoch: read.epoch,
                    seq: read.upto,
                    n: u32::MAX,
                },
            },
            Ok(_) => JournalRead::Over,
            Err(LoadFailure::Store(error)) if error.is_retryable() => JournalRead::StoreUnavailable,
            Err(
                LoadFailure::Store(_)
                | LoadFailure::Elsewhere(_)
                | LoadFailure::NeedsNewerVersion(_)
                | LoadFailure::Unreadable(_),
            ) => JournalRead::Over,
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

/// The wait for the host's stop, which lasts as long as the watch.
struct Stop {
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The task that the wait wakes already.
    waker: Option<Waker>,
}

impl Stop {
    fn of<'a>(made: &'a mut Option<Self>, stopped: &CancellationToken) -> &'a mut Self {
        made.get_or_insert_with(|| Self {
            cancelled: Box::pin(stopped.clone().cancelled_owned()),
            waker: None,
        })
    }

    /// Is ready once the host stops. While the same task waits, it is not registered again.
    fn poll(&mut self, cx: &mut Context<'_>, stopped: &CancellationToken) -> Poll<()> {
        if stopped.is_cancelled() {
            return Poll::Ready(());
        }
        if self
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            return Poll::Pending;
        }
        let polled = self.cancelled.as_mut().poll(cx);
        // A task without coop budget was woken at once instead of being registered: poll again next
        // time.
        self.waker = (polled.is_pending() && has_budget_remaining()).then(|| cx.waker().clone());
        polled
    }
}

/// Waits for more events, or for the host's stop.
async fn unless(stop: &mut Stop, more: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = more => {}
        () = &mut stop.cancelled => {}
    }
    stop.waker = None; // Another waker may be registered now.
}
