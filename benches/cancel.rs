//! How long until 1,000 running turns have ended, and until the last process of 1,000 commands is gone?
//!
//! First turns of a model that talks without end, all interrupted in one moment: from each interrupt to its `round_finished`. Beside it
//! as many tasks by hand, each with a token and a channel to its reader. Then turns that each run a command in a process group of its own
//! (sandbox `local`; several spawners, since one runs at most so many commands at once), all interrupted: from the first interrupt until
//! `/proc` holds none of their processes. Beside it a bare loop that kills and waits for as many groups.
//!
//! `cargo bench --bench cancel` prints both, medians of rounds in turns. `-- --rounds N`, `--turns N`, `--groups N`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

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
    ports::{BoxFuture, Capabilities, LlmProvider, ModelRequest, ModelStream, ProviderError},
    stream::{EventKind, StopReason},
    tools::{Mode, with_sandbox},
};
use callboard_actors::{host::TenantConfig, scripted::Reply};
use reference::{
    ours,
    phases::{median, number, percentile, runtime},
    process,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Between two tokens of the model that talks without end.
const PACE: Duration = Duration::from_millis(20);

/// Commands of one spawner; below the bound of those that it runs at once.
const COMMANDS_EACH: usize = 50;

/// A word in the arguments of every process that is to be counted.
const MARK: &str = "bench-of-cancel";

struct Model(Reply);

impl LlmProvider for Model {
    fn name(&self) -> &str {
        "in-process"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        ours::capabilities()
    }

    fn stream(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        self.0.clone().play(&request, cancel)
    }
}

async fn host(reply: Reply) -> Host {
    let builder = ours::builder().provider(Model(reply)).approval(ApprovalMode::Auto);
    builder.build().await.unwrap()
}

/// Times from each interrupt to its end, and from the first interrupt to the last end.
struct Ended {
    each: Vec<Duration>,
    all: Duration,
}

async fn gathered(ends: JoinSet<(usize, Instant)>, asked: &[Instant]) -> Ended {
    let ends = ends.join_all().await;
    let each = ends.iter().map(|(n, end)| end.duration_since(asked[*n])).collect();
    let (first, last) = (asked.iter().min().unwrap(), ends.iter().map(|(_, end)| end).max().unwrap());
    Ended { each, all: *last - *first }
}

/// Starts `count` turns, waits until each has said something, interrupts all.
async fn turns(count: usize) -> Ended {
    let host = host(Reply::text("word".repeat(50_000)).chunk_bytes(4).chunk_delay(PACE)).await;
    let (running, mut ran) = mpsc::channel(count);
    let mut ends = JoinSet::new();
    for n in 0..count {
        let (conversation, running) = (host.tenant("bench").conversation(format!("c-{n}")), running.clone());
        ends.spawn(async move {
            let mut reply = conversation.send(reference::prompt()).await.unwrap();
            let mut talks = false;
            loop {
                match &reply.next().await.unwrap().kind {
                    EventKind::TextDelta { .. } if !talks => {
                        talks = true;
                        running.send((n, conversation.watch(reply.round_id()).unwrap())).await.unwrap();
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

/// As many tasks by hand, each with a token and a channel to its reader.
async fn turns_by_hand(count: usize) -> Ended {
    let (running, mut ran) = mpsc::channel(count);
    let mut ends = JoinSet::new();
    for n in 0..count {
        let (cancel, running) = (CancellationToken::new(), running.clone());
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

/// Processes by id and group whose arguments hold the mark, or that are of such a process's group.
fn marked() -> (BTreeSet<u32>, BTreeSet<u32>) {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ids: Vec<u32> = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let group = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(2)?.parse::<u32>().ok()
    };
    let is_marked = |id: u32| {
        let words = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        id != std::process::id() && String::from_utf8_lossy(&words).contains(MARK)
    };
    let groups: BTreeSet<u32> = ids.iter().filter(|id| is_marked(**id)).filter_map(|id| group(*id)).collect();
    (ids.into_iter().filter(|id| group(*id).is_some_and(|group| groups.contains(&group))).collect(), groups)
}

/// Waits until `count` groups are there and no process is added any more.
async fn settled(count: usize) -> BTreeSet<u32> {
    let began = Instant::now();
    let mut before = BTreeSet::new();
    loop {
        let (processes, groups) = marked();
        if groups.len() == count && processes == before {
            return processes;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{} of {count} groups are there", groups.len());
        before = processes;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Whether a process runs, or is a zombie of ours. An orphan that has ended waits for the machine's first process, which may take its time.
fn is_there(id: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{id}/stat")) else { return false };
    let mut fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let (state, parent) = (fields.next().unwrap(), fields.next().unwrap());
    state != "Z" || parent == std::process::id().to_string()
}

/// Waits until `/proc` holds none of them.
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
    assert!(!marked().0.into_iter().any(is_there), "something was started meanwhile");
    last
}

/// Turns that run a command each, all interrupted. Tells how long the last process stayed, and how many there were.
async fn groups(count: usize) -> (Duration, usize) {
    let folder = tempfile::tempdir().unwrap();
    let host = host(Reply::tool("bash", &serde_json::json!({ "command": format!("sleep 3600; : {MARK}") }))).await;
    let tenants = count.div_ceil(COMMANDS_EACH);
    for tenant in 0..tenants {
        let tools = with_sandbox(folder.path(), Mode::Local).only(|name| name == "bash");
        let config = TenantConfig::new().tools(tools).approval(ApprovalMode::Auto);
        host.configure_tenant(&TenantId::new(format!("t-{tenant}")).unwrap(), config).await.unwrap();
    }
    let mut replies = Vec::new();
    for n in 0..count {
        replies.push(host.tenant(format!("t-{}", n % tenants)).conversation(format!("c-{n}")).send("go").await.unwrap());
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
        assert_eq!(reply.outcome().await.unwrap().stop_reason, StopReason::Interrupted);
    }
    host.shutdown(Duration::from_secs(10)).await;
    (last, there)
}

/// A bare loop that kills and waits.
fn groups_by_hand(count: usize) -> Duration {
    let start = || Command::new("sleep").arg("3600").process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let mut children: Vec<Child> = (0..count).map(|_| start()).collect();
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
    let mut sides = [(Vec::new(), Vec::new(), Vec::new()), (Vec::new(), Vec::new(), Vec::new())];
    for _ in 0..rounds {
        for (at, ended) in [turns(count).await, turns_by_hand(count).await].into_iter().enumerate() {
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

    let (mut ours, mut hand, mut processes) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        let (last, there) = groups(groups_count).await;
        ours.push(ms(last));
        processes = there;
        hand.push(ms(tokio::task::spawn_blocking(move || groups_by_hand(groups_count)).await.unwrap()));
    }
    let (ours, hand) = (median(ours), median(hand));
    println!(
        "{groups_count} process groups ({processes} processes): the last gone after {ours:.1} ms; by hand {hand:.1} ms; ratio {:.2}",
        ours / hand
    );
}

fn main() {
    runtime().block_on(run(number("--rounds", 5), number("--turns", 1000), number("--groups", 1000)));
}
