//! Watchers that catch up: a long journal is read once, page by page, and a watcher that paused
//! continues where it stopped.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::*;
use crate::{
    host::{Events, EventsFrom},
    ids::EventId,
    testing::{FaultPlan, FaultySessions, Reply, ScriptedModel},
};

const ROUNDS: usize = 40;

/// Bytes of text per round, so that a page of the journal holds a few rounds.
const SAID: usize = 20_000;

/// Fills a store with a conversation of [`ROUNDS`] rounds.
async fn long(sessions: &Arc<dyn SessionBackend>) -> Arc<ScriptedModel> {
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("x".repeat(SAID))
    }));
    let host = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    for n in 0..ROUNDS {
        conversation(&host)
            .send(format!("round {n}"))
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }
    stop(&host, Duration::from_secs(1)).await;
    model
}

/// Reads events until `count` rounds have ended.
async fn rounds(events: &mut Events, count: usize) -> Vec<Arc<StreamEvent>> {
    let mut seen = Vec::new();
    let mut ends = 0;
    while ends < count {
        let event = timeout(Duration::from_secs(5), events.next())
            .await
            .expect("the watch goes on")
            .expect("it is not over");
        ends += usize::from(matches!(event.kind, EventKind::RoundFinished { .. }));
        seen.push(event);
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_catches_up_reads_a_long_journal_once() {
    let inner = store();
    let model = long(&inner).await;
    let sessions = Arc::new(FaultySessions::new(inner, FaultPlan::new()));
    let next = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let mut events = conversation(&next)
        .events(EventsFrom::After(EventId::default()))
        .await
        .unwrap();

    let before = sessions.reads();
    let first = rounds(&mut events, ROUNDS / 2).await;
    let half = sessions.reads();
    let rest = rounds(&mut events, ROUNDS / 2).await;
    let all = sessions.reads();

    let seen = [first, rest].concat();
    let seen: Vec<_> = kinds(&seen)
        .into_iter()
        .filter(|kind| *kind != "compaction")
        .collect();
    assert_eq!(
        seen,
        ["round_started", "usage", "message", "round_finished"].repeat(ROUNDS)
    );
    let first = half - before;
    let rest = all - half;
    assert!(
        rest <= first + first / 4,
        "{first} reads for the first half, {rest} for the second"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_stopped_reading_continues_in_a_recreated_conversation_by_a_snapshot() {
    let sessions = store();
    let model = long(&sessions).await;
    let clock = ManualClock::at(Timestamp(1_795_300_900_000)); // Later, hence a later epoch.
    let next = HostBuilder::new(clock, SeededEntropy::new(7), |host| host)
        .shared_provider(model)
        .shared_sessions(sessions);
    let next = next.build().await.unwrap();
    let mut events = conversation(&next)
        .events(EventsFrom::After(EventId::default()))
        .await
        .unwrap();
    rounds(&mut events, ROUNDS / 2).await;

    conversation(&next).delete().await.unwrap();
    for _ in 0..ROUNDS {
        conversation(&next)
            .send("again")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }
    next.ports().events.forget(&crate::ids::Scope::new(
        "acme".parse().unwrap(),
        "c-1".parse().unwrap(),
    )); // As after ten minutes.
    let mut seen = Vec::new();
    while let Ok(Some(event)) = timeout(Duration::from_millis(20), events.next()).await {
        seen.push(event);
    }

    let restart = seen
        .iter()
        .position(|event| matches!(event.kind, EventKind::Snapshot { .. }))
        .expect("a snapshot");
    assert!(
        restart <= 4,
        "what was read ahead is returned, and no more of what is gone: {:?}",
        kinds(&seen)
    );
    assert_eq!(kinds(&seen[restart..]), ["snapshot"]);
}

#[tokio::test(start_paused = true)]
async fn events_from_before_the_stop_are_read_after_it() {
    let model = Arc::new(ScriptedModel::always(Reply::text("said")));
    let host = host(&model).await;
    conversation(&host)
        .send("zero")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let mut events = conversation(&host).events(EventsFrom::Now).await.unwrap();

    conversation(&host)
        .send("one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    stop(&host, Duration::from_secs(1)).await;

    let mut seen = Vec::new();
    while let Some(event) = timeout(Duration::from_secs(5), events.next())
        .await
        .expect("it ends")
    {
        seen.push(event);
    }
    assert_eq!(kinds(&seen).last(), Some(&"round_finished"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_of_a_long_conversation_shows_its_end_and_says_how_much_is_missing() {
    let sessions = store();
    let model = long(&sessions).await;
    let next = builder(&model)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap();
    let of_no_life = EventId {
        epoch: crate::ids::Epoch(7),
        seq: crate::ids::Seq(9),
        n: 0,
    };

    let seen = conversation(&next)
        .events(EventsFrom::After(of_no_life))
        .await
        .unwrap()
        .next()
        .await
        .unwrap();

    let EventKind::Snapshot { snapshot } = &seen.kind else {
        panic!("{seen:?}")
    };
    let bytes: usize = snapshot
        .messages
        .iter()
        .map(|message| message.wire().len())
        .sum();
    assert!((SAID..=64 * 1024).contains(&bytes), "{bytes} bytes");
    assert!(snapshot.messages_before > 0);
}
