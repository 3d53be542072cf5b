//! What the process exports for observers: OTLP, checked attribute by attribute with a collector of
//! the test's.

pub mod collector;
mod logs;

use std::sync::Arc;

use callboard::{
    FnTool, Host, ToolContext, ToolError, ToolSpec,
    ids::{ConversationId, Scope, Seq, TenantId},
    observe::{Redactor, otlp::Otlp, semconv::Edition},
    policy::{ObservabilityConfig, TraceSampling},
};
use callboard_actors::testing::{Reply, ScriptedModel};
use collector::{Collector, attributes, histogram};
use opentelemetry_proto::tonic::{
    metrics::v1::metric::Data,
    trace::v1::{Span, span::SpanKind, status::StatusCode},
};
use tracing_subscriber::layer::SubscriberExt as _;

const KEY: &str = "plain-word-key-not-real";

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

/// A round with three tool calls: one fails, one panics, one succeeds; every failure contains a
/// key.
async fn a_turn(sampling: TraceSampling) -> Host {
    let tool = |name: &str, what: fn() -> Result<String, ToolError>| {
        let call = move |_: Nothing, _: ToolContext| async move { what() };
        Arc::new(FnTool::new(name, "Does something.", call).declare(ToolSpec::read_only))
    };
    let calls = ["well", "fails", "panics"]
        .into_iter()
        .fold(Reply::empty(), |reply, name| {
            reply.and_tool(name, &serde_json::json!({}))
        });
    let model = ScriptedModel::replies([calls, Reply::text("Done.")]);
    let host = Host::builder()
        .provider(model)
        .tool(tool("well", || Ok("fine".into())))
        .tool(tool("fails", || {
            Err(ToolError::invalid(format!("no such thing: {KEY}")))
        }))
        .tool(tool("panics", || panic!("lost {KEY}")))
        .model("scripted")
        .trace_sampling(sampling)
        .build()
        .await
        .unwrap();
    let end = host
        .tenant("acme")
        .conversation("support-42")
        .send("Go")
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(end.stop_reason.code(), "end_turn");
    host
}

fn config(collector: &Collector) -> ObservabilityConfig {
    ObservabilityConfig {
        otlp_endpoint: Some(collector.endpoint.clone()),
        otlp_headers: Some([("x-team".to_owned(), "blue".to_owned())].into()),
        extra_tags: [("region".to_owned(), "north".to_owned())].into(),
        ..ObservabilityConfig::default()
    }
}

/// Runs a round under an exporter and shuts both down.
async fn exported(config: &ObservabilityConfig, sampling: TraceSampling, edition: Edition) {
    let otlp = Otlp::with_edition(config, &Redactor::new([KEY]), edition)
        .unwrap()
        .unwrap();
    let subscriber = tracing_subscriber::registry()
        .with(otlp.span_layer())
        .with(otlp.figures_layer());
    let subscriber = tracing::subscriber::set_default(subscriber);
    let host = a_turn(sampling).await;
    otlp.observe(host.figures_reader());
    otlp.shutdown().await;
    drop(subscriber);
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.name == name).collect()
}

#[tokio::test]
async fn a_turn_its_model_calls_and_its_tool_calls_arrive_as_one_tree() {
    let collector = Collector::start().await;

    exported(
        &config(&collector),
        TraceSampling::Always,
        Edition::Released,
    )
    .await;

    let (spans, resource) = collector.spans();
    assert_eq!(resource["service.name"], "callboard");
    assert_eq!(
        (
            resource["deployment.environment.name"].as_str(),
            resource["region"].as_str()
        ),
        ("production", "north")
    );
    let [turn] = named(&spans, "invoke_agent")[..] else {
        panic!("{spans:#?}")
    };
    let models = named(&spans, "chat scripted");
    let tools: Vec<_> = ["well", "fails", "panics"]
        .iter()
        .flat_map(|name| named(&spans, &format!("execute_tool {name}")))
        .collect();
    assert_eq!(
        (spans.len(), models.len(), tools.len()),
        (6, 2, 3),
        "{spans:#?}"
    );
    assert!(turn.parent_span_id.is_empty() && turn.kind == SpanKind::Internal as i32);
    for span in models.iter().chain(&tools) {
        assert_eq!(
            (&span.parent_span_id, &span.trace_id),
            (&turn.span_id, &turn.trace_id),
            "{}",
            span.name
        );
        assert!(
            span.start_time_unix_nano >= turn.start_time_unix_nano
                && span.end_time_unix_nano <= turn.end_time_unix_nano
        );
        assert_eq!(
            attributes(&span.attributes)["gen_ai.conversation.id"],
            "support-42"
        );
    }

    let of_turn = attributes(&turn.attributes);
    assert_eq!(
        (
            of_turn["gen_ai.operation.name"].as_str(),
            of_turn["gen_ai.agent.name"].as_str()
        ),
        ("invoke_agent", "callboard")
    );
    assert_eq!(
        (
            of_turn["callboard.tenant"].as_str(),
            of_turn["callboard.stop_reason"].as_str()
        ),
        ("acme", "end_turn")
    );
    assert!(
        of_turn["callboard.conversation.epoch"]
            .parse::<u64>()
            .unwrap()
            > 0
            && of_turn["callboard.conversation.inbox"] == "0"
    );
    assert!(
        of_turn.contains_key("callboard.queue_wait_ms")
            && of_turn.contains_key("callboard.round.latency_ms"),
        "{of_turn:?}"
    );

    for model in models {
        let attributes = attributes(&model.attributes);
        assert_eq!(model.kind, SpanKind::Client as i32);
        assert_eq!(
            (
                attributes["gen_ai.operation.name"].as_str(),
                attributes["gen_ai.provider.name"].as_str()
            ),
            ("chat", "scripted")
        );
        assert_eq!(attributes["gen_ai.request.model"], "scripted");
        assert!(
            attributes["gen_ai.usage.input_tokens"]
                .parse::<u64>()
                .unwrap()
                > 0,
            "{attributes:?}"
        );
        assert!(
            attributes["gen_ai.usage.output_tokens"]
                .parse::<u64>()
                .unwrap()
                > 0,
            "{attributes:?}"
        );
        assert!(
            attributes.contains_key("gen_ai.usage.cache_creation.input_tokens")
                && !attributes.contains_key("error.type")
        );
        assert!(
            !attributes
                .keys()
                .any(|name| name.contains("messages") || name.contains("instructions")),
            "no content: {attributes:?}"
        );
    }

    let of_tool = |name: &str| {
        let [span] = named(&spans, &format!("execute_tool {name}"))[..] else {
            panic!()
        };
        (
            attributes(&span.attributes),
            span.status.clone().unwrap_or_default(),
            span.kind,
        )
    };
    let (well, status, kind) = of_tool("well");
    assert_eq!(
        (
            well["gen_ai.operation.name"].as_str(),
            well["gen_ai.tool.name"].as_str()
        ),
        ("execute_tool", "well")
    );
    assert_eq!(
        (well["tool.name"].as_str(), well["tool.success"].as_str()),
        ("well", "true")
    );
    assert!(well.contains_key("gen_ai.tool.call.id"), "{well:?}");
    for name in ["well", "fails", "panics"] {
        let duration = &of_tool(name).0["tool.duration_ms"];
        assert!(duration.parse::<f64>().is_ok(), "{name}: {duration}");
    }
    assert!(
        status.code != StatusCode::Error as i32
            && kind == SpanKind::Internal as i32
            && !well.contains_key("tool.error")
    );
    let (fails, status, _) = of_tool("fails");
    assert_eq!(
        (fails["tool.success"].as_str(), fails["error.type"].as_str()),
        ("false", "invalid_parameters")
    );
    assert_eq!(
        (fails["tool.name"].as_str(), status.code),
        ("fails", StatusCode::Error as i32)
    );
    assert_eq!(
        (fails["tool.error"].as_str(), status.message.as_str()),
        ("INVALID_PARAMETERS", "INVALID_PARAMETERS")
    );
    assert_eq!(of_tool("panics").0["tool.error"], "PANIC");
    assert!(!collector.holds(KEY), "a key was exported");
}

#[tokio::test]
async fn no_text_of_a_conversation_leaves_in_a_trace() {
    let collector = Collector::start().await;

    exported(
        &config(&collector),
        TraceSampling::Always,
        Edition::Released,
    )
    .await;

    assert_eq!(collector.spans().0.len(), 6);
    // The prompt, a tool's answer, the texts of a failure and of a panic.
    for text in ["Go", "fine", "no such thing", "lost"] {
        let spans = collector.spans().0;
        let holds = |span: &Span| {
            let values = attributes(&span.attributes);
            values.values().any(|value| value.contains(text))
                || span
                    .status
                    .as_ref()
                    .is_some_and(|status| status.message.contains(text))
        };
        assert!(!spans.iter().any(holds), "{text}: {spans:#?}");
    }
}

#[tokio::test]
async fn a_turn_that_is_not_sampled_makes_no_span_and_is_measured_all_the_same() {
    let collector = Collector::start().await;

    exported(&config(&collector), TraceSampling::Never, Edition::Released).await;

    assert_eq!(collector.spans().0.len(), 0);
    let metrics = collector.metrics();
    let calls = histogram(&metrics["gen_ai.client.operation.duration"]);
    let [(labels, point)] = &calls[..] else {
        panic!("{calls:?}")
    };
    assert_eq!(
        (
            point.count,
            metrics["gen_ai.client.operation.duration"].unit.as_str()
        ),
        (2, "s")
    );
    assert_eq!(
        (
            labels["gen_ai.provider.name"].as_str(),
            labels["gen_ai.request.model"].as_str()
        ),
        ("scripted", "scripted")
    );
    let tokens = histogram(&metrics["gen_ai.client.token.usage"]);
    let classes: Vec<_> = tokens
        .iter()
        .map(|(labels, point)| (labels["gen_ai.token.type"].as_str(), point.count))
        .collect();
    assert!(
        metrics["gen_ai.client.token.usage"].unit == "{token}" && classes.len() == 2,
        "{classes:?}"
    );
    assert!(
        classes.contains(&("input", 2)) && classes.contains(&("output", 2)),
        "{classes:?}"
    );
    assert_eq!(
        histogram(&metrics["gen_ai.client.operation.time_to_first_chunk"])[0]
            .1
            .count,
        2
    );
    let tools = histogram(&metrics["callboard.tool.duration"]);
    let failed = tools
        .iter()
        .filter(|(labels, _)| labels.contains_key("error.type"))
        .count();
    assert_eq!((tools.len(), failed), (3, 2), "{tools:?}");
    assert_eq!(histogram(&metrics["callboard.turn.duration"])[0].1.count, 1);
    let Some(Data::Sum(prompts)) = &metrics["callboard.prompts"].data else {
        panic!()
    };
    assert!(prompts.is_monotonic && metrics["callboard.prompts"].unit == "{prompt}");
    assert!(
        metrics.contains_key("callboard.conversations.awake")
            && metrics.contains_key("callboard.gateway.calls")
    );
    assert!(!collector.holds(KEY), "a key was exported");
}

#[tokio::test]
async fn requests_are_packed_and_bear_the_configured_headers() {
    let collector = Collector::start().await;

    exported(
        &config(&collector),
        TraceSampling::Always,
        Edition::Released,
    )
    .await;

    for path in ["/v1/traces", "/v1/metrics"] {
        let headers = collector.headers(path);
        assert_eq!(
            (
                headers["content-encoding"].as_str(),
                headers["x-team"].as_str()
            ),
            ("gzip", "blue"),
            "{path}"
        );
        assert_eq!(headers["content-type"], "application/x-protobuf", "{path}");
    }
}

#[tokio::test]
async fn what_is_switched_off_does_nothing() {
    let traces = Collector::start().await;
    let metrics = Collector::start().await;
    let nowhere = Collector::start().await;

    exported(
        &ObservabilityConfig {
            enable_metrics: false,
            ..config(&traces)
        },
        TraceSampling::Always,
        Edition::Released,
    )
    .await;
    exported(
        &ObservabilityConfig {
            enable_tracing: false,
            ..config(&metrics)
        },
        TraceSampling::Always,
        Edition::Released,
    )
    .await;
    let off = ObservabilityConfig {
        enable_tracing: false,
        enable_metrics: false,
        ..config(&nowhere)
    };
    exported(&off, TraceSampling::Always, Edition::Released).await;

    assert_eq!((traces.spans().0.len(), traces.metrics().len()), (6, 0));
    assert!(metrics.spans().0.is_empty() && !metrics.metrics().is_empty());
    assert_eq!(nowhere.requests(), 0);
    let no_endpoint = ObservabilityConfig::default();
    assert!(
        Otlp::start(&no_endpoint, &Redactor::default())
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn batches_and_the_interval_are_those_that_are_configured() {
    let spans = Collector::start().await;
    let figures = Collector::start().await;
    let few = ObservabilityConfig {
        enable_metrics: false,
        trace_batch_size: 2,
        ..config(&spans)
    };
    let often = ObservabilityConfig {
        enable_tracing: false,
        metrics_export_interval_s: 1,
        ..config(&figures)
    };

    exported(&few, TraceSampling::Always, Edition::Released).await;
    let otlp = Otlp::start(&often, &Redactor::default()).unwrap().unwrap();
    let subscriber =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(otlp.figures_layer()));
    let host = a_turn(TraceSampling::Always).await;
    otlp.observe(host.figures_reader());
    let received = async {
        while figures.metrics().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), received)
        .await
        .expect("metrics arrive before the end, and within a minute");

    assert_eq!(spans.spans().0.len(), 6);
    assert!(
        spans.requests() >= 3,
        "no request has more than two spans: {} requests",
        spans.requests()
    );
    drop(subscriber);
    otlp.shutdown().await;
}

#[tokio::test]
async fn newer_names_are_used_after_opting_in() {
    let collector = Collector::start().await;

    exported(&config(&collector), TraceSampling::Always, Edition::Latest).await;

    let metrics = collector.metrics();
    for name in [
        "gen_ai.client.inference.duration",
        "gen_ai.invoke_agent.duration",
        "gen_ai.execute_tool.duration",
    ] {
        assert!(metrics.contains_key(name), "{name}: {:?}", metrics.keys());
    }
    let (spans, _) = collector.spans();
    assert!(
        attributes(&named(&spans, "chat scripted")[0].attributes)
            .contains_key("gen_ai.usage.cache_write.input_tokens")
    );
}

#[tokio::test]
async fn a_collector_that_is_away_delays_no_turn_and_no_end() {
    let gone = ObservabilityConfig {
        otlp_endpoint: Some("http://127.0.0.1:9".into()),
        trace_export_timeout_ms: 200,
        metrics_export_timeout_ms: 200,
        ..ObservabilityConfig::default()
    };

    let ended = tokio::time::timeout(
        std::time::Duration::from_secs(20),
        exported(&gone, TraceSampling::Always, Edition::Released),
    )
    .await;

    assert!(ended.is_ok());
}

#[tokio::test]
async fn watchers_the_model_and_the_journal_see_no_key_of_a_tools_result_error_panic_or_progress() {
    let redactor = Redactor::new([KEY]);
    let tool = |name: &str, what: fn(ToolContext) -> Result<serde_json::Value, ToolError>| {
        let call = move |_: Nothing, context: ToolContext| async move {
            what(context).map(callboard::Json)
        };
        Arc::new(FnTool::new(name, "Does something.", call).declare(ToolSpec::read_only))
    };
    let calls = ["says", "fails", "panics"]
        .into_iter()
        .fold(Reply::empty(), |reply, name| {
            reply.and_tool(name, &serde_json::json!({}))
        });
    let model = ScriptedModel::replies([calls, Reply::text("Done.")]);
    let host = Host::builder()
        .provider(model)
        .tool(tool("says", |context| {
            context.progress.report(format!("with {KEY}"));
            Ok(serde_json::json!({ "list": [{ KEY: format!("is {KEY}") }] }))
        }))
        .tool(tool("fails", |_| Err(ToolError::invalid(KEY))))
        .tool(tool("panics", |_| panic!("{KEY}")))
        .mask_results(move |text| redactor.mask_exact(text))
        .build()
        .await
        .unwrap();

    let mut reply = host
        .tenant("acme")
        .conversation("support-42")
        .send("Go")
        .await
        .unwrap();
    let mut seen = String::new();
    while let Some(event) = reply.next().await {
        seen.push_str(&serde_json::to_string(&*event).unwrap());
    }

    let scope = Scope::new(
        TenantId::new("acme").unwrap(),
        ConversationId::new("support-42").unwrap(),
    );
    let stored = host
        .ports()
        .sessions
        .entries(&scope, Seq(0), 1000)
        .await
        .unwrap();
    assert!(
        seen.contains("masked") && seen.contains("tool_progress") && !seen.contains(KEY),
        "{seen}"
    );
    assert!(!stored.is_empty());
    for entry in stored {
        let text = String::from_utf8_lossy(&entry.bytes);
        assert!(!text.contains(KEY), "{text}");
    }
}
