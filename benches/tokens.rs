//! What do chunking, the registry and the margin cost? The token counter beside bare tiktoken-rs
//! over the same text, including its worst case, one letter repeated without end.
//!
//! `cargo bench --bench tokens` prints MB/s of CPU time, tokens, and the ratio of the two in one
//! run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::{hint::black_box, time::Duration};

use callboard::tokens::TokenCounter;

fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    Duration::from_millis(
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10,
    )
}

/// Returns tokens, and megabytes per second of CPU time.
fn measured(text: &str, rounds: u32, count: impl Fn(&str) -> u64) -> (u64, f64) {
    let tokens = count(text);
    let before = cpu();
    for _ in 0..rounds {
        black_box(count(black_box(text)));
    }
    let spent = (cpu() - before).as_secs_f64().max(0.01);
    (tokens, text.len() as f64 * f64::from(rounds) / spent / 1e6)
}

fn main() {
    let counter = TokenCounter::default();
    let source = include_str!("../actors/src/conversation/round/mod.rs").repeat(20);
    let prose = include_str!("../docs/tools.md").repeat(20);
    let chinese = "我们需要处理大量的数据，然后把结果写入文件。下一步是检查它们。".repeat(8_000);
    let letters = "x".repeat(256 * 1024);
    let acgt: String = (0..256 * 1024_u32)
        .map(|n| ['a', 'c', 'g', 't'][(n.wrapping_mul(2_654_435_761) >> 30) as usize])
        .collect();

    println!(
        "{:<12} {:<12} {:>10} {:>12} {:>10} {:>12} {:>6}",
        "encoding", "text", "bare MB/s", "tokens", "ours MB/s", "tokens", "ratio"
    );
    for (model, encoding, bare) in [
        ("gpt-4", "cl100k_base", tiktoken_rs::cl100k_base_singleton()),
        ("gpt-4o", "o200k_base", tiktoken_rs::o200k_base_singleton()),
    ] {
        for (name, text, rounds) in [
            ("rust source", &source, 4),
            ("markdown", &prose, 4),
            ("chinese", &chinese, 4),
            ("one letter", &letters, 1),
            ("acgt", &acgt, 1),
        ] {
            let (their_tokens, theirs) =
                measured(text, rounds, |text| bare.count_ordinary(text) as u64);
            let (our_tokens, ours) = measured(text, rounds, |text| counter.count_text(model, text));
            println!(
                "{encoding:<12} {name:<12} {theirs:>10.1} {their_tokens:>12} {ours:>10.1} {our_tokens:>12} {:>6.2}",
                ours / theirs
            );
        }
    }
}
