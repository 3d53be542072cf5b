//! The handles of a writer and of a reader of one stream in memory. Each finds its conversation once
//! and again only after the conversation was removed from the store.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use super::{
    Conversation, MemoryEvents, Stream, lock,
    waiting::{Registration, wake},
};
use crate::{
    ids::EventId,
    ports::{EventStoreError, StreamKey, StreamSink, StreamSource, StreamStatus, TextKind},
    stream::StreamEvent,
};

/// Writes one stream.
pub(super) struct Sink {
    store: Arc<MemoryEvents>,
    key: StreamKey,
    conversation: Option<Arc<Conversation>>,
    /// Reused by every append.
    woken: Vec<Waker>,
}

impl Sink {
    pub(super) fn new(store: Arc<MemoryEvents>, key: StreamKey) -> Self {
        Self {
            store,
            key,
            conversation: None,
            woken: Vec::new(),
        }
    }
}

impl StreamSink for Sink {
    fn append(&mut self, events: &mut Vec<Arc<StreamEvent>>) -> Result<(), EventStoreError> {
        #[cfg(test)]
        if crate::planted::is(crate::planted::Bug::LosesLastEvent) {
            events.retain(|event| !event.kind.ends_stream());
        }
        let Self {
            store,
            key,
            conversation,
            woken,
        } = self;
        loop {
            let held = conversation.get_or_insert_with(|| store.find_or_begin(&key.scope));
            let mut state = lock(&held.state);
            if state.gone {
                drop(state);
                *conversation = None;
                continue;
            }
            store.append_to(held, &mut state, key.round, events, woken);
            drop(state);
            wake(woken);
            store.relieve();
            return Ok(());
        }
    }

    fn extend(&mut self, id: EventId, kind: TextKind, text: &str) -> bool {
        let Some(conversation) = &self.conversation else {
            return false;
        };
        let mut state = lock(&conversation.state);
        !state.gone
            && self
                .store
                .extend_in(conversation, &mut state, self.key.round, id, kind, text)
    }
}

/// Reads one stream.
pub(super) struct Source {
    store: Arc<MemoryEvents>,
    follower: Follower,
}

impl Source {
    pub(super) fn new(store: Arc<MemoryEvents>, key: StreamKey) -> Self {
        Self {
            store,
            follower: Follower::new(key),
        }
    }
}

impl StreamSource for Source {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        after: Option<EventId>,
        count: usize,
        events: &mut VecDeque<Arc<StreamEvent>>,
    ) -> Poll<Result<StreamStatus, EventStoreError>> {
        let held = events.len();
        let polled = self.follower.poll(&self.store, cx, |stream| {
            if let Err(error) = stream.ring.read(after, count, events) {
                return Poll::Ready(Err(error));
            }
            match stream.end {
                Some((status, _)) => Poll::Ready(Ok(status)),
                None if events.len() > held || count == 0 => Poll::Ready(Ok(StreamStatus::Running)),
                None => Poll::Pending,
            }
        });
        polled.map(|read| read.unwrap_or(Err(EventStoreError::Unknown)))
    }
}

/// The place of a reader: its conversation, and its registration while it waits.
pub(super) struct Follower {
    key: StreamKey,
    conversation: Option<Arc<Conversation>>,
    registration: Option<Registration>,
}

impl Follower {
    pub(super) fn new(key: StreamKey) -> Self {
        Self {
            key,
            conversation: None,
            registration: None,
        }
    }

    /// Is ready when the stream has an event after `after`, has ended, or is unknown.
    pub(super) fn poll_changed(
        &mut self,
        store: &MemoryEvents,
        cx: &mut Context<'_>,
        after: Option<EventId>,
    ) -> Poll<()> {
        let polled = self.poll(store, cx, |stream| {
            if stream.end.is_some() || stream.ring.has_after(after) {
                return Poll::Ready(());
            }
            stream.ring.mark_seen();
            Poll::Pending
        });
        polled.map(|_| ())
    }

    /// Runs `look` on the stream and registers for its next event if `look` is pending. Ready with
    /// `None` if the stream is unknown or expired.
    fn poll<T>(
        &mut self,
        store: &MemoryEvents,
        cx: &mut Context<'_>,
        look: impl FnOnce(&mut Stream) -> Poll<T>,
    ) -> Poll<Option<T>> {
        loop {
            let conversation = match &self.conversation {
                Some(held) => held,
                None => match store.find(&self.key.scope) {
                    Some(found) => self.conversation.insert(found),
                    None => return Poll::Ready(None),
                },
            };
            let mut state = lock(&conversation.state);
            if state.gone {
                drop(state);
                (self.conversation, self.registration) = (None, None);
                continue;
            }
            let Some(stream) = state.rounds.get_mut(&self.key.round) else {
                return Poll::Ready(None);
            };
            if stream.is_older(store.ring_age()) {
                drop(state);
                store.expire(&self.key, store.ring_age());
                return Poll::Ready(None);
            }
            return match look(stream) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => {
                    let held = self.registration.take();
                    let (registration, replaced) = stream.waiting.register(held, cx.waker());
                    self.registration = Some(registration);
                    drop(state);
                    drop(replaced); // After the lock.
                    Poll::Pending
                }
            };
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some((conversation, registration)) = self.conversation.take().zip(self.registration)
        {
            let waker = lock(&conversation.state)
                .rounds
                .get_mut(&self.key.round)
                .and_then(|stream| stream.waiting.remove(registration));
            drop(waker); // After the lock.
        }
    }
}
