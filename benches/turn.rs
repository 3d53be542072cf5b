//! What does a turn cost, in the ways that hosted models are reached, beside the same work written
//! by hand as well as it can be? And late in a long conversation?
//!
//! The reference turn of `turn/mod.rs`, with token counting, metrics, admission, budgets and one
//! subscriber. The model server is a separate process, so its work is not counted. Both sides run
//! in alternating phases on one runtime; the median is printed.
//!
//! `cargo bench --bench turn` prints: CPU per turn over TLS with HTTP/2 and HTTP/1.1 and over plain
//! HTTP, from a server that writes each event alone and from one that writes an answer at once, on
//! both wires, journal off and on (SQLite, each commit synced), at 1, 64 and 1,000 conversations,
//! and actor wake-ups; turns 10 and 1,000 of a conversation; CPU per turn in process; resident
//! bytes of an idle conversation. With the journal on, `by hand` writes one too (a thread that
//! groups commits); the column `no rows` compares with a baseline without a journal.
//!
//! `-- http`, `-- long`, `-- in-process` and `-- idle` run one part. `--way tls-http2`, `--write
//! event`, `--wire anthropic`, `--journal off` and `--lanes 64` choose rows of the first two.
//! `--turns N` and `--rounds N` change the length. `-- count N`, `-- count-http WIRE ours|hand N`
//! run only N turns on one thread, for callgrind and perf; the latter takes `--way`, `--write`,
//! `--lanes` and `--after N`, the turns before the first.
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
    mock_model::WritePer,
    ports::SessionBackend,
    storage::{Sqlite, SqliteOptions},
};
use reference::{
    TURNS_EACH, Wire,
    by_hand::ByHand,
    forgetful::Forgetful,
    hand_journal::HandJournal,
    model::{self, Model, Server, Way, write_name},
    ours,
    phases::{Cost, Side, arguments, is_wanted, measure, number, runtime, word_after},
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
        let path = |who: &str| folder.join(format!("{who}-{}.db", wire.name()));
        let sqlite: Arc<dyn SessionBackend> = Arc::new(
            Sqlite::open_with(path("ours"), SqliteOptions::default())
                .await
                .unwrap(),
        );
        let off = ours::host(ours::provider(wire, server), Arc::new(Forgetful)).await;
        let on = ours::host(ours::provider(wire, server), sqlite).await;
        let journal = HandJournal::open(&path("hand"));
        Self {
            ours: [off, on],
            hand: [
                ByHand::new(server, wire, LANES_MAX, None),
                ByHand::new(server, wire, LANES_MAX, Some(journal)),
            ],
        }
    }
}

const JOURNAL: [&str; 2] = ["off", "synced"];

const LANES_MAX: usize = 1000;

/// In the build folder, because temporary folders are often in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The servers of the rows that are wanted: each way, and each way to write.
fn servers() -> impl Iterator<Item = Model> {
    let all = Way::ALL
        .into_iter()
        .flat_map(|way| [WritePer::Event, WritePer::Answer].map(|write_per| (way, write_per)));
    all.filter(|(way, write_per)| {
        is_wanted("--way", way.name()) && is_wanted("--write", write_name(*write_per))
    })
    .map(|(way, write_per)| Model {
        way,
        write_per,
        tool_calls: 1,
        ..Model::default()
    })
}

fn wires() -> impl Iterator<Item = Wire> {
    Wire::BOTH
        .into_iter()
        .filter(|wire| is_wanted("--wire", wire.name()))
}

fn journals() -> impl Iterator<Item = (usize, &'static str)> {
    JOURNAL
        .into_iter()
        .enumerate()
        .filter(|(_, journal)| is_wanted("--journal", journal))
}

async fn http(turns: usize, rounds: usize) {
    println!("\nCPU per turn over HTTP, median of {rounds}");
    println!(
        "{:>10} {:>7} {:>10} {:>8} {:>6} {:>11} {:>11} {:>6} {:>8} {:>22} {:>9}",
        "way",
        "write",
        "wire",
        "journal",
        "lanes",
        "callboard",
        "by hand",
        "ratio",
        "no rows",
        "wall, ours / by hand",
        "wake-ups"
    );
    for model in servers() {
        let server = Server::start(model);
        let folder = folder();
        for wire in wires() {
            let sides = Sides::new(folder.path(), &server, wire).await;
            for (on, journal) in journals() {
                for lanes in [1, 64, LANES_MAX] {
                    if is_wanted("--lanes", &lanes.to_string()) {
                        print!(
                            "{:>10} {:>7} {:>10} {journal:>8} {lanes:>6}",
                            model.way.name(),
                            write_name(model.write_per),
                            wire.name()
                        );
                        http_row(&sides, on, lanes, turns, rounds).await;
                    }
                }
            }
            asleep(&sides.ours).await;
        }
    }
}

async fn http_row(sides: &Sides, on: usize, lanes: usize, turns: usize, rounds: usize) {
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
        " {:>8.0} µs {:>8.0} µs {:>6.2} {:>8.2} {:>9.0} / {:>7.0} µs {:>9.1}",
        ours.cpu_us(),
        hand.cpu_us(),
        ours.cpu_us() / hand.cpu_us(),
        ours.cpu_us() / bare.cpu_us(),
        ours.wall_us(),
        hand.wall_us(),
        wake_ups as f64 / done as f64
    );
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
        "\nCPU of a turn (two calls) late in a conversation, over HTTP, median of {rounds} x {turns} turns"
    );
    println!(
        "{:>10} {:>7} {:>10} {:>8} {:>6} {:>9} {:>11} {:>11} {:>6} {:>8}",
        "way",
        "write",
        "wire",
        "journal",
        "turn",
        "request",
        "callboard",
        "by hand",
        "ratio",
        "no rows"
    );
    for model in servers() {
        let server = Server::start(model);
        let folder = folder();
        for wire in wires() {
            let sides = Sides::new(folder.path(), &server, wire).await;
            for (on, journal) in journals() {
                for after in [10, 1000] {
                    print!(
                        "{:>10} {:>7} {:>10} {journal:>8} {after:>6}",
                        model.way.name(),
                        write_name(model.write_per),
                        wire.name()
                    );
                    long_row(&sides, on, after, turns, rounds).await;
                }
            }
        }
    }
}

async fn long_row(sides: &Sides, on: usize, after: usize, turns: usize, rounds: usize) {
    let history = reference::turns_before(after - 1, &reference::result());
    let bytes: usize = history.iter().map(|message| message.wire().len()).sum();
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
        " {:>6} KB {ours:>8.0} µs {hand:>8.0} µs {:>6.2} {:>8.2}",
        bytes / 1000,
        ours / hand,
        ours / bare
    );
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

/// Resident bytes of each of many idle conversations with `earlier` messages before their one turn.
/// Journal and event ring store nothing, so only actor and history are measured.
async fn idle_bytes(earlier: usize) -> usize {
    const N: usize = 10_000;
    let host = ours::forgetful().await;
    ours::idle(&host, 1000, &before_idle(earlier)).await; // one-time costs
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = process::resident();
    ours::idle(&host, N, &before_idle(earlier)).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(host.awake(), N + 1000);
    (process::resident() - before) / N
}

/// A turn has four messages.
const TURN_MESSAGES: usize = 4;

/// Messages as long as those of the reference turn: whole turns, and two more messages of one
/// without a tool.
fn before_idle(count: usize) -> Vec<callboard::chat::Message> {
    let first = reference::history().len();
    let turns = reference::turns_before(count / TURN_MESSAGES, &reference::result());
    let rest = [
        callboard::chat::Message::user(reference::prompt()),
        callboard::chat::Message::assistant("word".repeat(64)),
    ];
    turns
        .into_iter()
        .skip(first)
        .chain(rest.into_iter().take(count % TURN_MESSAGES))
        .collect()
}

fn idle() {
    println!("\nResident bytes of an idle conversation, each row in a process of its own");
    for messages in [4, 10, 40] {
        let earlier = messages - TURN_MESSAGES;
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["idle-bytes", &earlier.to_string()])
            .output()
            .unwrap();
        let bytes: f64 = String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let wire: usize = before_idle(messages).iter().map(|m| m.wire().len()).sum();
        println!(
            "  {messages:>3} messages {:>6.1} KiB, {:>5.1} KiB of it their JSON",
            bytes / 1024.0,
            wire as f64 / 1024.0
        );
    }
}

/// Runs the turns of one side.
async fn count_http(wire: &str, is_ours: bool, turns: usize) {
    let wire = if wire == "openai" {
        Wire::OpenAi
    } else {
        Wire::Anthropic
    };
    let server = Server::start(Model {
        way: word_after("--way").map_or(Way::TlsHttp2, |way| Way::of(&way)),
        write_per: model::wanted_write(),
        tool_calls: 1,
        ..Model::default()
    });
    let lanes = number("--lanes", 1);
    let after = number("--after", 0);
    let history = reference::turns_before(after, &reference::result());
    if is_ours {
        let host = ours::host(ours::provider(wire, &server), Arc::new(Forgetful)).await;
        if after == 0 {
            ours::run(&host, lanes, TURNS_EACH, turns).await;
        } else {
            let conversation = ours::conversation(&host, history).await;
            for _ in 0..turns {
                ours::turn(&conversation).await;
            }
        }
    } else {
        let hand = ByHand::new(&server, wire, lanes, None);
        if after == 0 {
            hand.run(lanes, TURNS_EACH, turns).await;
        } else {
            let mut conversation = hand.conversation(&history);
            for _ in 0..turns {
                conversation.turn().await;
            }
        }
    }
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
            let earlier = word(1).unwrap().parse().unwrap();
            return println!("{}", runtime().block_on(idle_bytes(earlier)));
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
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            return runtime.block_on(count_http(
                word(1).unwrap(),
                word(2) == Some("ours"),
                word(3).unwrap().parse().unwrap(),
            ));
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
