//! What does a conversation cost while it runs, idles and sleeps, and do other conversations notice?
//!
//! 100,000 conversations have one turn each (`--turns N`) and are left idle, then put to sleep. Their
//! journal is a SQLite file, and the model answers in process. Meanwhile 1,000 turns per second go through 256
//! other conversations, and each must succeed. Before that, conversations are created and put to
//! sleep 10,000 at a time (1,000,000 in total in the long form, `CALLBOARD_LONG=1`), to measure
//! what a sleeping one leaves resident.
//!
//! `cargo bench --bench idle` prints resident bytes per conversation in each state, and the latency
//! of the turns meanwhile. Event rings of finished rounds age after one second here instead of a
//! minute, so that they are not measured.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "support/process.rs"]
mod process;
#[path = "support/scripted.rs"]
mod scripted;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use callboard::{
    clock::{SystemClock, SystemEntropy},
    storage::{CommitMode, Sqlite, SqliteOptions},
};
use callboard_actors::{Host, HostBuilder, limits::Limits};
use process::resident;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Turns per second beside the measurement, and the conversations that share them.
const BESIDE: usize = 1000;
const BESIDE_CONVERSATIONS: usize = 256;

/// Conversations that are created concurrently.
const LANES: usize = 128;

async fn host(folder: &std::path::Path) -> Host {
    let options = SqliteOptions {
        durability: CommitMode::Batched,
        ..SqliteOptions::default()
    };
    let sessions = Sqlite::open_with(folder.join("idle.db"), options)
        .await
        .unwrap();
    let limits = Limits {
        ring_age: Duration::from_secs(1),
        // They stay awake until the bench puts them to sleep.
        idle: Duration::from_secs(24 * 3600),
        idle_conversations_max: usize::MAX,
        ..Limits::default()
    };
    let builder = HostBuilder::new(SystemClock, SystemEntropy, |host| host);
    builder
        .provider(scripted::brief())
        .sessions(sessions)
        .limits(limits)
        .build()
        .await
        .unwrap()
}

async fn turn(host: &Host, tenant: &str, conversation: String) -> bool {
    let Ok(mut reply) = host
        .tenant(tenant)
        .conversation(conversation)
        .send("p".repeat(200))
        .await
    else {
        return false;
    };
    reply.outcome().await.is_ok()
}

/// Runs `turns` turns in each of the conversations `from..to`.
async fn make(host: &Host, from: usize, to: usize, turns: usize) {
    let next = Arc::new(AtomicUsize::new(from));
    let lanes = (0..LANES).map(|_| {
        let host = host.clone();
        let next = next.clone();
        tokio::spawn(async move {
            loop {
                let nth = next.fetch_add(1, Ordering::Relaxed);
                if nth >= to {
                    return;
                }
                for _ in 0..turns {
                    assert!(
                        turn(&host, &format!("t-{}", nth % 100), format!("c-{nth}")).await,
                        "the turn of conversation {nth} failed"
                    );
                }
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
}

/// Turns at a fixed rate that run beside the measurement (open loop).
struct Beside {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<(Duration, bool)>>,
}

impl Beside {
    fn start(host: &Host) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let host = host.clone();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let began = Instant::now();
            let mut turns = Vec::new();
            for nth in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let due = began + Duration::from_micros(1_000_000 / BESIDE as u64 * nth);
                tokio::time::sleep_until(due.into()).await;
                let host = host.clone();
                turns.push(tokio::spawn(async move {
                    // A long history would grow memory, so each conversation is replaced after some
                    // turns.
                    let name = format!(
                        "beside-{}-{}",
                        nth as usize % BESIDE_CONVERSATIONS,
                        nth as usize / (BESIDE_CONVERSATIONS * 20)
                    );
                    let well = turn(&host, "beside", name).await;
                    (due.elapsed(), well)
                }));
            }
            let mut done = Vec::new();
            for turn in turns {
                done.push(turn.await.unwrap());
            }
            done
        });
        Self { stop, task }
    }

    async fn report(self, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let mut done = self.task.await.unwrap();
        let failed = done.iter().filter(|(_, well)| !well).count();
        done.sort_unstable();
        let at = |part: usize| done[(done.len() * part / 1000).min(done.len() - 1)].0;
        println!(
            "{what:>34}  {} turns at {BESIDE}/s, {failed} failed, p50 {:.1?}, p99 {:.1?}, p99.9 {:.1?}",
            done.len(),
            at(500),
            at(990),
            at(999)
        );
    }
}

/// Waits until allocator, rings and store have settled, then returns the resident bytes.
async fn settled() -> usize {
    tokio::time::sleep(Duration::from_secs(3)).await;
    resident()
}

async fn asleep(host: &Host) {
    while host.awake() > 0 {
        host.hibernate_idle();
        let asked = Instant::now();
        while host.awake() > 0 && asked.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run());
}

async fn run() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let idle: usize = args.first().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let turns = args
        .iter()
        .position(|word| word == "--turns")
        .and_then(|at| args.get(at + 1)?.parse().ok())
        .unwrap_or(1);
    let known = if std::env::var_os("CALLBOARD_LONG").is_some() {
        10 * idle
    } else {
        idle
    };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    println!("load {}", process::load());

    let host = host(folder.path()).await;
    make(&host, 0, 2000, turns).await; // one-time costs
    asleep(&host).await;
    let before = settled().await;
    println!(
        "{:>34}  {:.1} MiB resident",
        "before",
        before as f64 / 1048576.0
    );

    // Measured first: memory that the allocator keeps from a large load would hide a small slope.
    for from in (2000..2000 + known).step_by(10_000) {
        make(&host, from, (from + 10_000).min(2000 + known), turns).await;
        asleep(&host).await;
    }
    let all = settled().await;
    println!(
        "{:>34}  {:.0} bytes each",
        format!("{known} known and asleep"),
        (all as f64 - before as f64) / known as f64
    );
    let before = all;

    let first = 2000 + known;
    let began = Instant::now();
    let cpu = process::cpu();
    make(&host, first, first + idle, turns).await;
    println!(
        "{:>34}  {:.0} conversations made a second, {:.0} µs of CPU each",
        "alone",
        idle as f64 / began.elapsed().as_secs_f64(),
        (process::cpu() - cpu).as_secs_f64() * 1e6 / idle as f64
    );
    let awake = settled().await;
    println!(
        "{:>34}  {} bytes each",
        format!("{} idle after {turns} turns", host.awake()),
        (awake - before) / idle
    );

    let beside = Beside::start(&host);
    tokio::time::sleep(Duration::from_secs(10)).await;
    beside.report("beside the idle ones").await;

    let beside = Beside::start(&host);
    let began = Instant::now();
    let mut asked = None::<Instant>;
    while host.awake() > BESIDE_CONVERSATIONS * 2 {
        // Conversations that were busy at the last request are idle by now.
        if asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(2)) {
            host.hibernate_idle();
            asked = Some(Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{:>34}  {:.1?}", "until they slept", began.elapsed());
    beside.report("while they went to sleep").await;
    asleep(&host).await;
    let sleeping = settled().await;
    println!(
        "{:>34}  {:.0} bytes each",
        format!("{idle} asleep"),
        (sleeping as f64 - before as f64) / idle as f64
    );

    let beside = Beside::start(&host);
    let began = Instant::now();
    make(&host, first, first + 20_000.min(idle), 1).await;
    println!(
        "{:>34}  {:.0} a second",
        "woken for a turn",
        20_000.min(idle) as f64 / began.elapsed().as_secs_f64()
    );
    beside.report("while they woke").await;
    asleep(&host).await;
}
