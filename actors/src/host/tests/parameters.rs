//! Model parameters: of the host, of a tenant, of one prompt.

use super::*;
use crate::{
    chat::{Effort, ModelParameters, ModelRequest, Thinking},
    host::TenantConfig,
    ids::TenantId,
    ports::Capabilities,
    testing::{Reply, ScriptedModel},
};

fn thinking_model() -> ScriptedModel {
    ScriptedModel::always(Reply::text("ok")).capabilities(Capabilities {
        context_window: 200_000,
        output_max: 64_000,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: false,
        documents: false,
        request_bytes_max: None,
        thinking: true,
    })
}

fn parameters(json: &str) -> ModelParameters {
    serde_json::from_str(json).unwrap()
}

/// What a request asks, in the form of [`parameters`].
fn asked(request: &ModelRequest) -> ModelParameters {
    ModelParameters {
        max_tokens: Some(request.max_tokens),
        effort: request.effort,
        thinking: request.thinking,
        temperature: request.temperature,
        stop: Some(request.stop.clone()),
    }
}

async fn say(host: &Host, text: &str, with: &str) {
    let mut round = conversation(host)
        .send(text)
        .parameters(parameters(with))
        .await
        .unwrap();
    round.outcome().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_prompt_wins_over_its_tenant_and_the_tenant_over_the_host() {
    let model = Arc::new(thinking_model());
    let host = builder(&model)
        .parameters(parameters(
            r#"{"max_tokens":100,"effort":"low","temperature":0.5}"#,
        ))
        .build()
        .await
        .unwrap();
    let tenant = TenantConfig::new().parameters(parameters(r#"{"effort":"medium","stop":["T"]}"#));
    host.configure_tenant(&TenantId::new("acme").unwrap(), tenant)
        .await
        .unwrap();

    say(&host, "as the tenant says", "{}").await;
    assert_eq!(
        asked(&model.last_request().unwrap()),
        parameters(r#"{"max_tokens":100,"effort":"medium","temperature":0.5,"stop":["T"]}"#)
    );
    say(
        &host,
        "as this prompt says",
        r#"{"max_tokens":70000,"effort":"high","thinking":2048,"stop":[]}"#,
    )
    .await;
    assert_eq!(
        asked(&model.last_request().unwrap()),
        parameters(
            r#"{"max_tokens":64000,"effort":"high","thinking":2048,"temperature":0.5,"stop":[]}"#
        ),
        "the longest answer of the model bounds the wish"
    );
    say(&host, "as the tenant says again", "{}").await;
    assert_eq!(
        model.last_request().unwrap().effort,
        Some(Effort::Medium),
        "a prompt's parameters end with its round"
    );
}

#[tokio::test(start_paused = true)]
async fn a_resumed_round_asks_as_its_prompt_did() {
    let silent = Arc::new(ScriptedModel::always(Reply::stall()));
    let sessions = store();
    let first = builder(&silent)
        .shared_sessions(sessions.clone())
        .build()
        .await
        .unwrap();
    let prompt = conversation(&first)
        .send("hello")
        .parameters(parameters(r#"{"max_tokens":77,"effort":"high"}"#));
    prompt.await.unwrap();
    silent.until(|counts| counts.started == 1).await;
    drop(first);
    silent.until(|counts| counts.dropped == 1).await;

    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let second = builder(&model)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap();
    assert_eq!(second.resume_interrupted().await, Ok(1));
    let mut round = conversation(&second).resume().await.unwrap().unwrap();
    round.outcome().await.unwrap();

    let request = model.last_request().unwrap();
    assert_eq!(
        (request.max_tokens, request.effort),
        (77, Some(Effort::High))
    );
}

#[tokio::test(start_paused = true)]
async fn parameters_that_no_model_accepts_are_refused_before_anything_is_stored() {
    let model = Arc::new(thinking_model());
    let host = builder(&model).max_tokens(2000).build().await.unwrap();
    for (with, says) in [
        (
            r#"{"max_tokens":0}"#,
            "model parameter `max_tokens`: must be at least 1",
        ),
        (
            r#"{"thinking":2000}"#,
            "the budget of 2000 tokens must be below `max_tokens`, which is 2000",
        ),
    ] {
        let error = conversation(&host)
            .send("hello")
            .parameters(parameters(with))
            .await
            .map(drop)
            .unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.code(), "invalid_parameter");
    }
    let plain = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let other = builder(&plain).build().await.unwrap();
    let thinks = ModelParameters {
        thinking: Some(Thinking::Adaptive),
        ..ModelParameters::default()
    };
    let error = conversation(&other)
        .send("hello")
        .parameters(thinks.clone())
        .await
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("set `effort`"), "{error}");
    let error = builder(&plain)
        .parameters(thinks)
        .build()
        .await
        .map(drop)
        .unwrap_err();
    assert!(error.to_string().contains("has no `thinking`"), "{error}");
    assert_eq!(model.counts().started + plain.counts().started, 0);
}

#[tokio::test(start_paused = true)]
async fn a_thinking_budget_comes_on_top_of_the_usual_answer() {
    let model = Arc::new(thinking_model());
    let host = builder(&model)
        .parameters(parameters(r#"{"thinking":10000}"#))
        .build()
        .await
        .unwrap();

    say(&host, "hello", "{}").await;

    assert_eq!(model.last_request().unwrap().max_tokens, 18_192);
}

#[tokio::test(start_paused = true)]
async fn a_client_key_with_other_parameters_is_another_prompt() {
    let model = Arc::new(ScriptedModel::always(Reply::text("ok")));
    let host = host(&model).await;
    let send = |with: &str| {
        conversation(&host)
            .send("hello")
            .client_key("k")
            .parameters(parameters(with))
    };
    send(r#"{"max_tokens":9}"#).await.unwrap();

    assert!(send(r#"{"max_tokens":9}"#).await.unwrap().is_replayed());
    let error = send(r#"{"max_tokens":8}"#).await.map(drop).unwrap_err();
    assert_eq!(error.code(), "idempotency_key_reused");
}

#[tokio::test(start_paused = true)]
async fn a_steering_prompt_with_parameters_waits_for_a_round_of_its_own() {
    let model = Arc::new(ScriptedModel::answering(|_, call| match call {
        0 => Reply::text("first").after(Duration::from_secs(5)),
        _ => Reply::text("second"),
    }));
    let host = host(&model).await;
    let first = conversation(&host).send("one").await.unwrap();
    until("the call", || model.counts().started == 1).await;

    let mut second = conversation(&host)
        .send("two")
        .on_busy(crate::conversation::round::OnBusy::Steer)
        .parameters(parameters(r#"{"max_tokens":5}"#))
        .await
        .unwrap();

    assert_ne!(first.round_id(), second.round_id());
    assert_eq!(second.outcome().await.unwrap().text, "second");
    assert_eq!(model.last_request().unwrap().max_tokens, 5);
}
