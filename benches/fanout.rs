//! Measures what a fan-out of many tasks costs beyond the work itself, by its width.
//!
//! 10, 1,000 and 10,000 prompts of 200 bytes at once to a model that waits 100 ms and answers with
//! 64 deltas: in process, and over HTTP (10,000 with 1,000 concurrent calls on either side) beside
//! a fan-out written by hand on a `JoinSet`, a semaphore and reqwest. Results are returned in
//! order, and each is checked.
//!
//! `cargo bench --bench fanout` prints wall time and CPU of each and their ratios, medians of
//! alternating rounds. `-- --rounds N`, `--most N`.
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
    model::{self, Server},
    ours,
    phases::{Cost, Side, measure, number, runtime},
    process, scripted,
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Latency of the model.
const THINKS: Duration = Duration::from_millis(100);

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
            let reply = hand.call(&[hand.wire.user(&prompt)], true, &events).await;
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

fn report(what: &str, width: usize, cost: Cost) {
    println!(
        "{what:>28} {width:>7} {:>9.1} ms wall {:>9.1} ms CPU",
        cost.wall.as_secs_f64() * 1e3,
        cost.cpu.as_secs_f64() * 1e3
    );
}

async fn run(rounds: usize, most: usize) {
    println!("load {} · median of {rounds}", process::load());
    let thinker = || {
        Arc::new(scripted::always(
            Reply::text("word".repeat(64)).chunks(64).after(THINKS),
        ))
    };
    let widths = [10, 1000, 10_000]
        .into_iter()
        .filter(|width| *width <= most);
    for width in widths.clone() {
        let mut side = Side::default();
        for round in 0..=rounds {
            let host = host(thinker(), 16_384).await;
            let cost = measure(async { check(&fan_out(&host, prompts(width)).await) }).await;
            if round > 0 {
                side.add(cost);
            }
            host.shutdown(Duration::from_secs(10)).await;
        }
        report("in process", width, side.median_wall());
    }

    let server = Server::start(THINKS, 0);
    for wire in Wire::BOTH {
        let url = server.url(wire);
        let host = host(ours::provider(wire, &url), CALLS_MAX).await;
        let hand = ByHand::new(url, wire, None);
        for width in widths.clone() {
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
            report(
                &format!("{}, callboard", wire.name()),
                width,
                ours.median_wall(),
            );
            report(
                &format!("{}, by hand", wire.name()),
                width,
                theirs.median_wall(),
            );
            println!(
                "{:>28} {width:>7} {:>9.2} x wall {:>9.2} x CPU",
                "",
                ours.median_wall().wall_us() / theirs.median_wall().wall_us(),
                ours.median().cpu_us() / theirs.median().cpu_us()
            );
        }
    }
}

fn main() {
    if !model::serve_if_asked() {
        runtime().block_on(run(number("--rounds", 5), number("--most", 10_000)));
    }
}
