//! The one pipe to those who watch (DESIGN §4.6): gives every event its id, and holds back what tells of an entry until the
//! entry is durable, with everything behind it. Fed by provider, tools and conversation; a lock, never a mailbox.
//!
//! Bound: ephemeral events that wait behind an entry are dropped above `ring_bytes`; durable ones are bounded by the journal's
//! backlog, which bounds prompts.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::FutureExt;

use crate::{
    ids::{Epoch, EventId, RoundId, Scope, Seq},
    journal::{Durable, Entry, EntryBody, project},
    ports::{EventStore, StreamKey},
    stream::{EventKind, Failure, RoundStatus, StreamEvent},
};

/// The writer of one life of one conversation.
pub(in crate::conversation) struct StreamWriter {
    scope: Scope,
    store: Arc<dyn EventStore>,
    waiting_bytes_max: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    epoch: Epoch,
    /// The last entry whose events are out.
    published: Seq,
    /// The next number behind it.
    n: u32,
    /// Entries up to here are durable.
    stored: Seq,
    queue: VecDeque<Item>,
    waiting_bytes: usize,
    closed: bool,
}

enum Item {
    Entry { seq: Seq, epoch: Epoch, round: Option<RoundId>, events: Vec<EventKind>, opens: bool },
    Ephemeral { round: RoundId, event: EventKind },
}

impl StreamWriter {
    /// A writer for a life that begins after `stored`.
    pub(in crate::conversation) fn new(
        scope: Scope,
        store: Arc<dyn EventStore>,
        life: Epoch,
        stored: Seq,
        waiting_bytes_max: usize,
    ) -> Self {
        let inner = Inner { epoch: life, published: stored, n: 0, stored, queue: VecDeque::new(), waiting_bytes: 0, closed: false };
        Self { scope, store, waiting_bytes_max, inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the stream of a round that an earlier life began, so that a watcher waits for what comes and does not take it for ended.
    pub(in crate::conversation) fn open(&self, round: RoundId) {
        self.append(round, Vec::new());
    }

    /// Queues the events of an entry that is about to be applied; they come out when [`StreamWriter::stored`] says so.
    pub(in crate::conversation) fn entry(&self, before: &Durable, entry: &Entry) {
        let (round, events) = project(&self.scope.conversation, before, entry);
        let opens = matches!(entry.body, EntryBody::PromptAccepted { .. });
        self.lock().queue.push_back(Item::Entry { seq: entry.seq, epoch: entry.epoch, round, events, opens });
    }

    /// Queues an event that tells of no entry; it may be lost.
    pub(in crate::conversation) fn ephemeral(&self, round: RoundId, event: EventKind) {
        let mut inner = self.lock();
        if inner.closed {
            return;
        }
        if inner.queue.is_empty() {
            let event = self.event(&mut inner, round, event);
            self.append(round, vec![event]);
            return;
        }
        let size = event.size();
        if inner.waiting_bytes + size > self.waiting_bytes_max {
            return; // A `message` will replace what is lost here.
        }
        inner.waiting_bytes += size;
        inner.queue.push_back(Item::Ephemeral { round, event });
        self.publish(inner);
    }

    /// Notes that entries up to `upto` are durable and publishes what waited.
    pub(in crate::conversation) fn stored(&self, upto: Seq) {
        let mut inner = self.lock();
        inner.stored = inner.stored.max(upto);
        self.publish(inner);
        let mut inner = self.lock();
        if inner.queue.is_empty() {
            inner.queue.shrink_to_fit(); // An idle conversation keeps no empty buffers.
        }
    }

    /// Ends the streams of `rounds`, and of every round that waits here, because this life cannot go on. What was not durable
    /// is never shown: a round that ended only in memory has not ended for its watchers.
    pub(in crate::conversation) fn fail(&self, rounds: &[RoundId], failure: &Failure) {
        let mut inner = self.lock();
        let waiting = std::mem::take(&mut inner.queue).into_iter().filter_map(|item| match item {
            Item::Entry { round, .. } => round,
            Item::Ephemeral { round, .. } => Some(round),
        });
        let rounds: BTreeSet<RoundId> = waiting.chain(rounds.iter().copied()).collect();
        for round in rounds {
            let event = self.event(&mut inner, round, EventKind::Error { failure: failure.clone() });
            self.append(round, vec![event]);
            self.end(round, RoundStatus::Error);
        }
        inner.closed = true;
    }

    /// Ends the writer: what was not durable is never shown.
    pub(in crate::conversation) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        inner.queue.clear();
    }

    /// Publishes the front of the queue that may be seen. Holds the lock so that ids and appends have one order.
    fn publish(&self, mut inner: MutexGuard<'_, Inner>) {
        if inner.closed {
            return;
        }
        let mut batch: Vec<Arc<StreamEvent>> = Vec::new();
        let mut batch_round = None;
        loop {
            match inner.queue.front() {
                Some(Item::Entry { seq, .. }) if *seq > inner.stored => break,
                Some(_) => {}
                None => break,
            }
            let Some(item) = inner.queue.pop_front() else { break };
            match item {
                Item::Ephemeral { round, event } => {
                    inner.waiting_bytes = inner.waiting_bytes.saturating_sub(event.size());
                    self.flush_if_other(&mut batch, &mut batch_round, round);
                    let event = self.event(&mut inner, round, event);
                    batch.push(event);
                }
                Item::Entry { seq, epoch, round, events, opens } => {
                    inner.epoch = epoch;
                    inner.published = seq;
                    // What follows an entry without events begins at 1: its place at 0 belongs to a snapshot of that state.
                    inner.n = u32::from(round.is_none() || events.is_empty());
                    let Some(round) = round else { continue };
                    self.flush_if_other(&mut batch, &mut batch_round, round);
                    let end = events.iter().find(|event| event.ends_stream()).map(status);
                    for event in events {
                        let event = self.event(&mut inner, round, event);
                        batch.push(event);
                    }
                    if opens && batch.is_empty() {
                        self.append(round, Vec::new());
                    }
                    if let Some(status) = end {
                        self.append(round, std::mem::take(&mut batch));
                        self.end(round, status);
                    }
                }
            }
        }
        if let Some(round) = batch_round
            && !batch.is_empty()
        {
            self.append(round, batch);
        }
    }

    fn event(&self, inner: &mut Inner, round: RoundId, kind: EventKind) -> Arc<StreamEvent> {
        let id = EventId { epoch: inner.epoch, seq: inner.published, n: inner.n };
        inner.n = inner.n.saturating_add(1);
        Arc::new(StreamEvent { id, conversation_id: self.scope.conversation.clone(), round_id: Some(round), kind })
    }

    fn flush_if_other(&self, batch: &mut Vec<Arc<StreamEvent>>, batch_round: &mut Option<RoundId>, round: RoundId) {
        if let Some(other) = batch_round.replace(round)
            && other != round
            && !batch.is_empty()
        {
            self.append(other, std::mem::take(batch));
        }
    }

    fn key(&self, round: RoundId) -> StreamKey {
        StreamKey { scope: self.scope.clone(), round }
    }

    fn append(&self, round: RoundId, events: Vec<Arc<StreamEvent>>) {
        let key = self.key(round);
        // The port takes events when the future is first polled, in the order of calls; a remote store goes on by itself.
        if let Some(Err(error)) = self.store.append(&key, events).now_or_never() {
            tracing::warn!(conversation = %self.scope.conversation, %error, "events were not kept");
        }
    }

    fn end(&self, round: RoundId, status: RoundStatus) {
        let key = self.key(round);
        let _ = match status {
            RoundStatus::Error => self.store.mark_failed(&key).now_or_never(),
            RoundStatus::Pending | RoundStatus::InProgress | RoundStatus::Completed => self.store.mark_complete(&key).now_or_never(),
        };
    }
}

fn status(event: &EventKind) -> RoundStatus {
    match event {
        EventKind::RoundFinished { end } => end.status,
        _ => RoundStatus::Error,
    }
}
