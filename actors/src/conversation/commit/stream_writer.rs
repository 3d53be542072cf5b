//! The only writer of a conversation's event streams. It numbers every event, and it holds back the
//! events of an entry, with everything behind them, until the entry is durable. The model call, the
//! tools and the conversation write concurrently under a lock; there is no mailbox in between.
//!
//! Bound: ephemeral events that wait behind an entry are dropped above `ring_bytes`. Durable events
//! are bounded by the append backlog, above which prompts are refused.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    ids::{Epoch, EventId, RoundId, Scope, Seq},
    journal::{Durable, Entry, EntryBody, project},
    ports::{EventStore, StreamKey, StreamSink, TextKind},
    stream::{EventKind, Failure, RoundStatus, StreamEvent},
};

/// The stream writer of one activation.
pub(in crate::conversation) struct StreamWriter {
    scope: Scope,
    store: Arc<dyn EventStore>,
    waiting_bytes_max: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    epoch: Epoch,
    /// The last entry whose events are published.
    published: Seq,
    /// The number of the next event behind that entry.
    n: u32,
    /// Entries up to this seq are durable.
    stored: Seq,
    queue: VecDeque<Item>,
    waiting_bytes: usize,
    /// The stream that was written last, until it ends.
    open: Option<(RoundId, Box<dyn StreamSink>)>,
    /// The events of one append. Empty in between, and reused while a stream is open.
    batch: Vec<Arc<StreamEvent>>,
    closed: bool,
}

enum Item {
    Entry {
        seq: Seq,
        epoch: Epoch,
        round: Option<RoundId>,
        events: Vec<EventKind>,
        opens: bool,
    },
    Ephemeral {
        round: RoundId,
        event: EventKind,
    },
}

impl StreamWriter {
    /// A writer for an activation whose journal is durable up to `stored`.
    pub(in crate::conversation) fn new(
        scope: Scope,
        store: Arc<dyn EventStore>,
        epoch: Epoch,
        stored: Seq,
        waiting_bytes_max: usize,
    ) -> Self {
        let inner = Inner {
            epoch,
            published: stored,
            n: 0,
            stored,
            queue: VecDeque::new(),
            waiting_bytes: 0,
            open: None,
            batch: Vec::new(),
            closed: false,
        };
        Self {
            scope,
            store,
            waiting_bytes_max,
            inner: Mutex::new(inner),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Opens the stream of a round that an earlier activation accepted. A watcher then waits for
    /// events and does not take the round for ended.
    pub(in crate::conversation) fn open(&self, round: RoundId) {
        self.append(&mut self.lock(), round);
    }

    /// Queues the events of an entry that is about to be applied. [`StreamWriter::stored`]
    /// publishes them.
    pub(in crate::conversation) fn entry(&self, before: &Durable, entry: &Entry) {
        let (round, events) = project(&self.scope.conversation, before, entry);
        let opens = matches!(entry.body, EntryBody::PromptAccepted { .. });
        self.lock().queue.push_back(Item::Entry {
            seq: entry.seq,
            epoch: entry.epoch,
            round,
            events,
            opens,
        });
    }

    /// Publishes an event that follows from no entry, or queues it behind a held entry; it may be
    /// dropped.
    pub(in crate::conversation) fn ephemeral(&self, round: RoundId, event: EventKind) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        if inner.queue.is_empty() {
            self.publish_ephemeral(&mut inner, round, event);
            return;
        }
        let size = event.size();
        if inner.waiting_bytes + size > self.waiting_bytes_max {
            return; // Watchers lose only deltas: the complete `message` event follows.
        }
        inner.waiting_bytes += size;
        inner.queue.push_back(Item::Ephemeral { round, event });
        self.publish(inner);
    }

    /// Notes that entries up to `upto` are durable, and publishes their events.
    pub(in crate::conversation) fn stored(&self, upto: Seq) {
        let mut inner = self.lock();
        inner.stored = inner.stored.max(upto);
        self.publish(inner);
        let mut inner = self.lock();
        if inner.queue.is_empty() {
            inner.queue.shrink_to_fit(); // An idle conversation keeps no empty buffers.
        }
    }

    /// Ends the streams of `rounds`, and of every round with queued events, because the activation
    /// cannot continue. Events of entries that are not durable are dropped: a round that ended only
    /// in memory has not ended for its watchers.
    pub(in crate::conversation) fn fail(&self, rounds: &[RoundId], failure: &Failure) {
        let mut inner = self.lock();
        let waiting = std::mem::take(&mut inner.queue)
            .into_iter()
            .filter_map(|item| match item {
                Item::Entry { round, .. } => round,
                Item::Ephemeral { round, .. } => Some(round),
            });
        let rounds: BTreeSet<RoundId> = waiting.chain(rounds.iter().copied()).collect();
        for round in rounds {
            let failure = failure.clone();
            self.push(&mut inner, round, EventKind::Error { failure });
            self.append(&mut inner, round);
            self.end(&mut inner, round, RoundStatus::Error);
        }
        inner.closed = true;
    }

    /// Closes the writer and drops the queued events.
    pub(in crate::conversation) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.queue.clear();
        inner.open = None;
    }

    /// Publishes events from the front of the queue until the first entry that is not durable.
    /// Appends under the lock, so that event ids and appends have the same order. Consecutive
    /// events of one round form one append; the end of a round is appended before its stream is
    /// ended.
    fn publish(&self, mut inner: MutexGuard<'_, Inner>) {
        let inner = &mut *inner;
        if inner.closed {
            return;
        }
        let mut batch_round = None;
        loop {
            match inner.queue.front() {
                Some(Item::Entry { seq, .. }) if *seq > inner.stored => break,
                Some(_) => {}
                None => break,
            }
            let Some(item) = inner.queue.pop_front() else {
                break;
            };
            match item {
                Item::Ephemeral { round, event } => {
                    inner.waiting_bytes = inner.waiting_bytes.saturating_sub(event.size());
                    self.flush_if_other(inner, &mut batch_round, round);
                    self.push(inner, round, event);
                }
                Item::Entry {
                    seq,
                    epoch,
                    round,
                    events,
                    opens,
                } => {
                    inner.epoch = epoch;
                    inner.published = seq;
                    // Events behind an entry that has none start at 1: number 0 belongs to a
                    // snapshot of that state.
                    inner.n = u32::from(round.is_none() || events.is_empty());
                    let Some(round) = round else { continue };
                    self.flush_if_other(inner, &mut batch_round, round);
                    let end = events.iter().find(|event| event.ends_stream()).map(status);
                    for event in events {
                        self.push(inner, round, event);
                    }
                    if opens && inner.batch.is_empty() {
                        self.append(inner, round);
                    }
                    if let Some(status) = end {
                        self.append(inner, round);
                        self.end(inner, round, status);
                    }
                }
            }
        }
        if let Some(round) = batch_round
            && !inner.batch.is_empty()
        {
            self.append(inner, round);
        }
    }

    /// Publishes an event at once, unless the store would not take it. Text joins the text before it
    /// if no reader has received that.
    fn publish_ephemeral(&self, inner: &mut Inner, round: RoundId, event: EventKind) {
        let id = inner.next_id();
        let sink = self.sink(&mut inner.open, round);
        if !sink.takes_ephemeral() {
            return;
        }
        let is_added = match &event {
            EventKind::TextDelta { text } => sink.extend(id, TextKind::Text, text),
            EventKind::ThinkingDelta { text } => sink.extend(id, TextKind::Thinking, text),
            _ => false,
        };
        if is_added {
            inner.n = inner.n.saturating_add(1);
            return;
        }
        self.push(inner, round, event);
        self.append(inner, round);
    }

    /// Adds an event to the batch.
    fn push(&self, inner: &mut Inner, round: RoundId, kind: EventKind) {
        let id = inner.next_id();
        inner.n = inner.n.saturating_add(1);
        inner.batch.push(Arc::new(StreamEvent {
            id,
            conversation_id: self.scope.conversation.clone(),
            round_id: Some(round),
            kind,
        }));
    }

    fn flush_if_other(&self, inner: &mut Inner, batch_round: &mut Option<RoundId>, round: RoundId) {
        if let Some(other) = batch_round.replace(round)
            && other != round
            && !inner.batch.is_empty()
        {
            self.append(inner, other);
        }
    }

    fn key(&self, round: RoundId) -> StreamKey {
        StreamKey {
            scope: self.scope.clone(),
            round,
        }
    }

    /// The handle of the round's stream.
    fn sink<'a>(
        &self,
        open: &'a mut Option<(RoundId, Box<dyn StreamSink>)>,
        round: RoundId,
    ) -> &'a mut dyn StreamSink {
        let held = open.take().filter(|(known, _)| *known == round);
        let held = held.unwrap_or_else(|| (round, self.store.clone().open(&self.key(round))));
        &mut *open.insert(held).1
    }

    /// Appends the batch, which may be empty.
    fn append(&self, inner: &mut Inner, round: RoundId) {
        let sink = self.sink(&mut inner.open, round);
        if let Err(error) = sink.append(&mut inner.batch) {
            tracing::warn!(conversation = %self.scope.conversation, %error, "events were not kept");
        }
    }

    fn end(&self, inner: &mut Inner, round: RoundId, status: RoundStatus) {
        // An idle conversation keeps no empty buffers.
        (inner.open, inner.batch) = (None, Vec::new());
        let key = self.key(round);
        let _ = match status {
            RoundStatus::Error => self.store.mark_failed(&key).now_or_never(),
            RoundStatus::Pending | RoundStatus::InProgress | RoundStatus::Completed => {
                self.store.mark_complete(&key).now_or_never()
            }
        };
    }
}

impl Inner {
    /// The id of the next event.
    fn next_id(&self) -> EventId {
        EventId {
            epoch: self.epoch,
            seq: self.published,
            n: self.n,
        }
    }
}

fn status(event: &EventKind) -> RoundStatus {
    match event {
        EventKind::RoundFinished { end } => end.status,
        _ => RoundStatus::Error,
    }
}
