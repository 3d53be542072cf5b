//! What the directory promises about mail and slots, checked against its own state.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::*;
use crate::{
    conversation::Command,
    conversation::{ExitReason, LeaseIssuer, UnsettledAppends},
    host::{Host, HostBuilder},
    ids::{Epoch, Seq},
    journal::{Entry as JournalEntry, EntryBody, Head},
    memory::MemorySessions,
    ports::{Append, Durability, SessionBackend},
    testing::{Fault, FaultPlan, FaultySessions, ManualClock, Reply, ScriptedModel, SeededEntropy},
    time::Timestamp,
};

const NOW: Timestamp = Timestamp(1_795_300_000_000);

async fn host(sessions: Arc<dyn SessionBackend>) -> Host {
    let model = ScriptedModel::always(Reply::text("x"));
    HostBuilder::new(ManualClock::at(NOW), SeededEntropy::new(7), |host| host)
        .provider(model)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap()
}

fn scope(id: &str) -> Scope {
    Scope::new(
        TenantId::new("acme").unwrap(),
        ConversationId::new(id).unwrap(),
    )
}

fn pin(
    line: &str,
) -> (
    ConversationMsg,
    oneshot::Receiver<Result<(), ConversationError>>,
) {
    let (reply, answer) = oneshot::channel();
    let command = Command::Pin { line: line.into() };
    let place = None;
    (
        ConversationMsg::Ask {
            command,
            place,
            reply,
        },
        answer,
    )
}

#[tokio::test(start_paused = true)]
async fn mail_that_an_ending_actor_gives_back_comes_before_what_was_held_since() {
    let host = host(Arc::new(MemorySessions::new())).await;
    let directory = &host.0.directory;
    let (first, one) = pin("first");
    let (second, two) = pin("second");
    let (third, three) = pin("third");
    let slot = Slot::Closing {
        generation: 0,
        returned: Vec::new(),
        held: vec![third],
        crashes: None,
    };
    drop(directory.slots.insert(scope("c-1"), slot));

    directory.hold(&scope("c-1"), 0, first);
    directory.hold(&scope("c-1"), 0, second);
    let appends = UnsettledAppends::default();
    directory.ended(&scope("c-1"), 0, &ExitReason::Hibernated, &appends);
    for answer in [one, two, three] {
        answer.await.unwrap().unwrap();
    }

    let talk = host.tenant("acme").conversation("c-1");
    let pinned = talk.state().await.unwrap().context.pinned;
    assert_eq!(pinned, ["first", "second", "third"]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_over_leaves_no_slot() {
    let host = host(Arc::new(MemorySessions::new())).await;
    let directory = &host.0.directory;
    let slot = Slot::Failed {
        error: ConversationError::Gone,
        until: Instant::now() + Duration::from_secs(60),
    };
    drop(directory.slots.insert(scope("c-1"), slot));

    directory.sweep(Duration::ZERO);
    assert_eq!(directory.awake(), 1);
    tokio::time::advance(Duration::from_secs(61)).await;
    directory.sweep(Duration::ZERO);

    assert_eq!(directory.awake(), 0);
}

/// Stores a conversation that is due for a wake-up and stays so.
async fn store_due(sessions: &MemorySessions, id: &str) {
    let entry = JournalEntry {
        seq: Seq(1),
        epoch: Epoch(1),
        at: NOW,
        body: EntryBody::LifeStarted {
            nonce: 1,
            in_order: false,
        },
    };
    let (stored, answer) = oneshot::channel();
    sessions.append(Append {
        scope: scope(id),
        expected: Head::default(),
        epoch: Epoch(1),
        entries: vec![entry.encode()],
        open: Open::Parked,
        wake_at: Some(NOW),
        messages: Vec::new(),
        durability: Durability::Awaited,
        done: Box::new(move |result| drop(stored.send(result))),
    });
    answer.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn due_conversations_that_make_no_progress_keep_no_others_waiting() {
    let inner = Arc::new(MemorySessions::new());
    for n in 0..WAKES_MAX + 20 {
        store_due(&inner, &format!("c-{n:04}")).await;
    }
    let host = host(inner).await;

    tokio::time::sleep(Duration::from_secs(5)).await;

    assert_eq!(host.awake(), WAKES_MAX + 20);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_is_asked_once_at_a_time_for_due_conversations() {
    let slow = FaultPlan::new().read(1, Fault::Slow(Duration::from_secs(10)));
    let sessions = Arc::new(FaultySessions::new(Arc::new(MemorySessions::new()), slow));
    let host = host(sessions.clone()).await;

    tokio::time::sleep(Duration::from_millis(9500)).await;
    assert_eq!(sessions.reads(), 1);
    tokio::time::sleep(Duration::from_secs(3)).await;

    assert!(sessions.reads() > 1, "it goes on");
    drop(host);
}
