//! How many turns per second does a disk carry, compared with the bound that its commits set?
//!
//! The reference turn of `turn/mod.rs` in process on SQLite (WAL, synchronous = FULL): first with
//! every commit slowed to 10 ms, at 64 and 256 conversations, then on the disk of the build folder,
//! at 64, 256 and 1,000. A turn that waits `gates` times for a commit, each time for up to two
//! commits (the running one, then its own), allows C / (2 × gates × commit) turns per second with C
//! conversations. This turn has two gates: its prompt is acknowledged, and its end is reported. Its
//! tool is `pure`, so the start of the call waits for no commit.
//!
//! `cargo bench --bench durable` prints turns per second, the bound, and the share of it that is
//! reached; the time of a commit without other load; commits per second; entries per commit;
//! appends per turn that a caller awaited, as the store saw them (entries that a conversation holds
//! back during its own commit are appended together), and other appends; CPU per turn; and the same
//! turns without a journal. `-- --seconds N` changes the length of a row, `--folder PATH` the disk.
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
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use callboard::{
    Host,
    ids::{ConversationId, Epoch, Scope, Seq, TenantId},
    journal::{Head, StoredEntry},
    ports::{AppendExt, SessionBackend},
    storage::{Sqlite, SqliteOptions},
    stream::Open,
};
use reference::{
    TURNS_EACH,
    counted::{AppendCounts, Counted},
    forgetful::Forgetful,
    ours,
    phases::{Cost, arguments, measure, median, number, runtime},
    process,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Commits that the reference turn waits for.
const GATES: f64 = 2.0;

/// Delay that the slow disk adds to each commit.
const SLOW: Duration = Duration::from_millis(10);

/// The time of a commit without other load: the median of twenty.
async fn lone_commit(store: &dyn SessionBackend) -> Duration {
    let scope = Scope::new(
        TenantId::new("alone").unwrap(),
        ConversationId::new("alone").unwrap(),
    );
    let mut at = Head::default();
    let mut took = Vec::new();
    for _ in 0..20 {
        let next = Head {
            epoch: Epoch(1),
            seq: at.seq.next(),
        };
        let entries = vec![StoredEntry {
            seq: Seq(next.seq.0),
            bytes: vec![b'x'; 1024].into(),
        }];
        let asked = Instant::now();
        store
            .append_and_wait(&scope, at, Epoch(1), entries, Open::Running)
            .await
            .unwrap();
        took.push(asked.elapsed().as_secs_f64());
        at = next;
    }
    Duration::from_secs_f64(median(took))
}

/// Runs turns in `lanes` conversations until the time is over. Returns how many ended within it.
async fn turns_for(host: &Host, lanes: usize, length: Duration) -> usize {
    let over = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let lanes = (0..lanes).map(|_| {
        let host = host.clone();
        let over = over.clone();
        let done = done.clone();
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let conversation = ours::conversation(&host, reference::history()).await;
                for _ in 0..TURNS_EACH {
                    ours::turn(&conversation).await;
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    let lanes: Vec<_> = lanes.collect();
    tokio::time::sleep(length).await;
    over.store(true, Ordering::Relaxed);
    let done = done.load(Ordering::Relaxed);
    for lane in lanes {
        lane.await.unwrap();
    }
    done
}

/// Prints one row and returns its cost.
async fn row(folder: &Path, slow: Duration, lanes: usize, length: Duration) -> Cost {
    let name = format!("{}-{lanes}.db", slow.as_millis());
    let options = SqliteOptions {
        commit_delay: slow,
        ..SqliteOptions::default()
    };
    let sqlite = Arc::new(Sqlite::open_with(folder.join(name), options).await.unwrap());
    let commit = lone_commit(&*sqlite).await;
    let asked = Arc::new(AppendCounts::default());
    let host = ours::host(
        ours::model(),
        Arc::new(Counted {
            inner: sqlite.clone(),
            asked: asked.clone(),
        }),
    )
    .await;
    turns_for(&host, lanes, length / 4).await; // one-time costs

    let before = asked.read();
    let stats = sqlite.stats();
    let cost = measure(turns_for(&host, lanes, length)).await;
    let after = asked.read();
    let commits = sqlite.stats().commits - stats.commits;
    let [awaited, others, entries] = [0, 1, 2].map(|at| (after[at] - before[at]) as f64);
    // An import is awaited too, but is not part of a turn.
    let imports = cost.done as f64 / TURNS_EACH as f64;
    let bound = lanes as f64 / (2.0 * GATES * commit.as_secs_f64());
    println!(
        "{:>8} {lanes:>6} {:>9.0} {:>9.0} {:>6.2} {:>9.2} ms {:>11.0} {:>9.1} {:>7.2} {:>7.2} {:>8.1} µs",
        if slow.is_zero() { "as it is" } else { "slowed" },
        cost.rate(),
        bound,
        cost.rate() / bound,
        commit.as_secs_f64() * 1e3,
        commits as f64 / cost.wall.as_secs_f64(),
        entries / commits as f64,
        (awaited - imports) / cost.done as f64,
        others / cost.done as f64,
        cost.cpu_us(),
    );
    host.shutdown(Duration::from_secs(30)).await;
    cost
}

async fn run(folder: &Path, length: Duration) {
    println!("load {} · {length:?} a row", process::load());
    println!(
        "{:>8} {:>6} {:>9} {:>9} {:>6} {:>12} {:>11} {:>9} {:>7} {:>7} {:>11}",
        "disk",
        "lanes",
        "turns/s",
        "bound",
        "part",
        "lone commit",
        "commits/s",
        "entries",
        "awaited",
        "others",
        "CPU"
    );
    for lanes in [64, 256] {
        row(folder, SLOW, lanes, length).await;
    }
    for lanes in [64, 256, 1000] {
        let durable = row(folder, Duration::ZERO, lanes, length).await;
        let host = ours::host(ours::model(), Arc::new(Forgetful)).await;
        let without = measure(turns_for(&host, lanes, length / 4)).await;
        println!(
            "{:>8} {lanes:>6} {:>9.0} {:>9} {:>6.2} times the CPU of a turn without a journal ({:.1} µs)",
            "none",
            without.rate(),
            "",
            durable.cpu_us() / without.cpu_us(),
            without.cpu_us()
        );
    }
}

fn main() {
    let arguments = arguments();
    let length = Duration::from_secs(number("--seconds", 10) as u64);
    let asked = arguments
        .windows(2)
        .find(|pair| pair[0] == "--folder")
        .map(|pair| pair[1].clone());
    // In the build folder, because temporary folders are often in memory.
    let folder =
        tempfile::tempdir_in(asked.as_deref().unwrap_or(env!("CARGO_TARGET_TMPDIR"))).unwrap();
    runtime().block_on(run(folder.path(), length));
}
