//! Does a turn cost more when its conversation is long? How long does it take to make a full window fit?
//!
//! Turns 10, 100, 1,000 and 10,000 of one conversation in process: an instant model, a journal that keeps nothing, a window so large
//! that nothing is compacted. What grows may only be the bytes on a wire, of which there are none here. Then the ladder over a history
//! of 200,000 tokens: counted for the first time, and with the counts it keeps. All off the actor.
//!
//! `cargo bench --bench context` prints CPU per turn and milliseconds. `-- turns N T` runs only T turns after N, for callgrind: the
//! difference of two lengths divided by their distance is a turn.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "turn/forgetful.rs"]
mod forgetful;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use callboard::{
    chat::{ContentBlock, History, Message, RawJson, Role, ToolResultBlock, ToolResultContent, ToolUseBlock},
    clock::{SystemClock, SystemEntropy},
    ports::{
        BoxFuture, Capabilities, LlmProvider, ModelRequest, ModelStream, ProviderError, ToolContext, ToolError, ToolSpec, TypedTool, Usage,
        erased,
    },
    storage::MemoryEvents,
};
use callboard_actors::{
    Host, HostBuilder,
    compactor::{CompactionSettings, Fixed, Problem, Verdict, Window, plan},
    scripted::Reply,
    tokens::TokenCounter,
};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Instantly;

impl LlmProvider for Instantly {
    fn name(&self) -> &str {
        "instant"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities {
            context_window: u32::MAX,
            output_max: 8192,
            tools: true,
            output_schema: false,
            counts_tokens: false,
            images: false,
            documents: false,
        }
    }

    fn stream(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let answers_tool = request.messages.last().is_some_and(|message| !message.tool_result_ids().is_empty());
        let reply = if answers_tool {
            Reply::text("word".repeat(64)).chunks(64)
        } else {
            Reply::text("word".repeat(32)).chunks(32).and_tool("no_op", &serde_json::json!({ "argument": "x".repeat(44) }))
        };
        reply.usage(Usage { input_uncached: 1200, output: 70, ..Usage::default() }).play(&request, cancel)
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Args {
    /// Some text.
    #[allow(dead_code, reason = "parsing it is the check")]
    argument: String,
}

struct NoOp;

impl TypedTool for NoOp {
    type Args = Args;
    type Output = String;
    const NAME: &'static str = "no_op";
    const DESCRIPTION: &'static str = "Does nothing.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
    }

    async fn call(&self, _: Args, _: ToolContext) -> Result<String, ToolError> {
        Ok("r".repeat(200))
    }
}

/// What `turns` turns leave behind.
fn history(turns: usize, text: &str) -> Vec<Message> {
    let mut messages = Vec::with_capacity(turns * 4);
    for turn in 0..turns {
        let id = format!("call_{turn}");
        let input = RawJson::from_text(format!(r#"{{"argument":"{}"}}"#, "x".repeat(44))).unwrap();
        let call = ContentBlock::ToolUse(ToolUseBlock { id: id.clone(), name: "no_op".into(), input });
        let result = ToolResultBlock { tool_use_id: id, content: ToolResultContent::Text(text.to_owned()), is_error: false };
        messages.push(Message::user(format!("{turn} {}", "p".repeat(196))));
        messages.push(Message::new(Role::Assistant, &[ContentBlock::text("word".repeat(32)), call]).unwrap());
        messages.push(Message::tool_results([result], []));
        messages.push(Message::assistant("word".repeat(64)));
    }
    messages
}

/// Time that the threads of this process spent on a processor.
fn cpu() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let ns = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    Duration::from_nanos(ns.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum())
}

async fn host() -> Host {
    let builder = HostBuilder::new(SystemClock, SystemEntropy, |host| host).model("m").tools([erased(NoOp)]);
    let events = MemoryEvents::new(64 * 1024, Duration::from_millis(300));
    builder.provider(Instantly).sessions(forgetful::Forgetful).events(events).build().await.unwrap()
}

async fn turns(host: &Host, after: usize, turns: usize) -> Duration {
    let conversation = host.tenant("bench").conversation(format!("c-{after}"));
    conversation.import(history(after, &"r".repeat(200))).await.unwrap();
    let before = cpu();
    for _ in 0..turns {
        let mut reply = conversation.send("p".repeat(200)).await.unwrap();
        while reply.next().await.is_some() {}
        assert_eq!(reply.outcome().await.unwrap().text.len(), 256);
    }
    cpu() - before
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let number = |at: usize| args.get(at).and_then(|n| n.parse().ok()).unwrap_or(10);
    if args.first().is_some_and(|arg| arg == "turns") {
        runtime.block_on(async { turns(&host().await, number(1), number(2)).await });
        return;
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!("load {}", load.split_whitespace().next().unwrap());

    println!("\nCPU per turn in process, best of 5 of 100 turns");
    let mut first = None;
    for after in [10, 100, 1000, 10_000] {
        let best = (0..5).map(|_| runtime.block_on(async { turns(&host().await, after, 100).await })).min().unwrap();
        let each = best.as_secs_f64() * 1e6 / 100.0;
        println!("{after:>8} {each:>8.1} µs  {:.2}x", each / *first.get_or_insert(each));
    }

    println!("\nA history of 200,000 tokens made to fit, off the actor");
    let counter = Arc::new(TokenCounter::default());
    counter.count_text("gpt-4o", "warm");
    let messages = history(330, &"The retry delay is computed in one place, and its cap is ten seconds. ".repeat(30));
    let (history, _) = History::repair(messages);
    let starts: Vec<usize> = (0..history.messages().len()).step_by(4).collect();
    let begun = Instant::now();
    let tokens: u64 = history.messages().iter().map(|message| counter.count_message("gpt-4o", message)).sum();
    let counting = begun.elapsed();
    let settings = CompactionSettings::default();
    let problem = Problem {
        history: &history,
        round_starts: &starts,
        fixed: Fixed { system: 1000, tools: 1000, pinned: 0 },
        window: Window { tokens: 200_000, max_tokens: 8192 },
        settings: &settings,
        pinned: &[],
        skill_activations: 0,
        count: &|message| counter.count_message("gpt-4o", message),
        summary: &|_| None,
        may_summarize: None,
        seq_label: "1",
        force: false,
    };
    let best = (0..5).map(|_| {
        let begun = Instant::now();
        let Verdict::Compacted(plan) = plan(&problem) else { panic!("there is something to do") };
        (begun.elapsed(), plan.after_tokens)
    });
    let (extract, after) = best.min().unwrap();
    println!(
        "{:>8} messages, {tokens} tokens: counted once in {counting:.1?}, planned in {extract:.1?}, {after} tokens after",
        history.messages().len()
    );
    println!("together {:.1?}; at most 100 ms is wanted", counting + extract);
}
