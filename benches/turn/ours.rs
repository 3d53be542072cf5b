//! The turn on Callboard.

use std::time::Duration;

use callboard::{
    clock::{SystemClock, SystemEntropy},
    ports::{
        BoxFuture, Capabilities, LlmProvider, ModelRequest, ModelStream, ProviderError, ToolContext, ToolError, ToolSpec, TypedTool, Usage,
        erased,
    },
    providers::Anthropic,
    storage::MemoryEvents,
    stream::EventKind,
};
use callboard_actors::{Host, HostBuilder, scripted::Reply};
use tokio_util::sync::CancellationToken;

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

fn builder() -> HostBuilder {
    HostBuilder::new(SystemClock, SystemEntropy, |host| host).model("m").tools([erased(NoOp)])
}

pub(crate) async fn http(url: &str) -> Host {
    let provider = Anthropic::builder("sk-test-not-a-real-key").base_url(url).build().unwrap();
    builder().provider(provider).build().await.unwrap()
}

/// The model of the reference turn without a wire.
struct InProcess {
    first: Reply,
    second: Reply,
}

impl LlmProvider for InProcess {
    fn name(&self) -> &str {
        "in-process"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities {
            context_window: 200_000,
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
        let reply = if answers_tool { &self.second } else { &self.first };
        reply.clone().play(&request, cancel)
    }
}

fn model() -> InProcess {
    let usage = Usage { input_uncached: 1200, output: 70, ..Usage::default() };
    let arguments = serde_json::json!({ "argument": "x".repeat(44) });
    let first = Reply::text("word".repeat(32)).chunks(32).and_tool("no_op", &arguments).usage(usage);
    let second = Reply::text("word".repeat(64)).chunks(64).usage(usage);
    InProcess { first, second }
}

pub(crate) async fn in_process() -> Host {
    builder().provider(model()).build().await.unwrap()
}

/// A host whose journal and events keep nothing.
pub(crate) async fn forgetful() -> Host {
    let events = MemoryEvents::new(64 * 1024, Duration::from_millis(300));
    builder().provider(model()).sessions(super::forgetful::Forgetful).events(events).build().await.unwrap()
}

pub(crate) async fn run(host: Host, conversations: usize, total: usize) {
    let lanes = (0..conversations).map(|lane| {
        let host = host.clone();
        tokio::spawn(async move {
            for nth in 0..total / conversations / super::TURNS_EACH {
                talk(&host, format!("c-{lane}-{nth}"), super::TURNS_EACH, true).await;
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
}

/// `count` conversations of `turns` turns, 64 at once; they stay awake.
pub(crate) async fn run_on(host: &Host, name: &str, count: usize, turns: usize, with_history: bool) {
    for chunk in (0..count).collect::<Vec<_>>().chunks(64) {
        let talks: Vec<_> = chunk.iter().map(|index| talk(host, format!("{name}-{index}"), turns, with_history)).collect();
        futures_util::future::join_all(talks).await;
    }
}

async fn talk(host: &Host, name: String, turns: usize, with_history: bool) {
    let conversation = host.tenant("bench").conversation(name);
    if with_history {
        conversation.import(super::history()).await.unwrap();
    }
    for _ in 0..turns {
        let mut reply = conversation.send(super::prompt()).await.unwrap();
        let mut bytes = 0;
        while let Some(event) = reply.next().await {
            if let EventKind::TextDelta { text } = &event.kind {
                bytes += text.len();
            }
        }
        assert_eq!((reply.outcome().await.unwrap().text.len(), bytes), (64 * 4, (32 + 64) * 4));
    }
}
