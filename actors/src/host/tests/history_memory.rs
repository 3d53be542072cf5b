//! The histories of conversations that work count as memory.

use super::*;
use crate::{
    conversation::ConversationError,
    host::SendError,
    limits::Limits,
    scripted::{Reply, ScriptedModel},
};

/// Bytes of a history, and how many of them fit within `MEMORY`: what a tenant has counts twice.
const HISTORY: usize = 90_000;
const MEMORY: usize = 400_000;
const AT_ONCE: usize = 2;

/// A model that never answers `hang`, answers `slow` after a minute and all else at once.
fn model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::answering(|request, _| {
        match request.messages.last().unwrap().text().as_str() {
            "hang" => Reply::stall(),
            "slow" => Reply::text("done").after(Duration::from_secs(60)),
            _ => Reply::text("ok"),
        }
    }))
}

fn limits() -> Limits {
    Limits {
        memory_bytes_max: MEMORY,
        ..Limits::default()
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("c-{n}")).collect()
}

/// Gives each conversation a long history.
async fn fill(host: &Host, tenant: &str, names: &[String]) {
    for name in names {
        let conversation = host.tenant(tenant).conversation(name.as_str());
        let mut round = conversation.send("x".repeat(HISTORY)).await.unwrap();
        round.outcome().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn long_histories_at_work_leave_memory_to_other_tenants() {
    let host = builder(&model()).limits(limits()).build().await.unwrap();
    let names = names(8);
    fill(&host, "acme", &names).await;
    fill(&host, "other", &names[..1]).await;
    let mut held = Vec::new();
    let mut refused = Vec::new();
    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        match conversation.send("hang").await {
            Ok(round) => held.push((conversation, round)),
            Err(error) => refused.push((conversation, error)),
        }
    }

    assert_eq!(held.len(), AT_ONCE);
    let overloaded = SendError::Conversation(ConversationError::Overloaded {
        what: "memory of this host",
        retry_after_ms: 1000,
    });
    assert!(refused.iter().all(|(_, error)| *error == overloaded));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(host.awake(), AT_ONCE + 1, "those that were refused sleep");

    let other = host.tenant("other").conversation("c-0");
    let mut round = other.send("hello").await.unwrap();
    round.outcome().await.unwrap();

    let (first, mut round) = held.remove(0);
    first.interrupt().await.unwrap();
    round.outcome().await.unwrap();
    let (again, _) = refused.remove(0);
    let mut round = again.send("hello").await.unwrap();
    round.outcome().await.unwrap();
    for (conversation, mut round) in held {
        conversation.interrupt().await.unwrap();
        round.outcome().await.unwrap();
    }
    let usage = host.tenant("acme").usage().unwrap();
    assert_eq!((usage.memory_bytes, usage.refused.memory), (0, 6));
}

#[tokio::test(start_paused = true)]
async fn open_rounds_with_long_histories_go_on_in_turns() {
    let store = store();
    let first = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let names = names(8);
    fill(&first, "acme", &names).await;
    for name in &names {
        let conversation = first.tenant("acme").conversation(name.as_str());
        drop(conversation.send("slow").await.unwrap());
    }
    drop(first);

    let model = model();
    let host = builder(&model)
        .shared_sessions(store)
        .limits(limits())
        .build()
        .await
        .unwrap();
    let usage = || host.tenant("acme").usage().unwrap();
    assert_eq!(host.resume_interrupted().await, Ok(8));
    model.until(|counts| counts.started == AT_ONCE).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(usage().turns_running, AT_ONCE);

    // A message to one that waits is answered.
    let waiting = async |name: &String| {
        let conversation = host.tenant("acme").conversation(name.as_str());
        let sent = conversation.send("Hi").await;
        sent.is_err_and(|error| {
            matches!(
                error,
                SendError::Conversation(ConversationError::Overloaded { .. })
            )
        })
    };
    let mut refused = 0;
    for name in &names {
        refused += usize::from(waiting(name).await);
    }
    assert!(refused >= 8 - AT_ONCE, "{refused}");

    tokio::time::sleep(Duration::from_secs(10 * 60)).await;
    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        let state = conversation.state().await.unwrap();
        assert!(state.round.is_none(), "{name} is still open");
    }
    assert_eq!(usage().memory_bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn a_round_that_waits_for_memory_can_be_interrupted() {
    let store = store();
    let first = builder(&model())
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let names = names(8);
    fill(&first, "acme", &names).await;
    for name in &names {
        let conversation = first.tenant("acme").conversation(name.as_str());
        drop(conversation.send("hang").await.unwrap());
    }
    drop(first);
    let host = builder(&model())
        .shared_sessions(store)
        .limits(limits())
        .build()
        .await
        .unwrap();
    host.resume_interrupted().await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;

    for name in &names {
        let conversation = host.tenant("acme").conversation(name.as_str());
        conversation.interrupt().await.unwrap();
    }

    tokio::time::sleep(Duration::from_secs(10)).await;
    let usage = host.tenant("acme").usage().unwrap();
    assert_eq!((usage.turns_running, usage.memory_bytes), (0, 0));
}
