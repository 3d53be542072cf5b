//! Gateways and tenants: fair sharing, changes at run time, and fallbacks.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{builder, host, probe, until};
use crate::{
    chat::{Message, Usage},
    compactor::CompactionSettings,
    host::{BuildError, HOST_GATEWAY, Host, TenantConfig},
    ids::TenantId,
    limits::Limits,
    model_gateway::{Fallback, ModelRetryPolicy, ProviderWait},
    ports::{Capabilities, ProviderError, ToolOutput},
    scripted::Reply,
    stream::{EventKind, StopReason},
    testing::ScriptedModel,
    tool::EffectClass,
};

fn server_error() -> ProviderError {
    ProviderError::Server {
        status: 500,
        retry_after: None,
        message: "oops".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_flooding_tenant_does_not_starve_another() {
    let model = Arc::new(ScriptedModel::always(
        Reply::text("done").after(Duration::from_millis(100)),
    ));
    let limits = Limits {
        model_calls_max: 4,
        ..Limits::default()
    };
    let host = builder(&model).limits(limits).build().await.unwrap();
    let alone = Instant::now();
    host.tenant("quiet")
        .conversation("c")
        .send("hello")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    let alone = alone.elapsed();

    // 50 times as many prompts as calls may run at once, each in a different conversation.
    let mut flood = Vec::new();
    for n in 0..200 {
        flood.push(
            host.tenant("flood")
                .conversation(format!("c-{n}"))
                .send("hello")
                .await
                .unwrap(),
        );
    }
    until("the flood waits", || host.gateways()[0].1.waiting > 150).await;
    let mut longest = Duration::ZERO;
    for n in 0..10 {
        let began = Instant::now();
        host.tenant("quiet")
            .conversation(format!("q-{n}"))
            .send("hello")
            .await
            .unwrap()
            .outcome()
            .await
            .unwrap();
        longest = longest.max(began.elapsed());
    }

    assert!(
        longest <= alone * 2 + Duration::from_millis(50),
        "{longest:?} beside a flood, {alone:?} without"
    );
    assert!(host.gateways()[0].1.waiting > 50, "the flood still waits");
    assert_eq!(
        host.gateways()[0].1.waits_for,
        Some(ProviderWait::Concurrency)
    );
}

#[tokio::test(start_paused = true)]
async fn a_gateway_is_changed_in_place_for_conversations_that_are_awake() {
    let old = Arc::new(ScriptedModel::always(Reply::text("old")));
    let new = Arc::new(ScriptedModel::always(Reply::text("new")));
    let host = host(&old).await;
    let conversation = host.tenant("acme").conversation("c");
    conversation
        .send("hello")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();

    let config = host.gateway_config().clone();
    host.add_gateway(
        HOST_GATEWAY,
        new.clone(),
        crate::model_gateway::GatewayConfig {
            calls_max: 3,
            ..config
        },
    )
    .unwrap();

    let said = conversation
        .send("hello")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!((said.text.as_str(), old.counts().started), ("new", 1));
    let names: Vec<_> = host
        .gateways()
        .into_iter()
        .map(|(name, status)| (name, status.free))
        .collect();
    assert_eq!(names, [(HOST_GATEWAY.to_owned(), 3)]);
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_on_with_the_fallback_and_its_watchers_see_it() {
    let primary = Arc::new(ScriptedModel::always(Reply::error(server_error())));
    let second = Arc::new(ScriptedModel::always(Reply::text("second")));
    let host = builder(&primary)
        .model_retry(ModelRetryPolicy {
            max_retries: 0,
            ..Default::default()
        })
        .build()
        .await
        .unwrap();
    let config = host.gateway_config().clone();
    host.add_gateway("second", second.clone(), config.clone())
        .unwrap();
    let fallback = Some(Fallback {
        gateway: "second".into(),
        model: "small".into(),
    });
    host.add_gateway(
        HOST_GATEWAY,
        primary,
        crate::model_gateway::GatewayConfig { fallback, ..config },
    )
    .unwrap();

    let mut reply = host
        .tenant("acme")
        .conversation("c")
        .send("hello")
        .await
        .unwrap();
    let mut layers = Vec::new();
    while let Some(event) = reply.next().await {
        if let EventKind::Retry { layer, reason, .. } = &event.kind {
            layers.push((*layer, reason.clone()));
        }
    }

    assert_eq!(reply.outcome().await.unwrap().text, "second");
    assert_eq!(layers, [("fallback", "provider_server_error".to_owned())]);
    assert_eq!(&*second.last_request().unwrap().model, "small");
}

/// A model of a window whose requests are checked against it by their bytes, three for a token.
fn windowed(
    window: u32,
    reply: impl Fn(u64, usize) -> Reply + Send + Sync + 'static,
) -> ScriptedModel {
    let capabilities = Capabilities {
        context_window: window,
        output_max: 64_000,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: false,
        documents: false,
        request_bytes_max: None,
        thinking: false,
    };
    ScriptedModel::answering(move |request, call| {
        let tokens = request.messages.wire_bytes() as u64 / 3;
        if tokens + u64::from(request.max_tokens) > u64::from(window) {
            return Reply::error(ProviderError::InvalidRequest {
                status: 400,
                message: "prompt is too long".into(),
            });
        }
        reply(tokens, call)
    })
    .capabilities(capabilities)
}

/// A host whose model is down, with a fallback to a model of another window.
async fn falls_back(primary: &Arc<ScriptedModel>, second: &Arc<ScriptedModel>) -> Host {
    let settings = CompactionSettings {
        enable_llm_summarization: false,
        ..CompactionSettings::default()
    };
    let retry = ModelRetryPolicy {
        max_retries: 0,
        ..Default::default()
    };
    let (look, _) = probe("look", EffectClass::Pure, |_| async {
        Ok(ToolOutput::Text("seen".into()))
    });
    let host = builder(primary)
        .model("large")
        .compaction(settings)
        .model_retry(retry)
        .tools([look])
        .build()
        .await
        .unwrap();
    let config = host.gateway_config().clone();
    host.add_gateway("second", second.clone(), config.clone())
        .unwrap();
    let fallback = Some(Fallback {
        gateway: "second".into(),
        model: "small".into(),
    });
    let config = crate::model_gateway::GatewayConfig { fallback, ..config };
    host.add_gateway(HOST_GATEWAY, primary.clone(), config)
        .unwrap();
    host
}

/// Sixty messages of about 500 tokens each.
fn long_talk() -> Vec<Message> {
    let said = |n: u32| format!("{n} {}", "word ".repeat(300));
    (0..30)
        .flat_map(|n| [Message::user(said(n)), Message::assistant(said(n))])
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_falls_back_fits_the_window_of_the_model_that_is_asked() {
    // 30,000 tokens of history: little for the model that is down, too much for the fallback.
    let primary = Arc::new(windowed(200_000, |_, _| Reply::error(server_error())));
    let second = Arc::new(windowed(16_000, |tokens, call| {
        let usage = Usage {
            input_uncached: tokens,
            output: 3,
            ..Usage::default()
        };
        match call {
            0 => Reply::tool("look", &serde_json::json!({})).usage(usage),
            _ => Reply::text("second").usage(usage),
        }
    }));
    let host = falls_back(&primary, &second).await;
    let conversation = host.tenant("acme").conversation("c");
    conversation.import(long_talk()).await.unwrap();

    let mut reply = conversation.send("hello").await.unwrap();
    let mut seen = Vec::new();
    while let Some(event) = reply.next().await {
        match &event.kind {
            EventKind::Retry { layer, reason, .. } => seen.push(format!("{layer}: {reason}")),
            EventKind::Compaction { .. } => seen.push("compaction".into()),
            EventKind::Context { window, .. } => seen.push(format!("window {window}")),
            _ => {}
        }
    }
    let outcome = reply.outcome().await.unwrap();

    assert_eq!(
        (outcome.text.as_str(), outcome.stop_reason),
        ("second", StopReason::EndTurn)
    );
    assert_eq!(
        seen,
        [
            "fallback: provider_server_error",
            "compaction",
            "window 16000",
            "fallback: provider_server_error",
        ]
    );
    let asked = second.requests();
    assert_eq!(
        (asked.len(), &*asked[0].model, primary.counts().started),
        (2, "small", 2),
        "nothing too large is sent, and the model that is down is asked once for each call"
    );
}

#[tokio::test(start_paused = true)]
async fn a_model_that_answers_again_has_its_own_window_back() {
    let primary = Arc::new(windowed(200_000, |_, _| Reply::text("first")));
    let second = Arc::new(windowed(16_000, |_, _| Reply::text("second")));
    let host = falls_back(&primary, &second).await;
    let conversation = host.tenant("acme").conversation("c");
    conversation.import(long_talk()).await.unwrap();

    let mut said = conversation.send("hello").await.unwrap();

    assert_eq!(said.outcome().await.unwrap().text, "first");
    assert_eq!(
        host.figures().await.total.compactions,
        0,
        "a small fallback makes no context smaller while it is not asked"
    );
}

#[tokio::test(start_paused = true)]
async fn a_fallback_that_leads_back_or_nowhere_is_refused() {
    let model = Arc::new(ScriptedModel::always(Reply::text("hi")));
    let host = host(&model).await;
    let to = |name: &str| crate::model_gateway::GatewayConfig {
        fallback: Some(Fallback {
            gateway: name.into(),
            model: "m".into(),
        }),
        ..host.gateway_config().clone()
    };

    assert_eq!(
        host.add_gateway("a", model.clone(), to("b")),
        Err(BuildError::NoSuchGateway("b".into()))
    );
    assert_eq!(
        host.add_gateway("a", model.clone(), to("a")),
        Err(BuildError::FallbackCycle("a".into()))
    );
    host.add_gateway("a", model.clone(), to(HOST_GATEWAY))
        .unwrap();
    host.add_gateway("b", model.clone(), to("a")).unwrap();
    assert_eq!(
        host.add_gateway(HOST_GATEWAY, model.clone(), to("b")),
        Err(BuildError::FallbackCycle(HOST_GATEWAY.into()))
    );

    let fallbacks: Vec<_> = host
        .gateways()
        .into_iter()
        .map(|(name, status)| (name, status.fallback))
        .collect();
    let names = |name: &str, to: Option<&str>| (name.to_owned(), to.map(str::to_owned));
    assert_eq!(
        fallbacks,
        [
            names(HOST_GATEWAY, None),
            names("a", Some(HOST_GATEWAY)),
            names("b", Some("a"))
        ]
    );
    assert!(
        host.configure_tenant(
            &TenantId::new("t").unwrap(),
            TenantConfig::new().gateway("b")
        )
        .await
        .is_ok()
    );
}
