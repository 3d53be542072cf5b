//! What does one token cost on its way from the provider's parser to a subscriber?
//!
//! In process, both wires: the bytes of a stream are fed to the adapter's parser in bursts of 16 events of 4 bytes of text, and from there
//! they go the way of every token: gateway, stream writer, event store, subscriber. Beside it the same bytes read by hand (a line, serde,
//! a channel to a subscriber), and the parser alone. Then the pace of a person's model: 50 tokens a second, each by itself, in 1,000
//! conversations at once, where timers and wakes are what is paid.
//!
//! A turn of 16 tokens is taken off a turn of very many, so that what is told is tokens and no turns. `cargo bench --bench token_path`
//! prints CPU a token, medians of rounds in turns; `-- --rounds N`, `--tokens N`, `--seconds N`. `-- count WIRE N` sends N tokens once,
//! for callgrind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "turn/mod.rs"]
mod reference;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use callboard::{
    Host,
    chat::MessageList,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelRequest, ModelStream, ProviderError},
    providers::{AnthropicAssembler, Assemble, OpenAiAssembler},
    stream::EventKind,
};
use futures_util::stream;
use reference::{
    Wire,
    forgetful::Forgetful,
    ours,
    phases::{Cost, Side, arguments, measure, number, runtime},
    process,
    wire::Told,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tokens of one read.
const BURST: usize = 16;

/// Tokens of the turn that is taken off.
const FEW: usize = BURST;

/// Between two tokens of a slow model.
const PACE: Duration = Duration::from_millis(20);

/// Conversations that such a model talks in at once.
const TALKING: usize = 1000;

/// The bytes of a stream, as they are read.
fn reads(wire: Wire, tokens: usize, burst: usize) -> Vec<Bytes> {
    let (head, token, tail) = match wire {
        Wire::Anthropic => (
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{\"input_tokens\":50,\"output_tokens\":1}}}\n\n\
             event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"word\"}}\n\n",
            "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
             event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":50}}\n\n\
             event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        Wire::OpenAi => (
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"},\"finish_reason\":null}]}\n\n",
            "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
             data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":50,\"completion_tokens\":50,\"total_tokens\":100}}\n\ndata: [DONE]\n\n",
        ),
    };
    let full = Bytes::from(token.repeat(burst));
    let mut reads = vec![Bytes::from(head)];
    reads.extend((0..tokens / burst).map(|_| full.clone()));
    reads.push(Bytes::from(tail));
    reads
}

fn assembler(wire: Wire, history: MessageList) -> Box<dyn Assemble> {
    match wire {
        Wire::Anthropic => Box::new(AnthropicAssembler::new(history)),
        Wire::OpenAi => Box::new(OpenAiAssembler::new(history)),
    }
}

/// Waits as a connection does: for the other side to be scheduled, or for the next token of a slow model.
async fn between(pace: Option<Duration>) {
    match pace {
        Some(pace) => tokio::time::sleep(pace).await,
        None => tokio::task::yield_now().await,
    }
}

/// A provider that has its bytes already: an adapter without its connection.
struct Fed {
    wire: Wire,
    reads: Arc<Vec<Bytes>>,
    pace: Option<Duration>,
}

impl LlmProvider for Fed {
    fn name(&self) -> &str {
        self.wire.name()
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        ours::capabilities()
    }

    fn stream(&self, request: ModelRequest, _: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let (assembler, reads, pace) = (assembler(self.wire, request.messages), self.reads.clone(), self.pace);
        let batches = stream::unfold((assembler, 0), move |(mut assembler, at)| {
            let read = reads.get(at).cloned();
            async move {
                let read = read?;
                between(pace).await;
                let mut out = Vec::new();
                let fed = assembler.feed(&read, &mut out).map(|()| out);
                Some((fed, (assembler, at + 1)))
            }
        });
        Box::pin(std::future::ready(Ok(Box::pin(batches) as ModelStream)))
    }
}

async fn host(wire: Wire, tokens: usize, burst: usize, pace: Option<Duration>) -> Host {
    let provider = Fed { wire, reads: Arc::new(reads(wire, tokens, burst)), pace };
    ours::host(Arc::new(provider), Arc::new(Forgetful)).await
}

/// One answer to its end; returns its tokens.
async fn heard(host: &Host, tokens: usize) -> usize {
    let mut reply = ours::conversation(host, Vec::new()).await.send("go").await.unwrap();
    let mut bytes = 0;
    while let Some(event) = reply.next().await {
        if let EventKind::TextDelta { text } = &event.kind {
            bytes += text.len();
        }
    }
    let end = reply.outcome().await.unwrap();
    assert_eq!(end.text.len(), tokens * 4, "{:?}", end.error);
    assert!(bytes <= tokens * 4);
    tokens
}

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
        bytes += out.iter().map(|event| if let callboard::ports::ModelEvent::Text(text) = event { text.len() } else { 0 }).sum::<usize>();
    }
    bytes / 4
}

/// What a token costs when a short turn is taken off a long one.
fn a_token(long: Cost, short: Cost) -> f64 {
    let turns = 1e6 * short.cpu.as_secs_f64();
    (1e6 * long.cpu.as_secs_f64() - turns) / (long.done - short.done) as f64
}

async fn bursts(tokens: usize, rounds: usize) {
    println!("\nCPU a token in bursts of {BURST}, median of {rounds} x {tokens} tokens");
    println!("{:>10} {:>12} {:>12} {:>7} {:>15}", "wire", "callboard", "by hand", "ratio", "parser alone");
    for wire in Wire::BOTH {
        let (long, short) = (host(wire, tokens, BURST, None).await, host(wire, FEW, BURST, None).await);
        let bytes = Arc::new(reads(wire, tokens, BURST));
        let (mut ours, mut hand, mut alone) = (Vec::new(), Side::default(), Side::default());
        for round in 0..=rounds {
            let with = measure(heard(&long, tokens)).await;
            let without = measure(heard(&short, FEW)).await;
            let theirs = measure(by_hand(wire, bytes.clone(), None)).await;
            let parser = measure(async { parsed(wire, &bytes) }).await;
            if round > 0 {
                ours.push(a_token(with, without));
                hand.add(theirs);
                alone.add(parser);
            }
        }
        let (ours, hand) = (reference::phases::median(ours), hand.median().cpu_us());
        println!("{:>10} {ours:>9.3} µs {hand:>9.3} µs {:>7.2} {:>12.3} µs", wire.name(), ours / hand, alone.median().cpu_us());
    }
}

async fn paced(seconds: usize) {
    let tokens = seconds * 1000 / PACE.as_millis() as usize;
    println!("\nCPU a token at {} a second, each by itself, {TALKING} conversations at once, {seconds} s", 1000 / PACE.as_millis());
    println!("{:>10} {:>12} {:>12} {:>7}", "wire", "callboard", "by hand", "ratio");
    for wire in Wire::BOTH {
        let host = host(wire, tokens, 1, Some(PACE)).await;
        let ours = measure(async { futures_util::future::join_all((0..TALKING).map(|_| heard(&host, tokens))).await.iter().sum() }).await;
        let bytes = Arc::new(reads(wire, tokens, 1));
        let lanes = (0..TALKING).map(|_| tokio::spawn(by_hand(wire, bytes.clone(), Some(PACE))));
        let hand = measure(async { futures_util::future::join_all(lanes).await.into_iter().map(Result::unwrap).sum() }).await;
        println!("{:>10} {:>9.2} µs {:>9.2} µs {:>7.2}", wire.name(), ours.cpu_us(), hand.cpu_us(), ours.cpu_us() / hand.cpu_us());
    }
}

fn main() {
    let arguments = arguments();
    if arguments.first().is_some_and(|word| word == "count") {
        let wire = if arguments[1] == "openai" { Wire::OpenAi } else { Wire::Anthropic };
        let tokens = arguments[2].parse().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { heard(&host(wire, tokens, BURST, None).await, tokens).await });
        return;
    }
    println!("load {}", process::load());
    let runtime = runtime();
    runtime.block_on(bursts(number("--tokens", 1_000_000) / BURST * BURST, number("--rounds", 5)));
    runtime.block_on(paced(number("--seconds", 5)));
}
