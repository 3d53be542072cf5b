//! How many appends per second does this disk carry, from one conversation that waits for each, and
//! from 64 concurrent ones? `cargo bench --bench journal`.
//!
//! A plain program without statistics over iterations: the disk dominates the result.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, StoredEntry},
    ports::{AppendExt, SessionBackend},
    storage::{CommitMode, MemorySessions, Sqlite, SqliteOptions},
    stream::Open,
};

const RUN: Duration = Duration::from_secs(3);
const BYTES: usize = 1024;

/// Appends in `conversations` concurrent conversations. Returns the count, the time, and the sorted
/// latencies.
async fn measure(
    store: &Arc<dyn SessionBackend>,
    conversations: usize,
) -> (usize, Duration, Vec<Duration>) {
    let started = Instant::now();
    let lives: Vec<_> = (0..conversations)
        .map(|n| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let id = ConversationId::new(format!("c{conversations}-{n}")).unwrap();
                let scope = Scope::new(TenantId::new(format!("t{}", n % 8)).unwrap(), id);
                let mut at = Head::default();
                let mut took = Vec::new();
                while started.elapsed() < RUN {
                    let next = Head {
                        epoch: Epoch(1),
                        seq: at.seq.next(),
                    };
                    let entries = vec![StoredEntry {
                        seq: Seq(next.seq.0),
                        bytes: vec![b'x'; BYTES].into(),
                    }];
                    let asked = Instant::now();
                    store
                        .append_and_wait(&scope, at, Epoch(1), entries, Open::Running)
                        .await
                        .unwrap();
                    took.push(asked.elapsed());
                    at = next;
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for life in lives {
        took.extend(life.await.unwrap());
    }
    let all = started.elapsed();
    took.sort_unstable();
    (took.len(), all, took)
}

fn report(
    name: &str,
    conversations: usize,
    (count, all, took): &(usize, Duration, Vec<Duration>),
    commits: Option<u64>,
) {
    let at = |part: usize| {
        took.get(took.len() * part / 100)
            .copied()
            .unwrap_or_default()
    };
    let rate = *count as f64 / all.as_secs_f64();
    let commits = commits
        .map(|commits| format!(", {commits} commits"))
        .unwrap_or_default();
    println!(
        "{name}, {conversations} conversations: {rate:.0} appends/s of {BYTES} B, p50 {:?}, p99 {:?}{commits}",
        at(50),
        at(99)
    );
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // In the build folder, because temporary folders are often in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (name, durability) in [("sync", CommitMode::Sync), ("batched", CommitMode::Batched)] {
        let options = SqliteOptions {
            durability,
            ..SqliteOptions::default()
        };
        let sqlite = Arc::new(
            Sqlite::open_with(folder.path().join(format!("{name}.db")), options)
                .await
                .unwrap(),
        );
        let store: Arc<dyn SessionBackend> = Arc::<Sqlite>::clone(&sqlite);
        for conversations in [1, 64] {
            let before = sqlite.stats().commits;
            let measured = measure(&store, conversations).await;
            report(
                &format!("sqlite {name}"),
                conversations,
                &measured,
                Some(sqlite.stats().commits - before),
            );
        }
        store.close(Duration::from_secs(10)).await.unwrap();
    }
    let store: Arc<dyn SessionBackend> = Arc::new(MemorySessions::new());
    for conversations in [1, 64] {
        let measured = measure(&store, conversations).await;
        report("memory", conversations, &measured, None);
    }
}
