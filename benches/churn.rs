//! Does memory grow in a host that creates and deletes conversations all day?
//!
//! 1,000 conversations a second are created, have one turn, and are deleted; ids are not reused.
//! Memory (resident, without the program's own pages) is read each second. Its slope covers all but
//! the first sixth of the run: 50 of 60 minutes in the long form (`CALLBOARD_LONG=1`), else of 5
//! minutes. There is no hand-written baseline: it would be a map with an insert and a remove.
//!
//! `cargo bench --bench churn` prints the memory each minute, the slope, and CPU per conversation.
//! `-- --seconds N`, `--rate N`, `--warm N` (seconds at the start that do not count). With
//! `--at-most N` it prints one line and fails if the slope is above N MiB in 10 minutes, for use in
//! continuous integration.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "churn/made_and_deleted.rs"]
mod made_and_deleted;
#[path = "support/phases.rs"]
mod phases;
#[path = "support/process.rs"]
mod process;
#[path = "support/scripted.rs"]
mod scripted;

use std::{process::ExitCode, time::Duration};

use phases::{arguments, number, runtime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MIB: f64 = 1048576.0;

/// Returns whether the slope stayed below `most`, if there is a limit.
async fn run(rate: usize, seconds: usize, warm: usize, most: Option<f64>) -> bool {
    let length = Duration::from_secs(seconds as u64);
    if most.is_none() {
        println!(
            "load {} · {rate} conversations a second for {length:?}",
            process::load()
        );
    }
    let host = made_and_deleted::host().await;
    let cpu = process::cpu();
    let churned = made_and_deleted::run(&host, rate, length, |at, bytes| {
        if most.is_none() && (at as u64).is_multiple_of(60) {
            println!("{at:>8.0} s {:>8.2} MiB", bytes / MIB);
        }
    })
    .await;
    let cpu = process::cpu() - cpu;
    let slope = churned.slope(warm as f64 / seconds as f64) * 600.0 / MIB;
    let wall = churned.wall.as_secs_f64();
    println!(
        "{} made and deleted in {wall:.0} s, {:.0} a second, {:.1} µs of CPU each; {:.1} MiB held, slope after {warm} s: {slope:.3} MiB in 10 minutes, {:.1} bytes a conversation (wanted: at most {} MiB)",
        churned.deleted,
        churned.deleted as f64 / wall,
        cpu.as_secs_f64() * 1e6 / churned.deleted as f64,
        process::anonymous() as f64 / MIB,
        slope * MIB / 600.0 / rate as f64,
        most.unwrap_or(1.0)
    );
    // A run that falls far behind its rate has measured bursts.
    if wall > seconds as f64 * 1.1 {
        eprintln!("the machine did not keep up with {rate} a second");
    }
    most.is_none_or(|most| slope <= most)
}

fn main() -> ExitCode {
    let minutes = if std::env::var_os("CALLBOARD_LONG").is_some() {
        60
    } else {
        5
    };
    let rate = number("--rate", 1000);
    let seconds = number("--seconds", minutes * 60);
    let most = arguments()
        .iter()
        .any(|argument| argument == "--at-most")
        .then(|| number("--at-most", 1) as f64);
    if runtime().block_on(run(rate, seconds, number("--warm", seconds / 6), most)) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
