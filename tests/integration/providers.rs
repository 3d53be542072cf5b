//! Tests of the adapters on real connections: the contract of the port, rate limits and overload,
//! and streams that stall, break or end early.

use std::{
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    limits::STREAM_BYTES_MAX,
    ports::{LlmProvider, ModelEvent, ProviderError},
    providers::{Anthropic, Gemini, OpenAi, Timeouts},
};
use callboard_actors::testing::contract::{self, Scene, Stage, TEXT, example_request};
use flate2::{Compression, write::GzEncoder};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::support::model_server::{
    ModelServer, Reply, Step, anthropic_text, gemini_calls, gemini_text, openai_text,
    responses_calls, responses_text, sse,
};

const KEY: &str = "sk-test-not-a-real-key";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Anthropic,
    OpenAi,
    Responses,
    Gemini,
}

const WIRES: [Wire; 4] = [Wire::Anthropic, Wire::OpenAi, Wire::Responses, Wire::Gemini];

impl Wire {
    fn provider(self, server: &ModelServer, timeouts: Timeouts) -> Arc<dyn LlmProvider> {
        match self {
            Self::Anthropic => Arc::new(
                Anthropic::builder(KEY)
                    .base_url(server.url())
                    .timeouts(timeouts)
                    .build()
                    .unwrap(),
            ),
            Self::Gemini => Arc::new(
                Gemini::builder(KEY)
                    .base_url(server.url())
                    .timeouts(timeouts)
                    .build()
                    .unwrap(),
            ),
            Self::Responses => Arc::new(
                OpenAi::builder()
                    .responses()
                    .api_key(KEY)
                    .base_url(server.url_v1())
                    .timeouts(timeouts)
                    .build()
                    .unwrap(),
            ),
            Self::OpenAi => Arc::new(
                OpenAi::builder()
                    .api_key(KEY)
                    .base_url(server.url_v1())
                    .timeouts(timeouts)
                    .build()
                    .unwrap(),
            ),
        }
    }

    /// Returns the events of a whole reply. The text is in the first `until_text` of them.
    fn text(self, text: &str) -> Vec<String> {
        match self {
            Self::Anthropic => anthropic_text(text),
            Self::OpenAi => openai_text(text),
            Self::Responses => responses_text(text),
            Self::Gemini => gemini_text(text),
        }
    }

    fn until_text(self) -> usize {
        match self {
            Self::Anthropic | Self::Responses => 3,
            Self::OpenAi | Self::Gemini => 1,
        }
    }

    fn half(self) -> String {
        sse(&self.text(TEXT)[..self.until_text()])
    }

    fn tool_call(self) -> Vec<String> {
        match self {
            Self::Anthropic => {
                let mut events = anthropic_text("");
                events[1] =
                    r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}"#
                        .into();
                events[2] =
                    r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\"a\":1}"}}"#.into();
                events[4] = events[4].replace("end_turn", "tool_use");
                events
            }
            Self::Gemini => gemini_calls(&[("f", serde_json::json!({"a": 1}))]),
            Self::Responses => responses_calls(&[("t1", "f", serde_json::json!({"a": 1}))]),
            Self::OpenAi => {
                let mut events = openai_text("");
                events[0] =
                    r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}"#.into();
                events[1] = events[1].replace("stop\"", "tool_calls\"");
                events
            }
        }
    }
}

fn quick() -> Timeouts {
    Timeouts {
        connect: Duration::from_secs(5),
        first_byte: Duration::from_millis(300),
        idle: Duration::from_millis(300),
        total: Duration::from_secs(20),
    }
}

/// Reads a call to its end.
async fn call(provider: &dyn LlmProvider) -> (Vec<ModelEvent>, Option<ProviderError>) {
    let read = async {
        let mut events = Vec::new();
        let mut stream = match provider
            .stream(example_request(), CancellationToken::new())
            .await
        {
            Ok(stream) => stream,
            Err(error) => return (events, Some(error)),
        };
        while let Some(batch) = stream.next().await {
            match batch {
                Ok(batch) => events.extend(batch),
                Err(error) => return (events, Some(error)),
            }
        }
        (events, None)
    };
    tokio::time::timeout(Duration::from_secs(60), read)
        .await
        .unwrap()
}

fn text_of(events: &[ModelEvent]) -> String {
    events
        .iter()
        .filter_map(|event| {
            if let ModelEvent::Text(text) = event {
                Some(text.as_str())
            } else {
                None
            }
        })
        .collect()
}

async fn check_contract(wire: Wire) {
    check_contract_of(wire, |server| wire.provider(server, Timeouts::default())).await;
}

async fn check_contract_of(wire: Wire, provider: impl Fn(&ModelServer) -> Arc<dyn LlmProvider>) {
    contract::llm_provider(async |scene| {
        let reply = match scene {
            Scene::Text => Reply::events(wire.text(TEXT)),
            Scene::ToolCall => Reply::events(wire.tool_call()),
            Scene::Cut => Reply::stream().send(wire.half()).then(Step::Cut),
            Scene::Refuses => Reply::json(401, r#"{"error":{"message":"no"}}"#),
            Scene::Stalls => Reply::stream().send(wire.half()).then(Step::Stall),
        };
        let server = ModelServer::start([reply]).await;
        let provider = provider(&server);
        Stage {
            provider,
            client_left: Box::pin(async move { server.clients_left(1).await }),
        }
    })
    .await;
}

#[tokio::test]
async fn anthropic_keeps_the_contract_of_a_provider() {
    check_contract(Wire::Anthropic).await;
}

#[tokio::test]
async fn openai_keeps_the_contract_of_a_provider() {
    check_contract(Wire::OpenAi).await;
}

#[tokio::test]
async fn responses_keeps_the_contract_of_a_provider() {
    check_contract(Wire::Responses).await;
}

#[tokio::test]
async fn gemini_keeps_the_contract_of_a_provider() {
    check_contract(Wire::Gemini).await;
}

#[tokio::test]
async fn a_wrong_key_and_a_limit_of_google_have_their_class() {
    let key = r#"[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID","domain":"googleapis.com"}]}}]"#;
    let limit = r#"{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"36s"}]}}"#;
    let server = ModelServer::start([Reply::json(400, key), Reply::json(429, limit)]).await;
    let provider = Wire::Gemini.provider(&server, quick());

    assert_eq!(
        call(&*provider).await.1,
        Some(ProviderError::Auth {
            message: "API key not valid.".into()
        })
    );
    assert_eq!(
        call(&*provider).await.1,
        Some(ProviderError::RateLimited {
            retry_after: Some(Duration::from_secs(36)),
            message: "slow down".into()
        })
    );
}

#[tokio::test]
async fn a_responses_call_with_stop_texts_is_refused_before_it_is_made() {
    let server = ModelServer::start([Reply::events(responses_text("x"))]).await;
    let provider = Wire::Responses.provider(&server, quick());
    let mut request = example_request();
    request.stop = ["END".to_owned()].into();

    let refused = provider
        .stream(request, CancellationToken::new())
        .await
        .err()
        .unwrap();

    assert_eq!(refused.code(), "provider_invalid_request");
    assert!(refused.to_string().contains("`stop`"), "{refused}");
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn requests_go_where_they_belong_with_a_key_and_a_length() {
    for (wire, line, header, value) in [
        (
            Wire::Anthropic,
            "POST /v1/messages",
            "x-api-key",
            KEY.to_owned(),
        ),
        (
            Wire::OpenAi,
            "POST /v1/chat/completions",
            "authorization",
            format!("Bearer {KEY}"),
        ),
        (
            Wire::Responses,
            "POST /v1/responses",
            "authorization",
            format!("Bearer {KEY}"),
        ),
        (
            Wire::Gemini,
            "POST /v1beta/models/contract:streamGenerateContent?alt=sse",
            "x-goog-api-key",
            KEY.to_owned(),
        ),
    ] {
        let server = ModelServer::start([Reply::events(wire.text("x"))]).await;
        let provider = wire.provider(&server, quick());

        assert_eq!(call(&*provider).await.1, None);

        let request = server.requests().remove(0);
        assert_eq!(
            (request.line.as_str(), request.header(header)),
            (line, Some(value.as_str()))
        );
        assert_eq!(
            request.header("content-length"),
            Some(request.body.len().to_string().as_str())
        );
        assert_eq!(request.header("transfer-encoding"), None);
        assert_eq!(
            request.body,
            provider.request_body(&example_request()).unwrap()
        );
        if wire != Wire::Gemini {
            assert_eq!(request.json()["stream"], true);
        }
        if wire == Wire::Anthropic {
            assert_eq!(request.header("anthropic-version"), Some("2023-06-01"));
        }
    }
}

#[tokio::test]
async fn one_connection_serves_call_after_call() {
    const CALLS: usize = 12;
    for wire in WIRES {
        // The body ends later than the last event, as with a server that flushes after each event.
        let reply = Reply::events(wire.text("x")).then(Step::Pause(Duration::from_millis(5)));
        let server = ModelServer::start([reply]).await;
        let provider = wire.provider(&server, quick());

        for calls in 1..=CALLS {
            assert_eq!(call(&*provider).await.1, None);
            server.replies_done(calls).await;
        }

        // On a busy machine the end may be read just after the next call started. Without reuse
        // there are twelve connections.
        assert!(
            server.connections() <= CALLS / 2,
            "{wire:?}: {} connections",
            server.connections()
        );
        assert_eq!(server.left(), 0, "{wire:?}");
    }
}

#[tokio::test]
async fn half_a_stream_keeps_its_text_and_is_an_error() {
    for wire in WIRES {
        let cut = Reply::stream().send(wire.half()).then(Step::Cut);
        let ended = Reply::stream().send(wire.half());
        let server = ModelServer::start([cut]).await;
        let provider = wire.provider(&server, quick());

        let (events, error) = call(&*provider).await;
        assert_eq!(text_of(&events), TEXT);
        assert!(
            matches!(error, Some(ProviderError::Connection { .. })),
            "{error:?}"
        );

        server.script([ended]);
        let (events, error) = call(&*provider).await;
        assert_eq!(text_of(&events), TEXT);
        assert!(
            matches!(error, Some(ProviderError::Incomplete { .. })),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn arguments_of_a_call_that_never_ends_are_reported_while_they_are_written() {
    for wire in [Wire::Anthropic, Wire::OpenAi, Wire::Responses] {
        let mut events = match wire {
            // The scripted calls of this wire arrive whole.
            Wire::Responses => vec![
                r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"t1","name":"f","arguments":""}}"#.into(),
                r#"{"type":"response.function_call_arguments.delta","output_index":0,"delta":"{\"a\":1}"}"#.into(),
            ],
            wire => wire.tool_call(),
        };
        let whole = r#"{\"a\":1}"#;
        let at = events.iter().position(|event| event.contains(whole));
        let at = at.unwrap();
        events.truncate(at + 1);
        events[at] = events[at].replace(whole, &format!(r#"{{\"a\":\"{}"#, "x".repeat(3000)));
        let reply = Reply::stream().send(sse(&events)).then(Step::Stall);
        let server = ModelServer::start([reply]).await;

        let (events, error) = call(&*wire.provider(&server, quick())).await;

        assert!(
            events.contains(&ModelEvent::Arguments(3006)),
            "{wire:?}: {events:?}"
        );
        assert!(
            matches!(error, Some(ProviderError::Timeout { .. })),
            "{error:?}"
        );
        server.clients_left(1).await;
    }
}

#[tokio::test]
async fn a_stalled_stream_times_out_by_the_idle_limit() {
    for wire in WIRES {
        let server =
            ModelServer::start([Reply::stream().send(wire.half()).then(Step::Stall)]).await;

        let (events, error) = call(&*wire.provider(&server, quick())).await;

        assert_eq!(text_of(&events), TEXT);
        assert_eq!(
            error,
            Some(ProviderError::Timeout {
                message: "no bytes for 300ms".into()
            })
        );
        server.clients_left(1).await;
    }
}

#[tokio::test]
async fn an_answer_without_a_head_times_out_too() {
    for wire in WIRES {
        let server = ModelServer::start([Reply::stream().delay(Duration::from_secs(60))]).await;

        let (_, error) = call(&*wire.provider(&server, quick())).await;

        assert_eq!(
            error,
            Some(ProviderError::Timeout {
                message: "no answer within 300ms".into()
            })
        );
        server.clients_left(1).await;
    }
}

#[tokio::test]
async fn a_stream_that_never_rests_ends_at_the_total_limit() {
    for wire in WIRES {
        let server =
            ModelServer::start([Reply::stream().then(Step::Endless(b": ping\n\n".to_vec()))]).await;
        let timeouts = Timeouts {
            total: Duration::from_millis(400),
            ..quick()
        };

        let (_, error) = call(&*wire.provider(&server, timeouts)).await;

        assert_eq!(
            error,
            Some(ProviderError::Timeout {
                message: "the call took longer than 400ms".into()
            })
        );
        server.clients_left(1).await;
    }
}

#[tokio::test]
async fn an_endless_stream_is_bounded_in_bytes() {
    let server = ModelServer::start([Reply::stream().then(Step::Endless(
        format!(": {}\n\n", "x".repeat(1 << 20)).into_bytes(),
    ))])
    .await;
    let timeouts = Timeouts {
        first_byte: Duration::from_secs(20),
        idle: Duration::from_secs(20),
        total: Duration::from_secs(50),
        ..quick()
    };

    let (events, error) = call(&*Wire::Anthropic.provider(&server, timeouts)).await;

    assert_eq!(events, []);
    assert_eq!(
        error,
        Some(ProviderError::Protocol {
            message: format!("the answer is longer than {STREAM_BYTES_MAX} bytes")
        })
    );
    server.clients_left(1).await;
}

#[tokio::test]
async fn a_packed_answer_leaves_other_tasks_their_turns_and_ends_at_the_limit_of_the_call() {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&vec![b'\n'; 32 << 20]).unwrap();
    let reply = Reply::stream()
        .header("content-encoding", "gzip")
        .send(packed.finish().unwrap());
    let server = ModelServer::start([reply]).await;
    let timeouts = Timeouts {
        idle: Duration::from_secs(20),
        total: Duration::from_secs(2),
        ..quick()
    };
    let others = tokio::spawn(async {
        let mut longest = Duration::ZERO;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            let turn = Instant::now();
            tokio::task::yield_now().await;
            longest = longest.max(turn.elapsed());
        }
        longest
    });

    let (_, error) = call(&*Wire::Anthropic.provider(&server, timeouts)).await;

    let expected = ProviderError::Timeout {
        message: "the call took longer than 2s".into(),
    };
    assert_eq!(error, Some(expected));
    // In one piece the lines take several seconds.
    let longest = others.await.unwrap();
    assert!(longest < Duration::from_millis(700), "{longest:?}");
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_endless_answers_at_once_take_little_memory() {
    const ANSWERS: usize = 8;
    let text = "a long text without an end ".repeat(2000);
    let delta = serde_json::json!({
        "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text },
    });
    let chunk = serde_json::json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
    for (wire, event) in [(Wire::Anthropic, delta), (Wire::OpenAi, chunk)] {
        let endless = Step::Endless(sse([event.to_string()]).into_bytes());
        let server = ModelServer::start([Reply::stream().then(endless)]).await;
        let timeouts = Timeouts {
            idle: Duration::from_secs(60),
            total: Duration::from_secs(120),
            ..quick()
        };
        let host = callboard::Host::builder()
            .shared_provider(wire.provider(&server, timeouts))
            .build()
            .await
            .unwrap();
        let over = CancellationToken::new();
        let before = resident();
        let sampled = std::thread::spawn({
            let over = over.clone();
            move || {
                let mut peak = 0;
                while !over.is_cancelled() {
                    peak = peak.max(resident());
                    std::thread::park_timeout(Duration::from_millis(2));
                }
                peak
            }
        });

        let ends = (0..ANSWERS).map(|n| {
            let conversation = host.tenant("acme").conversation(format!("c-{n}"));
            async move {
                let mut reply = conversation.send("Hi").await.unwrap();
                reply.outcome().await.unwrap_err()
            }
        });
        let errors = futures_util::future::join_all(ends).await;
        over.cancel();

        for error in errors {
            assert_eq!(error.code(), "provider_protocol", "{error}");
        }
        // Other tests may share this process, hence the margin; each stream could have 64 MiB.
        let grown = sampled.join().unwrap().saturating_sub(before) >> 20;
        println!("{wire:?}: {ANSWERS} endless answers took {grown} MiB");
        assert!(grown < 290, "{wire:?}: {grown} MiB");
    }
}

#[tokio::test]
async fn html_with_status_200_is_one_clear_line() {
    let page = "<!DOCTYPE html><html><head><title>Sign in</title></head></html>";
    let expected = ProviderError::Protocol {
        message:
            "the server answered with an HTML page instead of an event stream; check the base URL"
                .into(),
    };
    for wire in WIRES {
        let declared = Reply::status(200)
            .header("content-type", "text/html; charset=utf-8")
            .send(page);
        let undeclared = Reply::stream().send(format!("\n  {page}"));
        let server = ModelServer::start([declared, undeclared]).await;
        let provider = wire.provider(&server, quick());

        assert_eq!(call(&*provider).await, (vec![], Some(expected.clone())));
        assert_eq!(call(&*provider).await, (vec![], Some(expected.clone())));
    }
}

#[tokio::test]
async fn an_error_event_after_200_is_an_error_with_the_text_before_it() {
    let error = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    for wire in WIRES {
        let server = ModelServer::start([Reply::stream()
            .send(wire.half())
            .send(sse([error]))
            .then(Step::Stall)])
        .await;

        let (events, error) = call(&*wire.provider(&server, quick())).await;

        assert_eq!(text_of(&events), TEXT);
        assert_eq!(
            error,
            Some(ProviderError::Server {
                status: 0,
                retry_after: None,
                message: "Overloaded".into()
            })
        );
        server.clients_left(1).await;
    }
}

#[tokio::test]
async fn one_byte_at_a_time_gives_the_same_text() {
    for wire in WIRES {
        let server = ModelServer::start([
            Reply::stream().then(Step::Drip(sse(wire.text(TEXT)).into_bytes()))
        ])
        .await;

        let (events, error) = call(&*wire.provider(&server, quick())).await;

        assert_eq!((text_of(&events), error), (TEXT.to_owned(), None));
    }
}

#[tokio::test]
async fn an_answer_that_a_proxy_compressed_is_read_like_any_other() {
    let packed = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let bomb = packed(&format!("data: {}\n\n", "x".repeat(STREAM_BYTES_MAX)));
    for wire in WIRES {
        let gzip = |status| Reply::status(status).header("content-encoding", "gzip");
        let refusal = r#"{"error":{"type":"invalid_request_error","message":"too many legs"}}"#;
        let server = ModelServer::start([
            gzip(200).then(Step::Drip(packed(&sse(wire.text(TEXT))))),
            gzip(400).send(packed(refusal)),
            gzip(200).send(packed(r#"{"input_tokens":42,"totalTokens":42}"#)),
            gzip(200).send(bomb.clone()),
            Reply::stream()
                .header("content-encoding", "br")
                .send("no matter"),
        ])
        .await;
        let provider = wire.provider(&server, quick());

        let (events, error) = call(&*provider).await;
        assert_eq!((text_of(&events), error), (TEXT.to_owned(), None));
        let words = async || call(&*provider).await.1.unwrap().to_string();
        assert!(words().await.contains("too many legs"));
        assert_eq!(provider.count_tokens(example_request()).await, Ok(42));
        let refused = words().await;
        assert!(refused.contains("bytes"), "{refused}");
        let refused = words().await;
        assert!(refused.contains("compressed its answer (br)"), "{refused}");
    }
}

#[tokio::test]
async fn a_rate_limit_carries_what_retry_after_asked_for() {
    for wire in WIRES {
        let body = r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#;
        let server = ModelServer::start([
            Reply::json(429, body).header("retry-after", "7"),
            Reply::json(529, body).header("retry-after-ms", "250"),
        ])
        .await;
        let provider = wire.provider(&server, quick());

        let message = || "slow down".to_owned();
        let limited = ProviderError::RateLimited {
            retry_after: Some(Duration::from_secs(7)),
            message: message(),
        };
        let overloaded = ProviderError::Server {
            status: 529,
            retry_after: Some(Duration::from_millis(250)),
            message: message(),
        };
        assert_eq!(call(&*provider).await.1, Some(limited));
        assert_eq!(call(&*provider).await.1, Some(overloaded));
        assert_eq!(server.requests().len(), 2, "an adapter never tries again");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    for wire in WIRES {
        let other = ModelServer::start([Reply::events(wire.text("x"))]).await;
        let server =
            ModelServer::start([Reply::status(307).header("location", &other.url())]).await;

        let (_, error) = call(&*wire.provider(&server, quick())).await;

        assert!(
            matches!(&error, Some(ProviderError::InvalidRequest { status: 307, message }) if message.contains(&other.url())),
            "{error:?}"
        );
        assert_eq!(other.requests().len(), 0);
    }
}

#[tokio::test]
async fn a_key_is_in_no_error_and_no_debug_form() {
    for wire in WIRES {
        let refused = Reply::json(
            401,
            &format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}."}}}}"#),
        );
        let event = Reply::events([format!(
            r#"{{"error":{{"type":"api_error","message":"key {KEY}"}}}}"#
        )]);
        let server = ModelServer::start([refused, event]).await;
        let provider = wire.provider(&server, quick());

        assert_eq!(
            call(&*provider).await.1,
            Some(ProviderError::Auth {
                message: "Incorrect API key provided: ***.".into()
            })
        );
        let (_, error) = call(&*provider).await;
        assert!(
            error
                .as_ref()
                .is_some_and(|error| !format!("{error:?} {error}").contains(KEY)),
            "{error:?}"
        );
    }
    let debug = format!(
        "{:?} {:?}",
        Anthropic::builder(KEY),
        Anthropic::builder(KEY).build().unwrap()
    );
    let debug = format!(
        "{debug} {:?} {:?}",
        OpenAi::builder().api_key(KEY),
        OpenAi::builder().api_key(KEY).build().unwrap()
    );
    let debug = format!(
        "{debug} {:?} {:?}",
        Gemini::builder(KEY),
        Gemini::builder(KEY).build().unwrap()
    );
    assert!(!debug.contains(KEY), "{debug}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_connection_error() {
    let gone = { ModelServer::start([]).await.url() };

    for provider in [
        Arc::new(Anthropic::builder(KEY).base_url(&gone).build().unwrap()) as Arc<dyn LlmProvider>,
        Arc::new(OpenAi::builder().base_url(&gone).build().unwrap()),
        Arc::new(Gemini::builder(KEY).base_url(&gone).build().unwrap()),
    ] {
        let (_, error) = call(&*provider).await;
        assert!(
            matches!(error, Some(ProviderError::Connection { .. })),
            "{error:?}"
        );
        assert!(!format!("{error:?}").contains(&gone), "{error:?}");
    }
}

#[tokio::test]
async fn dropping_a_call_before_its_head_closes_the_connection() {
    for wire in WIRES {
        let server = ModelServer::start([Reply::stream().delay(Duration::from_secs(60))]).await;
        let provider = wire.provider(&server, Timeouts::default());

        let started = Instant::now();
        tokio::select! {
            _ = provider.stream(example_request(), CancellationToken::new()) => panic!("there is no answer"),
            () = server.requests_came(1) => {}
        }

        server.clients_left(1).await;
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

#[tokio::test]
async fn tokens_are_counted_where_the_server_can() {
    let counted = Reply::json(200, r#"{"input_tokens":42,"totalTokens":42}"#);
    for (wire, line) in [
        (Wire::Anthropic, "POST /v1/messages/count_tokens"),
        (Wire::OpenAi, "POST /v1/messages/count_tokens"),
        (Wire::Responses, "POST /v1/responses/input_tokens"),
        (Wire::Gemini, "POST /v1beta/models/contract:countTokens"),
    ] {
        let server = ModelServer::start([counted.clone()]).await;

        assert_eq!(
            wire.provider(&server, quick())
                .count_tokens(example_request())
                .await,
            Ok(42)
        );

        let request = server.requests().remove(0);
        assert_eq!(request.line, line);
        assert_eq!(
            (
                request.json()["max_tokens"].is_null(),
                match wire {
                    Wire::Responses => request.json()["input"].as_array().unwrap().len(),
                    Wire::Gemini => request.json()["generateContentRequest"]["contents"]
                        .as_array()
                        .unwrap()
                        .len(),
                    Wire::Anthropic | Wire::OpenAi => {
                        request.json()["messages"].as_array().unwrap().len()
                    }
                }
            ),
            // The items of the Responses API are finer than messages.
            (true, if wire == Wire::Responses { 5 } else { 3 })
        );
    }

    let server = ModelServer::start([Reply::json(404, "{}")]).await;
    let unsupported = Err(ProviderError::Unsupported("counting tokens"));
    for wire in [Wire::OpenAi, Wire::Responses] {
        assert_eq!(
            wire.provider(&server, quick())
                .count_tokens(example_request())
                .await,
            unsupported
        );
    }
    assert_eq!(
        OpenAi::builder()
            .build()
            .unwrap()
            .count_tokens(example_request())
            .await,
        unsupported
    );
}
