//! Measures the cost of one token on its way from a provider to a client of the HTTP host, at the
//! pace of a real model: each token arrives in its own read and leaves in its own event.
//!
//! The model and the clients run in this process, over plain HTTP on loopback. Between them is a
//! second process, whose CPU time is measured: the HTTP host of Callboard with its usual defaults
//! and a journal in memory, or a proxy written by hand (axum, reqwest, serde; it parses each event
//! of the provider, sends its text as a separate event, and keeps nothing).
//!
//! `cargo bench --bench proxy` prints CPU per token, medians of alternating rounds. `--streams N`,
//! `--seconds N`, `--pace-ms N`, `--rounds N`, `--flush-ms N` (of Callboard). `-- count` prints
//! instructions per token under valgrind, which do not depend on the machine's load, for
//! `--streams` concurrent answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "turn/mod.rs"]
mod reference;

use std::{
    convert::Infallible,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::State,
    response::{
        Sse,
        sse::{Event, KeepAlive},
    },
};
use bytes::BytesMut;
use callboard::{
    Host,
    http::{HttpConfig, KeyHash, Keys, serve},
    ids::TenantId,
    limits::Limits,
    mock_model::{self, MockModelSettings, WritePer},
};
use futures_util::{Stream, StreamExt, stream};
use reference::{
    Wire,
    hand_json::ParsedReply,
    ours,
    phases::{arguments, median, number},
    process,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEY: &str = "bench-key";

/// The first arguments of a process that is measured.
const OURS: &str = "serve-callboard";
const HAND: &str = "serve-by-hand";

const WIRE: Wire = Wire::Anthropic;

fn single_threaded() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// Serves until standard input ends.
async fn serve_measured(kind: &str, model: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    std::thread::spawn({
        let stop = stop.clone();
        move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.cancel();
        }
    });
    if kind == HAND {
        let app = axum::Router::new()
            .route("/{*path}", axum::routing::post(by_hand))
            .with_state(Arc::new(Proxy {
                client: callboard::tls::client_builder().unwrap().build().unwrap(),
                url: model.to_owned(),
            }));
        tokio::select! {
            served = axum::serve(listener, app) => served.unwrap(),
            () = stop.cancelled() => {}
        }
        return;
    }
    let limits = Limits {
        flush: Duration::from_millis(number("--flush-ms", 0) as u64),
        ..ours::limits()
    };
    let host = Host::builder()
        .shared_provider(ours::provider(WIRE, model))
        .model(reference::MODEL)
        .limits(limits)
        .build()
        .await
        .unwrap();
    let keys = Keys::new();
    keys.put(TenantId::new("bench").unwrap(), KeyHash::from_key(KEY));
    let config = HttpConfig::new(keys).drain_within(Duration::ZERO);
    serve(listener, host, config, stop.cancelled_owned()).await;
}

/// State of the proxy by hand.
struct Proxy {
    client: reqwest::Client,
    url: String,
}

async fn by_hand(
    State(proxy): State<Arc<Proxy>>,
    prompt: String,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let response = proxy
        .client
        .post(format!("{}/{}", proxy.url, WIRE.path()))
        .header("content-type", "application/json")
        .header("x-api-key", "k")
        .header("anthropic-version", "2023-06-01")
        .body(WIRE.body(&[WIRE.user(&prompt)], None))
        .send()
        .await
        .unwrap();
    let state = (
        response.bytes_stream(),
        BytesMut::new(),
        ParsedReply::default(),
    );
    let events = stream::unfold(state, |(mut body, mut buffer, mut reply)| async move {
        loop {
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                if let Some(data) = line.strip_prefix(b"data: ")
                    && let Some(text) = WIRE.event(data, &mut reply)
                {
                    let event = Event::default()
                        .event("text_delta")
                        .json_data(serde_json::json!({ "text": text }))
                        .unwrap();
                    return Some((Ok(event), (body, buffer, reply)));
                }
            }
            buffer.extend_from_slice(&body.next().await?.unwrap());
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

/// A process that is measured. It ends when its standard input closes.
struct Measured {
    child: Child,
    address: String,
}

impl Measured {
    fn start(kind: &str, model: &str, valgrind: bool) -> Self {
        let this = std::env::current_exe().unwrap();
        let mut command = match valgrind {
            true => {
                let mut command = Command::new("valgrind");
                command
                    .args(["--tool=callgrind", "--callgrind-out-file=callgrind.out.%p"])
                    .arg(this);
                command
            }
            false => Command::new(this),
        };
        command.args([kind, model]);
        if valgrind {
            command.arg("single-threaded").stderr(Stdio::piped());
        }
        command.args(["--flush-ms", &number("--flush-ms", 0).to_string()]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line.trim().to_owned();
        Self { child, address }
    }

    /// CPU time of the process so far, in microseconds.
    fn cpu_us(&self) -> f64 {
        1e6 * process::cpu_of(self.child.id()).as_secs_f64()
    }

    /// Ends the process. Returns the instructions that valgrind counted.
    fn instructions(mut self) -> f64 {
        drop(self.child.stdin.take());
        let output = self.child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let counted = text
            .lines()
            .find_map(|line| line.split_once("Collected : "))
            .unwrap_or_else(|| panic!("{text}"))
            .1;
        counted.trim().parse().unwrap()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// One client: sends a prompt and reads the answer to its end. Returns the number of text events.
async fn client(address: &str, nth: usize) -> usize {
    let body = serde_json::json!({ "content": "go" }).to_string();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /v1/conversations/c-{nth}/messages HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {KEY}\r\n\
         accept: text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    text.matches("event: text_delta").count()
}

/// Reads one answer in each of `streams` conversations. Returns the number of text events.
async fn clients(address: &str, streams: usize, first: usize) -> usize {
    let all = (first..first + streams).map(|nth| client(address, nth));
    futures_util::future::join_all(all).await.into_iter().sum()
}

async fn model(tokens: usize, pace: Duration) -> String {
    let settings = MockModelSettings {
        chunks: tokens,
        chunk_delay: pace,
        write_per: WritePer::Event,
        ..MockModelSettings::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(
        async move { mock_model::serve(listener, settings, CancellationToken::new()).await },
    );
    url
}

/// Instructions per token: those of an answer of 1,050 tokens less those of one of 50.
async fn count(streams: usize, pace: Duration) {
    let (few, many) = (50, 1050);
    for kind in [OURS, HAND] {
        let mut counted = Vec::new();
        for tokens in [few, many] {
            let measured = Measured::start(kind, &model(tokens, pace).await, true);
            let events = clients(&measured.address, streams, 0).await;
            println!("{kind}: {tokens} tokens, {events} events");
            counted.push(measured.instructions());
        }
        println!(
            "{kind}: {:.0} instructions per token",
            (counted[1] - counted[0]) / ((many - few) * streams) as f64
        );
    }
}

async fn measure(streams: usize, tokens: usize, pace: Duration, rounds: usize) {
    let url = model(tokens, pace).await;
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (kind, costs) in [OURS, HAND].into_iter().zip(&mut costs) {
            let measured = Measured::start(kind, &url, false);
            clients(&measured.address, 1, streams).await; // one-time costs
            let before = measured.cpu_us();
            let events = clients(&measured.address, streams, 0).await;
            let cost = (measured.cpu_us() - before) / (tokens * streams) as f64;
            println!("{kind:>16}: {cost:.2} µs per token, {events} events");
            costs.push(cost);
            measured.kill();
        }
    }
    let [ours, hand] = costs.map(median);
    println!(
        "\nCPU per token at {} a second, {streams} streams at once: callboard {ours:.2} µs, by hand {hand:.2} µs, ratio {:.2}",
        1000 / pace.as_millis().max(1),
        ours / hand
    );
}

fn main() {
    let arguments = arguments();
    if let [kind, model, rest @ ..] = arguments.as_slice()
        && [OURS, HAND].contains(&kind.as_str())
    {
        let runtime = match rest.first().is_some_and(|word| word == "single-threaded") {
            true => single_threaded(),
            false => reference::phases::runtime(),
        };
        return runtime.block_on(serve_measured(kind, model));
    }
    println!("load {}", process::load());
    let pace = Duration::from_millis(number("--pace-ms", 20) as u64);
    let counts = arguments.first().is_some_and(|word| word == "count");
    reference::phases::runtime().block_on(async {
        if counts {
            return count(number("--streams", 1), pace).await;
        }
        let tokens = number("--seconds", 5) * 1000 / pace.as_millis().max(1) as usize;
        measure(
            number("--streams", 200),
            tokens,
            pace,
            number("--rounds", 3),
        )
        .await;
    });
}
