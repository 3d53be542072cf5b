//! Does a host that makes and deletes conversations all day grow?
//!
//! 1,000 conversations a second are made, have one turn, and are deleted; ids do not come back. The resident memory is read each second,
//! and its slope taken over the last five sixths of the run: 50 of 60 minutes in the long form (`CALLBOARD_LONG=1`), else of 5 minutes.
//! The hand that writes a host beside it would be a map with an insert and a remove; its slope is no question.
//!
//! `cargo bench --bench churn` prints the memory each minute, the slope, and CPU a conversation. `-- --seconds N`, `--rate N`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "churn/made_and_deleted.rs"]
mod made_and_deleted;
#[path = "support/phases.rs"]
mod phases;
#[path = "support/process.rs"]
mod process;

use std::time::Duration;

use phases::{number, runtime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is taken for warming up.
const WARM: f64 = 1.0 / 6.0;

async fn run(rate: usize, length: Duration) {
    println!("load {} · {rate} conversations a second for {length:?}", process::load());
    let host = made_and_deleted::host().await;
    let cpu = process::cpu();
    let churned = made_and_deleted::run(&host, rate, length, |at, bytes| {
        if (at as u64).is_multiple_of(60) {
            println!("{at:>8.0} s {:>8.2} MiB", bytes / 1048576.0);
        }
    })
    .await;
    let (cpu, slope) = (process::cpu() - cpu, churned.slope(WARM));
    println!(
        "{} made and deleted, {:.0} a second, {:.1} µs of CPU each",
        churned.deleted,
        churned.deleted as f64 / churned.wall.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / churned.deleted as f64
    );
    println!(
        "slope {:.3} MiB in 10 minutes, {:.1} bytes a conversation (wanted: at most 1 MiB)",
        slope * 600.0 / 1048576.0,
        slope / rate as f64
    );
}

fn main() {
    let minutes = if std::env::var_os("CALLBOARD_LONG").is_some() { 60 } else { 5 };
    runtime().block_on(run(number("--rate", 1000), Duration::from_secs(number("--seconds", minutes * 60) as u64)));
}
