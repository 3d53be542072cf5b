//! What does one turn cost, beside the same work written by hand on tokio and reqwest?
//!
//! The reference turn: a 200-byte prompt on a history of 4 × 1 KB that grows; call 1 streams 32 deltas of 4 bytes and one tool
//! call (60 bytes of arguments, checked against its type), the tool returns 200 bytes, call 2 streams 64 deltas. One subscriber
//! reads every event; counting, metrics, admission and the journal (in memory) are on.
//!
//! `cargo bench --bench turn` prints CPU per turn over HTTP at 1, 64 and 1,000 conversations as ratios to the hand-written loop,
//! CPU per turn in process, and resident bytes per idle conversation split into actor and history. The model server is a process
//! of its own, so its work is not counted. `-- --turns N` changes the length, `-- in-process N` runs only N turns in process,
//! for callgrind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "turn/by_hand.rs"]
mod by_hand;
#[path = "turn/forgetful.rs"]
mod forgetful;
#[path = "turn/ours.rs"]
mod ours;
#[path = "support/process.rs"]
mod process;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use callboard::mock_model::{self, MockModelSettings};
use process::{cpu, load, resident};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Turns of one conversation; then a new one takes its place, so that the history stays short.
pub(crate) const TURNS_EACH: usize = 10;

/// The prompt of every turn.
pub(crate) fn prompt() -> String {
    "p".repeat(200)
}

/// The history that every conversation begins with: 4 × 1 KB.
pub(crate) fn history() -> Vec<callboard::chat::Message> {
    use callboard::chat::Message;
    (0..4).map(|n| if n % 2 == 0 { Message::user("u".repeat(1000)) } else { Message::assistant("a".repeat(1000)) }).collect()
}

/// The model of the reference turn, until the process is killed.
async fn serve() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    let settings = MockModelSettings {
        tool_calls: 1,
        tool_chunks: 32,
        tool_input: serde_json::json!({ "argument": "x".repeat(44) }).to_string(),
        ..MockModelSettings::default()
    };
    mock_model::serve(listener, settings, CancellationToken::new()).await.unwrap();
}

struct Server(Child, String);

impl Server {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap()).arg("model-server").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self(child, line.trim().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Microseconds of CPU and of wall time per turn.
struct Cost {
    cpu: f64,
    wall: f64,
}

fn measure(turns: usize, run: impl FnOnce()) -> Cost {
    let (cpu_before, wall_before) = (cpu(), Instant::now());
    run();
    let per_turn = |time: Duration| time.as_secs_f64() * 1e6 / turns as f64;
    Cost { cpu: per_turn(cpu() - cpu_before), wall: per_turn(wall_before.elapsed()) }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.first().map(String::as_str) {
        Some("model-server") => return runtime().block_on(serve()),
        Some("idle") => return runtime().block_on(idle(args.get(1).is_some_and(|form| form == "full"))),
        Some("in-process") => {
            let turns = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(1000);
            runtime().block_on(async { ours::run(ours::in_process().await, 1, turns).await });
            return;
        }
        Some("http-ours" | "http-by-hand") => {
            let turns = args.get(1).and_then(|n| n.parse().ok()).unwrap_or(1000);
            let server = Server::start();
            if args[0] == "http-ours" {
                runtime().block_on(async { ours::run(ours::http(&server.1).await, 1, turns).await });
            } else {
                runtime().block_on(by_hand::run(&server.1, 1, turns));
            }
            return;
        }
        _ => {}
    }
    let turns: usize = args.windows(2).find(|pair| pair[0] == "--turns").and_then(|pair| pair[1].parse().ok()).unwrap_or(4000);
    println!("load {} · {turns} turns a row · best of 3", load());

    println!("\nCPU per turn over HTTP, journal in memory");
    println!("{:>14} {:>12} {:>12} {:>7}", "conversations", "callboard", "by hand", "ratio");
    let server = Server::start();
    for conversations in [1, 64, 1000] {
        let total = (turns / conversations).max(TURNS_EACH) * conversations;
        let best = |run: &dyn Fn()| (0..3).map(|_| measure(total, run)).min_by(|a, b| a.cpu.total_cmp(&b.cpu)).unwrap();
        let hand = best(&|| runtime().block_on(by_hand::run(&server.1, conversations, total)));
        let our = best(&|| {
            runtime().block_on(async { ours::run(ours::http(&server.1).await, conversations, total).await });
        });
        println!(
            "{conversations:>14} {:>9.0} µs {:>9.0} µs {:>7.2}   (wall {:.0} / {:.0} µs)",
            our.cpu,
            hand.cpu,
            our.cpu / hand.cpu,
            our.wall,
            hand.wall
        );
    }
    drop(server);

    println!("\nCPU per turn in process");
    for conversations in [1, 64] {
        let total = (turns * 2 / conversations).max(TURNS_EACH) * conversations;
        let best = (0..3)
            .map(|_| measure(total, || runtime().block_on(async { ours::run(ours::in_process().await, conversations, total).await })))
            .min_by(|a, b| a.cpu.total_cmp(&b.cpu))
            .unwrap();
        println!("{conversations:>14} {:>9.1} µs  = {:.0} turns a CPU-second", best.cpu, 1e6 / best.cpu);
    }

    println!("\nResident bytes of an idle conversation, each form in a process of its own");
    let idle = |form: &str| -> f64 {
        let output = Command::new(std::env::current_exe().unwrap()).args(["idle", form]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<f64>().unwrap() / 1024.0
    };
    let wire = history().iter().map(|m| m.wire().len()).sum::<usize>() as f64 / 1024.0;
    let (bare, full) = (idle("bare"), idle("full"));
    println!("  {bare:.1} KiB after one turn, 1.3 KiB of it wire bytes of the history");
    println!("  {:.1} KiB more with 4 messages of {wire:.1} KiB wire bytes more", full - bare);
}

/// Bytes that each of many idle conversations keeps resident; journal and event ring keep nothing, so that only actor and history
/// are seen.
async fn idle(with_history: bool) {
    const N: usize = 10_000;
    let host = ours::forgetful().await;
    ours::run_on(&host, "warm", 1000, 1, with_history).await; // What is paid once.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = resident();
    ours::run_on(&host, "idle", N, 1, with_history).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(host.awake(), N + 1000);
    println!("{}", (resident() - before) / N);
}
