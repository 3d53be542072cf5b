//! What a caller of `send` holds: the round's events as they come, and its outcome.

use std::{collections::VecDeque, sync::Arc};

use super::HostInner;
use crate::{
    conversation::ConversationMsg,
    ids::{EventId, RoundId, Scope},
    journal::{Durable, Entry, project},
    ports::{EventStoreError, StreamKey, StreamStatus},
    stream::{EventKind, Failure, RoundEnd, StreamEvent},
};

/// Events read at once.
const PAGE: usize = 256;

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
            Self::Expired => "expired",
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        let failure = match self {
            Self::Failed { end } => end.error.as_ref(),
            Self::Ended { failure } => Some(failure),
            Self::Expired => None,
        };
        failure.is_some_and(|failure| failure.retry_after_ms.is_some())
    }
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

    /// The next event; `None` after the last one.
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
            let events = self.host.ports.events.clone();
            match events.read(&self.key, self.after, PAGE).await {
                Ok(batch) if !batch.is_empty() => self.ahead = batch.into(),
                Ok(_) if matches!(events.get_status(&self.key).await, Ok(Some(StreamStatus::Running))) => {
                    events.changed(&self.key, self.after).await;
                }
                // An end may have come between the two looks; otherwise the ring has nothing more for this cursor.
                Ok(_) => match events.read(&self.key, self.after, PAGE).await {
                    Ok(batch) if !batch.is_empty() => self.ahead = batch.into(),
                    _ => return None,
                },
                // Too slow for the ring, or a stream that began in another process: the journal tells the same events.
                Err(EventStoreError::Expired | EventStoreError::Unknown) => {
                    self.ahead = self.read_journal().await;
                    if self.ahead.is_empty() {
                        match events.get_status(&self.key).await {
                            Ok(Some(StreamStatus::Running)) => events.changed(&self.key, self.after).await,
                            _ => return None,
                        }
                    }
                }
                Err(_) => return None,
            }
        }
    }

    /// The durable events of this round after the cursor, projected from the journal (DESIGN §4.6).
    async fn read_journal(&self) -> VecDeque<Arc<StreamEvent>> {
        let (sessions, conversation_id) = (&self.host.ports.sessions, &self.scope.conversation);
        let (mut state, mut found) = (Durable::default(), VecDeque::new());
        while let Ok(page) = sessions.entries(&self.scope, state.head, PAGE).await {
            if page.is_empty() {
                break;
            }
            for stored in &page {
                let Ok(entry) = Entry::decode(stored) else { return found };
                let (round_id, kinds) = project(&state, &entry);
                if round_id == Some(self.round_id) {
                    let ids = (0..).map(|n| EventId { epoch: entry.epoch, seq: entry.seq, n });
                    let events = ids.zip(kinds).filter(|(id, _)| Some(*id) > self.after);
                    found.extend(
                        events.map(|(id, kind)| Arc::new(StreamEvent { id, conversation_id: conversation_id.clone(), round_id, kind })),
                    );
                }
                if state.apply(&entry).is_err() {
                    return found;
                }
            }
        }
        found
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
