//! Messages for receivers outside: stored with the end of their round, for the events that the
//! tenant's configuration names.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::sync::Notify;

use super::*;
use crate::{
    host::TenantConfig,
    ids::{ConversationId, TenantId},
    memory::MemorySessions,
    ports::{OutboxEvent, OutboxMessage, SessionBackend},
    testing::{Reply, ScriptedModel},
    time::Timestamp,
};

/// A host whose tenant `acme` is informed of `events`, its store, and the bell.
async fn informed(
    model: &Arc<ScriptedModel>,
    events: &[OutboxEvent],
) -> (Host, Arc<MemorySessions>, Arc<Notify>) {
    let store = Arc::new(MemorySessions::new());
    let host = builder(model)
        .shared_sessions(store.clone())
        .build()
        .await
        .unwrap();
    let bell = Arc::new(Notify::new());
    let leaves_out = |id: &ConversationId| id.as_str() == "left-out";
    let config = TenantConfig::new().outbox(events.iter().copied(), leaves_out, bell.clone());
    let acme = TenantId::new("acme").unwrap();
    host.configure_tenant(&acme, config).await.unwrap();
    (host, store, bell)
}

/// Claims what waits for `acme`.
async fn waiting(store: &MemorySessions) -> Vec<OutboxMessage> {
    let acme = TenantId::new("acme").unwrap();
    let outbox = store.outbox().unwrap();
    let lease = Duration::from_secs(60);
    outbox
        .claim(&acme, Timestamp(u64::MAX / 2), lease, 100)
        .await
        .unwrap()
}

fn types(messages: &[OutboxMessage]) -> Vec<String> {
    let kind = |message: &OutboxMessage| {
        let body: Value = serde_json::from_slice(&message.body).unwrap();
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "{} {}",
            word(&body["type"]),
            word(&body["data"]["conversation_id"])
        )
    };
    messages.iter().map(kind).collect()
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_round_is_in_the_outbox_when_its_caller_learns_of_it() {
    let model = Arc::new(ScriptedModel::always(Reply::text("secret words")));
    let (host, store, bell) = informed(&model, &[OutboxEvent::Finished]).await;
    let acme = host.tenant("acme");

    for conversation in ["c-1", "left-out", "c-2"] {
        let mut reply = acme.conversation(conversation).send("Hi").await.unwrap();
        reply.outcome().await.unwrap();
    }
    let mut other = host
        .tenant("other")
        .conversation("c-1")
        .send("Hi")
        .await
        .unwrap();
    other.outcome().await.unwrap();

    let messages = waiting(&store).await;
    assert_eq!(
        types(&messages),
        ["round.finished c-1", "round.finished c-2"]
    );
    assert_ne!(messages[0].id, messages[1].id);
    for message in &messages {
        let body = std::str::from_utf8(&message.body).unwrap();
        assert!(!body.contains("words") && !body.contains("Hi"), "{body}");
        assert!(message.body.len() < 2048);
    }
    bell.notified().await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_whose_round_never_begins_and_an_interrupted_round_are_reported() {
    let model = Arc::new(ScriptedModel::always(Reply::stall()));
    let wanted = [OutboxEvent::Failed, OutboxEvent::Interrupted];
    let (host, store, _) = informed(&model, &wanted).await;
    let conversation = host.tenant("acme").conversation("c-1");
    let mut running = conversation.send("Hi").await.unwrap();
    let late = conversation
        .send("Late")
        .wait_at_most(Duration::from_secs(1));
    let mut late = late.await.unwrap();
    assert!(late.outcome().await.is_err());
    let messages = waiting(&store).await;
    assert_eq!(types(&messages), ["round.failed c-1"]);
    let body: Value = serde_json::from_slice(&messages[0].body).unwrap();
    assert_eq!(body["data"]["error"]["code"], "deadline");

    conversation.interrupt().await.unwrap();
    running.outcome().await.unwrap();

    let messages = waiting(&store).await;
    assert_eq!(types(&messages), ["round.interrupted c-1"]);
}
