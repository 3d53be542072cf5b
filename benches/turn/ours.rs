//! The turn on Callboard.

use callboard::{
    clock::{SystemClock, SystemEntropy},
    ports::{
        BoxFuture, Capabilities, LlmProvider, ModelRequest, ModelStream, ProviderError, ToolContext, ToolError, ToolSpec, TypedTool, erased,
    },
    providers::Anthropic,
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

pub async fn http(url: &str) -> Host {
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
        Capabilities { context_window: 200_000, output_max: 8192, tools: true, output_schema: false, counts_tokens: false }
    }

    fn stream(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let answers_tool = request.messages.last().is_some_and(|message| !message.tool_result_ids().is_empty());
        let reply = if answers_tool { &self.second } else { &self.first };
        reply.clone().play(&request, cancel)
    }
}

pub async fn in_process() -> Host {
    let arguments = serde_json::json!({ "argument": "x".repeat(44) });
    let first = Reply::text("word".repeat(32)).chunks(32).and_tool("no_op", &arguments);
    let second = Reply::text("word".repeat(64)).chunks(64);
    builder().provider(InProcess { first, second }).build().await.unwrap()
}

pub async fn run(host: Host, conversations: usize, turns: usize) {
    run_on(&host, "c", conversations, turns, true).await;
}

pub async fn run_on(host: &Host, name: &str, conversations: usize, turns: usize, with_history: bool) {
    let talks = (0..conversations).map(|index| {
        let conversation = host.tenant("bench").conversation(format!("{name}-{index}"));
        tokio::spawn(async move {
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
        })
    });
    for talk in talks.collect::<Vec<_>>() {
        talk.await.unwrap();
    }
}
