//! Watching a conversation: from now on, from a cursor, across sleep and restart, and with watchers
//! that never read.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::{
    host::{Events, EventsFrom, OutcomeError},
    ids::{EventId, TenantId},
    limits::WATCHER_BYTES_MAX,
    memory::MemoryEvents,
    ports::{StreamKey, StreamStatus},
    stream::{Open, StopReason},
    testing::{FaultPlan, FaultySessions, Reply, ScriptedModel},
};

fn echo() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!("to {}", request.messages.last().unwrap().text())).chunks(2)
    }))
}

/// Reads events until none arrives for 20 ms.
async fn available(events: &mut Events) -> Vec<Arc<StreamEvent>> {
    let mut seen = Vec::new();
    while let Ok(Some(event)) = timeout(Duration::from_millis(20), events.next()).await {
        seen.push(event);
    }
    seen
}

async fn say(conversation: &ConversationHandle, text: &str) -> String {
    conversation
        .send(text)
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap()
        .text
}

#[tokio::test(start_paused = true)]
async fn a_watcher_sees_round_after_round_and_wakes_no_conversation() {
    let host = host(&echo()).await;
    let conversation = conversation(&host);
    say(&conversation, "zero").await;
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;

    let mut events = conversation.events(EventsFrom::Now).await.unwrap();
    assert_eq!(
        available(&mut events).await,
        [],
        "what is over is not sent again"
    );
    assert_eq!(host.awake(), 0, "a watcher wakes no conversation");
    say(&conversation, "one").await;
    host.hibernate_idle();
    until("it sleeps again", || host.awake() == 0).await;
    say(&conversation, "two").await;
    let seen = available(&mut events).await;

    let rounds: Vec<_> = kinds(&seen)
        .into_iter()
        .filter(|kind| !matches!(*kind, "text_delta" | "usage"))
        .collect();
    assert_eq!(
        rounds,
        [
            "round_started",
            "message",
            "round_finished",
            "round_started",
            "message",
            "round_finished"
        ]
    );
    assert!(seen.windows(2).all(|pair| pair[0].id < pair[1].id));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_joins_sees_the_running_round_from_its_start() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::text("before"),
        Reply::text("half of it").chunks(3).then_stall(),
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);
    say(&conversation, "zero").await;
    let mut reply = conversation.send("one").await.unwrap();
    while !matches!(
        reply.next().await.unwrap().kind,
        EventKind::TextDelta { .. }
    ) {}
    tokio::time::sleep(Duration::from_millis(5)).await;

    let joined = available(&mut conversation.events(EventsFrom::Now).await.unwrap()).await;

    assert_eq!(kinds(&joined)[..2], ["round_started", "text_delta"]);
    assert!(
        joined
            .iter()
            .all(|event| event.round_id == Some(reply.round_id()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_conversation_is_watched_from_its_journal_and_is_not_woken() {
    let sessions = store();
    let model = echo();
    let first = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    for text in ["one", "two", "three"] {
        say(&conversation(&first), text).await;
    }
    stop(&first, Duration::from_secs(1)).await;
    let second = builder(&model)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap();

    let mut events = conversation(&second)
        .events(EventsFrom::After(EventId::default()))
        .await
        .unwrap();
    let seen = available(&mut events).await;

    assert_eq!(
        kinds(&seen),
        ["round_started", "usage", "message", "round_finished"].repeat(3)
    );
    assert_eq!(
        (second.awake(), events.after()),
        (0, seen.last().unwrap().id)
    );
}

#[tokio::test(start_paused = true)]
async fn a_cursor_of_no_use_gets_exactly_one_snapshot_and_then_what_follows() {
    let host = host(&echo()).await;
    let conversation = conversation(&host);
    say(&conversation, "one").await;
    let mut events = conversation
        .events(EventsFrom::After(EventId::default()))
        .await
        .unwrap();
    let old = available(&mut events).await;
    let beyond = EventId {
        seq: crate::ids::Seq(900),
        ..old.last().unwrap().id
    };
    let of_no_life = EventId {
        epoch: crate::ids::Epoch(7),
        ..old[1].id
    };

    for cursor in [beyond, of_no_life] {
        let mut events = conversation
            .events(EventsFrom::After(cursor))
            .await
            .unwrap();
        let first = available(&mut events).await;
        say(&conversation, "more").await;
        let then = available(&mut events).await;

        let [only] = first.as_slice() else {
            panic!("{first:?}")
        };
        let EventKind::Snapshot { snapshot } = &only.kind else {
            panic!("{only:?}")
        };
        assert_eq!((snapshot.open, snapshot.messages_before), (Open::None, 0));
        assert_eq!(
            snapshot.messages.last().unwrap().text().split(' ').next(),
            Some("to")
        );
        assert_eq!(kinds(&then)[0], "round_started", "{then:?}");
        assert!(!kinds(&then).contains(&"snapshot"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_cursor_of_before_a_reset_gets_a_snapshot_of_the_emptied_conversation() {
    let sessions = store();
    let model = echo();
    let first = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    say(&conversation(&first), "one").await;
    conversation(&first).reset().await.unwrap();
    stop(&first, Duration::from_secs(1)).await;
    let second = builder(&model)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap();

    let seen = available(
        &mut conversation(&second)
            .events(EventsFrom::After(EventId::default()))
            .await
            .unwrap(),
    )
    .await;

    assert_eq!(kinds(&seen), ["snapshot"]);
    let EventKind::Snapshot { snapshot } = &seen[0].kind else {
        panic!()
    };
    assert_eq!((snapshot.messages.len(), snapshot.rounds), (0, 0));
    let line = seen[0].to_json();
    assert!(
        line.contains(
            r#""type":"snapshot","open":"none","rounds":0,"messages":[],"messages_before":0"#
        ),
        "{line}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_unknown_conversation_and_another_tenants_are_not_found() {
    let host = host(&echo()).await;
    say(&conversation(&host), "one").await;

    let other = host.tenant("other").conversation("c-1");
    for from in [EventsFrom::Now, EventsFrom::After(EventId::default())] {
        assert_eq!(other.events(from).await.unwrap_err().code(), "not_found");
    }
    assert_eq!(host.awake(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_round_continues_from_a_cursor_and_ends_the_watch() {
    let host = host(&echo()).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("one").await.unwrap();
    let mut all = Vec::new();
    while let Some(event) = reply.next().await {
        all.push(event);
    }
    say(&conversation, "two").await;

    for seen in 0..all.len() {
        let mut again = conversation
            .watch(reply.round_id())
            .unwrap()
            .after(all[seen].id);
        let mut rest = Vec::new();
        while let Some(event) = again.next().await {
            rest.push(event);
        }
        assert_eq!(rest, all[seen + 1..]);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_of_a_host_that_stops_end_without_an_error_and_the_next_host_goes_on() {
    let sessions = store();
    let asked = Arc::new(AtomicUsize::new(0));
    let calls = asked.clone();
    let model = Arc::new(ScriptedModel::answering(move |_, _| {
        match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::tool("pay", &json!({})),
            _ => Reply::text("done"),
        }
    }));
    let make = || {
        let approval = crate::conversation::round::rules::ApprovalMode::Ask;
        builder(&model)
            .shared_sessions(sessions.clone())
            .tool(asks("pay"))
            .approval(approval)
            .has_approver(true)
            .build()
    };
    let first = make().await.unwrap();
    let mut reply = conversation(&first).send("pay").await.unwrap();
    let mut events = conversation(&first).events(EventsFrom::Now).await.unwrap();
    let before = available(&mut events).await;
    assert_eq!(kinds(&before).last(), Some(&"approval_required"));

    stop(&first, Duration::from_secs(1)).await;
    let end = timeout(Duration::from_secs(1), events.next())
        .await
        .expect("the stream ends");
    let outcome = timeout(Duration::from_secs(1), reply.outcome())
        .await
        .expect("the reply ends");

    assert_eq!((end, outcome), (None, Err(OutcomeError::Stopped)));
    let second = make().await.unwrap();
    let mut events = conversation(&second)
        .events(EventsFrom::After(events.after()))
        .await
        .unwrap();
    let asked = |event: &Arc<StreamEvent>| match &event.kind {
        EventKind::ApprovalRequired { tool_call_id, .. } => Some(tool_call_id.clone()),
        _ => None,
    };
    let tool_call_id = before.iter().find_map(asked).unwrap();
    conversation(&second)
        .approve(tool_call_id, true)
        .await
        .unwrap();
    let rest = available(&mut events).await;
    let EventKind::RoundFinished { end } = &rest.last().unwrap().kind else {
        panic!("{rest:?}")
    };
    assert_eq!(
        (kinds(&rest)[0], end.stop_reason),
        ("turn_restarted", StopReason::EndTurn)
    );
    second.shutdown(Duration::from_secs(1)).await;
    assert_eq!(
        timeout(Duration::from_secs(1), events.next()).await,
        Ok(None),
        "a shutdown ends streams"
    );
}

#[tokio::test(start_paused = true)]
async fn a_round_that_no_life_has_taken_up_yet_is_waited_for_and_not_woken() {
    let sessions = store();
    let model = Arc::new(ScriptedModel::answering(|_, call| match call {
        0 => Reply::text("half of it").chunks(3).then_stall(),
        _ => Reply::text("the whole").chunks(3),
    }));
    let first = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let mut open = conversation(&first).send("one").await.unwrap();
    let accepted = conversation(&first).send("two").await.unwrap();
    let mut last = None;
    while let Ok(Some(event)) = timeout(Duration::from_millis(20), open.next()).await {
        last = Some(event.id);
    }
    let rounds = [open.round_id(), accepted.round_id()];
    drop((open, accepted)); // They keep the host running.
    let cursor = last.unwrap();
    drop_host(first, rounds[0]).await;
    let second = builder(&model)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap();

    let mut watchers = rounds.map(|round| conversation(&second).watch(round).unwrap());
    watchers[0] = conversation(&second)
        .watch(rounds[0])
        .unwrap()
        .after(cursor);
    let mut all = conversation(&second)
        .events(EventsFrom::After(cursor))
        .await
        .unwrap();
    let unknown = conversation(&second)
        .watch(crate::ids::RoundId::from_random([9; 16]))
        .unwrap()
        .outcome()
        .await;
    for watcher in &mut watchers {
        assert!(!watcher.is_over().await, "a look says so as well");
        timeout(Duration::from_secs(1000), watcher.next())
            .await
            .expect_err("no event is left, and more will come");
    }
    assert_eq!(available(&mut all).await, []);
    assert_eq!((second.awake(), unknown), (0, Err(OutcomeError::Expired)));

    let [mut one, mut two] = watchers.map(|mut watcher| {
        tokio::spawn(async move { (watcher.outcome().await, watcher.is_over().await) })
    });
    tokio::task::yield_now().await;
    second.resume_interrupted().await.unwrap();
    let one = timeout(Duration::from_secs(9), &mut one).await;
    let two = timeout(Duration::from_secs(9), &mut two).await;

    let said = [one, two].map(|answer| {
        let (outcome, is_over) = answer.expect("it sees the end").unwrap();
        (outcome.unwrap().text, is_over)
    });
    assert_eq!(
        said,
        [
            ("the whole".to_owned(), true),
            ("the whole".to_owned(), true)
        ]
    );
    assert_eq!(kinds(&available(&mut all).await)[0], "turn_restarted");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_of_a_round_outwaits_a_store_that_is_away_and_the_hosts_stop_ends_it() {
    let sessions = store();
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let first = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let round = conversation(&first).send("one").await.unwrap().round_id();
    drop_host(first, round).await;
    let sessions = Arc::new(FaultySessions::new(sessions, FaultPlan::new()));
    let second = builder(&model)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let mut watcher = conversation(&second).watch(round).unwrap();
    sessions.set_away(true);
    timeout(Duration::from_secs(60), watcher.next())
        .await
        .expect_err("it waits, and does not take the round for over");
    assert!(!watcher.is_over().await, "a look says so as well");

    sessions.set_away(false);
    let seen = timeout(Duration::from_secs(5), watcher.next())
        .await
        .expect("the store is back")
        .unwrap();
    assert_eq!(seen.kind, EventKind::RoundStarted {});

    let waits = tokio::spawn(async move { watcher.outcome().await });
    tokio::task::yield_now().await;
    second.shutdown(Duration::from_secs(1)).await;

    assert_eq!(
        timeout(Duration::from_secs(1), waits)
            .await
            .expect("it ends")
            .unwrap(),
        Err(OutcomeError::Stopped)
    );
}

/// Drops a host as a kill would end it: its open round stays open in the journal.
async fn drop_host(host: Host, round: crate::ids::RoundId) {
    let sessions = host.ports().sessions.clone();
    drop(host);
    tokio::time::sleep(Duration::from_millis(20)).await; // Its actors end.
    let state = crate::conversation::load(
        &*sessions,
        &crate::ids::Scope::new("acme".parse().unwrap(), "c-1".parse().unwrap()),
    )
    .await
    .unwrap();
    assert_eq!(state.round.map(|open| open.id), Some(round));
}

#[tokio::test(start_paused = true)]
async fn a_cursor_of_a_deleted_conversation_gets_a_snapshot_of_its_successor() {
    let sessions = store();
    let model = echo();
    let wall = Arc::new(ManualClock::at(Timestamp(1_795_300_000_000)));
    let make = || {
        let builder = HostBuilder::new(
            super::clocks::Wall(wall.clone()),
            SeededEntropy::new(7),
            |host| host,
        );
        builder
            .shared_provider(model.clone())
            .shared_sessions(sessions.clone())
    };
    let host = make().build().await.unwrap();
    say(&conversation(&host), "one").await;
    let old = available(
        &mut conversation(&host)
            .events(EventsFrom::After(EventId::default()))
            .await
            .unwrap(),
    )
    .await;

    conversation(&host).delete().await.unwrap();
    wall.advance_ms(1);
    for text in ["new", "newer"] {
        say(&conversation(&host), text).await;
    }

    let fresh = make().build().await.unwrap();
    for host in [&host, &fresh] {
        for cursor in &old {
            let seen = available(
                &mut conversation(host)
                    .events(EventsFrom::After(cursor.id))
                    .await
                    .unwrap(),
            )
            .await;
            assert_eq!(kinds(&seen), ["snapshot"], "behind {}", cursor.id);
            assert!(
                seen[0].id > cursor.id,
                "who compares ids takes it for newer"
            );
        }
        let all = available(
            &mut conversation(host)
                .events(EventsFrom::After(EventId::default()))
                .await
                .unwrap(),
        )
        .await;
        assert_eq!(
            kinds(&all)
                .iter()
                .filter(|kind| **kind == "round_finished")
                .count(),
            2
        );
    }
}

/// A tool that changes something, so that its calls need approval.
pub(super) fn asks(name: &str) -> Arc<dyn Tool> {
    struct Asks(ToolSpec);
    impl Tool for Asks {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }

        fn call(&self, _: RawJson, _: ToolContext) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
            Box::pin(async { Ok("paid".into()) })
        }
    }
    Arc::new(Asks(
        ToolSpec::new(name, "A tool that asks.", RawJson::empty_object()).effect(EffectClass::Once),
    ))
}

#[tokio::test(start_paused = true)]
async fn half_of_two_hundred_watchers_never_read_and_a_slow_watcher_never_stalls_a_turn() {
    const TURNS: usize = 10;
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("word ".repeat(8000)).chunks(200)
    }));
    let host = host(&model).await;
    let ring = host.ports().events.clone();
    let acme = TenantId::new("acme").unwrap();
    let other = TenantId::new("other").unwrap();
    let conversation = conversation(&host);
    say(&conversation, "zero").await;
    let mut watchers = Vec::new();
    for _ in 0..200 {
        watchers.push(conversation.events(EventsFrom::Now).await.unwrap());
    }
    let mut stuck = watchers.split_off(100);
    let readers: Vec<_> = watchers
        .into_iter()
        .map(|mut events| {
            tokio::spawn(async move {
                let mut ends = 0;
                while ends < TURNS {
                    ends += usize::from(matches!(
                        events.next().await.unwrap().kind,
                        EventKind::RoundFinished { .. }
                    ));
                }
            })
        })
        .collect();
    for events in &mut stuck {
        let _ = timeout(Duration::from_millis(1), events.next()).await; // Connected, and never reads again.
    }

    let began = tokio::time::Instant::now();
    let mut bytes_max = 0;
    for turn in 0..TURNS {
        say(&conversation, &format!("turn {turn}")).await;
        bytes_max = bytes_max.max(ring.bytes(&acme) / (turn + 2));
    }

    assert!(
        began.elapsed() < Duration::from_secs(5),
        "turns took {:?}",
        began.elapsed()
    );
    for reader in readers {
        timeout(Duration::from_secs(5), reader)
            .await
            .expect("a reader sees everything")
            .unwrap();
    }
    assert!(
        bytes_max <= 256 * 1024,
        "{bytes_max} bytes a round, however many watch"
    );
    assert_eq!(ring.bytes(&other), 0);
    for events in &mut stuck {
        events.next().await.unwrap();
        assert!(
            events.bytes_ahead() <= WATCHER_BYTES_MAX,
            "a stuck watcher holds {} bytes",
            events.bytes_ahead()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_of_events_can_be_plugged_in() {
    let kept_for = async |builder: HostBuilder| {
        let host = builder.build().await.unwrap();
        let conversation = conversation(&host);
        say(&conversation, "Hi").await;
        let stream = StreamKey {
            scope: conversation.scope().unwrap(),
            round: conversation.rounds().await.unwrap()[0].round_id,
        };
        tokio::time::sleep(Duration::from_secs(10)).await;
        host.ports().events.get_status(&stream).await.unwrap()
    };
    let brief = MemoryEvents::new(64 * 1024, Duration::from_secs(5));

    assert_eq!(
        kept_for(builder(&echo())).await,
        Some(StreamStatus::Complete)
    );
    assert_eq!(kept_for(builder(&echo()).events(brief)).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_watcher_keeps_no_copy_of_large_prompts_that_wait_for_their_turn() {
    use crate::host::projection::{ReadResult, read_after};
    for (bytes, is_kept) in [(1000, true), (WATCHER_BYTES_MAX + 1, false)] {
        let model = Arc::new(ScriptedModel::replies([
            Reply::text("first"),
            Reply::stall(),
        ]));
        let sessions = store();
        let host = builder(&model)
            .shared_sessions(sessions.clone())
            .build()
            .await
            .unwrap();
        let conversation = conversation(&host);
        say(&conversation, "Hi").await;
        let _open = conversation.send("hang").await.unwrap();
        let _waits = conversation.send("x".repeat(bytes)).await.unwrap();

        let scope = conversation.scope().unwrap();
        let start = EventId {
            epoch: crate::ids::Epoch(1),
            ..EventId::default()
        };
        let read = read_after(&*sessions, &scope, &None, start, None).await;

        let Ok(ReadResult::Events { position, .. }) = read else {
            panic!("{read:?}");
        };
        assert_eq!(position.is_some(), is_kept, "{bytes} bytes");
    }
}
