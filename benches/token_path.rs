//! What does one token cost, from the provider's socket to a client, and in process from the
//! provider's parser to a subscriber?
//!
//! First the way that users have: a model that sends 50 tokens a second over TLS, each alone, the
//! host's HTTP server, and clients that read the events of their rounds, 200 answers at once. The
//! baseline is a proxy by hand: hyper and axum towards the clients, reqwest towards the model.
//! Model and clients are separate processes. CPU is measured while all answers are under way.
//!
//! Then in process, both wires: the parser gets the bytes of a stream in bursts of 16 events with 4
//! bytes of text, and the events take the usual way: gateway, stream writer, event store,
//! subscriber. Baselines: the same bytes read by hand (a line, serde, a channel to a subscriber),
//! and the parser alone. With one answer at a time and with 64. The subscriber is a task of the
//! runtime, as in a server. Then the pace of a real model: 50 tokens per second, each in its own
//! read, in 1,000 concurrent conversations, where timers and wake-ups dominate.
//!
//! In bursts, the cost of a turn with 16 tokens is subtracted from that of a long turn, so that only
//! tokens are measured. `cargo bench --bench token_path` prints CPU per token, medians of
//! alternating rounds; `-- client`, `-- bursts` and `-- paced` run one part. `--way tls-http2` and
//! `--wire anthropic` choose rows of the first; `--rounds N`, `--seconds N`, `--streams N`,
//! `--tokens N` (in one turn; a much longer one overflows its event ring, and there is no journal to
//! read it from). `-- count WIRE N [BURST]` sends N tokens once, for callgrind; `-- one
//! ours|hand` runs one side of the first part for `--seconds`, for perf.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "turn/mod.rs"]
mod reference;
#[path = "token_path/client.rs"]
mod client;
#[path = "token_path/proxy.rs"]
mod proxy;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use callboard::{Host, chat::MessageList, ports::ModelEvent};
use reference::{
    Wire,
    fed::{assembler, between, host, read_answer, reads},
    hand_json::{EventReader, ParsedReply},
    model,
    phases::{self, Cost, Side, arguments, measure, number, runtime},
    process,
};
use tokio::sync::mpsc;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tokens in one read.
const BURST: usize = 16;

/// Tokens of the short turn that is subtracted.
const FEW: usize = BURST;

/// Concurrent answers in the second measurement.
const MANY: usize = 64;

/// Answers that are measured together: the kernel updates a thread's CPU time only every few
/// milliseconds.
const ANSWERS: usize = 32;

/// Time between two tokens of a slow model.
const PACE: Duration = Duration::from_millis(20);

/// Concurrent conversations with the slow model.
const TALKING: usize = 1000;

/// The baseline: the same bytes read by hand.
async fn by_hand(wire: Wire, reads: Arc<Vec<Bytes>>, pace: Option<Duration>) -> usize {
    let (events, mut subscriber) = mpsc::channel::<String>(64);
    let reader = tokio::spawn(async move {
        let mut bytes = 0;
        while let Some(piece) = subscriber.recv().await {
            bytes += piece.len();
        }
        bytes
    });
    let mut lines = EventReader::default();
    let mut reply = ParsedReply::default();
    for read in reads.iter() {
        between(pace).await;
        if let Some(text) = lines.read(wire, read, &mut reply) {
            events.send(text.to_owned()).await.unwrap();
        }
    }
    drop(events);
    assert_eq!(reader.await.unwrap(), reply.text.len());
    reply.text.len() / 4
}

/// The parser without a subscriber.
fn parsed(wire: Wire, reads: &[Bytes]) -> usize {
    let mut assembler = assembler(wire, MessageList::default());
    let mut bytes = 0;
    for read in reads {
        let mut out = Vec::new();
        assembler.feed(read, &mut out).unwrap();
        bytes += out
            .iter()
            .map(|event| {
                if let ModelEvent::Text(text) = event {
                    text.len()
                } else {
                    0
                }
            })
            .sum::<usize>();
    }
    bytes / 4
}

/// The cost of a token: a long turn minus a short one.
fn a_token(long: Cost, short: Cost) -> f64 {
    let turns = 1e6 * short.cpu.as_secs_f64();
    (1e6 * long.cpu.as_secs_f64() - turns) / (long.done - short.done) as f64
}

/// Runs `count` tasks of the same kind concurrently.
async fn at_once<F: Future<Output = usize> + Send + 'static>(
    count: usize,
    run: impl Fn() -> F,
) -> usize {
    let lanes: Vec<_> = (0..count).map(|_| tokio::spawn(run())).collect();
    futures_util::future::join_all(lanes)
        .await
        .into_iter()
        .map(Result::unwrap)
        .sum()
}

/// Runs `count` concurrent conversations with `answers` answers one after the other, each read to
/// its end.
async fn read_all(host: &Host, count: usize, answers: usize, tokens: usize) -> usize {
    at_once(count, || {
        let host = host.clone();
        async move {
            for _ in 0..answers {
                read_answer(&host, tokens).await;
            }
            answers * tokens
        }
    })
    .await
}

async fn bursts(count: usize, tokens: usize, rounds: usize) {
    let answers = (ANSWERS / count).max(1);
    println!(
        "\nCPU per token in bursts of {BURST}, {count} at once, median of {rounds} x {} tokens",
        count * answers * tokens
    );
    println!(
        "{:>10} {:>12} {:>12} {:>7} {:>15}",
        "wire", "callboard", "by hand", "ratio", "parser alone"
    );
    for wire in Wire::BOTH {
        let long = host(wire, tokens, BURST, None).await;
        let short = host(wire, FEW, BURST, None).await;
        let bytes = Arc::new(reads(wire, tokens, BURST));
        let mut ours = Vec::new();
        let mut hand = Side::default();
        let mut alone = Side::default();
        for round in 0..=rounds {
            let with = measure(read_all(&long, count, answers, tokens)).await;
            let without = measure(read_all(&short, count, answers, FEW)).await;
            let theirs = measure(at_once(count, || by_hand(wire, bytes.clone(), None))).await;
            let parser = measure(async { (0..ANSWERS).map(|_| parsed(wire, &bytes)).sum() }).await;
            if round > 0 {
                ours.push(a_token(with, without));
                hand.add(theirs);
                alone.add(parser);
            }
        }
        let ours = phases::median(ours);
        let hand = hand.median().cpu_us();
        println!(
            "{:>10} {ours:>9.3} µs {hand:>9.3} µs {:>7.2} {:>12.3} µs",
            wire.name(),
            ours / hand,
            alone.median().cpu_us()
        );
    }
}

async fn paced(seconds: usize) {
    let tokens = seconds * 1000 / PACE.as_millis() as usize;
    println!(
        "\nCPU per token at {} a second, each by itself, {TALKING} conversations at once, {seconds} s",
        1000 / PACE.as_millis()
    );
    println!(
        "{:>10} {:>12} {:>12} {:>7}",
        "wire", "callboard", "by hand", "ratio"
    );
    for wire in Wire::BOTH {
        let host = host(wire, tokens, 1, Some(PACE)).await;
        let ours = measure(read_all(&host, TALKING, 1, tokens)).await;
        let bytes = Arc::new(reads(wire, tokens, 1));
        let hand = measure(at_once(TALKING, || {
            by_hand(wire, bytes.clone(), Some(PACE))
        }))
        .await;
        println!(
            "{:>10} {:>9.2} µs {:>9.2} µs {:>7.2}",
            wire.name(),
            ours.cpu_us(),
            hand.cpu_us(),
            ours.cpu_us() / hand.cpu_us()
        );
    }
}

fn main() {
    if model::serve_if_asked() || client::read_if_asked() {
        return;
    }
    let arguments = arguments();
    let word = |at: usize| arguments.get(at).map(String::as_str);
    match word(0) {
        Some("count") => {
            let wire = if word(1) == Some("openai") {
                Wire::OpenAi
            } else {
                Wire::Anthropic
            };
            let tokens = word(2).unwrap().parse().unwrap();
            let burst = word(3).map_or(BURST, |burst| burst.parse().unwrap());
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                read_answer(&host(wire, tokens, burst, None).await, tokens).await
            });
            return;
        }
        Some("one") => {
            let is_ours = word(1) == Some("ours");
            return runtime().block_on(proxy::one(is_ours, number("--seconds", 5)));
        }
        _ => {}
    }
    println!("load {}", process::load());
    let part = word(0).filter(|word| !word.starts_with("--"));
    let wanted = |name: &str| part.is_none_or(|part| part == name);
    let runtime = runtime();
    let rounds = number("--rounds", 5);
    let seconds = number("--seconds", 5);
    if wanted("client") {
        runtime.block_on(proxy::to_clients(rounds, seconds));
    }
    if wanted("bursts") {
        let tokens = number("--tokens", 50_000) / BURST * BURST;
        runtime.block_on(bursts(1, tokens, rounds));
        runtime.block_on(bursts(MANY, tokens, rounds));
    }
    if wanted("paced") {
        runtime.block_on(paced(seconds));
    }
}
