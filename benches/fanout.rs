//! How long does a fan-out of many tasks take on a hosted model, and what does it cost beyond the
//! work itself?
//!
//! 10, 1,000 and 10,000 prompts of 200 bytes at once (10,000 with 1,000 concurrent calls) to a
//! model that thinks for 100 ms or 2 s and answers with 64 deltas. Over TLS and HTTP/2 with 100
//! streams a connection, over TLS and HTTP/1.1, and over plain HTTP, beside a fan-out written by
//! hand on a `JoinSet`, a semaphore and reqwest (over HTTP/2 with a client for each 100 calls); and
//! in process. A cold fan-out is the first of its host and of its clients, and opens their
//! connections; a warm one finds them open. Results are returned in order, and each is checked.
//!
//! `cargo bench --bench fanout` prints wall time and CPU of each and their ratios, medians of
//! alternating rounds. `-- --way tls-http2`, `--wire anthropic`, `--thinks 100`, `--start cold` and
//! `--width 1000` choose rows (`--way in-process` the last part); `--write answer` has the server
//! write an answer at once, and not each event alone; `--rounds N`, `--most N`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "turn/mod.rs"]
mod reference;

use std::{sync::Arc, time::Duration};

use callboard::{Host, limits::Limits, ports::LlmProvider};
use callboard_actors::{host::FanOut, scripted::Reply};
use reference::{
    Wire,
    by_hand::ByHand,
    forgetful::Forgetful,
    hand_json::History,
    model::{self, Model, Server, Way},
    ours,
    phases::{Side, is_wanted, measure, number, runtime},
    process, scripted,
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the model thinks.
const THINKS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Subagents that run concurrently.
const PARALLEL: usize = 1000;

/// Concurrent calls over HTTP.
const CALLS_MAX: usize = 1000;

async fn host(provider: Arc<dyn LlmProvider>, calls_max: usize) -> Host {
    let limits = Limits {
        model_calls_max: calls_max,
        ..ours::limits()
    };
    ours::builder()
        .shared_provider(provider)
        .sessions(Forgetful)
        .limits(limits)
        .build()
        .await
        .unwrap()
}

/// The fan-out of this project, without a journal like the baseline.
async fn fan_out(host: &Host, prompts: Vec<String>) -> Vec<String> {
    let width = prompts.len();
    let run = host
        .tenant("bench")
        .fan_out(
            FanOut::over(prompts)
                .parallel(width.min(PARALLEL))
                .ephemeral(),
        )
        .await
        .unwrap();
    run.finish()
        .await
        .tasks
        .iter()
        .map(|end| end.text().to_owned())
        .collect()
}

/// The baseline, written by hand.
async fn by_hand(hand: &Arc<ByHand>, prompts: Vec<String>) -> Vec<String> {
    let permits = Arc::new(Semaphore::new(CALLS_MAX));
    let mut children = JoinSet::new();
    for (index, prompt) in prompts.into_iter().enumerate() {
        let hand = hand.clone();
        let permits = permits.clone();
        children.spawn(async move {
            let _permit = permits.acquire().await.unwrap();
            let (events, mut subscriber) = mpsc::channel::<String>(64);
            let reader = tokio::spawn(async move { while subscriber.recv().await.is_some() {} });
            let mut history = History::default();
            history.user(hand.wire, &prompt);
            let reply = hand.call(&history, &events).await;
            drop(events);
            reader.await.unwrap();
            (index, reply.text)
        });
    }
    in_order(children).await
}

async fn in_order(mut children: JoinSet<(usize, String)>) -> Vec<String> {
    let mut answers = vec![String::new(); children.len()];
    while let Some(child) = children.join_next().await {
        let (index, text) = child.unwrap();
        answers[index] = text;
    }
    answers
}

fn prompts(width: usize) -> Vec<String> {
    (0..width).map(|_| reference::prompt()).collect()
}

fn check(answers: &[String]) -> usize {
    assert!(answers.iter().all(|answer| answer.len() == 64 * 4));
    answers.len()
}

fn report(what: &str, width: usize, ours: &Side, hand: Option<&Side>) {
    let wall = |side: &Side| side.median_wall().wall.as_secs_f64() * 1e3;
    let cpu = |side: &Side| side.median().cpu.as_secs_f64() * 1e3;
    print!(
        "{what} {width:>6} {:>8.0} ms {:>8.0} ms",
        wall(ours),
        cpu(ours)
    );
    match hand {
        Some(hand) => println!(
            " {:>8.0} ms {:>8.0} ms {:>6.2} {:>6.2}",
            wall(hand),
            cpu(hand),
            wall(ours) / wall(hand),
            cpu(ours) / cpu(hand)
        ),
        None => println!(),
    }
}

fn head(columns: &str) {
    println!(
        "{columns} {:>6} {:>11} {:>11} {:>11} {:>11} {:>6} {:>6}",
        "width", "callboard", "CPU", "by hand", "CPU", "wall x", "CPU x"
    );
}

async fn over_http(way: Way, wire: Wire, thinks: Duration, widths: &[usize], rounds: usize) {
    let server = Server::start(Model {
        way,
        latency: thinks,
        write_per: model::wanted_write(),
        ..Model::default()
    });
    let what = |start: &str| {
        let thinks = thinks.as_millis();
        format!(
            "{:>10} {:>10} {thinks:>5} ms {start:>5}",
            way.name(),
            wire.name()
        )
    };
    let sides = || async {
        let ours = host(ours::provider(wire, &server), CALLS_MAX).await;
        (ours, ByHand::new(&server, wire, CALLS_MAX, None))
    };
    for width in widths.iter().copied() {
        if is_wanted("--start", "cold") {
            let mut ours = Side::default();
            let mut theirs = Side::default();
            for round in 0..=rounds {
                let (host, hand) = sides().await;
                let cost = measure(async { check(&fan_out(&host, prompts(width)).await) }).await;
                let by_hand = measure(async { check(&by_hand(&hand, prompts(width)).await) }).await;
                if round > 0 {
                    ours.add(cost);
                    theirs.add(by_hand);
                }
                host.shutdown(Duration::from_secs(10)).await;
            }
            report(&what("cold"), width, &ours, Some(&theirs));
        }
        if is_wanted("--start", "warm") {
            let (host, hand) = sides().await;
            let mut ours = Side::default();
            let mut theirs = Side::default();
            for round in 0..=rounds {
                let cost = measure(async { check(&fan_out(&host, prompts(width)).await) }).await;
                let by_hand = measure(async { check(&by_hand(&hand, prompts(width)).await) }).await;
                if round > 0 {
                    ours.add(cost);
                    theirs.add(by_hand);
                }
                host.hibernate_idle();
            }
            report(&what("warm"), width, &ours, Some(&theirs));
            host.shutdown(Duration::from_secs(10)).await;
        }
    }
}

async fn in_process(widths: &[usize], rounds: usize) {
    for width in widths.iter().copied() {
        let mut side = Side::default();
        for round in 0..=rounds {
            let thinker =
                scripted::always(Reply::text("word".repeat(64)).chunks(64).after(THINKS[0]));
            let host = host(Arc::new(thinker), 16_384).await;
            let cost = measure(async { check(&fan_out(&host, prompts(width)).await) }).await;
            if round > 0 {
                side.add(cost);
            }
            host.shutdown(Duration::from_secs(10)).await;
        }
        report("in process, 100 ms", width, &side, None);
    }
}

async fn run(rounds: usize, most: usize) {
    println!("load {} · median of {rounds}", process::load());
    let widths: Vec<usize> = [10, 1000, 10_000]
        .into_iter()
        .filter(|width| *width <= most && is_wanted("--width", &width.to_string()))
        .collect();
    head(&format!(
        "{:>10} {:>10} {:>8} {:>5}",
        "way", "wire", "thinks", "start"
    ));
    for way in Way::ALL {
        for wire in Wire::BOTH {
            for thinks in THINKS {
                if is_wanted("--way", way.name())
                    && is_wanted("--wire", wire.name())
                    && is_wanted("--thinks", &thinks.as_millis().to_string())
                {
                    over_http(way, wire, thinks, &widths, rounds).await;
                }
            }
        }
    }
    if is_wanted("--way", "in-process") {
        in_process(&widths, rounds).await;
    }
}

fn main() {
    if !model::serve_if_asked() {
        runtime().block_on(run(number("--rounds", 5), number("--most", 10_000)));
    }
}
