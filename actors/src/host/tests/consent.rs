//! What a person answers to a call that awaits approval: words of a refusal, and other arguments.

use std::sync::Arc;

use serde_json::json;

use super::{
    door::{WantsPath, asked, echo, results, writer},
    *,
};
use crate::{
    conversation::{Consent, round::rules::ApprovalMode},
    host::TenantConfig,
    limits::Limits,
    ports::Approval,
    tenant::Quotas,
    testing::ScriptedModel,
};

/// What the model was sent last, as text.
fn sent(model: &ScriptedModel) -> String {
    let request = model.last_request().unwrap();
    String::from_utf8_lossy(request.messages.last().unwrap().wire()).into_owned()
}

#[tokio::test(start_paused = true)]
async fn the_model_reads_the_words_of_a_refusal() {
    let (tool, starts) = echo("writes", |spec| spec.approval(Approval::ByMode));
    let model = writer();
    let host = builder(&model)
        .tool(tool)
        .approval(ApprovalMode::Ask)
        .build()
        .await
        .unwrap();
    let talk = conversation(&host);

    for (words, end) in [
        (Some("write b.txt"), "this call and says: write b.txt"),
        (Some("  "), "did not approve this call"),
        (None, "did not approve this call"),
    ] {
        let mut reply = talk.send("write a.txt").await.unwrap();
        let call = asked(&mut reply).await;
        let denied = Consent::Denied(words.map(str::to_owned));
        talk.approve(call, denied).await.unwrap();
        reply.outcome().await.unwrap();

        let (text, is_error) = results(&model).remove(0);
        assert!(
            is_error && text.trim_end().contains(end),
            "{words:?}: {text}"
        );
    }
    assert_eq!(starts.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_with_the_arguments_that_a_person_gave_it_and_the_model_reads_them() {
    let store = store();
    let (tool, starts) = echo("writes", |spec| spec.approval(Approval::ByMode));
    let model = writer();
    let build = || {
        builder(&model)
            .tool(tool.clone())
            .schemas(Arc::new(WantsPath))
            .approval(ApprovalMode::Ask)
            .shared_sessions(store.clone())
            .build()
    };
    let host = build().await.unwrap();
    let talk = conversation(&host);
    let input = |value: serde_json::Value| RawJson::of(&value).unwrap();
    let mut reply = talk.send("write a.txt").await.unwrap();
    let call = asked(&mut reply).await;

    let bad = Consent::Changed(input(json!({ "file": "b.txt" })));
    let refused = talk.approve(call.as_str(), bad).await.unwrap_err();
    assert_eq!(refused.code(), "invalid_arguments");
    assert_eq!(starts.load(Ordering::SeqCst), 0, "it still waits");
    let changed = Consent::Changed(input(json!({ "path": "b.txt" })));
    talk.approve(call, changed).await.unwrap();
    reply.outcome().await.unwrap();

    assert_eq!(starts.load(Ordering::SeqCst), 1);
    let (text, is_error) = results(&model).remove(0);
    assert!(
        !is_error && text.contains("b.txt") && !text.contains("a.txt"),
        "{text}"
    );
    assert!(
        sent(&model).contains("The user changed the arguments of the call"),
        "{}",
        sent(&model)
    );

    // Another host reads the same, and nothing was allowed for good.
    let before = talk.messages().await.unwrap();
    drop((reply, talk, host));
    let host = build().await.unwrap();
    let talk = conversation(&host);
    assert_eq!(talk.messages().await.unwrap(), before);
    let mut reply = talk.send("write b.txt").await.unwrap();
    let call = asked(&mut reply).await;
    talk.approve(call, false).await.unwrap();
    reply.outcome().await.unwrap();
    assert_eq!(starts.load(Ordering::SeqCst), 1);
}

fn changed(bytes: usize) -> Consent {
    let input = json!({ "path": "b".repeat(bytes) });
    Consent::Changed(RawJson::of(&input).unwrap())
}

/// A host whose calls wait for a person.
async fn asks(limits: Limits) -> Host {
    let (tool, _) = echo("writes", |spec| spec.approval(Approval::ByMode));
    builder(&writer())
        .tool(tool)
        .limits(limits)
        .approval(ApprovalMode::Ask)
        .build()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn arguments_that_a_person_changed_count_as_memory() {
    let host = asks(Limits {
        memory_bytes_max: 100_000,
        ..Limits::default()
    })
    .await;
    let other = host.tenant("acme").conversation("other");
    let mut waits = other.send("write a.txt").await.unwrap();
    asked(&mut waits).await;
    let talk = conversation(&host);
    let mut reply = talk.send("write a.txt").await.unwrap();
    let call = asked(&mut reply).await;

    // Kept once for the call, and once in the message that the model reads.
    let refused = talk
        .approve(call.clone(), changed(60_000))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "overloaded");

    talk.approve(call, changed(10_000)).await.unwrap();
    reply.outcome().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn arguments_that_a_person_changed_count_as_stored_bytes() {
    let host = asks(Limits::default()).await;
    let quotas = Quotas {
        stored_bytes_max: Some(150_000),
        ..Quotas::default()
    };
    host.configure_tenant(
        &"acme".try_into().unwrap(),
        TenantConfig::new().quotas(quotas),
    )
    .await
    .unwrap();
    let talk = conversation(&host);
    let mut reply = talk.send("write a.txt").await.unwrap();
    let call = asked(&mut reply).await;

    let refused = talk
        .approve(call.clone(), changed(100_000))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), "overloaded");

    talk.approve(call, changed(10_000)).await.unwrap();
    reply.outcome().await.unwrap();
}
