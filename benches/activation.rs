//! What does it cost to put a conversation to sleep and to activate it again?
//!
//! Conversations with a history of a few turns are created, put to sleep, and activated by a
//! request that does nothing else, with the journal in memory and in SQLite. Baselines for
//! activation: the rows read from the store and parsed by hand, and the state read from the store
//! without an activation. Sleeping is measured from the sweep until no conversation is active.
//!
//! `cargo bench --bench activation` prints CPU for each, medians of rounds. `-- --conversations N`,
//! `--turns N` for each, `--rounds N`.
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

use callboard::{
    ConversationHandle, Host,
    ids::{ConversationId, Scope, TenantId},
    ports::SessionBackend,
    storage::{CommitMode, MemorySessions, Sqlite, SqliteOptions},
};
use futures_util::{StreamExt, stream};
use reference::{
    ours,
    phases::{Side, measure, number, runtime},
    process,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Conversations that are processed concurrently.
const LANES: usize = 64;

fn name(nth: usize) -> String {
    format!("sleeper-{nth}")
}

fn handle(host: &Host, nth: usize) -> ConversationHandle {
    host.tenant("bench").conversation(name(nth))
}

async fn each(count: usize, work: impl AsyncFn(usize)) -> usize {
    stream::iter(0..count)
        .for_each_concurrent(LANES, |nth| work(nth))
        .await;
    count
}

async fn asleep(host: &Host) {
    while host.awake() > 0 {
        host.hibernate_idle();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn row(
    journal: &str,
    sessions: Arc<dyn SessionBackend>,
    count: usize,
    turns: usize,
    rounds: usize,
) {
    let host = ours::host(ours::model(), sessions.clone()).await;
    each(count, async |nth| {
        let conversation = handle(&host, nth);
        for _ in 0..turns {
            ours::turn(&conversation).await;
        }
    })
    .await;
    // Event rings of finished rounds are kept for a while. Wait, so that freeing them is not
    // measured.
    tokio::time::sleep(Duration::from_secs(2)).await;
    asleep(&host).await;

    let scope = |nth| {
        Scope::new(
            TenantId::new("bench").unwrap(),
            ConversationId::new(name(nth)).unwrap(),
        )
    };
    let [mut rows, mut state, mut woken, mut slept] = std::array::from_fn(|_| Side::default());
    for round in 0..=rounds {
        let by_hand = measure(each(count, async |nth| {
            let loaded = sessions.load(&scope(nth)).await.unwrap();
            for entry in &loaded.entries {
                let value: serde_json::Value = serde_json::from_slice(&entry.bytes).unwrap();
                assert!(value.is_object());
            }
        }))
        .await;
        let read = measure(each(count, async |nth| {
            assert!(
                !handle(&host, nth)
                    .state()
                    .await
                    .unwrap()
                    .history
                    .messages()
                    .is_empty()
            );
        }))
        .await;
        assert_eq!(host.awake(), 0);
        let wakes = measure(each(count, async |nth| {
            assert!(handle(&host, nth).resume().await.unwrap().is_none())
        }))
        .await;
        assert_eq!(host.awake(), count);
        let sleeps = measure(async {
            asleep(&host).await;
            count
        })
        .await;
        if round > 0 {
            rows.add(by_hand);
            state.add(read);
            woken.add(wakes);
            slept.add(sleeps);
        }
    }
    let [rows, state, woken, slept] =
        [rows, state, woken, slept].map(|side| side.median().cpu_us());
    println!(
        "{journal:>8} {count:>8} {turns:>6} {rows:>10.1} µs {state:>10.1} µs {woken:>10.1} µs {:>7.2} {slept:>10.1} µs",
        woken / rows
    );
    host.shutdown(Duration::from_secs(10)).await;
}

async fn run(count: usize, turns: usize, rounds: usize) {
    println!(
        "load {} · CPU for each, median of {rounds}",
        process::load()
    );
    println!(
        "{:>8} {:>8} {:>6} {:>13} {:>13} {:>13} {:>7} {:>13}",
        "journal", "", "turns", "rows by hand", "state read", "woken", "ratio", "put to sleep"
    );
    // In the build folder, because temporary folders are often in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    row(
        "memory",
        Arc::new(MemorySessions::new()),
        count,
        turns,
        rounds,
    )
    .await;
    let options = SqliteOptions {
        durability: CommitMode::Batched,
        ..SqliteOptions::default()
    };
    let sqlite = Sqlite::open_with(folder.path().join("activation.db"), options)
        .await
        .unwrap();
    row("sqlite", Arc::new(sqlite), count, turns, rounds).await;
}

fn main() {
    runtime().block_on(run(
        number("--conversations", 10_000),
        number("--turns", 3),
        number("--rounds", 3),
    ));
}
