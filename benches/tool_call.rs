//! What is the overhead around a tool call? One call of a tool that does nothing, beside a bare
//! `tokio::spawn` that parses and writes the same JSON; fifty identical calls of an expensive tool
//! beside fifty runs of it; a command in the sandbox.
//!
//! `cargo bench --bench tool_call` prints CPU and wall time per call and their ratios. For
//! instruction counts, which do not drift: `valgrind --tool=callgrind` over `tool_call ours N`,
//! `tool_call lone N` and `tool_call bare N`, the difference between two N.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use callboard::{
    Host,
    chat::RawJson,
    ids::{CallKey, Epoch, Scope, Seq, WorkId},
    ports::{BoxFuture, Progress, Tool, ToolContext, ToolOutput, ToolSpec, TypedTool, erased},
    providers::offline::Offline,
    tool::{OutputLevel, ToolError},
    tool_executor::{
        LoneCall, Run, ToolEnvironment, ToolExecutorArgs, ToolExecutorRef, ToolInvocationRequest,
        ToolReport, call_once,
    },
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const ARGUMENTS: &str = r#"{"path":"src/main.rs","offset":10,"note":"sixty bytes of text"}"#;

#[derive(Deserialize, Serialize, schemars::JsonSchema)]
struct Args {
    path: String,
    offset: u64,
    note: String,
}

/// A tool that parses its arguments and returns 200 bytes.
struct Nothing;

impl TypedTool for Nothing {
    type Args = Args;
    type Output = String;
    const NAME: &'static str = "nothing";
    const DESCRIPTION: &'static str = "Does nothing.";

    async fn call(&self, args: Args, _: ToolContext) -> Result<String, ToolError> {
        Ok("r".repeat(200 - args.note.len()))
    }
}

fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    Duration::from_millis(
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10,
    )
}

struct NoParent;

impl Actor for NoParent {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

fn scope() -> Scope {
    Scope::new("bench".try_into().unwrap(), "bench".try_into().unwrap())
}

fn key(index: u32) -> CallKey {
    CallKey {
        scope: scope(),
        seq: Seq(1),
        index,
    }
}

fn request(tool: &Arc<dyn Tool>, arguments: &str) -> ToolInvocationRequest {
    ToolInvocationRequest::from_spec(
        tool.spec(),
        "call_1",
        RawJson::from_text(arguments).unwrap(),
    )
}

/// Calls through the executor: its mailbox, a task per attempt, time limit, circuit breaker,
/// observation.
async fn ours(calls: u32) {
    let (parent, _) = Actor::spawn(None, NoParent, ()).await.unwrap();
    let (report, mut reported) = mpsc::channel(1);
    let args = ToolExecutorArgs {
        report: Arc::new(move |ended| {
            if let ToolReport::Ended { result, .. } = ended {
                drop(report.try_send(result));
            }
        }),
        progress: Arc::new(|_| Progress::silent()),
        environment: ToolEnvironment::alone(scope()),
        cancel: CancellationToken::new(),
    };
    let executor = ToolExecutorRef::start(args, parent.get_cell()).unwrap();
    let tool = erased(Nothing);
    for index in 0..calls {
        executor.execute(Run {
            work: WorkId {
                epoch: Epoch(1),
                seq: Seq(u64::from(index)),
                index: 0,
            },
            key: key(index),
            tool: tool.clone(),
            request: request(&tool, ARGUMENTS),
            level: OutputLevel::Standard,
            attempt: 0,
            ran_ms: 0,
            waited_ms: std::sync::Arc::default(),
            turn: None,
            siblings: None,
        });
        reported.recv().await.unwrap();
    }
    executor.stop();
    parent.stop(None);
}

/// Calls without the actor.
async fn lone(calls: u32) {
    let tool = erased(Nothing);
    let environment = ToolEnvironment::alone(scope());
    for index in 0..calls {
        let call = LoneCall {
            key: key(index),
            tool: tool.clone(),
            request: request(&tool, ARGUMENTS),
        };
        let result = call_once(
            call,
            environment.clone(),
            CancellationToken::new(),
            Progress::silent(),
        )
        .await;
        assert_eq!(result.observation.len(), 181);
    }
}

/// The baseline without Callboard: a task that parses the arguments and writes a result.
async fn bare(calls: u32) {
    #[derive(Serialize, Deserialize)]
    struct Answer {
        id: String,
        text: String,
    }
    for _ in 0..calls {
        let text = ARGUMENTS.to_owned();
        let written = tokio::spawn(async move {
            let args: Args = serde_json::from_str(&text).unwrap();
            serde_json::to_string(&Answer {
                id: "call_1".to_owned(),
                text: "r".repeat(200 - args.note.len()),
            })
            .unwrap()
        })
        .await
        .unwrap();
        let answer: Answer = serde_json::from_str(&written).unwrap();
        assert_eq!(answer.text.len(), 181);
    }
}

/// A tool that waits 50 ms and computes for 2 ms.
struct Expensive(ToolSpec, AtomicU32);

impl Tool for Expensive {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call(&self, _: RawJson, _: ToolContext) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            self.1.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            Ok("found".into())
        })
    }
}

async fn siblings(shared: bool) -> (u32, Duration, Duration) {
    let spec = ToolSpec::new("expensive", "Searches.", RawJson::empty_object()).read_only();
    let tool = Arc::new(Expensive(
        if shared { spec } else { spec.not_shared() },
        AtomicU32::new(0),
    ));
    let environment = ToolEnvironment::alone(scope());
    let began = Instant::now();
    let spent = cpu();
    let calls = (0..50).map(|index| {
        let call = LoneCall {
            key: key(index),
            tool: tool.clone(),
            request: ToolInvocationRequest::from_spec(
                &tool.0,
                format!("call_{index}"),
                RawJson::from_text(r#"{"query":"same"}"#).unwrap(),
            ),
        };
        tokio::spawn(call_once(
            call,
            environment.clone(),
            CancellationToken::new(),
            Progress::silent(),
        ))
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.unwrap().success());
    }
    (
        tool.1.load(Ordering::Relaxed),
        began.elapsed(),
        cpu() - spent,
    )
}

/// Milliseconds of `true` in the sandbox of this machine, as p50 and p90.
async fn sandboxed() -> Option<(f64, f64)> {
    let folder = tempfile::tempdir().unwrap();
    let tools = callboard::tools::standard(folder.path());
    let bash = tools.get("bash")?.clone();
    let host = Host::builder()
        .provider(Offline)
        .tools(tools)
        .build()
        .await
        .unwrap();
    let mut times = Vec::new();
    for index in 0..60 {
        let call = LoneCall {
            key: key(index),
            tool: bash.clone(),
            request: request(&bash, r#"{"command":"true"}"#),
        };
        let began = Instant::now();
        let result = call_once(
            call,
            host.environment(&scope()),
            CancellationToken::new(),
            Progress::silent(),
        )
        .await;
        assert!(result.success(), "{}", result.observation);
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.drain(..10);
    times.sort_by(f64::total_cmp);
    Some((times[25], times[45]))
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    if let [mode, calls] = arguments.as_slice() {
        let calls = calls.parse().unwrap();
        match mode.as_str() {
            "ours" => runtime.block_on(ours(calls)),
            "lone" => runtime.block_on(lone(calls)),
            "bare" => runtime.block_on(bare(calls)),
            other => panic!("{other} is not ours, lone or bare"),
        }
        return;
    }
    const CALLS: u32 = 100_000;
    let mut costs = Vec::new();
    for (name, mode) in [
        ("bare tokio::spawn and JSON", 0),
        ("call_once", 1),
        ("executor actor", 2),
    ] {
        let spent = cpu();
        let began = Instant::now();
        match mode {
            0 => runtime.block_on(bare(CALLS)),
            1 => runtime.block_on(lone(CALLS)),
            _ => runtime.block_on(ours(CALLS)),
        }
        let us = (cpu() - spent).as_secs_f64() * 1e6 / f64::from(CALLS);
        costs.push(us);
        println!(
            "{name:<28} {us:>7.2} µs CPU  {:>7.2} µs wall  ratio {:.2}",
            began.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS),
            us / costs[0]
        );
    }
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for shared in [false, true] {
        let (runs, wall, spent) = threads.block_on(siblings(shared));
        println!(
            "50 identical calls, shared {shared:<5}: {runs:>2} runs, {wall:>6.1?} wall, {spent:>6.1?} CPU"
        );
    }
    match threads.block_on(sandboxed()) {
        Some((p50, p90)) => {
            println!("a sandboxed `true`            p50 {p50:.1} ms  p90 {p90:.1} ms")
        }
        None => println!("a sandboxed `true`            there is no sandbox here"),
    }
}
