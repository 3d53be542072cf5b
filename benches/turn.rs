//! Measures one turn beside the same work written by hand on tokio and reqwest, also late in a long
//! conversation.
//!
//! The reference turn of `turn/mod.rs`, with token counting, metrics, admission, budgets and one
//! subscriber. The model server is a separate process, so its work is not counted. Both sides run
//! in alternating phases on one runtime; the median is printed.
//!
//! `cargo bench --bench turn` prints: CPU per turn over HTTP on both wires, journal off and on
//! (SQLite, each commit synced), at 1, 64 and 1,000 conversations, and actor wake-ups; turns 10 and
//! 1,000 of a conversation; CPU per turn in process; resident bytes of an idle conversation. With
//! the journal on, `by hand` writes one too (a thread that groups commits); the last column
//! compares with a baseline without a journal. `-- http`, `-- long`, `-- in-process` and `-- idle`
//! run one part, `--turns N` and `--rounds N` change the length. `-- count N`, `-- count-http WIRE
//! ours|hand N` run only N turns in one conversation after another, for callgrind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

#[path = "turn/mod.rs"]
mod reference;

use std::{process::Command, sync::Arc, time::Duration};

use callboard::{
    Host,
    ports::SessionBackend,
    storage::{Sqlite, SqliteOptions},
};
use reference::{
    TURNS_EACH, Wire,
    by_hand::ByHand,
    forgetful::Forgetful,
    hand_journal::HandJournal,
    model::{self, Server},
    ours,
    phases::{Cost, Side, arguments, measure, number, runtime},
    process,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Both sides on one wire, with and without a journal.
struct Sides {
    ours: [Host; 2],
    hand: [Arc<ByHand>; 2],
}

impl Sides {
    async fn new(folder: &std::path::Path, server: &Server, wire: Wire) -> Self {
        let url = server.url(wire);
        let path = |who: &str| folder.join(format!("{who}-{}.db", wire.name()));
        let sqlite: Arc<dyn SessionBackend> = Arc::new(
            Sqlite::open_with(path("ours"), SqliteOptions::default())
                .await
                .unwrap(),
        );
        let off = ours::host(ours::provider(wire, &url), Arc::new(Forgetful)).await;
        let on = ours::host(ours::provider(wire, &url), sqlite).await;
        let journal = HandJournal::open(&path("hand"));
        Self {
            ours: [off, on],
            hand: [
                ByHand::new(url.clone(), wire, None),
                ByHand::new(url, wire, Some(journal)),
            ],
        }
    }
}

const JOURNAL: [&str; 2] = ["off", "synced"];

/// In the build folder, because temporary folders are often in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

async fn http(turns: usize, rounds: usize) {
    println!("\nCPU per turn over HTTP, median of {rounds}");
    println!(
        "{:>10} {:>8} {:>6} {:>11} {:>11} {:>7} {:>15} {:>22} {:>9}",
        "wire",
        "journal",
        "lanes",
        "callboard",
        "by hand",
        "ratio",
        "beside no rows",
        "wall, ours / by hand",
        "wake-ups"
    );
    let folder = folder();
    let server = Server::start(Duration::ZERO, 1);
    for wire in Wire::BOTH {
        let sides = Sides::new(folder.path(), &server, wire).await;
        for (on, journal) in JOURNAL.into_iter().enumerate() {
            for lanes in [1, 64, 1000] {
                // With one lane on a disk, wall time dominates, so fewer turns suffice.
                let total = if lanes == 1 {
                    turns / 4
                } else {
                    turns.max(lanes * TURNS_EACH)
                };
                let mut ours = Side::default();
                let mut hand = Side::default();
                let mut bare = Side::default();
                let mut wake_ups = 0;
                let mut done = 0;
                for round in 0..=rounds {
                    let before = ours::wake_ups(&sides.ours[on]).await;
                    let cost = measure(ours::run(&sides.ours[on], lanes, TURNS_EACH, total)).await;
                    let woken = ours::wake_ups(&sides.ours[on]).await - before;
                    let by_hand = measure(sides.hand[on].run(lanes, TURNS_EACH, total)).await;
                    let without = if on == 0 {
                        by_hand
                    } else {
                        measure(sides.hand[0].run(lanes, TURNS_EACH, total)).await
                    };
                    if round == 0 {
                        continue; // one-time costs
                    }
                    ours.add(cost);
                    hand.add(by_hand);
                    bare.add(without);
                    (wake_ups, done) = (wake_ups + woken, done + cost.done);
                }
                let ours = ours.median();
                let hand = hand.median();
                let bare = bare.median();
                println!(
                    "{:>10} {journal:>8} {lanes:>6} {:>8.0} µs {:>8.0} µs {:>7.2} {:>15.2} {:>9.0} / {:>7.0} µs {:>9.1}",
                    wire.name(),
                    ours.cpu_us(),
                    hand.cpu_us(),
                    ours.cpu_us() / hand.cpu_us(),
                    ours.cpu_us() / bare.cpu_us(),
                    ours.wall_us(),
                    hand.wall_us(),
                    wake_ups as f64 / done as f64
                );
            }
        }
        asleep(&sides.ours).await;
    }
}

/// Puts idle conversations to sleep, so that their memory does not affect the next rows.
async fn asleep(hosts: &[Host]) {
    for host in hosts {
        host.hibernate_idle();
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
}

async fn long(turns: usize, rounds: usize) {
    println!(
        "\nCPU of a turn late in a conversation, over HTTP, median of {rounds} x {turns} turns"
    );
    println!(
        "{:>10} {:>8} {:>6} {:>11} {:>11} {:>7} {:>15}",
        "wire", "journal", "turn", "callboard", "by hand", "ratio", "beside no rows"
    );
    let folder = folder();
    let server = Server::start(Duration::ZERO, 1);
    for wire in Wire::BOTH {
        let sides = Sides::new(folder.path(), &server, wire).await;
        for (on, journal) in JOURNAL.into_iter().enumerate() {
            for after in [10, 1000] {
                let history = reference::turns_before(after - 1, &reference::result());
                let mut ours = Side::default();
                let mut hand = Side::default();
                let mut bare = Side::default();
                for _ in 0..rounds {
                    let conversation = ours::conversation(&sides.ours[on], history.clone()).await;
                    ours::turn(&conversation).await; // one-time costs of an import
                    ours.add(
                        measure(async {
                            for _ in 0..turns {
                                ours::turn(&conversation).await;
                            }
                            turns
                        })
                        .await,
                    );
                    hand.add(by_hand_after(&sides.hand[on], &history, turns).await);
                    if on == 1 {
                        bare.add(by_hand_after(&sides.hand[0], &history, turns).await);
                    }
                }
                let ours = ours.median().cpu_us();
                let hand = hand.median().cpu_us();
                let bare = if on == 0 {
                    hand
                } else {
                    bare.median().cpu_us()
                };
                println!(
                    "{:>10} {journal:>8} {after:>6} {ours:>8.0} µs {hand:>8.0} µs {:>7.2} {:>15.2}",
                    wire.name(),
                    ours / hand,
                    ours / bare
                );
            }
        }
    }
}

async fn by_hand_after(
    hand: &Arc<ByHand>,
    history: &[callboard::chat::Message],
    turns: usize,
) -> Cost {
    let mut conversation = hand.conversation(history);
    conversation.turn().await;
    measure(async {
        for _ in 0..turns {
            conversation.turn().await;
        }
        turns
    })
    .await
}

async fn in_process(turns: usize, rounds: usize) {
    println!("\nCPU per turn in process, journal in memory, median of {rounds}");
    println!(
        "{:>6} {:>22} {:>10} {:>26} {:>9}",
        "lanes", "turns a conversation", "CPU", "turns a CPU-second", "wake-ups"
    );
    for (lanes, each) in [(1, TURNS_EACH), (64, TURNS_EACH), (64, 1)] {
        let mut side = Side::default();
        let mut wake_ups = 0;
        let mut done = 0;
        for round in 0..=rounds {
            // A new host for each round: a growing journal in memory would slow down later rounds.
            let host = ours::in_process().await;
            let total = if round == 0 { turns / 4 } else { turns * 4 };
            let cost = measure(ours::run(&host, lanes, each, total)).await;
            if round > 0 {
                side.add(cost);
                (wake_ups, done) = (wake_ups + ours::wake_ups(&host).await, done + cost.done);
            }
            host.shutdown(Duration::from_secs(10)).await;
        }
        let (cost, (least, most)) = (side.median(), side.spread());
        println!(
            "{lanes:>6} {each:>22} {:>7.1} µs {:>9.0} ({:.0} to {:.0}) {:>9.1}",
            cost.cpu_us(),
            1e6 / cost.cpu_us(),
            1e6 / most,
            1e6 / least,
            wake_ups as f64 / done as f64
        );
    }
}

/// Resident bytes of each of many idle conversations. Journal and event ring store nothing, so only
/// actor and history are measured.
async fn idle_bytes(with_history: bool) -> usize {
    const N: usize = 10_000;
    let host = ours::forgetful().await;
    ours::idle(&host, 1000, with_history).await; // one-time costs
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = process::resident();
    ours::idle(&host, N, with_history).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(host.awake(), N + 1000);
    (process::resident() - before) / N
}

fn idle() {
    println!("\nResident bytes of an idle conversation, each form in a process of its own");
    let each = |form: &str| -> f64 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["idle-bytes", form])
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse::<f64>()
            .unwrap()
            / 1024.0
    };
    let wire = |messages: &[callboard::chat::Message]| {
        messages.iter().map(|m| m.wire().len()).sum::<usize>() as f64 / 1024.0
    };
    let history = wire(&reference::history());
    let all = wire(&reference::turns_before(1, &reference::result()));
    let bare = each("bare");
    let full = each("full");
    println!(
        "  {bare:.1} KiB after one turn, {:.1} KiB of it wire bytes of the history",
        all - history
    );
    println!(
        "  {:.1} KiB more with 4 messages of {history:.1} KiB wire bytes more",
        full - bare
    );
}

fn main() {
    if model::serve_if_asked() {
        return;
    }
    let arguments = arguments();
    let word = |at: usize| arguments.get(at).map(String::as_str);
    let turns = number("--turns", 4000);
    let rounds = number("--rounds", 5);
    match word(0) {
        Some("idle-bytes") => {
            return println!(
                "{}",
                runtime().block_on(idle_bytes(word(1) == Some("full")))
            );
        }
        Some("count") => {
            let turns = word(1).unwrap().parse().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                ours::run(&ours::in_process().await, 1, TURNS_EACH, turns).await
            });
            return;
        }
        Some("count-http") => {
            let wire = if word(1) == Some("openai") {
                Wire::OpenAi
            } else {
                Wire::Anthropic
            };
            let server = Server::start(Duration::ZERO, 1);
            let turns = word(3).unwrap().parse().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                if word(2) == Some("ours") {
                    let host =
                        ours::host(ours::provider(wire, &server.url(wire)), Arc::new(Forgetful))
                            .await;
                    ours::run(&host, 1, TURNS_EACH, turns).await
                } else {
                    ByHand::new(server.url(wire), wire, None)
                        .run(1, TURNS_EACH, turns)
                        .await
                }
            });
            return;
        }
        _ => {}
    }
    println!("load {} · {turns} turns a phase", process::load());
    let part = word(0).filter(|word| !word.starts_with("--"));
    let wanted = |name: &str| part.is_none_or(|part| part == name);
    let runtime = runtime();
    if wanted("http") {
        runtime.block_on(http(turns, rounds));
    }
    if wanted("long") {
        runtime.block_on(long((turns / 40).max(1), rounds));
    }
    if wanted("in-process") {
        runtime.block_on(in_process(turns, rounds));
    }
    if wanted("idle") {
        idle();
    }
}
