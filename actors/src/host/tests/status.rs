//! The status of a conversation: what it waits for, read without activating it.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::*;
use crate::{
    conversation::{WaitsFor, round::rules::ApprovalMode},
    host::ConversationState,
    limits::Limits,
    ports::ProviderError,
    testing::{Reply, ScriptedModel},
};

async fn waits(conversation: &ConversationHandle) -> (ConversationState, WaitsFor) {
    let status = conversation.status().await.unwrap();
    (status.state, status.waits_for)
}

#[tokio::test(start_paused = true)]
async fn the_status_shows_the_model_the_sleep_and_the_figures() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("slow").after(Duration::from_secs(5)),
    ));
    let host = host(&model).await;
    let conversation = conversation(&host);
    assert_eq!(conversation.status().await.unwrap_err().code(), "not_found");

    let mut reply = conversation.send("Hi").await.unwrap();
    model.until(|counts| counts.started == 1).await;
    assert_eq!(
        waits(&conversation).await,
        (ConversationState::Running, WaitsFor::Model)
    );
    reply.outcome().await.unwrap();
    assert_eq!(
        waits(&conversation).await,
        (ConversationState::Idle, WaitsFor::Nothing)
    );
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;

    let status = conversation.status().await.unwrap();
    assert_eq!(
        (status.state, status.messages, status.rounds),
        (ConversationState::Asleep, 2, 1)
    );
    assert!(
        status.context.tokens > 0 && status.context.window == 200_000,
        "{status:?}"
    );
    assert_eq!(host.awake(), 0, "a status wakes no conversation");
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(
        (&json["state"], &json["waits_for"]["kind"]),
        (&json!("asleep"), &json!("nothing"))
    );
}

#[tokio::test(start_paused = true)]
async fn the_status_shows_the_retry_and_the_place_in_the_queue() {
    let refused = ProviderError::RateLimited {
        retry_after: Some(Duration::from_secs(7)),
        message: "slow down".into(),
    };
    let model = Arc::new(ScriptedModel::replies([
        Reply::error(refused),
        Reply::stall(),
    ]));
    let host = builder(&model)
        .limits(Limits {
            model_calls_max: 1,
            ..Limits::default()
        })
        .build()
        .await
        .unwrap();
    let first = host.tenant("acme").conversation("c-1");
    let second = host.tenant("acme").conversation("c-2");

    first.send("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (_, retry) = waits(&first).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    second.send("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (state, queued) = waits(&second).await;

    assert!(
        matches!(
            &retry,
            WaitsFor::Retry {
                attempt: 1,
                delay_ms: 7000..,
                ..
            }
        ),
        "{retry:?}"
    );
    assert!(
        matches!(queued, WaitsFor::Provider { position: 1, .. }),
        "{queued:?}"
    );
    assert_eq!(state, ConversationState::Running);
}

#[tokio::test(start_paused = true)]
async fn the_status_shows_the_tools_and_the_people_that_it_waits_for() {
    let (reads, _) = probe("read", EffectClass::Pure, |_| std::future::pending());
    let model = Arc::new(ScriptedModel::always(Reply::tool("read", &json!({}))));
    let host = builder(&model)
        .tool(reads)
        .approval(ApprovalMode::Ask)
        .has_approver(true)
        .tool(super::events::asks("pay"))
        .build()
        .await
        .unwrap();
    let conversation = conversation(&host);
    conversation.send("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        waits(&conversation).await,
        (
            ConversationState::Running,
            WaitsFor::Tools {
                names: vec!["read".into()]
            }
        )
    );

    let pays = Arc::new(ScriptedModel::always(Reply::tool("pay", &json!({}))));
    let host = builder(&pays)
        .approval(ApprovalMode::Ask)
        .has_approver(true)
        .tool(super::events::asks("pay"))
        .build()
        .await
        .unwrap();
    let conversation = host.tenant("acme").conversation("c-1");
    conversation.send("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    host.hibernate_idle();
    until("it sleeps", || host.awake() == 0).await;

    let status = conversation.status().await.unwrap();
    assert_eq!(status.state, ConversationState::Parked);
    let WaitsFor::Person {
        tool_call_ids,
        expires_at: Some(_),
    } = status.waits_for
    else {
        panic!("{status:?}")
    };
    assert_eq!((tool_call_ids.len(), host.awake()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_status_shows_the_running_call_and_not_the_one_that_asks() {
    let (reads, _) = probe("read", EffectClass::Pure, |_| std::future::pending());
    let model = Arc::new(ScriptedModel::always(
        Reply::tool("read", &json!({})).and_tool("pay", &json!({})),
    ));
    let sessions = store();
    let make = || {
        let builder = builder(&model)
            .shared_sessions(sessions.clone())
            .tool(reads.clone())
            .tool(super::events::asks("pay"));
        builder.approval(ApprovalMode::Ask).has_approver(true)
    };
    let host = make().build().await.unwrap();
    conversation(&host).send("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;

    let running = waits(&conversation(&host)).await;
    drop(host); // As by a kill.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let next = make().build().await.unwrap();
    let left = waits(&conversation(&next)).await;

    assert_eq!(
        running,
        (
            ConversationState::Running,
            WaitsFor::Tools {
                names: vec!["read".into()]
            }
        )
    );
    assert_eq!(
        left,
        (ConversationState::Asleep, WaitsFor::Nothing),
        "no tool runs of a life that is over"
    );
}
