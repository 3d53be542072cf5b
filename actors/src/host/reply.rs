//! What a caller of `send` holds: the round's events as they come, and its outcome.

use std::{collections::VecDeque, sync::Arc};

use super::{
    HostInner,
    projection::{self, STORE_RETRY, bounded},
};
use crate::{
    conversation::{ConversationMsg, LoadFailure, Ports},
    ids::{EventId, RoundId, Scope},
    limits::WATCHED_EVENTS_MAX,
    ports::{EventStoreError, StreamKey, StreamStatus},
    stream::{EventKind, Failure, RoundEnd, StreamEvent},
};

/// A round as its caller sees it. Dropping it cancels nothing.
pub struct Reply {
    host: Arc<HostInner>,
    scope: Scope,
    round_id: RoundId,
    replayed: bool,
    key: StreamKey,
    after: Option<EventId>,
    ahead: VecDeque<Arc<StreamEvent>>,
    end: Option<Result<Arc<RoundEnd>, Failure>>,
}

/// Why there is no good outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutcomeError {
    /// The round failed; what was said until then is in it.
    #[error("{}", end.error.as_ref().map_or("the round failed", |failure| failure.message.as_str()))]
    Failed {
        /// The round's end.
        end: Box<RoundEnd>,
    },
    /// The round never began, or its conversation cannot go on here.
    #[error("{}", failure.message)]
    Ended {
        /// Why.
        failure: Failure,
    },
    /// The host stopped first. The round is not over: the next host on the store goes on with it.
    #[error("the host stopped before this round was over; the next one on its store goes on with it")]
    Stopped,
    /// The stream is gone before it was read to its end; the history has the answer.
    #[error("the events of this round are no longer kept; read the conversation's history")]
    Expired,
}

impl OutcomeError {
    /// Stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Failed { end } => end.error.as_ref().map_or("error", |failure| failure.code.as_str()),
            Self::Ended { failure } => &failure.code,
            Self::Stopped => "draining",
            Self::Expired => "expired",
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        let failure = match self {
            Self::Failed { end } => end.error.as_ref(),
            Self::Ended { failure } => Some(failure),
            Self::Stopped => return true,
            Self::Expired => None,
        };
        failure.is_some_and(|failure| failure.retry_after_ms.is_some())
    }
}

/// What a look finds behind a cursor.
enum Look {
    /// These events.
    Told(VecDeque<Arc<StreamEvent>>),
    /// Nothing yet: the round's stream is open.
    Running,
    /// Nothing yet: the round is not over, and no life of this host has taken it up. What comes next is behind `told`.
    Asleep { told: EventId },
    /// The store cannot be read now.
    Away,
    /// Nothing, and nothing will come.
    Over,
}

impl Reply {
    pub(super) fn new(host: Arc<HostInner>, scope: Scope, round_id: RoundId, replayed: bool) -> Self {
        let key = StreamKey { scope: scope.clone(), round: round_id };
        Self { host, scope, round_id, replayed, key, after: None, ahead: VecDeque::new(), end: None }
    }

    /// The same round, told on behind this event.
    #[must_use]
    pub fn after(self, cursor: EventId) -> Self {
        Self { after: Some(cursor), ahead: VecDeque::new(), ..self }
    }

    /// The round; also the id of its stream.
    pub fn round_id(&self) -> RoundId {
        self.round_id
    }

    /// Whether the prompt was known already by its client key.
    pub fn is_replayed(&self) -> bool {
        self.replayed
    }

    /// The next event; `None` after the last one, and once the host has stopped. A round that is not over is waited for, whether or not
    /// its conversation is awake; it is not woken.
    ///
    /// # Cancel safety
    /// Cancel safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Arc<StreamEvent>> {
        loop {
            if let Some(event) = self.ahead.pop_front() {
                self.after = Some(event.id);
                self.note(&event);
                return Some(event);
            }
            if self.end.is_some() {
                return None;
            }
            let is_stopped = self.host.directory.stopped().is_cancelled(); // Before the look: what was told until the stop is still read.
            match self.look().await {
                Look::Told(events) => self.ahead = events,
                Look::Over => return None,
                Look::Running | Look::Asleep { .. } | Look::Away if is_stopped => return None,
                Look::Running => self.wait(self.host.ports.events.changed(&self.key, self.after)).await,
                Look::Asleep { told } => self.wait(self.host.ports.events.watch(&self.scope, told)).await,
                Look::Away => self.wait(tokio::time::sleep(STORE_RETRY)).await,
            }
        }
    }

    /// Whether all of the round was told: it has ended, and nothing stands behind the cursor. A look, not a wait.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn is_over(&mut self) -> bool {
        if !self.ahead.is_empty() || self.end.is_some() {
            return self.ahead.is_empty();
        }
        match self.look().await {
            Look::Over => true,
            Look::Told(events) => {
                self.ahead = events;
                false
            }
            Look::Running | Look::Asleep { .. } | Look::Away => false,
        }
    }

    /// Looks what stands behind the cursor.
    async fn look(&self) -> Look {
        let events = &self.host.ports.events;
        // Asked before the read: what came before the end is then read after it.
        let status = events.get_status(&self.key).await;
        match events.read(&self.key, self.after, WATCHED_EVENTS_MAX).await {
            Ok(batch) if !batch.is_empty() => Look::Told(bounded(batch)),
            Ok(_) if matches!(status, Ok(Some(StreamStatus::Running))) => Look::Running,
            Ok(_) => Look::Over,
            // Too slow for the ring, or a stream that began in another process: the journal tells the same events.
            Err(EventStoreError::Expired | EventStoreError::Unknown) => self.look_back().await,
            Err(_) => Look::Over,
        }
    }

    /// Looks into the journal, and puts what the ring still has between.
    async fn look_back(&self) -> Look {
        let Ports { events, sessions, .. } = &self.host.ports;
        match projection::read_round(&**sessions, &self.scope, self.round_id, self.after).await {
            Ok(told) if !told.events.is_empty() => {
                let mut kept = events.kept(&self.scope, self.after.unwrap_or_default(), usize::MAX).await;
                kept.retain(|event| event.round_id == Some(self.round_id));
                kept.truncate(WATCHED_EVENTS_MAX);
                Look::Told(projection::joined(told.events, told.upto, kept).0)
            }
            Ok(told) if told.goes_on => Look::Asleep { told: EventId { epoch: told.epoch, seq: told.upto, n: u32::MAX } },
            Ok(_) => Look::Over,
            Err(LoadFailure::Store(error)) if error.is_retryable() => Look::Away,
            Err(LoadFailure::Store(_) | LoadFailure::Unreadable(_)) => Look::Over,
        }
    }

    /// Waits for more, or for the host's stop.
    async fn wait(&self, more: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = more => {}
            () = self.host.directory.stopped().cancelled() => {}
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
    pub async fn outcome(&mut self) -> Result<RoundEnd, OutcomeError> {
        while self.end.is_none() && self.next().await.is_some() {}
        match &self.end {
            Some(Ok(end)) if end.error.is_some() && end.stop_reason == crate::stream::StopReason::Error => {
                Err(OutcomeError::Failed { end: Box::new(RoundEnd::clone(end)) })
            }
            Some(Ok(end)) => Ok(RoundEnd::clone(end)),
            Some(Err(failure)) => Err(OutcomeError::Ended { failure: failure.clone() }),
            None if self.host.directory.stopped().is_cancelled() => Err(OutcomeError::Stopped),
            None => Err(OutcomeError::Expired),
        }
    }

    /// Asks the round to end now: model, tools and their processes. Returns at once; the outcome tells the end.
    pub fn interrupt(&self) {
        self.host.directory.send(&self.scope, ConversationMsg::Interrupt { failure: None, reply: None });
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reply({} {})", self.scope, self.round_id)
    }
}
