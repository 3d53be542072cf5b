//! The contract suite of event stores.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::event_handles;
use crate::{
    chat::Message,
    ids::{ConversationId, Epoch, EventId, RoundId, Scope, Seq, TenantId},
    ports::{EventStore, EventStoreError, StreamKey, StreamStatus},
    stream::{EventKind, StreamEvent},
};

/// Longer than any wake-up takes.
pub(super) const SOON: Duration = Duration::from_secs(10);
/// Longer than any test takes, so that streams do not expire during it.
const LONG: Duration = Duration::from_secs(3600);
const ROOM: usize = 256 * 1024;

/// Runs the contract of [`EventStore`]. `make(ring_bytes, ring_age)` creates an empty store with
/// these limits.
///
/// Time is `tokio::time`; a store that uses it is tested fastest under paused time.
///
/// # Panics
/// When the store breaks the contract.
pub async fn event_store(make: impl AsyncFn(usize, Duration) -> Arc<dyn EventStore>) {
    an_unknown_stream_is_unknown(&*make(ROOM, LONG).await).await;
    events_are_read_in_order_strictly_after_the_cursor(&*make(ROOM, LONG).await).await;
    streams_are_apart(&*make(ROOM, LONG).await).await;
    the_status_is_running_complete_or_failed(&*make(ROOM, LONG).await).await;
    a_watcher_is_woken_by_an_event_and_by_the_end(make(ROOM, LONG).await).await;
    no_wake_up_is_lost_with_many_watchers(make(ROOM, LONG).await).await;
    concurrent_writers_lose_nothing(make(ROOM, LONG).await).await;
    a_full_stream_drops_ephemeral_events_and_keeps_durable_ones(&*make(1000, LONG).await).await;
    a_cursor_before_a_dropped_durable_event_is_expired(&*make(1000, LONG).await).await;
    a_conversation_is_read_over_its_rounds_in_order(&*make(ROOM, LONG).await).await;
    a_reader_that_may_have_missed_something_gets_expired_and_returns_from_the_journal(
        &*make(ROOM, LONG).await,
    )
    .await;
    a_conversation_is_watched_before_it_begins_and_let_go_when_it_is_forgotten(
        make(ROOM, LONG).await,
    )
    .await;
    a_dropped_event_keeps_no_reader_waiting(&*make(1000, LONG).await).await;
    bytes_are_counted_to_the_tenant(&*make(ROOM, LONG).await).await;
    an_ended_stream_expires_and_a_running_one_does_not(
        &*make(ROOM, Duration::from_millis(200)).await,
    )
    .await;
    event_handles::a_handle_writes_what_others_read(make(ROOM, LONG).await).await;
    event_handles::a_follower_reads_waits_and_sees_the_end(make(ROOM, LONG).await).await;
    event_handles::a_handle_outlives_its_stream(make(ROOM, LONG).await).await;
    event_handles::a_handle_starts_an_expired_stream_again(
        make(ROOM, Duration::from_millis(200)).await,
    )
    .await;
    for seed in 0..32 {
        event_handles::text_that_joins_an_event_reaches_every_reader_once(
            make(ROOM, LONG).await,
            seed,
        )
        .await;
    }
}

pub(super) fn key(tenant: &str, round: u8) -> StreamKey {
    let scope = Scope::new(
        TenantId::new(tenant).unwrap(),
        ConversationId::new("c").unwrap(),
    );
    StreamKey {
        scope,
        round: RoundId::from_random([round; 16]),
    }
}

pub(super) fn id(seq: u64, n: u32) -> EventId {
    EventId {
        epoch: Epoch(1),
        seq: Seq(seq),
        n,
    }
}

fn event(id: EventId, kind: EventKind) -> Arc<StreamEvent> {
    Arc::new(StreamEvent {
        id,
        conversation_id: ConversationId::new("c").unwrap(),
        round_id: Some(RoundId::from_random([1; 16])),
        kind,
    })
}

pub(super) fn delta(seq: u64, n: u32) -> Arc<StreamEvent> {
    event(
        id(seq, n),
        EventKind::TextDelta {
            text: format!("{seq}.{n}"),
        },
    )
}

pub(super) fn message(seq: u64, bytes: usize) -> Arc<StreamEvent> {
    event(
        id(seq, 0),
        EventKind::Message {
            message: Message::assistant("x".repeat(bytes)),
            partial: false,
        },
    )
}

pub(super) async fn ids(
    store: &dyn EventStore,
    key: &StreamKey,
    after: Option<EventId>,
) -> Vec<EventId> {
    store
        .read(key, after, usize::MAX)
        .await
        .expect("a readable stream")
        .iter()
        .map(|event| event.id)
        .collect()
}

async fn an_unknown_stream_is_unknown(store: &dyn EventStore) {
    let key = key("t", 1);

    assert_eq!(store.get_status(&key).await, Ok(None));
    assert_eq!(
        store.read(&key, None, 10).await,
        Err(EventStoreError::Unknown)
    );
    assert_eq!(
        store.mark_complete(&key).await,
        Err(EventStoreError::Unknown)
    );
    assert_eq!(store.mark_failed(&key).await, Err(EventStoreError::Unknown));
    timeout(SOON, store.changed(&key, None))
        .await
        .expect("an unknown stream keeps no reader waiting");
}

async fn events_are_read_in_order_strictly_after_the_cursor(store: &dyn EventStore) {
    let key = key("t", 1);
    let events = vec![
        event(id(1, 0), EventKind::RoundStarted {}),
        delta(1, 1),
        delta(1, 2),
        message(2, 3),
        delta(2, 1),
        message(10, 3),
    ];
    for chunk in events.chunks(2) {
        store.append(&key, chunk.to_vec()).await.unwrap();
    }

    assert_eq!(
        store.read(&key, None, 100).await.unwrap(),
        events,
        "whole and in order"
    );
    assert_eq!(
        store.read(&key, Some(id(1, 2)), 100).await.unwrap(),
        events[3..],
        "after is exclusive"
    );
    assert_eq!(
        store.read(&key, Some(id(2, 1)), 100).await.unwrap(),
        events[5..],
        "numbers, not text"
    );
    assert_eq!(
        store.read(&key, Some(id(1, 9)), 100).await.unwrap(),
        events[3..],
        "a cursor between two events"
    );
    assert_eq!(store.read(&key, Some(id(10, 0)), 100).await.unwrap(), []);
    assert_eq!(store.read(&key, None, 0).await.unwrap(), []);

    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.read(&key, after, 2).await.unwrap();
        assert!(page.len() <= 2);
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        seen.extend(page);
    }
    assert_eq!(seen, events, "pages join without a gap");
}

async fn streams_are_apart(store: &dyn EventStore) {
    store.append(&key("a", 1), vec![delta(1, 1)]).await.unwrap();
    store.append(&key("a", 2), vec![delta(2, 2)]).await.unwrap();
    store.mark_complete(&key("a", 1)).await.unwrap();

    assert_eq!(ids(store, &key("a", 1), None).await, [id(1, 1)]);
    assert_eq!(ids(store, &key("a", 2), None).await, [id(2, 2)]);
    assert_eq!(
        store.get_status(&key("a", 2)).await,
        Ok(Some(StreamStatus::Running))
    );
    assert_eq!(
        store.get_status(&key("b", 1)).await,
        Ok(None),
        "another tenant's stream of the same ids"
    );
}

async fn the_status_is_running_complete_or_failed(store: &dyn EventStore) {
    for round in 1..=2 {
        store
            .append(&key("t", round), vec![delta(1, 1)])
            .await
            .unwrap();
        assert_eq!(
            store.get_status(&key("t", round)).await,
            Ok(Some(StreamStatus::Running))
        );
    }

    store.mark_complete(&key("t", 1)).await.unwrap();
    store.mark_failed(&key("t", 2)).await.unwrap();

    assert_eq!(
        store.get_status(&key("t", 1)).await,
        Ok(Some(StreamStatus::Complete))
    );
    assert_eq!(
        store.get_status(&key("t", 2)).await,
        Ok(Some(StreamStatus::Failed))
    );
    assert_eq!(
        ids(store, &key("t", 1), None).await,
        [id(1, 1)],
        "an ended stream is still read"
    );
    store.mark_failed(&key("t", 1)).await.unwrap();
    assert_eq!(
        store.get_status(&key("t", 1)).await,
        Ok(Some(StreamStatus::Complete)),
        "the first end counts"
    );
}

async fn a_watcher_is_woken_by_an_event_and_by_the_end(store: Arc<dyn EventStore>) {
    let key = key("t", 1);
    store.append(&key, vec![delta(1, 1)]).await.unwrap();
    timeout(SOON, store.changed(&key, None))
        .await
        .expect("there is an event already");

    let wait = |after| {
        let store = Arc::clone(&store);
        let key = key.clone();
        tokio::spawn(async move { timeout(SOON, store.changed(&key, Some(after))).await })
    };
    let watcher = wait(id(1, 1));
    tokio::task::yield_now().await;
    assert!(!watcher.is_finished(), "nothing changed yet");
    store.append(&key, vec![delta(1, 2)]).await.unwrap();
    watcher.await.unwrap().expect("woken by an event");

    let watcher = wait(id(1, 2));
    tokio::task::yield_now().await;
    store.mark_failed(&key).await.unwrap();
    watcher.await.unwrap().expect("woken by the end");
    timeout(SOON, store.changed(&key, Some(id(9, 9))))
        .await
        .expect("an ended stream keeps no reader waiting");
}

async fn no_wake_up_is_lost_with_many_watchers(store: Arc<dyn EventStore>) {
    const EVENTS: u32 = 200;
    let key = key("t", 1);
    store.append(&key, vec![delta(1, 1)]).await.unwrap();
    let watchers: Vec<_> = (1..=16)
        .map(|count| {
            let store = Arc::clone(&store);
            let key = key.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                let mut after = None;
                loop {
                    timeout(SOON, store.changed(&key, after))
                        .await
                        .expect("a wake-up was lost");
                    let status = store.get_status(&key).await.unwrap();
                    let events = store.read(&key, after, count).await.unwrap();
                    if events.is_empty() && status == Some(StreamStatus::Complete) {
                        return seen;
                    }
                    after = events.last().map(|event| event.id).or(after);
                    seen.extend(events.iter().map(|event| event.id.n));
                }
            })
        })
        .collect();

    for n in 2..=EVENTS {
        store.append(&key, vec![delta(1, n)]).await.unwrap();
        if n % 3 == 0 {
            tokio::task::yield_now().await;
        }
    }
    store.mark_complete(&key).await.unwrap();

    for watcher in watchers {
        assert_eq!(watcher.await.unwrap(), (1..=EVENTS).collect::<Vec<_>>());
    }
}

async fn concurrent_writers_lose_nothing(store: Arc<dyn EventStore>) {
    const EACH: u32 = 100;
    let writers: Vec<_> = (0..8u32)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0..EACH {
                    store
                        .append(&key("t", 1), vec![delta(1, 1 + n * 8 + writer)])
                        .await
                        .unwrap();
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }

    let all: Vec<_> = (1..=EACH * 8).map(|n| id(1, n)).collect();
    assert_eq!(ids(&*store, &key("t", 1), None).await, all);
}

async fn a_full_stream_drops_ephemeral_events_and_keeps_durable_ones(store: &dyn EventStore) {
    let key = key("t", 1);
    store.append(&key, vec![message(1, 10)]).await.unwrap();
    for n in 1..=100 {
        store.append(&key, vec![delta(1, n)]).await.unwrap();
    }
    store.append(&key, vec![message(2, 10)]).await.unwrap();

    let kept = ids(store, &key, None).await;

    assert_eq!(
        (kept.first(), kept.last()),
        (Some(&id(1, 0)), Some(&id(2, 0)))
    );
    assert!(
        kept.len() < 60,
        "{} events of 64 bytes and more in 1000 bytes",
        kept.len()
    );
    let deltas: Vec<u32> = kept[1..kept.len() - 1].iter().map(|id| id.n).collect();
    let newest: Vec<u32> = (101 - u32::try_from(deltas.len()).unwrap()..=100).collect();
    assert_eq!(deltas, newest, "the oldest went");
    assert_eq!(
        ids(store, &key, Some(id(1, 0))).await,
        kept[1..],
        "no cursor is expired by that"
    );
}

async fn a_cursor_before_a_dropped_durable_event_is_expired(store: &dyn EventStore) {
    let key = key("t", 1);
    for seq in 1..=3 {
        store.append(&key, vec![message(seq, 600)]).await.unwrap();
    }
    assert_eq!(
        ids(store, &key, None).await,
        [id(1, 0), id(2, 0), id(3, 0)],
        "durable ones may take more than the bound"
    );

    for seq in 4..=40 {
        store.append(&key, vec![message(seq, 600)]).await.unwrap();
    }

    assert_eq!(
        store.read(&key, None, 100).await,
        Err(EventStoreError::Expired)
    );
    assert_eq!(
        store.read(&key, Some(id(1, 0)), 100).await,
        Err(EventStoreError::Expired)
    );
    assert_eq!(
        ids(store, &key, Some(id(38, 0))).await,
        [id(39, 0), id(40, 0)]
    );
}

async fn events_after(
    store: &dyn EventStore,
    after: EventId,
    seen_upto: Option<Seq>,
) -> Result<Vec<EventId>, EventStoreError> {
    let events = store
        .read_conversation(&key("t", 1).scope, after, seen_upto, usize::MAX)
        .await?;
    Ok(events.iter().map(|event| event.id).collect())
}

async fn a_conversation_is_read_over_its_rounds_in_order(store: &dyn EventStore) {
    let start = EventId::default();
    assert_eq!(
        events_after(store, start, None).await,
        Err(EventStoreError::Unknown)
    );
    store
        .append(&key("t", 1), vec![message(1, 3), delta(1, 1)])
        .await
        .unwrap();
    store.append(&key("t", 2), vec![delta(1, 2)]).await.unwrap();
    store
        .append(&key("t", 1), vec![message(2, 3)])
        .await
        .unwrap();
    store.mark_complete(&key("t", 1)).await.unwrap();
    store
        .append(&key("t", 2), vec![message(3, 3)])
        .await
        .unwrap();
    store
        .append(&key("other", 2), vec![message(4, 3)])
        .await
        .unwrap();

    let all = [id(1, 0), id(1, 1), id(1, 2), id(2, 0), id(3, 0)];
    assert_eq!(events_after(store, start, Some(Seq(0))).await.unwrap(), all);
    assert_eq!(events_after(store, id(1, 1), None).await.unwrap(), all[2..]);
    assert_eq!(events_after(store, id(3, 0), None).await.unwrap(), []);
    let page = store
        .read_conversation(&key("t", 1).scope, id(1, 0), None, 2)
        .await
        .unwrap();
    assert_eq!(
        page.iter().map(|event| event.id).collect::<Vec<_>>(),
        all[1..3]
    );
}

async fn a_reader_that_may_have_missed_something_gets_expired_and_returns_from_the_journal(
    store: &dyn EventStore,
) {
    store
        .append(&key("t", 1), vec![message(8, 3)])
        .await
        .unwrap();

    assert_eq!(
        events_after(store, id(5, 0), None).await,
        Err(EventStoreError::Expired),
        "entries 6 and 7 were published elsewhere"
    );
    assert_eq!(
        events_after(store, id(5, 0), Some(Seq(6))).await,
        Err(EventStoreError::Expired)
    );
    assert_eq!(
        events_after(store, id(5, 0), Some(Seq(7))).await.unwrap(),
        [id(8, 0)]
    );
    assert_eq!(
        events_after(store, id(9, 0), None).await,
        Err(EventStoreError::Expired),
        "nothing was published there"
    );
    assert_eq!(
        events_after(store, id(9, 0), Some(Seq(9))).await.unwrap(),
        []
    );

    let later = EventId {
        epoch: Epoch(2),
        seq: Seq(12),
        n: 0,
    };
    store
        .append(&key("t", 2), vec![event(later, EventKind::RoundStarted {})])
        .await
        .unwrap();
    assert_eq!(
        events_after(store, id(8, 0), None).await,
        Err(EventStoreError::Expired),
        "an activation began: its first entries may have events"
    );
    assert_eq!(
        events_after(store, id(8, 0), Some(Seq(11))).await.unwrap(),
        [later]
    );
}

async fn a_conversation_is_watched_before_it_begins_and_let_go_when_it_is_forgotten(
    store: Arc<dyn EventStore>,
) {
    let wait = |after| {
        let store = Arc::clone(&store);
        let scope = key("t", 1).scope;
        tokio::spawn(async move { timeout(SOON, store.watch(&scope, after)).await })
    };
    let watcher = wait(EventId::default());
    tokio::task::yield_now().await;
    assert!(!watcher.is_finished(), "nothing happened yet");
    store
        .append(&key("t", 1), vec![message(1, 3)])
        .await
        .unwrap();
    watcher.await.unwrap().expect("woken by a first event");

    let watcher = wait(id(1, 0));
    tokio::task::yield_now().await;
    store.append(&key("t", 2), vec![delta(1, 1)]).await.unwrap();
    watcher
        .await
        .unwrap()
        .expect("woken by an event of another round");

    let watcher = wait(id(1, 1));
    tokio::task::yield_now().await;
    store.forget(&key("t", 1).scope);
    watcher.await.unwrap().expect("woken when it is forgotten");
    assert_eq!(store.get_status(&key("t", 1)).await, Ok(None));
    assert_eq!(
        events_after(&*store, id(1, 1), None).await,
        Err(EventStoreError::Unknown)
    );
}

async fn a_dropped_event_keeps_no_reader_waiting(store: &dyn EventStore) {
    store
        .append(&key("t", 1), vec![message(1, 1500)])
        .await
        .unwrap();
    store
        .append(
            &key("t", 1),
            vec![event(
                id(1, 1),
                EventKind::TextDelta {
                    text: "x".repeat(500),
                },
            )],
        )
        .await
        .unwrap();
    if ids(store, &key("t", 1), Some(id(1, 0))).await.is_empty() {
        let again = timeout(
            Duration::from_millis(50),
            store.changed(&key("t", 1), Some(id(1, 0))),
        );
        assert!(
            again.await.is_err(),
            "a reader would look for what is gone, again and again"
        );
    }
}

async fn bytes_are_counted_to_the_tenant(store: &dyn EventStore) {
    let scope = key("t", 1).scope;
    store
        .append(&key("t", 1), vec![message(1, 1000)])
        .await
        .unwrap();
    store
        .append(&key("other", 1), vec![message(1, 10)])
        .await
        .unwrap();
    let one = store.bytes(&scope.tenant);
    let other = store.bytes(&key("other", 1).scope.tenant);

    assert!(
        (1000..2000).contains(&one) && (10..1000).contains(&other),
        "{one} and {other}"
    );
    store.forget(&scope);
    assert_eq!(
        (
            store.bytes(&scope.tenant),
            store.bytes(&key("other", 1).scope.tenant)
        ),
        (0, other)
    );
}

async fn an_ended_stream_expires_and_a_running_one_does_not(store: &dyn EventStore) {
    for round in 1..=2 {
        store
            .append(&key("t", round), vec![delta(1, 1)])
            .await
            .unwrap();
    }
    store.mark_complete(&key("t", 1)).await.unwrap();
    assert_eq!(ids(store, &key("t", 1), None).await, [id(1, 1)]);

    // A sleep, since the test is about the passing of time. It takes no real time under paused
    // time.
    tokio::time::sleep(Duration::from_millis(250)).await;

    assert_eq!(store.get_status(&key("t", 1)).await, Ok(None));
    assert_eq!(
        store.read(&key("t", 1), None, 10).await,
        Err(EventStoreError::Unknown)
    );
    assert_eq!(ids(store, &key("t", 2), None).await, [id(1, 1)]);
}
