//! An `EventStore` decorator that reports the end of each child's round, so that the driver needs
//! no watcher per child. It wraps the host's event store. For an ephemeral fan-out it wraps none,
//! and drops the events after it has read them.

use std::{
    collections::{HashMap, VecDeque},
    future::ready,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    ids::{ConversationId, EventId, Scope, Seq, TenantId},
    ports::{
        BoxFuture, EventStore, EventStoreError, StreamKey, StreamSink, StreamSource, StreamStatus,
        TextKind,
    },
    stream::{EventKind, Failure, RoundEnd, StreamEvent},
};

/// A report to the driver.
pub(super) enum FanOutEvent {
    /// The model of the first task has begun to answer.
    FirstContent,
    /// The round of a task has ended. `first_text` is the time from the task's start to its first
    /// content.
    Ended {
        index: u32,
        end: Result<Arc<RoundEnd>, Failure>,
        first_text: Option<Duration>,
    },
}

/// A running task.
struct RunningTask {
    index: u32,
    began: Instant,
    first_text: Option<Duration>,
}

/// The decorator. A task is in `running` from its start until its end is reported, so an end is
/// reported once.
pub(super) struct RoundEndListener {
    inner: Option<Arc<dyn EventStore>>,
    running: Mutex<HashMap<ConversationId, RunningTask>>,
    reports: mpsc::Sender<FanOutEvent>,
}

impl RoundEndListener {
    /// Creates a decorator for at most `parallel` concurrent tasks, and the receiver of its
    /// reports.
    pub(super) fn new(
        inner: Option<Arc<dyn EventStore>>,
        parallel: usize,
    ) -> (Self, mpsc::Receiver<FanOutEvent>) {
        // Each running task reports one end, and one task its first content, so the channel always
        // has room.
        let (reports, receiver) = mpsc::channel(parallel + 2);
        (
            Self {
                inner,
                running: Mutex::default(),
                reports,
            },
            receiver,
        )
    }

    fn running(&self) -> MutexGuard<'_, HashMap<ConversationId, RunningTask>> {
        self.running.lock()
    }

    /// Registers a task that is about to begin.
    pub(super) fn listen(&self, conversation: ConversationId, index: u32, began: Instant) {
        self.running().insert(
            conversation,
            RunningTask {
                index,
                began,
                first_text: None,
            },
        );
    }

    /// Removes a task whose end came by another way.
    pub(super) fn leave(&self, conversation: &ConversationId) {
        self.running().remove(conversation);
    }

    /// Reports what these events say of a task: its first content and its end.
    fn report(&self, conversation: &ConversationId, events: &[Arc<StreamEvent>]) {
        if events.is_empty() {
            return;
        }
        let mut running = self.running();
        let Some(task) = running.get_mut(conversation) else {
            return;
        };
        let mut first = None;
        let mut ended = None;
        for event in events {
            match &event.kind {
                kind if is_content(kind) && task.first_text.is_none() => {
                    task.first_text = Some(task.began.elapsed());
                    first = (task.index == 0).then_some(FanOutEvent::FirstContent);
                }
                EventKind::RoundFinished { end } => ended = ended.or_else(|| Some(Ok(end.clone()))),
                EventKind::Error { failure } => {
                    ended = ended.or_else(|| Some(Err(failure.clone())))
                }
                _ => {}
            }
        }
        let ended = ended.map(|end| FanOutEvent::Ended {
            index: task.index,
            end,
            first_text: task.first_text,
        });
        if ended.is_some() {
            running.remove(conversation);
        }
        drop(running);
        for report in first.into_iter().chain(ended) {
            let _ = self.reports.try_send(report); // Fails only after the fan-out has ended.
        }
    }
}

/// Writes the stream of a task, and reports what the events say of it.
struct ListeningSink {
    listener: Arc<RoundEndListener>,
    inner: Option<Box<dyn StreamSink>>,
    conversation: ConversationId,
    /// Whether the first content was reported.
    has_content: bool,
}

impl StreamSink for ListeningSink {
    fn append(&mut self, events: &mut Vec<Arc<StreamEvent>>) -> Result<(), EventStoreError> {
        self.has_content |= events.iter().any(|event| is_content(&event.kind));
        let Some(inner) = &mut self.inner else {
            self.listener.report(&self.conversation, events);
            events.clear();
            return Ok(());
        };
        // Store first, then report: a reader of the report may read the stream.
        let reported = events.clone();
        let kept = inner.append(events);
        self.listener.report(&self.conversation, &reported);
        kept
    }

    fn extend(&mut self, id: EventId, kind: TextKind, text: &str) -> bool {
        // The event that is extended was the first content, or came after it.
        self.inner
            .as_mut()
            .is_some_and(|inner| inner.extend(id, kind, text))
    }

    fn takes_ephemeral(&self) -> bool {
        !self.has_content
            || self
                .inner
                .as_ref()
                .is_some_and(|inner| inner.takes_ephemeral())
    }
}

/// The streams of an ephemeral fan-out, which keeps no events.
struct NothingKept;

impl StreamSource for NothingKept {
    fn poll_read(
        &mut self,
        _: &mut Context<'_>,
        _: Option<EventId>,
        _: usize,
        _: &mut VecDeque<Arc<StreamEvent>>,
    ) -> Poll<Result<StreamStatus, EventStoreError>> {
        Poll::Ready(Err(EventStoreError::Unknown))
    }
}

/// Whether a model has begun to answer.
fn is_content(event: &EventKind) -> bool {
    matches!(
        event,
        EventKind::TextDelta { .. }
            | EventKind::ThinkingDelta { .. }
            | EventKind::ToolCall { .. }
            | EventKind::Message { .. }
    )
}

impl EventStore for RoundEndListener {
    fn append(
        &self,
        stream: &StreamKey,
        events: Vec<Arc<StreamEvent>>,
    ) -> BoxFuture<'_, Result<(), EventStoreError>> {
        let Some(inner) = &self.inner else {
            self.report(&stream.scope.conversation, &events);
            return Box::pin(ready(Ok(())));
        };
        // Store first, then report: a reader of the report may read the stream.
        let reported = events.clone();
        let kept = inner.append(stream, events);
        self.report(&stream.scope.conversation, &reported);
        kept
    }

    fn open(self: Arc<Self>, stream: &StreamKey) -> Box<dyn StreamSink> {
        Box::new(ListeningSink {
            inner: self.inner.as_ref().map(|inner| inner.clone().open(stream)),
            conversation: stream.scope.conversation.clone(),
            has_content: false,
            listener: self,
        })
    }

    fn follow(self: Arc<Self>, stream: &StreamKey) -> Box<dyn StreamSource> {
        match &self.inner {
            Some(inner) => inner.clone().follow(stream),
            None => Box::new(NothingKept),
        }
    }

    fn read(
        &self,
        stream: &StreamKey,
        after: Option<EventId>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>> {
        match &self.inner {
            Some(inner) => inner.read(stream, after, count),
            None => Box::pin(ready(Err(EventStoreError::Unknown))),
        }
    }

    fn changed(&self, stream: &StreamKey, after: Option<EventId>) -> BoxFuture<'_, ()> {
        match &self.inner {
            Some(inner) => inner.changed(stream, after),
            None => Box::pin(ready(())),
        }
    }

    fn sweep(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.sweep())
    }

    fn get_status(
        &self,
        stream: &StreamKey,
    ) -> BoxFuture<'_, Result<Option<StreamStatus>, EventStoreError>> {
        match &self.inner {
            Some(inner) => inner.get_status(stream),
            None => Box::pin(ready(Ok(None))),
        }
    }

    fn mark_complete(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>> {
        match &self.inner {
            Some(inner) => inner.mark_complete(stream),
            None => Box::pin(ready(Ok(()))),
        }
    }

    fn mark_failed(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>> {
        match &self.inner {
            Some(inner) => inner.mark_failed(stream),
            None => Box::pin(ready(Ok(()))),
        }
    }

    fn read_conversation(
        &self,
        scope: &Scope,
        after: EventId,
        seen_upto: Option<Seq>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>> {
        match &self.inner {
            Some(inner) => inner.read_conversation(scope, after, seen_upto, count),
            None => Box::pin(ready(Err(EventStoreError::Unknown))),
        }
    }

    fn kept<'a>(
        &'a self,
        scope: &'a Scope,
        after: EventId,
        count: usize,
    ) -> BoxFuture<'a, Vec<Arc<StreamEvent>>> {
        match &self.inner {
            Some(inner) => inner.kept(scope, after, count),
            None => Box::pin(ready(Vec::new())),
        }
    }

    fn watch(&self, scope: &Scope, after: EventId) -> BoxFuture<'_, ()> {
        match &self.inner {
            Some(inner) => inner.watch(scope, after),
            None => Box::pin(ready(())),
        }
    }

    fn forget(&self, scope: &Scope) {
        if let Some(inner) = &self.inner {
            inner.forget(scope);
        }
    }

    fn bytes(&self, tenant: &TenantId) -> usize {
        self.inner.as_ref().map_or(0, |inner| inner.bytes(tenant))
    }
}
