//! Streams in memory: a ring a stream, and one bell for all who watch it. Watchers have no queue; they read on from their cursor.

use std::{
    collections::VecDeque,
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use dashmap::{DashMap, Entry};
use tokio::{sync::Notify, time::Instant};

use super::{lock, ring::Ring};
use crate::{
    ids::EventId,
    limits::Limits,
    ports::{BoxFuture, EventStore, EventStoreError, StreamKey, StreamStatus},
    stream::StreamEvent,
};

/// Streams in memory. Different streams do not wait for one another.
///
/// A stream is kept while it runs and for `ring_age` after its end, by `tokio::time`; then it is unknown. Expired ones
/// are let go on access, at each later end of a stream, and by [`MemoryEvents::sweep`]. What goes when a stream is over
/// its bytes: the oldest ephemeral events; durable ones only beyond four times the bound.
#[derive(Debug)]
pub struct MemoryEvents {
    streams: DashMap<StreamKey, Arc<Stream>>,
    /// Ended streams with the time of their end. All age alike, so the first is the next to go.
    ended: Mutex<VecDeque<(Instant, StreamKey)>>,
    ring_bytes: usize,
    ring_age: Duration,
}

#[derive(Debug)]
struct Stream {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    end: Option<(StreamStatus, Instant)>,
}

impl Stream {
    fn new(ring_bytes: usize) -> Self {
        Self { state: Mutex::new(State { ring: Ring::new(ring_bytes), end: None }), bell: Notify::new() }
    }

    fn is_older(&self, age: Duration) -> bool {
        lock(&self.state).end.is_some_and(|(_, at)| at.elapsed() >= age)
    }
}

impl Default for MemoryEvents {
    fn default() -> Self {
        Self::from_limits(&Limits::default())
    }
}

impl MemoryEvents {
    /// A store that keeps `ring_bytes` a stream, and each for `ring_age` after its end.
    pub fn new(ring_bytes: usize, ring_age: Duration) -> Self {
        Self { streams: DashMap::new(), ended: Mutex::default(), ring_bytes, ring_age }
    }

    /// A store with the bounds of a host.
    pub fn from_limits(limits: &Limits) -> Self {
        Self::new(limits.ring_bytes, limits.ring_age)
    }

    /// Lets go of the streams whose time is over; tells how many. A host without traffic calls it now and then.
    pub fn sweep(&self) -> usize {
        let mut gone = 0;
        loop {
            let mut ended = lock(&self.ended);
            match ended.front() {
                Some((at, _)) if at.elapsed() >= self.ring_age => {}
                Some(_) | None => return gone,
            }
            let Some((_, key)) = ended.pop_front() else { return gone };
            drop(ended);
            // A stream may have begun anew under its key.
            gone += usize::from(self.streams.remove_if(&key, |_, stream| stream.is_older(self.ring_age)).is_some());
        }
    }

    /// Streams held, and the bytes of their events.
    pub fn size(&self) -> (usize, usize) {
        self.streams.iter().fold((0, 0), |(count, bytes), stream| (count + 1, bytes + lock(&stream.state).ring.bytes()))
    }

    fn find(&self, key: &StreamKey) -> Option<Arc<Stream>> {
        let stream = Arc::clone(&*self.streams.get(key)?);
        if stream.is_older(self.ring_age) {
            self.streams.remove_if(key, |_, stream| stream.is_older(self.ring_age));
            return None;
        }
        Some(stream)
    }

    fn find_or_begin(&self, key: &StreamKey) -> Arc<Stream> {
        if let Some(stream) = self.find(key) {
            return stream;
        }
        match self.streams.entry(key.clone()) {
            Entry::Occupied(held) => Arc::clone(held.get()),
            Entry::Vacant(free) => Arc::clone(&*free.insert(Arc::new(Stream::new(self.ring_bytes)))),
        }
    }

    fn end(&self, key: &StreamKey, status: StreamStatus) -> Result<(), EventStoreError> {
        let stream = self.find(key).ok_or(EventStoreError::Unknown)?;
        // Both under this lock, so that the queue is in order of time. Never taken inside of a stream's.
        let mut ended = lock(&self.ended);
        let now = Instant::now();
        let is_first = {
            let mut state = lock(&stream.state);
            let is_first = state.end.is_none();
            state.end.get_or_insert((status, now));
            is_first
        };
        if is_first {
            ended.push_back((now, key.clone()));
        }
        drop(ended);
        stream.bell.notify_waiters();
        self.sweep();
        Ok(())
    }
}

impl EventStore for MemoryEvents {
    fn append(&self, stream: &StreamKey, events: Vec<Arc<StreamEvent>>) -> BoxFuture<'_, Result<(), EventStoreError>> {
        // An append without events begins the stream: its watchers wait, and do not take it for ended.
        let stream = self.find_or_begin(stream);
        if !events.is_empty() {
            lock(&stream.state).ring.append(events);
            stream.bell.notify_waiters();
        }
        Box::pin(ready(Ok(())))
    }

    fn read(
        &self,
        stream: &StreamKey,
        after: Option<EventId>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Arc<StreamEvent>>, EventStoreError>> {
        let found = self.find(stream).ok_or(EventStoreError::Unknown);
        Box::pin(ready(found.and_then(|stream| lock(&stream.state).ring.read(after, count))))
    }

    fn changed(&self, stream: &StreamKey, after: Option<EventId>) -> BoxFuture<'_, ()> {
        let Some(stream) = self.find(stream) else { return Box::pin(ready(())) };
        Box::pin(async move {
            loop {
                let mut rung = std::pin::pin!(stream.bell.notified());
                // Listens before it looks: what is appended in between rings this bell.
                rung.as_mut().enable();
                {
                    let state = lock(&stream.state);
                    if state.end.is_some() || state.ring.has_after(after) {
                        return;
                    }
                }
                rung.await;
            }
        })
    }

    fn get_status(&self, stream: &StreamKey) -> BoxFuture<'_, Result<Option<StreamStatus>, EventStoreError>> {
        let status = self.find(stream).map(|stream| lock(&stream.state).end.map_or(StreamStatus::Running, |(status, _)| status));
        Box::pin(ready(Ok(status)))
    }

    fn mark_complete(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>> {
        Box::pin(ready(self.end(stream, StreamStatus::Complete)))
    }

    fn mark_failed(&self, stream: &StreamKey) -> BoxFuture<'_, Result<(), EventStoreError>> {
        Box::pin(ready(self.end(stream, StreamStatus::Failed)))
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
        let scope = Scope::new(TenantId::new("t").unwrap(), ConversationId::new("c").unwrap());
        StreamKey { scope, round: RoundId::from_random([n; 16]) }
    }

    fn delta(n: u32) -> Arc<StreamEvent> {
        let id = EventId { epoch: Epoch(1), seq: Seq(1), n };
        let kind = EventKind::TextDelta { text: n.to_string() };
        Arc::new(StreamEvent { id, conversation_id: ConversationId::new("c").unwrap(), round_id: None, kind })
    }

    #[tokio::test(start_paused = true)]
    async fn memory_keeps_the_contract_of_an_event_store() {
        contract::event_store(async |bytes, age| Arc::new(MemoryEvents::new(bytes, age)) as Arc<dyn EventStore>).await;
    }

    #[tokio::test(start_paused = true)]
    async fn ended_streams_go_by_themselves_and_running_ones_stay() {
        let store = MemoryEvents::default();
        for n in 0..3 {
            store.append(&key(n), vec![delta(1)]).await.unwrap();
        }
        store.mark_complete(&key(0)).await.unwrap();

        tokio::time::advance(Duration::from_secs(599)).await;
        assert_eq!(store.sweep(), 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        store.mark_failed(&key(1)).await.unwrap(); // sweeps on the way

        assert_eq!(store.size().0, 2);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!((store.sweep(), store.size().0), (1, 1));
        assert_eq!(store.get_status(&key(2)).await, Ok(Some(StreamStatus::Running)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_watchers_of_a_fast_writer_miss_nothing() {
        const EVENTS: u32 = 2000;
        let store = Arc::new(MemoryEvents::new(usize::MAX, Duration::from_secs(1)));
        store.append(&key(0), vec![delta(1)]).await.unwrap();
        let watch = |store: Arc<MemoryEvents>| async move {
            let (mut seen, mut after) = (Vec::new(), None);
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
        let watchers: Vec<_> = (0..8).map(|_| tokio::spawn(watch(Arc::clone(&store)))).collect();

        for n in 2..=EVENTS {
            store.append(&key(0), vec![delta(n)]).await.unwrap();
            if n % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        store.mark_complete(&key(0)).await.unwrap();

        for watcher in watchers {
            let seen = tokio::time::timeout(Duration::from_secs(30), watcher).await.expect("a wake-up was lost").unwrap();
            assert_eq!(seen, (1..=EVENTS).collect::<Vec<_>>());
        }
    }
}
