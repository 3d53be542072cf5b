//! What does one token cost on its way from the provider's parser to a subscriber?
//!
//! In process, both wires: the bytes of a stream are fed to the adapter's parser in bursts of 16 events of 4 bytes of text, and from there
//! they go the way of every token: gateway, stream writer, event store, subscriber. Beside it the same bytes read by hand (a line, serde,
//! a channel to a subscriber), and the parser alone. Once with one answer at a time and once with 64; who listens is a task of the runtime,
//! as it is where answers are served. Then the pace of a person's model: 50 tokens a second, each by itself, in 1,000
//! conversations at once, where timers and wakes are what is paid.
//!
//! A turn of 16 tokens is taken off a turn of very many, so that what is told is tokens and no turns. `cargo bench --bench token_path`
//! prints CPU a token, medians of rounds in turns; `-- --rounds N`, `--seconds N`, `--tokens N` (of one turn: a much longer one does not fit
//! its ring, and there is no journal to read it from). `-- count WIRE N [BURST]` sends N tokens once, for callgrind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "turn/mod.rs"]
mod reference;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use callboard::{Host, chat::MessageList, ports::ModelEvent};
use reference::{
    Wire,
    fed::{assembler, between, heard, host, reads},
    hand_json::Told,
    phases::{self, Cost, Side, arguments, measure, number, runtime},
    process,
};
use tokio::sync::mpsc;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tokens of one read.
const BURST: usize = 16;

/// Tokens of the turn that is taken off.
const FEW: usize = BURST;

/// Answers that come at once where there are many.
const MANY: usize = 64;

/// Answers that are measured together: the kernel tells a thread's time a few milliseconds late.
const ANSWERS: usize = 32;

/// Between two tokens of a slow model.
const PACE: Duration = Duration::from_millis(20);

/// Conversations that such a model talks in at once.
const TALKING: usize = 1000;

/// The same bytes by hand.
async fn by_hand(wire: Wire, reads: Arc<Vec<Bytes>>, pace: Option<Duration>) -> usize {
    let (events, mut subscriber) = mpsc::channel::<String>(64);
    let reader = tokio::spawn(async move {
        let mut bytes = 0;
        while let Some(piece) = subscriber.recv().await {
            bytes += piece.len();
        }
        bytes
    });
    let mut told = Told::default();
    for read in reads.iter() {
        between(pace).await;
        for line in read.split(|byte| *byte == b'\n') {
            if let Some(data) = line.strip_prefix(b"data: ")
                && let Some(piece) = wire.event(data, &mut told)
            {
                events.send(piece).await.unwrap();
            }
        }
    }
    drop(events);
    assert_eq!(reader.await.unwrap(), told.text.len());
    told.text.len() / 4
}

/// The parser, and nobody who listens.
fn parsed(wire: Wire, reads: &[Bytes]) -> usize {
    let (mut assembler, mut bytes) = (assembler(wire, MessageList::default()), 0);
    for read in reads {
        let mut out = Vec::new();
        assembler.feed(read, &mut out).unwrap();
        bytes += out.iter().map(|event| if let ModelEvent::Text(text) = event { text.len() } else { 0 }).sum::<usize>();
    }
    bytes / 4
}

/// What a token costs when a short turn is taken off a long one.
fn a_token(long: Cost, short: Cost) -> f64 {
    let turns = 1e6 * short.cpu.as_secs_f64();
    (1e6 * long.cpu.as_secs_f64() - turns) / (long.done - short.done) as f64
}

/// So many of the same at once, each a task of its own.
async fn at_once<F: Future<Output = usize> + Send + 'static>(count: usize, run: impl Fn() -> F) -> usize {
    let lanes: Vec<_> = (0..count).map(|_| tokio::spawn(run())).collect();
    futures_util::future::join_all(lanes).await.into_iter().map(Result::unwrap).sum()
}

/// `count` conversations at once, in each so many answers one after another, read to their end.
async fn all_heard(host: &Host, count: usize, answers: usize, tokens: usize) -> usize {
    at_once(count, || {
        let host = host.clone();
        async move {
            for _ in 0..answers {
                heard(&host, tokens).await;
            }
            answers * tokens
        }
    })
    .await
}

async fn bursts(count: usize, tokens: usize, rounds: usize) {
    let answers = (ANSWERS / count).max(1);
    println!("\nCPU a token in bursts of {BURST}, {count} at once, median of {rounds} x {} tokens", count * answers * tokens);
    println!("{:>10} {:>12} {:>12} {:>7} {:>15}", "wire", "callboard", "by hand", "ratio", "parser alone");
    for wire in Wire::BOTH {
        let (long, short) = (host(wire, tokens, BURST, None).await, host(wire, FEW, BURST, None).await);
        let bytes = Arc::new(reads(wire, tokens, BURST));
        let (mut ours, mut hand, mut alone) = (Vec::new(), Side::default(), Side::default());
        for round in 0..=rounds {
            let with = measure(all_heard(&long, count, answers, tokens)).await;
            let without = measure(all_heard(&short, count, answers, FEW)).await;
            let theirs = measure(at_once(count, || by_hand(wire, bytes.clone(), None))).await;
            let parser = measure(async { (0..ANSWERS).map(|_| parsed(wire, &bytes)).sum() }).await;
            if round > 0 {
                ours.push(a_token(with, without));
                hand.add(theirs);
                alone.add(parser);
            }
        }
        let (ours, hand) = (phases::median(ours), hand.median().cpu_us());
        println!("{:>10} {ours:>9.3} µs {hand:>9.3} µs {:>7.2} {:>12.3} µs", wire.name(), ours / hand, alone.median().cpu_us());
    }
}

async fn paced(seconds: usize) {
    let tokens = seconds * 1000 / PACE.as_millis() as usize;
    println!("\nCPU a token at {} a second, each by itself, {TALKING} conversations at once, {seconds} s", 1000 / PACE.as_millis());
    println!("{:>10} {:>12} {:>12} {:>7}", "wire", "callboard", "by hand", "ratio");
    for wire in Wire::BOTH {
        let host = host(wire, tokens, 1, Some(PACE)).await;
        let ours = measure(all_heard(&host, TALKING, 1, tokens)).await;
        let bytes = Arc::new(reads(wire, tokens, 1));
        let hand = measure(at_once(TALKING, || by_hand(wire, bytes.clone(), Some(PACE)))).await;
        println!("{:>10} {:>9.2} µs {:>9.2} µs {:>7.2}", wire.name(), ours.cpu_us(), hand.cpu_us(), ours.cpu_us() / hand.cpu_us());
    }
}

fn main() {
    let arguments = arguments();
    if arguments.first().is_some_and(|word| word == "count") {
        let wire = if arguments[1] == "openai" { Wire::OpenAi } else { Wire::Anthropic };
        let tokens = arguments[2].parse().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let burst = arguments.get(3).map_or(BURST, |burst| burst.parse().unwrap());
        runtime.block_on(async { heard(&host(wire, tokens, burst, None).await, tokens).await });
        return;
    }
    println!("load {}", process::load());
    let runtime = runtime();
    let (tokens, rounds) = (number("--tokens", 50_000) / BURST * BURST, number("--rounds", 5));
    runtime.block_on(bursts(1, tokens, rounds));
    runtime.block_on(bursts(MANY, tokens, rounds));
    runtime.block_on(paced(number("--seconds", 5)));
}
