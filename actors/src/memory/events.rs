//! Event streams in memory: a ring buffer per round, grouped by conversation, and a notification
//! for watchers. Watchers have no queue; each reads on from its cursor.

mod handles;
mod waiting;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::{poll_fn, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use dashmap::{DashMap, Entry};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use handles::{Follower, Sink, Source};
use waiting::{Waiting, wake};

use super::{lock, ring::Ring};
use crate::{
    ids::{Epoch, EventId, RoundId, Scope, Seq, TenantId},
    limits::Limits,
    ports::{
        BoxFuture, EventStore, EventStoreError, StreamKey, StreamSink, StreamSource, StreamStatus,
        TextKind,
    },
    small_map::SmallMap,
    stream::{EventKind, StreamEvent},
};

/// Event streams in memory. Conversations do not block one another.
///
/// A stream is kept while it runs and for `ring_age` after its end (time of `tokio::time`); then it
/// is unknown. Expired streams are removed on access, a few whenever another stream ends, and by
/// [`EventStore::sweep`], which the host calls every second. A stream over its byte limit drops its
/// oldest ephemeral events first, and durable events only beyond four times the limit.
///
/// All streams together take at most `events_bytes_max`. Beyond it, the streams that ended first go
/// before their time, and running streams keep an eighth of their limit from their next event on.
///
/// Lock order: `ended`, then a shard of `conversations`, then the state of a conversation. `sweep`
/// releases `ended` before it takes another lock.
#[derive(Debug)]
pub struct MemoryEvents {
    conversations: DashMap<Scope, Arc<Conversation>>,
    /// Bytes of each tenant's streams.
    tenants: DashMap<TenantId, Arc<AtomicUsize>>,
    /// Bytes of all streams.
    bytes: Arc<AtomicUsize>,
    /// Ended streams with their end times. All streams live equally long, so the first one expires
    /// next.
    ended: Mutex<VecDeque<(Instant, StreamKey)>>,
    ring_bytes: usize,
    ring_age: Duration,
    bytes_max: usize,
}

/// Streams that leave at the end or at the append of another one, at most: whoever publishes an
/// event must not wait for a burst of rounds that ended together.
const EXPIRED_AT_ONCE: usize = 4;

/// Streams that one [`EventStore::sweep`] removes, at most.
const SWEPT_AT_ONCE: usize = 256;

/// The part of its limit that a running stream keeps while all streams together exceed theirs.
const CROWDED_PART: usize = 8;

/// The streams of a conversation. With `gone` set it is no longer in the map, and whoever holds it
/// must look it up again.
#[derive(Debug)]
struct Conversation {
    state: Mutex<State>,
    /// Notified of every event, for watchers of the conversation.
    bell: Notify,
    /// Bytes of the tenant, and of all tenants.
    bytes: [Arc<AtomicUsize>; 2],
}

#[derive(Debug, Default)]
struct State {
    rounds: SmallMap<RoundId, Stream>,
    /// Epoch of the activation that published the newest event.
    epoch: Epoch,
    /// This store received every event after this one. `None` before the first event.
    floor: Option<EventId>,
    /// Number of watchers of the conversation.
    watchers: usize,
    /// Number of streams that were started.
    started: u32,
    gone: bool,
}

#[derive(Debug)]
struct Stream {
    ring: Ring,
    end: Option<(StreamStatus, Instant)>,
    waiting: Waiting,
}

/// Bytes that a stream takes without its events: itself, its conversation in the map, its place in
/// the queue of ended ones, and their ids.
const STREAM_BYTES: usize = size_of::<(RoundId, Stream)>()
    + size_of::<(Scope, Arc<Conversation>)>()
    + size_of::<Conversation>()
    + size_of::<(Instant, StreamKey)>()
    + 128;

impl Stream {
    fn bytes(&self) -> usize {
        self.ring.bytes().saturating_add(STREAM_BYTES)
    }

    fn is_older(&self, age: Duration) -> bool {
        self.end.is_some_and(|(_, at)| at.elapsed() >= age)
    }
}

impl State {
    /// Whether an event after `after` is kept.
    fn has_after(&self, after: EventId) -> bool {
        self.rounds
            .values()
            .any(|stream| stream.ring.has_after(Some(after)))
    }

    fn last(&self) -> EventId {
        self.rounds
            .values()
            .map(|stream| stream.ring.last())
            .max()
            .unwrap_or_default()
    }

    /// Notes that a reader may have received every event so far, or waits for the next one.
    fn mark_seen(&mut self) {
        self.rounds
            .values_mut()
            .for_each(|stream| stream.ring.mark_seen());
    }

    /// Returns at most `count` events of all rounds strictly after `after`, in order. It merges the
    /// rings lazily and copies only the result, because appends wait for the lock meanwhile.
    fn kept_after(&mut self, after: EventId, count: usize) -> Vec<Arc<StreamEvent>> {
        self.mark_seen();
        let newer = self
            .rounds
            .values()
            .filter(|stream| stream.ring.has_after(Some(after)));
        let mut streams: Vec<_> = newer
            .map(|stream| stream.ring.kept_after(Some(after), count).peekable())
            .collect();
        let mut next: BinaryHeap<_> = streams
            .iter_mut()
            .enumerate()
            .filter_map(|(n, stream)| Some(Reverse((stream.peek()?.id, n))))
            .collect();
        let mut events = Vec::new();
        while events.len() < count
            && let Some(Reverse((_, n))) = next.pop()
            && let Some(stream) = streams.get_mut(n)
        {
            events.extend(stream.next().cloned());
            next.extend(stream.peek().map(|event| Reverse((event.id, n))));
        }
        events
    }

    /// Raises the floor when an activation starts to publish: earlier events may never have reached
    /// this store.
    fn note(&mut self, events: &[Arc<StreamEvent>]) {
        let Some(first) = events
            .first()
            .filter(|first| self.floor.is_none() || first.id.epoch > self.epoch)
        else {
            return;
        };
        self.epoch = first.id.epoch;
        let EventId { epoch, seq, n } = first.id;
        // The events of an entry arrive together, so nothing of a durable event's entry comes
        // before it. An ephemeral event's entry was published elsewhere.
        let floor = match first.kind.is_durable() {
            true => EventId {
                epoch,
                seq: Seq(seq.0.saturating_sub(1)),
                n: u32::MAX,
            },
            false => EventId {
                epoch,
                seq,
                n: n.saturating_sub(1),
            },
        };
        self.floor = self.floor.max(Some(floor));
    }

    /// Removes and returns a stream if it ended at least `age` ago.
    fn expire(&mut self, round: RoundId, age: Duration) -> Option<Stream> {
        if !self.rounds.get(&round)?.is_older(age) {
            return None;
        }
        let stream = self.rounds.remove(&round)?;
        self.floor = self.floor.max(Some(stream.ring.last()));
        Some(stream)
    }
}

impl Conversation {
    /// Counts a stream that had `before` bytes and has `after`.
    fn count(&self, before: usize, after: usize) {
        for bytes in &self.bytes {
            if after >= before {
                bytes.fetch_add(after - before, Ordering::Relaxed);
            } else {
                bytes.fetch_sub(before - after, Ordering::Relaxed);
            }
        }
    }
}

/// Whether an activation begins a round with this event, or goes on with it.
fn begins(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::RoundStarted {} | EventKind::TurnRestarted { .. }
    )
}

/// The result of an append: a future that is ready and needs no allocation.
struct Done;

impl Future for Done {
    type Output = Result<(), EventStoreError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}

/// A watcher of a conversation, counted until it is dropped.
struct Watching<'a> {
    store: &'a MemoryEvents,
    scope: Scope,
    conversation: Arc<Conversation>,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = lock(&self.conversation.state);
            state.watchers = state.watchers.saturating_sub(1);
            state.watchers == 0
        };
        if is_last {
            self.store.let_go(&self.scope);
        }
    }
}

impl Default for MemoryEvents {
    fn default() -> Self {
        Self::from_limits(&Limits::default())
    }
}

impl MemoryEvents {
    /// Creates a store that keeps `ring_bytes` per stream, and each stream for `ring_age` after its
    /// end. All streams together are bounded as by default ([`Limits::events_bytes_max`]).
    pub fn new(ring_bytes: usize, ring_age: Duration) -> Self {
        Self::from_limits(&Limits {
            ring_bytes,
            ring_age,
            ..Limits::default()
        })
    }

    /// Creates a store with the limits of a host.
    pub(crate) fn from_limits(limits: &Limits) -> Self {
        Self {
            conversations: DashMap::default(),
            tenants: DashMap::default(),
            bytes: Arc::default(),
            ended: Mutex::default(),
            ring_bytes: limits.ring_bytes,
            ring_age: limits.ring_age,
            bytes_max: limits.events_bytes_max,
        }
    }

    /// Removes at most `count` expired streams and returns their number.
    fn remove_expired(&self, count: usize) -> usize {
        let due = |at: Instant| at.elapsed() >= self.ring_age;
        (0..count)
            .take_while(|_| {
                let next = lock(&self.ended).pop_front_if(|(at, _)| due(*at));
                next.is_some_and(|(_, key)| {
                    // A new stream may have started under the same key, so `expire` checks again.
                    self.expire(&key, self.ring_age);
                    true
                })
            })
            .count()
    }

    /// Whether all streams together exceed their limit.
    fn is_crowded(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.bytes_max
    }

    /// While the streams exceed their limit, removes those that ended first, a few at a time.
    fn relieve(&self) {
        for _ in 0..EXPIRED_AT_ONCE {
            if !self.is_crowded() {
                return;
            }
            let first = lock(&self.ended).pop_front();
            let Some((_, key)) = first else { return };
            self.expire(&key, Duration::ZERO);
        }
    }

    /// Returns the number of streams and the bytes that they take with their events.
    pub fn size(&self) -> (usize, usize) {
        self.conversations
            .iter()
            .fold((0, 0), |(count, bytes), conversation| {
                let state = lock(&conversation.state);
                let held: usize = state.rounds.values().map(Stream::bytes).sum();
                (count + state.rounds.len(), bytes + held)
            })
    }

    /// Returns the number of conversations with a stream or a watcher.
    pub fn conversations(&self) -> usize {
        self.conversations.len()
    }

    /// How long a stream is kept after its end.
    fn ring_age(&self) -> Duration {
        self.ring_age
    }

    fn find(&self, scope: &Scope) -> Option<Arc<Conversation>> {
        Some(Arc::clone(&*self.conversations.get(scope)?))
    }

    fn find_or_begin(&self, scope: &Scope) -> Arc<Conversation> {
        if let Some(found) = self.find(scope) {
            return found;
        }
        let bytes = Arc::clone(&*self.tenants.entry(scope.tenant.clone()).or_default());
        match self.conversations.entry(scope.clone()) {
            Entry::Occupied(held) => Arc::clone(held.get()),
            Entry::Vacant(free) => Arc::clone(&*free.insert(Arc::new(Conversation {
                state: Mutex::default(),
                bell: Notify::new(),
                bytes: [bytes, self.bytes.clone()],
            }))),
        }
    }

    /// Runs `act` on the state of a conversation. A conversation that another thread removes
    /// meanwhile is looked up again.
    fn with<T>(
        &self,
        scope: &Scope,
        mut act: impl FnMut(&Arc<Conversation>, &mut State) -> T,
    ) -> T {
        loop {
            let conversation = self.find_or_begin(scope);
            let mut state = lock(&conversation.state);
            if !state.gone {
                return act(&conversation, &mut state);
            }
        }
    }

    /// Runs `act` on a stream that has not expired.
    fn with_stream<T>(&self, key: &StreamKey, act: impl FnOnce(&mut Stream) -> T) -> Option<T> {
        let conversation = self.find(&key.scope)?;
        let mut state = lock(&conversation.state);
        let stream = state.rounds.get_mut(&key.round)?;
        if !stream.is_older(self.ring_age) {
            return Some(act(stream));
        }
        drop(state);
        self.expire(key, self.ring_age);
        None
    }

    /// Removes a stream if it ended at least `age` ago.
    fn expire(&self, key: &StreamKey, age: Duration) {
        let Some(conversation) = self.find(&key.scope) else {
            return;
        };
        let (expired, is_empty) = {
            let mut state = lock(&conversation.state);
            (state.expire(key.round, age), state.rounds.is_empty())
        };
        if let Some(stream) = expired {
            conversation.count(stream.bytes(), 0);
        }
        if is_empty {
            self.let_go(&key.scope);
        }
    }

    /// Removes a conversation without streams and watchers.
    fn let_go(&self, scope: &Scope) {
        self.conversations.remove_if(scope, |_, conversation| {
            let mut state = lock(&conversation.state);
            state.gone = state.rounds.is_empty() && state.watchers == 0;
            state.gone
        });
    }

    /// Appends events to a stream, which starts if it does not exist, and moves the wakers of its
    /// readers to `woken`.
    fn append_to(
        &self,
        conversation: &Conversation,
        state: &mut State,
        round: RoundId,
        events: &mut Vec<Arc<StreamEvent>>,
        woken: &mut Vec<Waker>,
    ) {
        state.note(events);
        if let Some(expired) = state.expire(round, self.ring_age) {
            conversation.count(expired.bytes(), 0);
        }
        if !state.rounds.contains_key(&round) {
            state.started = state.started.wrapping_add(1);
            let stream = Stream {
                ring: Ring::new(self.ring_bytes),
                end: None,
                waiting: Waiting::of(state.started),
            };
            conversation.count(0, stream.bytes());
            state.rounds.insert(round, stream);
        }
        let Some(stream) = state.rounds.get_mut(&round) else {
            return;
        };
        if events.is_empty() {
            return;
        }
        // An activation ended the stream with an error, and a later one goes on with the round.
        if stream.end.is_some() && events.iter().any(|event| begins(&event.kind)) {
            stream.end = None;
        }
        let before = stream.ring.bytes();
        stream.ring.limit(match self.is_crowded() {
            true => self.ring_bytes / CROWDED_PART,
            false => self.ring_bytes,
        });
        stream.ring.append(events.drain(..));
        conversation.count(before, stream.ring.bytes());
        stream.waiting.take(woken);
        state.floor = state.floor.max(stream.ring.dropped());
        if state.watchers > 0 {
            conversation.bell.notify_waiters();
        }
    }

    /// Adds text to the newest event of a stream, unless a reader may have received it.
    fn extend_in(
        &self,
        conversation: &Conversation,
        state: &mut State,
        round: RoundId,
        id: EventId,
        kind: TextKind,
        text: &str,
    ) -> bool {
        let running = state
            .rounds
            .get_mut(&round)
            .filter(|stream| stream.end.is_none());
        running.is_some_and(|stream| {
            let before = stream.ring.bytes();
            let is_extended = stream.ring.extend(id, kind, text);
            conversation.count(before, stream.ring.bytes());
            is_extended
        })
    }

    fn end(&self, key: &StreamKey, status: StreamStatus) -> Result<(), EventStoreError> {
        // The end time is read and queued under one lock, so that the queue is sorted by time. This
        // lock is taken before that of a conversation, never inside it.
        let mut ended = lock(&self.ended);
        let now = Instant::now();
        let mut woken = Vec::new();
        let is_first = self
            .with_stream(key, |stream| {
                let is_first = stream.end.is_none();
                stream.end.get_or_insert((status, now));
                stream.waiting.take(&mut woken);
                stream.waiting.shrink();
                stream.ring.shrink();
                is_first
            })
            .ok_or(EventStoreError::Unknown)?;
        if is_first {
            ended.push_back((now, key.clone()));
        }
        drop(ended);
        wake(&mut woken);
        self.remove_expired(EXPIRED_AT_ONCE);
        self.relieve();
        Ok(())
    }
}

impl EventStore for MemoryEvents {
    fn append(
        &self,
        stream: &StreamKey,
        events: Vec<Arc<StreamEvent>>,
    ) -> BoxFuture<'_, Result<(), EventStoreError>> {
        // An append without events also starts the stream, so that watchers wait and do not read an
        // unknown stream.
        let mut events = events;
        let mut woken = Vec::new();
        self.with(&stream.scope, |conversation, state| {
            self.append_to(conversation, state, stream.round, &mut events, &mut woken);
        });
        wake(&mut woken);
        self.relieve();
        Box::pin(Done)
    }

    fn open(self: Arc<Self>, stream: &StreamKey) -> Box<dyn StreamSink> {
        Box::new(Sink::new(self, stream.clone()))
    }

    fn follow(self: Arc<Self>, stream: &StreamKey) -> Box<dyn StreamSource> {
        Box::new(Source::new(self, stream.clone()))
    }

    fn read(
        &self,
        stream: &StreamKey,
        after: Option<EventId>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>> {
        let found = self.with_stream(stream, |stream| {
            let mut events = Vec::new();
            stream.ring.read(after, count, &mut events)?;
            Ok(events)
        });
        Box::pin(ready(found.unwrap_or(Err(EventStoreError::Unknown))))
    }

    fn changed(&self, stream: &StreamKey, after: Option<EventId>) -> BoxFuture<'_, ()> {
        let mut follower = Follower::new(stream.clone());
        Box::pin(async move { poll_fn(|cx| follower.poll_changed(self, cx, after)).await })
    }

    fn get_status(
        &self,
        stream: &StreamKey,
    ) -> BoxFuture<'_, Result<Option<StreamStatus>, EventStoreError>> {
        let status = self.with_stream(stream, |stream| {
            stream
                .end
                .map_or(StreamStatus::Running, |(status, _)| status)
        });
        Box::pin(ready(Ok(status)))
    }

    fn mark_complete(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>> {
        Box::pin(ready(self.end(stream, StreamStatus::Complete)))
    }

    fn mark_failed(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>> {
        Box::pin(ready(self.end(stream, StreamStatus::Failed)))
    }

    fn read_conversation(
        &self,
        scope: &Scope,
        after: EventId,
        seen_upto: Option<Seq>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>> {
        let Some(conversation) = self.find(scope) else {
            return Box::pin(ready(Err(EventStoreError::Unknown)));
        };
        let mut state = lock(&conversation.state);
        let read = match state.floor {
            None => Err(EventStoreError::Unknown),
            Some(floor)
                if after < floor && seen_upto.is_none_or(|seen_upto| seen_upto < floor.seq) =>
            {
                Err(EventStoreError::Expired)
            }
            Some(_) if seen_upto.is_none() && after > state.last() => Err(EventStoreError::Expired),
            Some(_) => Ok(state.kept_after(after, count)),
        };
        Box::pin(ready(read))
    }

    fn kept<'a>(
        &'a self,
        scope: &'a Scope,
        after: EventId,
        count: usize,
    ) -> BoxFuture<'a, Vec<Arc<StreamEvent>>> {
        let kept = self
            .find(scope)
            .map(|conversation| lock(&conversation.state).kept_after(after, count));
        Box::pin(ready(kept.unwrap_or_default()))
    }

    fn watch(&self, scope: &Scope, after: EventId) -> BoxFuture<'_, ()> {
        let scope = scope.clone();
        Box::pin(async move {
            let conversation = self.with(&scope, |conversation, state| {
                state.watchers += 1;
                Arc::clone(conversation)
            });
            let watching = Watching {
                store: self,
                scope,
                conversation,
            };
            loop {
                let mut rung = std::pin::pin!(watching.conversation.bell.notified());
                // Listens before it reads: an append in between is then not missed.
                rung.as_mut().enable();
                {
                    let mut state = lock(&watching.conversation.state);
                    if state.gone || state.has_after(after) {
                        return;
                    }
                    state.mark_seen();
                }
                rung.await;
            }
        })
    }

    fn forget(&self, scope: &Scope) {
        let Some((_, conversation)) = self.conversations.remove_if(scope, |_, conversation| {
            lock(&conversation.state).gone = true;
            true
        }) else {
            return;
        };
        let mut rounds = std::mem::take(&mut lock(&conversation.state).rounds);
        conversation.count(rounds.values().map(Stream::bytes).sum(), 0);
        let mut woken = Vec::new();
        for (_, mut stream) in rounds.take() {
            stream.waiting.take(&mut woken);
        }
        wake(&mut woken);
        conversation.bell.notify_waiters();
    }

    fn bytes(&self, tenant: &TenantId) -> usize {
        self.tenants
            .get(tenant)
            .map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    fn sweep(&self) -> bool {
        self.remove_expired(SWEPT_AT_ONCE) == SWEPT_AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::{ConversationId, Epoch, RoundId, Scope, Seq, TenantId},
        stream::EventKind,
        testing::contract,
    };

    fn key(n: u8) -> StreamKey {
        let scope = Scope::new(
            TenantId::new("t").unwrap(),
            ConversationId::new("c").unwrap(),
        );
        StreamKey {
            scope,
            round: RoundId::from_random([n; 16]),
        }
    }

    fn delta(n: u32) -> Arc<StreamEvent> {
        let id = EventId {
            epoch: Epoch(1),
            seq: Seq(1),
            n,
        };
        let kind = EventKind::TextDelta {
            text: n.to_string(),
        };
        Arc::new(StreamEvent {
            id,
            conversation_id: ConversationId::new("c").unwrap(),
            round_id: None,
            kind,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn memory_keeps_the_contract_of_an_event_store() {
        contract::event_store(async |bytes, age| {
            Arc::new(MemoryEvents::new(bytes, age)) as Arc<dyn EventStore>
        })
        .await;
    }

    /// Very many short rounds are bounded although their events are small.
    #[tokio::test(start_paused = true)]
    async fn streams_count_although_they_have_few_events() {
        let store = MemoryEvents::from_limits(&Limits {
            events_bytes_max: 100 * (STREAM_BYTES + 1000),
            ..Limits::default()
        });
        for n in 0..1000 {
            let mut key = key(0);
            key.scope.conversation = ConversationId::new(format!("c{n}")).unwrap();
            store.append(&key, vec![delta(1)]).await.unwrap();
            store.mark_complete(&key).await.unwrap();
        }

        let (streams, bytes) = store.size();

        assert!((100..200).contains(&streams), "{streams}");
        assert!(bytes <= 100 * (STREAM_BYTES + 1000), "{bytes}");
        assert_eq!(store.conversations(), streams);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_stream_runs_again_when_its_round_is_resumed() {
        let store = MemoryEvents::new(256 * 1024, Duration::from_secs(600));
        let event = |epoch, n, kind| {
            let id = EventId {
                epoch: Epoch(epoch),
                seq: Seq(epoch),
                n,
            };
            Arc::new(StreamEvent {
                id,
                kind,
                ..StreamEvent::clone(&delta(n))
            })
        };
        let restarted = || EventKind::TurnRestarted { epoch: Epoch(2) };
        let events = vec![
            event(1, 0, EventKind::RoundStarted {}),
            event(1, 1, restarted()),
        ];
        store.append(&key(0), events).await.unwrap();
        store.mark_failed(&key(0)).await.unwrap();

        tokio::time::advance(Duration::from_secs(599)).await;
        let resumed = vec![event(2, 0, restarted())];
        store.append(&key(0), resumed).await.unwrap();
        let status = store.get_status(&key(0)).await.unwrap();
        assert_eq!(status, Some(StreamStatus::Running));
        tokio::time::advance(Duration::from_secs(600)).await;
        store
            .append(&key(0), vec![event(2, 1, restarted())])
            .await
            .unwrap();

        let kept = store.read(&key(0), None, 10).await.unwrap();
        let ids: Vec<String> = kept.iter().map(|event| event.id.to_string()).collect();
        assert_eq!(
            ids,
            ["1.1.0", "1.1.1", "2.2.0", "2.2.1"],
            "no event is missing"
        );
        assert!(!store.sweep());
        assert_eq!(store.size().0, 1, "it has not ended");
        store.mark_complete(&key(0)).await.unwrap();
        tokio::time::advance(Duration::from_secs(600)).await;
        assert!(!store.sweep());
        assert_eq!(store.size(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn ended_streams_go_by_themselves_and_running_ones_stay() {
        let store = MemoryEvents::new(256 * 1024, Duration::from_secs(600));
        for n in 0..3 {
            store.append(&key(n), vec![delta(1)]).await.unwrap();
        }
        store.mark_complete(&key(0)).await.unwrap();

        tokio::time::advance(Duration::from_secs(599)).await;
        assert_eq!(store.remove_expired(9), 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        store.mark_failed(&key(1)).await.unwrap(); // sweeps on the way

        assert_eq!(store.size().0, 2);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!((store.remove_expired(9), store.size().0), (1, 1));
        assert_eq!(
            store.get_status(&key(2)).await,
            Ok(Some(StreamStatus::Running))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_rounds_that_ended_together_goes_a_few_at_a_time() {
        let store = MemoryEvents::new(256 * 1024, Duration::from_secs(600));
        for n in 0..100 {
            store.append(&key(n), vec![delta(1)]).await.unwrap();
            store.mark_complete(&key(n)).await.unwrap();
        }
        store.append(&key(100), vec![delta(1)]).await.unwrap();
        tokio::time::advance(Duration::from_secs(600)).await;

        store.mark_complete(&key(100)).await.unwrap();

        assert_eq!(store.size().0, 101 - EXPIRED_AT_ONCE);
        assert!(!store.sweep(), "the rest is less than one sweep");
        assert_eq!(store.size().0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn all_streams_together_are_bounded_and_those_that_ended_first_go_first() {
        let store = MemoryEvents::from_limits(&Limits {
            ring_bytes: 64 * 1024,
            events_bytes_max: 1024 * 1024,
            ..Limits::default()
        });
        let fill = async |n: u8| {
            let events = (1..=1000).map(delta).collect();
            store.append(&key(n), events).await.unwrap();
        };
        fill(0).await; // It never ends.
        for n in 1..=100 {
            fill(n).await;
            store.mark_complete(&key(n)).await.unwrap();
        }

        let (streams, bytes) = store.size();

        assert!(bytes <= 1024 * 1024 + 2 * 64 * 1024, "{bytes}");
        assert_eq!(store.bytes(&key(0).scope.tenant), bytes);
        assert_eq!(store.bytes.load(Ordering::Relaxed), bytes);
        let kept = async |n: u8| store.get_status(&key(n)).await.unwrap().is_some();
        assert!(kept(0).await && kept(100).await && !kept(1).await);
        assert!((10..=20).contains(&streams), "{streams}");

        for n in 101..=200 {
            fill(n).await; // Running streams alone exceed the bound: each keeps less.
        }
        let (streams, bytes) = store.size();
        assert_eq!(streams, 101, "the ended ones are gone");
        assert!(bytes <= 1024 * 1024 + 100 * 8 * 1024 + 64 * 1024, "{bytes}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_counted_with_all_of_its_memory() {
        let store = MemoryEvents::new(usize::MAX, Duration::from_secs(600));

        store
            .append(&key(1), (1..=1000).map(delta).collect())
            .await
            .unwrap();

        let one = store.size().1 / 1000;
        assert!(one >= size_of::<StreamEvent>() + 16 + 8, "{one}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_watcher_of_a_silent_conversation_holds_goes_with_the_last_one() {
        let store = MemoryEvents::new(256 * 1024, Duration::from_secs(600));
        let wait = || {
            tokio::time::timeout(
                Duration::from_millis(1),
                store.watch(&key(1).scope, EventId::default()),
            )
        };

        let (first, second) = tokio::join!(wait(), async {
            tokio::task::yield_now().await;
            store.conversations()
        });

        assert!(first.is_err());
        assert_eq!((second, store.conversations()), (1, 0));
        store.append(&key(1), vec![delta(1)]).await.unwrap();
        store.mark_complete(&key(1)).await.unwrap();
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!(
            (
                store.remove_expired(9),
                store.conversations(),
                store.bytes(&key(1).scope.tenant)
            ),
            (1, 0, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_rung_also_after_all_streams_went() {
        let store = Arc::new(MemoryEvents::new(1000, Duration::from_secs(1)));
        store.append(&key(0), vec![delta(1)]).await.unwrap();
        store.mark_complete(&key(0)).await.unwrap();
        let waits = tokio::spawn({
            let store = store.clone();
            async move { store.watch(&key(0).scope, delta(1).id).await }
        });
        tokio::task::yield_now().await;

        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!((store.remove_expired(9), store.size().0), (1, 0));
        store.append(&key(1), vec![delta(2)]).await.unwrap();

        tokio::time::timeout(Duration::from_secs(9), waits)
            .await
            .expect("it is rung")
            .unwrap();
    }

    #[tokio::test]
    async fn a_conversation_whose_durable_events_were_dropped_expires_older_cursors() {
        let store = MemoryEvents::new(640, Duration::from_secs(1));
        let message = |seq: u64| {
            let id = EventId {
                epoch: Epoch(1),
                seq: Seq(seq),
                n: 0,
            };
            let kind = EventKind::SkillActivated {
                name: "x".repeat(1000),
                level: 1,
            };
            Arc::new(StreamEvent {
                id,
                conversation_id: ConversationId::new("c").unwrap(),
                round_id: None,
                kind,
            })
        };
        store
            .append(&key(0), (1..=3).map(message).collect())
            .await
            .unwrap();

        let read = async |seq: u64| {
            store
                .read_conversation(&key(0).scope, message(seq).id, Some(Seq(0)), 9)
                .await
                .map(|events| events.len())
        };

        assert_eq!(
            (read(1).await, read(2).await),
            (Ok(2), Ok(1)),
            "two of 1,200 bytes each are left: what is behind the first is whole"
        );
        assert_eq!(
            store
                .read_conversation(&key(0).scope, EventId::default(), Some(Seq(0)), 9)
                .await,
            Err(EventStoreError::Expired),
            "the first one is gone"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_ring_is_lost_on_watchers_that_are_about_to_wait() {
        const EVENTS: u32 = 500;
        let store = Arc::new(MemoryEvents::new(usize::MAX, Duration::from_secs(1)));
        let seen = Arc::new(AtomicUsize::new(0));
        store.append(&key(0), vec![delta(0)]).await.unwrap();
        let watch = |store: Arc<MemoryEvents>, seen: Arc<AtomicUsize>| async move {
            for n in 0..EVENTS {
                store.watch(&key(0).scope, delta(n).id).await;
                seen.fetch_add(1, Ordering::SeqCst);
            }
        };
        let watchers: Vec<_> = (0..4)
            .map(|_| tokio::spawn(watch(store.clone(), seen.clone())))
            .collect();

        let all = async {
            for n in 1..=EVENTS {
                store.append(&key(0), vec![delta(n)]).await.unwrap();
                while seen.load(Ordering::SeqCst) < n as usize * 4 {
                    tokio::task::yield_now().await; // No other event notifies it.
                }
            }
        };

        tokio::time::timeout(Duration::from_secs(60), all)
            .await
            .expect("a wake-up was lost");
        drop(watchers);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_watchers_of_a_fast_writer_miss_nothing() {
        const EVENTS: u32 = 2000;
        let store = Arc::new(MemoryEvents::new(usize::MAX, Duration::from_secs(1)));
        store.append(&key(0), vec![delta(1)]).await.unwrap();
        let watch = |store: Arc<MemoryEvents>| async move {
            let mut seen = Vec::new();
            let mut after = None;
            loop {
                store.changed(&key(0), after).await;
                let status = store.get_status(&key(0)).await;
                let events = store.read(&key(0), after, 7).await.unwrap();
                seen.extend(events.iter().map(|event| event.id.n));
                after = events.last().map(|event| event.id).or(after);
                if events.is_empty() && status == Ok(Some(StreamStatus::Complete)) {
                    return seen;
                }
            }
        };
        let watchers: Vec<_> = (0..8)
            .map(|_| tokio::spawn(watch(Arc::clone(&store))))
            .collect();

        for n in 2..=EVENTS {
            store.append(&key(0), vec![delta(n)]).await.unwrap();
            if n % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        store.mark_complete(&key(0)).await.unwrap();

        for watcher in watchers {
            let seen = tokio::time::timeout(Duration::from_secs(30), watcher)
                .await
                .expect("a wake-up was lost")
                .unwrap();
            assert_eq!(seen, (1..=EVENTS).collect::<Vec<_>>());
        }
    }
}
