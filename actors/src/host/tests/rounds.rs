//! Rounds: order of events, cancellation, the queue of prompts, client keys, and tenants beside
//! each other.

use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    conversation::round::OnBusy,
    host::OutcomeError,
    ports::ProviderError,
    stream::StopReason,
    testing::{Reply, ScriptedModel},
};

#[tokio::test(start_paused = true)]
async fn a_turn_streams_its_text_and_ends_with_its_outcome() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::text("Hello there.").chunks(3)
    ]));
    let host = host(&model).await;

    let mut reply = conversation(&host).send("Hi").await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = reply.next().await {
        events.push(event);
    }
    let outcome = reply.outcome().await.unwrap();

    let mut names = kinds(&events);
    names.dedup();
    assert_eq!(
        names,
        [
            "round_started",
            "text_delta",
            "usage",
            "message",
            "round_finished"
        ]
    );
    assert_eq!(
        (outcome.text.as_str(), outcome.stop_reason),
        ("Hello there.", StopReason::EndTurn)
    );
    assert!(
        events.windows(2).all(|pair| pair[0].id < pair[1].id),
        "ids increase"
    );
    let texts: Vec<String> = conversation(&host)
        .messages()
        .await
        .unwrap()
        .iter()
        .map(|m| m.text())
        .collect();
    assert_eq!(texts, ["Hi", "Hello there."]);
}

#[tokio::test(start_paused = true)]
async fn second_prompt_waits_for_the_running_turn() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!(
            "answer to {}",
            request.messages.last().unwrap().text()
        ))
        .after(Duration::from_secs(1))
    }));
    let host = host(&model).await;
    let conversation = conversation(&host);

    let mut first = conversation.send("one").await.unwrap();
    let mut second = conversation.send("two").await.unwrap();
    assert_eq!(model.requests().len(), 1);
    let outcomes = (
        first.outcome().await.unwrap().text,
        second.outcome().await.unwrap().text,
    );

    assert_eq!(outcomes, ("answer to one".into(), "answer to two".into()));
    let texts: Vec<String> = conversation
        .messages()
        .await
        .unwrap()
        .iter()
        .map(|m| m.text())
        .collect();
    assert_eq!(texts, ["one", "answer to one", "two", "answer to two"]);
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_the_model_and_keeps_the_partial_text() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::text("half a").then_stall(),
        Reply::text("whole"),
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);
    let mut reply = conversation.send("Hi").await.unwrap();
    while !matches!(
        reply.next().await.unwrap().kind,
        EventKind::TextDelta { .. }
    ) {}

    conversation.interrupt().await.unwrap();
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(
        (outcome.stop_reason, outcome.text.as_str()),
        (StopReason::Interrupted, "half a")
    );
    model.until(|counts| counts.dropped == 1).await;
    let mut next = conversation.send("Again").await.unwrap();
    assert_eq!(next.outcome().await.unwrap().text, "whole");
    assert_eq!(model.last_request().unwrap().messages.first_fault(), None);
}

#[tokio::test(start_paused = true)]
async fn busy_callers_choose_what_happens() {
    let model = Arc::new(ScriptedModel::answering(|request, call| match call {
        0 => Reply::stall(),
        _ => Reply::text(request.messages.last().unwrap().text()),
    }));
    let host = host(&model).await;
    let conversation = conversation(&host);
    let mut first = conversation.send("one").await.unwrap();
    model.until(|counts| counts.started == 1).await;

    let rejected = conversation
        .send("no")
        .on_busy(OnBusy::Reject)
        .await
        .unwrap_err();
    let mut instead = conversation
        .send("two")
        .on_busy(OnBusy::Interrupt)
        .await
        .unwrap();

    assert_eq!(rejected.code(), "conversation_busy");
    assert_eq!(
        first.outcome().await.unwrap().stop_reason,
        StopReason::Interrupted
    );
    assert_eq!(instead.outcome().await.unwrap().text, "two");
}

#[tokio::test(start_paused = true)]
async fn a_client_key_leads_to_one_round() {
    let model = Arc::new(ScriptedModel::always(Reply::text("once")));
    let host = host(&model).await;
    let conversation = conversation(&host);

    let mut first = conversation.send("Hi").client_key("k").await.unwrap();
    first.outcome().await.unwrap();
    let mut again = conversation.send("Hi").client_key("k").await.unwrap();
    let other = conversation
        .send("Other")
        .client_key("k")
        .await
        .unwrap_err();

    assert_eq!(
        (again.is_replayed(), again.round_id()),
        (true, first.round_id())
    );
    assert_eq!(again.outcome().await.unwrap().text, "once");
    assert_eq!(other.code(), "idempotency_key_reused");
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_tenant_sees_anothers_history() {
    let model = Arc::new(ScriptedModel::answering(|request, _| {
        Reply::text(format!("{} messages", request.messages.len()))
    }));
    let host = host(&model).await;
    for _ in 0..2 {
        host.tenant("a")
            .conversation("same")
            .send("secret of a")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
    }

    let b = host.tenant("b").conversation("same");
    let outcome = b.send("Hi").await.unwrap().outcome().await.unwrap();

    assert_eq!(outcome.text, "1 messages");
    assert!(
        b.messages()
            .await
            .unwrap()
            .iter()
            .all(|message| !message.wire_str().contains("secret"))
    );
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_take_the_prompt_back() {
    let refused = ProviderError::Auth {
        message: "bad key".into(),
    };
    let model = Arc::new(ScriptedModel::replies([
        Reply::error(refused),
        Reply::text("ok"),
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);

    let error = conversation
        .send("one")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap_err();
    let outcome = conversation
        .send("two")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    assert_eq!(
        (error.code(), outcome.text.as_str()),
        ("provider_auth", "ok")
    );
    assert!(matches!(error, OutcomeError::Failed { .. }));
    assert_eq!(model.last_request().unwrap().messages.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_whose_time_is_over_is_never_run() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::text("slow").after(Duration::from_secs(30))
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);
    let mut first = conversation.send("one").await.unwrap();

    let mut late = conversation
        .send("two")
        .deadline(Duration::from_secs(1))
        .await
        .unwrap();
    let late = late.outcome().await.unwrap_err();

    assert_eq!(late.code(), "deadline");
    assert_eq!(first.outcome().await.unwrap().text, "slow");
    assert_eq!(model.requests().len(), 1);
    until("seats are free", || {
        host.tenant("acme").prompts_under_way() == Ok(0)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_never_stalls_a_turn_and_finds_the_end() {
    let long = "word ".repeat(200_000);
    let model = Arc::new(ScriptedModel::replies([
        Reply::text(long.clone()).chunk_bytes(64)
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);

    let mut never_reads = conversation.send("Hi").await.unwrap();
    until("the round is over", || {
        host.tenant("acme").prompts_under_way() == Ok(0)
    })
    .await;

    let outcome = never_reads.outcome().await.unwrap();
    assert_eq!(outcome.text, long);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_turn_can_be_bounded_alone() {
    let model = Arc::new(ScriptedModel::replies([
        Reply::text("slow").after(Duration::from_secs(30)),
        Reply::text("slow too").after(Duration::from_secs(30)),
    ]));
    let host = host(&model).await;
    let conversation = conversation(&host);
    let wait = |text: &str| {
        let prompt = conversation.send(text.to_owned());
        prompt.wait_at_most(Duration::from_secs(1))
    };

    let mut first = wait("one").await.unwrap();
    let mut second = conversation.send("two").await.unwrap();
    let mut late = wait("late").await.unwrap();
    let late = late.outcome().await.unwrap_err();

    assert_eq!(late.code(), "deadline");
    let first = first.outcome().await.unwrap();
    assert_eq!(first.text, "slow", "a round that began is not bounded");
    assert_eq!(second.outcome().await.unwrap().text, "slow too");
    assert_eq!(model.requests().len(), 2, "the late prompt never runs");
    until("seats are free", || {
        host.tenant("acme").prompts_under_way() == Ok(0)
    })
    .await;
}
