//! How long does it take to end 1,000 running turns, and the processes of 1,000 commands?
//!
//! First, turns of a model that streams without end are all interrupted at once: time from each
//! interrupt to its `round_finished`. Baseline: as many hand-written tasks, each with a token and a
//! channel to its reader. Then turns that each run a command, behind a kernel boundary and in a
//! bare process group (sandbox `local`), are all interrupted: time from the first interrupt until
//! `/proc` lists none of their processes. One spawner runs all commands if this process may open
//! enough files. Baseline: a loop that kills and reaps as many groups.
//!
//! `cargo bench --bench cancel` prints both, medians of alternating rounds. `-- --rounds N`,
//! `--turns N`, `--groups N`.
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
    collections::BTreeSet,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use callboard::{
    ApprovalMode, Host,
    ids::TenantId,
    stream::{EventKind, StopReason},
    tools::{Mode, with_sandbox},
};
use callboard_actors::{host::TenantConfig, scripted::Reply};
use reference::{
    ours,
    phases::{median, number, percentile, runtime},
    process, scripted,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Time between two tokens of the endless model.
const PACE: Duration = Duration::from_millis(20);

/// A word in the arguments of the counted processes, and the command that each turn runs.
const MARK: &str = "bench-of-cancel";
const SLEEP: &str = "86399";

async fn host(reply: Reply) -> Host {
    let builder = ours::builder()
        .provider(scripted::always(reply))
        .approval(ApprovalMode::Auto);
    builder.build().await.unwrap()
}

/// Times from each interrupt to the end of its turn, and from the first interrupt to the last end.
struct Ended {
    each: Vec<Duration>,
    all: Duration,
}

async fn gathered(ends: JoinSet<(usize, Instant)>, asked: &[Instant]) -> Ended {
    let ends = ends.join_all().await;
    let each = ends
        .iter()
        .map(|(n, end)| end.duration_since(asked[*n]))
        .collect();
    let first = asked.iter().min().unwrap();
    let last = ends.iter().map(|(_, end)| end).max().unwrap();
    Ended {
        each,
        all: *last - *first,
    }
}

/// Starts `count` turns, waits for text from each, and interrupts all.
async fn turns(count: usize) -> Ended {
    let host = host(
        Reply::text("word".repeat(50_000))
            .chunk_bytes(4)
            .chunk_delay(PACE),
    )
    .await;
    let (running, mut ran) = mpsc::channel(count);
    let mut ends = JoinSet::new();
    for n in 0..count {
        let conversation = host.tenant("bench").conversation(format!("c-{n}"));
        let running = running.clone();
        ends.spawn(async move {
            let mut reply = conversation.send(reference::prompt()).await.unwrap();
            let mut talks = false;
            loop {
                match &reply.next().await.unwrap().kind {
                    EventKind::TextDelta { .. } if !talks => {
                        talks = true;
                        running
                            .send((n, conversation.watch(reply.round_id()).unwrap()))
                            .await
                            .unwrap();
                    }
                    EventKind::RoundFinished { end } => {
                        assert_eq!(end.stop_reason, StopReason::Interrupted);
                        return (n, Instant::now());
                    }
                    _ => {}
                }
            }
        });
    }
    let mut rounds = Vec::new();
    while rounds.len() < count {
        rounds.push(ran.recv().await.unwrap());
    }
    let mut asked = vec![Instant::now(); count];
    for (n, round) in &rounds {
        asked[*n] = Instant::now();
        round.interrupt();
    }
    let ended = gathered(ends, &asked).await;
    host.shutdown(Duration::from_secs(10)).await;
    ended
}

/// The baseline: hand-written tasks, each with a token and a channel to its reader.
async fn turns_by_hand(count: usize) -> Ended {
    let (running, mut ran) = mpsc::channel(count);
    let mut ends = JoinSet::new();
    for n in 0..count {
        let cancel = CancellationToken::new();
        let running = running.clone();
        let (events, mut subscriber) = mpsc::channel::<String>(64);
        let talking = cancel.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = talking.cancelled() => return,
                    () = tokio::time::sleep(PACE) => events.send("word".to_owned()).await.unwrap(),
                }
            }
        });
        ends.spawn(async move {
            subscriber.recv().await.unwrap();
            running.send((n, cancel)).await.unwrap();
            while subscriber.recv().await.is_some() {}
            (n, Instant::now())
        });
    }
    let mut tokens = Vec::new();
    while tokens.len() < count {
        tokens.push(ran.recv().await.unwrap());
    }
    let mut asked = vec![Instant::now(); count];
    for (n, token) in tokens {
        asked[n] = Instant::now();
        token.cancel();
    }
    gathered(ends, &asked).await
}

/// The processes in all groups of the commands, and how many commands have reached their `sleep`.
fn marked() -> (BTreeSet<u32>, usize) {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ids: Vec<u32> = all
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let group = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit(')')
            .next()?
            .split_whitespace()
            .nth(2)?
            .parse::<u32>()
            .ok()
    };
    let mut groups = BTreeSet::new();
    let mut sleeping = 0;
    for id in ids.iter().filter(|id| **id != std::process::id()) {
        let words = String::from_utf8_lossy(
            &std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default(),
        )
        .into_owned();
        let sleeps = words == format!("sleep\0{SLEEP}\0");
        sleeping += usize::from(sleeps);
        if sleeps || words.contains(MARK) {
            groups.extend(group(*id));
        }
    }
    (
        ids.into_iter()
            .filter(|id| group(*id).is_some_and(|group| groups.contains(&group)))
            .collect(),
        sleeping,
    )
}

/// Waits until `count` commands sleep and the number of processes is stable.
async fn settled(count: usize) -> BTreeSet<u32> {
    let began = Instant::now();
    let mut before = BTreeSet::new();
    loop {
        let (processes, sleeping) = marked();
        if sleeping == count && processes == before {
            return processes;
        }
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "{sleeping} of {count} commands run"
        );
        before = processes;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Whether a process runs or is a zombie of this process. An orphan that has ended waits for the
/// system's init, which may be slow.
fn is_there(id: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{id}/stat")) else {
        return false;
    };
    let mut fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let state = fields.next().unwrap();
    let parent = fields.next().unwrap();
    state != "Z" || parent == std::process::id().to_string()
}

/// Waits until `/proc` lists none of the processes.
fn gone(processes: &BTreeSet<u32>) -> Instant {
    let mut left: Vec<u32> = processes.iter().copied().collect();
    while let Some(id) = left.last() {
        if is_there(*id) {
            std::thread::sleep(Duration::from_micros(500));
        } else {
            left.pop();
        }
    }
    let last = Instant::now();
    assert!(
        !marked().0.into_iter().any(is_there),
        "something was started meanwhile"
    );
    last
}

/// Interrupts turns that each run a command. Returns how long the last process remained, and how
/// many processes there were; `None` if the sandbox is unavailable.
async fn groups(count: usize, mode: Mode) -> Option<(Duration, usize)> {
    let folder = tempfile::tempdir().unwrap();
    let host = host(Reply::tool(
        "bash",
        &serde_json::json!({ "command": format!("sleep {SLEEP}; : {MARK}") }),
    ))
    .await;
    let tools = with_sandbox(folder.path(), mode).only(|name| name == "bash");
    tools.get("bash")?;
    let config = TenantConfig::new()
        .tools(tools)
        .approval(ApprovalMode::Auto);
    host.configure_tenant(&TenantId::new("bench").unwrap(), config)
        .await
        .unwrap();
    let mut replies = Vec::new();
    for n in 0..count {
        replies.push(
            host.tenant("bench")
                .conversation(format!("c-{n}"))
                .send("go")
                .await
                .unwrap(),
        );
    }
    let processes = settled(count).await;
    let there = processes.len();
    let watching = tokio::task::spawn_blocking(move || gone(&processes));
    let began = Instant::now();
    for reply in &replies {
        reply.interrupt();
    }
    let last = watching.await.unwrap() - began;
    for mut reply in replies {
        assert_eq!(
            reply.outcome().await.unwrap().stop_reason,
            StopReason::Interrupted
        );
    }
    host.shutdown(Duration::from_secs(10)).await;
    Some((last, there))
}

/// The baseline: a loop that kills and reaps groups. Each group is one process, or a shell and its
/// command, as in the sandbox.
fn groups_by_hand(count: usize, shell: bool) -> Duration {
    let (program, arguments) = if shell {
        ("bash", ["--norc", "-c", "sleep 3600; :"].as_slice())
    } else {
        ("sleep", ["3600"].as_slice())
    };
    let start = || {
        Command::new(program)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = (0..count).map(|_| start()).collect();
    let below = |child: &Child| {
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))
            .unwrap_or_default()
    };
    while shell && children.iter().any(|child| below(child).is_empty()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let began = Instant::now();
    for child in &children {
        kill_process_group(Pid::from_child(child), Signal::KILL).unwrap();
    }
    for child in &mut children {
        child.wait().unwrap();
    }
    began.elapsed()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

async fn run(rounds: usize, count: usize, groups_count: usize) {
    println!("load {} · median of {rounds}", process::load());
    let mut sides = [
        (Vec::new(), Vec::new(), Vec::new()),
        (Vec::new(), Vec::new(), Vec::new()),
    ];
    for _ in 0..rounds {
        for (at, ended) in [turns(count).await, turns_by_hand(count).await]
            .into_iter()
            .enumerate()
        {
            sides[at].0.push(ms(percentile(ended.each.clone(), 0.5)));
            sides[at].1.push(ms(percentile(ended.each, 0.99)));
            sides[at].2.push(ms(ended.all));
        }
    }
    for (name, (half, most, all)) in ["callboard", "by hand"].into_iter().zip(sides) {
        println!(
            "{count} turns, {name:>10}: p50 {:>6.1} ms, p99 {:>6.1} ms from an interrupt to round_finished; the last {:>6.1} ms after the first interrupt",
            median(half),
            median(most),
            median(all)
        );
    }

    let mut alone = Vec::new();
    let mut hand = Vec::new();
    for _ in 0..rounds {
        alone.push(ms(tokio::task::spawn_blocking(move || {
            groups_by_hand(groups_count, false)
        })
        .await
        .unwrap()));
        hand.push(ms(tokio::task::spawn_blocking(move || {
            groups_by_hand(groups_count, true)
        })
        .await
        .unwrap()));
    }
    let alone = median(alone);
    let hand = median(hand);
    println!(
        "{groups_count} groups by hand: {alone:.1} ms of one process each, {hand:.1} ms of a shell and its command"
    );
    for (name, mode) in [
        ("in the kernel's boundary", Mode::Linux),
        ("in a bare group", Mode::Local),
    ] {
        let mut ours = Vec::new();
        let mut processes = 0;
        for _ in 0..rounds {
            let Some((last, there)) = groups(groups_count, mode).await else {
                break;
            };
            ours.push(ms(last));
            processes = there;
        }
        if ours.is_empty() {
            println!("{groups_count} commands {name}: there is none here");
            continue;
        }
        let ours = median(ours);
        println!(
            "{groups_count} commands {name}, {processes} processes: the last gone after {ours:.1} ms; by hand {hand:.1} ms; ratio {:.2}",
            ours / hand
        );
    }
}

/// Raises the limit of open files, which bounds how many commands the spawner runs.
fn open_files() {
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: most,
        },
    )
    .unwrap();
}

fn main() {
    open_files();
    runtime().block_on(run(
        number("--rounds", 5),
        number("--turns", 1000),
        number("--groups", 1000),
    ));
}
