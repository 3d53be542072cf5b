//! The contract of the handles of an event store: `open` and `follow`.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::timeout;

use super::event_store::{SOON, delta, id, ids, key, message};
use crate::{
    ids::EventId,
    ports::{Entropy, EventStore, EventStoreError, StreamSource, StreamStatus, TextKind},
    stream::{EventKind, StreamEvent},
    testing::SeededEntropy,
};

/// One poll of a follower, which does not wait.
fn look(
    source: &mut dyn StreamSource,
    after: Option<EventId>,
) -> Poll<Result<(StreamStatus, Vec<EventId>), EventStoreError>> {
    let mut events = VecDeque::new();
    let mut cx = Context::from_waker(Waker::noop());
    source
        .poll_read(&mut cx, after, usize::MAX, &mut events)
        .map_ok(|status| (status, events.iter().map(|event| event.id).collect()))
}

/// Reads until there is an event, or the stream has ended.
async fn next(
    source: &mut dyn StreamSource,
    after: Option<EventId>,
    count: usize,
) -> Result<(StreamStatus, Vec<Arc<StreamEvent>>), EventStoreError> {
    let mut events = VecDeque::new();
    let read = poll_fn(|cx| source.poll_read(cx, after, count, &mut events));
    let status = timeout(SOON, read).await.expect("a wake-up was lost")?;
    Ok((status, events.into()))
}

pub(super) async fn a_handle_writes_what_others_read(store: Arc<dyn EventStore>) {
    let key = key("t", 1);
    let mut sink = store.clone().open(&key);
    assert_eq!(
        store.get_status(&key).await,
        Ok(None),
        "a handle starts no stream"
    );

    sink.append(&mut Vec::new()).unwrap();
    assert_eq!(
        store.get_status(&key).await,
        Ok(Some(StreamStatus::Running)),
        "an append does"
    );
    let mut events = vec![message(1, 3), delta(1, 1)];
    sink.append(&mut events).unwrap();

    assert!(events.is_empty(), "an append takes all events");
    assert_eq!(ids(&*store, &key, None).await, [id(1, 0), id(1, 1)]);
    store.append(&key, vec![delta(1, 2)]).await.unwrap();
    sink.append(&mut vec![delta(1, 3)]).unwrap();
    assert_eq!(
        ids(&*store, &key, Some(id(1, 1))).await,
        [id(1, 2), id(1, 3)],
        "both ways of writing keep one order"
    );
}

pub(super) async fn a_follower_reads_waits_and_sees_the_end(store: Arc<dyn EventStore>) {
    let key = key("t", 1);
    let mut source = store.clone().follow(&key);
    assert_eq!(
        look(&mut *source, None),
        Poll::Ready(Err(EventStoreError::Unknown))
    );

    store
        .append(&key, vec![delta(1, 1), delta(1, 2), delta(1, 3)])
        .await
        .unwrap();
    assert_eq!(
        look(&mut *source, Some(id(1, 1))),
        Poll::Ready(Ok((StreamStatus::Running, vec![id(1, 2), id(1, 3)])))
    );
    let (status, page) = next(&mut *source, None, 2).await.unwrap();
    assert_eq!((status, page.len()), (StreamStatus::Running, 2));
    assert!(look(&mut *source, Some(id(1, 3))).is_pending());

    let waits = tokio::spawn(async move {
        let event = next(&mut *source, Some(id(1, 3)), 9).await;
        let end = next(&mut *source, Some(id(1, 4)), 9).await;
        (event, end, source)
    });
    tokio::task::yield_now().await;
    store.append(&key, vec![delta(1, 4)]).await.unwrap();
    tokio::task::yield_now().await;
    store.mark_complete(&key).await.unwrap();
    let (event, end, mut source) = waits.await.unwrap();

    assert_eq!(event.unwrap().1, [delta(1, 4)]);
    assert_eq!(end.unwrap(), (StreamStatus::Complete, Vec::new()));
    assert_eq!(
        look(&mut *source, Some(id(1, 3))),
        Poll::Ready(Ok((StreamStatus::Complete, vec![id(1, 4)]))),
        "an ended stream is still read"
    );
}

pub(super) async fn a_handle_outlives_its_stream(store: Arc<dyn EventStore>) {
    let key = key("t", 1);
    let mut sink = store.clone().open(&key);
    let mut source = store.clone().follow(&key);
    sink.append(&mut vec![delta(1, 1)]).unwrap();
    assert!(look(&mut *source, Some(id(1, 1))).is_pending());

    let waits = tokio::spawn(async move {
        let gone = next(&mut *source, Some(id(1, 1)), 9).await;
        (gone, source)
    });
    tokio::task::yield_now().await;
    store.forget(&key.scope);
    let (gone, mut source) = waits.await.unwrap();
    assert_eq!(gone, Err(EventStoreError::Unknown), "woken when it is gone");

    assert!(
        !sink.extend(id(1, 2), TextKind::Text, "x"),
        "there is nothing to extend"
    );
    sink.append(&mut vec![delta(1, 2)]).unwrap();

    assert_eq!(ids(&*store, &key, None).await, [id(1, 2)], "a new stream");
    assert_eq!(
        look(&mut *source, None),
        Poll::Ready(Ok((StreamStatus::Running, vec![id(1, 2)]))),
        "which an old follower finds"
    );
}

/// `store` keeps ended streams for 200 ms.
pub(super) async fn a_handle_starts_an_expired_stream_again(store: Arc<dyn EventStore>) {
    let key = key("t", 1);
    let mut sink = store.clone().open(&key);
    let mut source = store.clone().follow(&key);
    sink.append(&mut vec![delta(1, 1)]).unwrap();
    store.mark_complete(&key).await.unwrap();
    assert!(look(&mut *source, None).is_ready());

    // A sleep, since the test is about the passing of time. It takes no real time under paused
    // time.
    tokio::time::sleep(Duration::from_millis(250)).await;

    assert_eq!(
        look(&mut *source, None),
        Poll::Ready(Err(EventStoreError::Unknown))
    );
    sink.append(&mut vec![delta(1, 2)]).unwrap();
    assert_eq!(
        look(&mut *source, None),
        Poll::Ready(Ok((StreamStatus::Running, vec![id(1, 2)])))
    );
}

fn text_of(event: &StreamEvent) -> &str {
    match &event.kind {
        EventKind::TextDelta { text } | EventKind::ThinkingDelta { text } => text,
        _ => "",
    }
}

/// Writers extend where the store allows it, and readers read and wait at random times: each text
/// arrives once, in order, whoever reads when.
pub(super) async fn text_that_joins_an_event_reaches_every_reader_once(
    store: Arc<dyn EventStore>,
    seed: u64,
) {
    let key = key("t", 1);
    let random = SeededEntropy::new(seed);
    let below = |n: usize| usize::from(random.bytes()[0]) % n;
    let mut sink = store.clone().open(&key);
    let mut readers: Vec<_> = (0..3)
        .map(|_| (store.clone().follow(&key), None, String::new()))
        .collect();
    let mut whole = String::new();
    for n in 1..=300 {
        let text = format!("{n} ");
        whole += &text;
        let thinks = below(8) == 0;
        let text_kind = match thinks {
            true => TextKind::Thinking,
            false => TextKind::Text,
        };
        if !sink.extend(id(1, n), text_kind, &text) {
            let kind = match thinks {
                true => EventKind::ThinkingDelta { text },
                false => EventKind::TextDelta { text },
            };
            let mut event = StreamEvent::clone(&delta(1, n));
            event.kind = kind;
            sink.append(&mut vec![Arc::new(event)]).unwrap();
        }
        let (source, after, seen) = &mut readers[below(3)];
        let mut events = VecDeque::new();
        let mut cx = Context::from_waker(Waker::noop());
        match below(6) {
            0 => {
                let _ = source.poll_read(&mut cx, *after, 1 + below(4), &mut events);
            }
            1 => events.extend(store.read(&key, *after, 1 + below(4)).await.unwrap()),
            2 => {
                let after = after.unwrap_or_default();
                let read = store.kept(&key.scope, after, 1 + below(4)).await;
                events.extend(read);
            }
            _ => {}
        }
        for event in events {
            assert!(Some(event.id) > *after, "seed {seed}: an id came twice");
            *after = Some(event.id);
            *seen += text_of(&event);
        }
    }
    store.mark_complete(&key).await.unwrap();
    for (mut source, mut after, mut seen) in readers {
        loop {
            let (status, events) = next(&mut *source, after, 5).await.unwrap();
            events.iter().for_each(|event| seen += text_of(event));
            after = events.last().map(|event| event.id).or(after);
            if events.is_empty() {
                assert_eq!(status, StreamStatus::Complete);
                break;
            }
        }
        assert_eq!(seen, whole, "seed {seed}");
    }
}
