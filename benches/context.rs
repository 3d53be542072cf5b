//! Does a turn cost more in a long conversation, and how long does it take to make a full context
//! fit its window?
//!
//! Turns 10, 100, 1,000 and 10,000 of one conversation in process, with an instant model, a journal
//! that stores nothing, and a window so large that nothing is compacted. Only the bytes on a wire
//! may grow, and there is none here. Then the ladder over a history of 200,000 tokens: with tokens
//! counted for the first time, and with cached counts. All of it runs outside of the actor.
//!
//! `cargo bench --bench context` prints CPU per turn and milliseconds. `-- turns N T` runs only T
//! turns after N, for callgrind: the difference between two lengths divided by their distance is
//! one turn.
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
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{Host, chat::History};
use callboard_actors::{
    compactor::{CompactionOutcome, CompactionSettings, Fixed, Problem, Window, plan},
    tokens::TokenCounter,
};
use reference::{ours, process, turns_before};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

async fn turns(host: &Host, after: usize, turns: usize) -> Duration {
    let conversation = ours::conversation(host, turns_before(after, &reference::result())).await;
    let before = process::cpu();
    for _ in 0..turns {
        ours::turn(&conversation).await;
    }
    process::cpu() - before
}

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let number = |at: usize| args.get(at).and_then(|n| n.parse().ok()).unwrap_or(10);
    if args.first().is_some_and(|arg| arg == "turns") {
        runtime.block_on(async { turns(&ours::forgetful().await, number(1), number(2)).await });
        return;
    }
    println!("load {}", process::load());

    println!("\nCPU per turn in process, best of 5 of 100 turns");
    let mut first = None;
    for after in [10, 100, 1000, 10_000] {
        let best = (0..5)
            .map(|_| runtime.block_on(async { turns(&ours::forgetful().await, after, 100).await }))
            .min()
            .unwrap();
        let each = best.as_secs_f64() * 1e6 / 100.0;
        println!(
            "{after:>8} {each:>8.1} µs  {:.2}x",
            each / *first.get_or_insert(each)
        );
    }

    println!("\nA history of 200,000 tokens made to fit, off the actor");
    let counter = Arc::new(TokenCounter::default());
    counter.count_text("gpt-4o", "warm");
    let messages = turns_before(
        330,
        &"The retry delay is computed in one place, and its cap is ten seconds. ".repeat(30),
    );
    let (history, _) = History::repair(messages);
    let starts: Vec<usize> = (0..history.messages().len()).step_by(4).collect();
    let begun = Instant::now();
    let tokens: u64 = history
        .messages()
        .iter()
        .map(|message| counter.count_message("gpt-4o", message))
        .sum();
    let counting = begun.elapsed();
    let settings = CompactionSettings::default();
    let problem = Problem {
        history: &history,
        round_starts: &starts,
        fixed: Fixed {
            system: 1000,
            tools: 1000,
            pinned: 0,
        },
        window: Window {
            tokens: 200_000,
            max_tokens: 8192,
        },
        settings: &settings,
        pinned: &[],
        count: &|message| counter.count_message("gpt-4o", message),
        summary: &|_| None,
        may_summarize: None,
        seq_label: "1",
        force: false,
    };
    let best = (0..5).map(|_| {
        let begun = Instant::now();
        let CompactionOutcome::Compacted(plan) = plan(&problem) else {
            panic!("there is something to do")
        };
        (begun.elapsed(), plan.after_tokens)
    });
    let (extract, after) = best.min().unwrap();
    println!(
        "{:>8} messages, {tokens} tokens: counted once in {counting:.1?}, planned in {extract:.1?}, {after} tokens after",
        history.messages().len()
    );
    println!(
        "together {:.1?}; at most 100 ms is wanted",
        counting + extract
    );
}
