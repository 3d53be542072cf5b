//! The turn on Callboard: arguments checked, metrics, admission, budgets of tenant and
//! conversation, prices; one subscriber reads every event.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use callboard::{
    ConversationHandle, Host, HostBuilder,
    chat::{ModelRequest, Usage},
    limits::Limits,
    policy::{Budget, Price, Prices},
    ports::{
        BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError, SessionBackend,
        ToolContext, ToolSpec, TypedTool, erased,
    },
    providers::{Anthropic, OpenAi},
    storage::MemoryEvents,
    stream::EventKind,
    tool::ToolError,
};
use callboard_actors::scripted::Reply;
use tokio_util::sync::CancellationToken;

use super::{MODEL, TOOL, TURNS_EACH, Wire, model::Server, scripted};

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Some text.
    #[allow(dead_code, reason = "its schema is what is checked")]
    argument: String,
}

struct NoOp;

impl TypedTool for NoOp {
    type Args = Args;
    type Output = String;
    const NAME: &'static str = TOOL;
    const DESCRIPTION: &'static str = "Does nothing.";

    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
    }

    async fn call(&self, _: Args, _: ToolContext) -> Result<String, ToolError> {
        Ok(super::result())
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        // The baseline has no limit.
        model_calls_max: 16_384,
        tenant_turns_max: 16_384,
        tenant_seats_max: 32_768,
        // Finished rounds are not part of the measurement. A slow reader on a busy machine still
        // needs its events.
        ring_age: Duration::from_secs(10),
        // Some journals keep nothing, so a conversation must not go to sleep.
        idle: Duration::from_secs(24 * 3600),
        idle_conversations_max: usize::MAX,
        ..Limits::default()
    }
}

/// A host with all defaults on, and budgets and prices configured.
pub(crate) fn builder() -> HostBuilder<Host> {
    let budget = Budget::default().with_tokens(u64::MAX / 4).with_usd(1e9);
    let prices = Prices::default().with(MODEL, Price::per_million(3.0, 15.0).unwrap());
    let builder = Host::builder()
        .model(MODEL)
        .prices(prices)
        .budget(budget)
        .tenant_budget(budget)
        .limits(limits());
    builder.tools([erased(NoOp)])
}

/// Wraps a provider and reports a window so large that nothing is compacted.
struct Wide<P>(P);

impl<P: LlmProvider> LlmProvider for Wide<P> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        Capabilities {
            context_window: u32::MAX,
            ..self.0.capabilities(model)
        }
    }

    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        self.0.stream(request, cancel)
    }
}

/// Creates the provider of a wire.
pub(crate) fn provider(wire: Wire, server: &Server) -> Arc<dyn LlmProvider> {
    const KEY: &str = "sk-test-not-a-real-key";
    let (url, network) = (server.url(wire), server.network());
    match wire {
        Wire::Anthropic => Arc::new(Wide(
            Anthropic::builder(KEY)
                .base_url(url)
                .network(network)
                .build()
                .unwrap(),
        )),
        Wire::OpenAi => Arc::new(Wide(
            OpenAi::builder()
                .api_key(KEY)
                .base_url(url)
                .network(network)
                .build()
                .unwrap(),
        )),
    }
}

/// Builds a host on a provider and a journal.
pub(crate) async fn host(
    provider: Arc<dyn LlmProvider>,
    sessions: Arc<dyn SessionBackend>,
) -> Host {
    builder()
        .shared_provider(provider)
        .shared_sessions(sessions)
        .build()
        .await
        .unwrap()
}

/// The model of the reference turn, in this process.
pub(crate) fn model() -> Arc<dyn LlmProvider> {
    let usage = Usage {
        input_uncached: 1200,
        output: 70,
        ..Usage::default()
    };
    let arguments: serde_json::Value = serde_json::from_str(&super::arguments()).unwrap();
    let first = Reply::text("word".repeat(32))
        .chunks(32)
        .and_tool(TOOL, &arguments)
        .usage(usage);
    let second = Reply::text("word".repeat(64)).chunks(64).usage(usage);
    Arc::new(scripted::answering(move |request| {
        let answers_tool = request
            .messages
            .last()
            .is_some_and(|message| !message.tool_result_ids().is_empty());
        if answers_tool {
            second.clone()
        } else {
            first.clone()
        }
    }))
}

/// A host in this process with its journal in memory.
pub(crate) async fn in_process() -> Host {
    let limits = Limits {
        ring_age: Duration::from_secs(1),
        ..limits()
    };
    builder()
        .shared_provider(model())
        .limits(limits)
        .build()
        .await
        .unwrap()
}

/// A host whose journal and event store keep nothing.
pub(crate) async fn forgetful() -> Host {
    let events = MemoryEvents::new(64 * 1024, Duration::from_millis(300));
    builder()
        .shared_provider(model())
        .sessions(super::forgetful::Forgetful)
        .events(events)
        .build()
        .await
        .unwrap()
}

static NAMES: AtomicU64 = AtomicU64::new(0);

/// Creates a conversation, with or without a history.
pub(crate) async fn conversation(
    host: &Host,
    history: Vec<callboard::chat::Message>,
) -> ConversationHandle {
    let conversation = host
        .tenant("bench")
        .conversation(format!("c-{}", NAMES.fetch_add(1, Ordering::Relaxed)));
    if !history.is_empty() {
        conversation.import(history).await.unwrap();
    }
    conversation
}

/// Runs the reference turn.
pub(crate) async fn turn(conversation: &ConversationHandle) {
    let mut reply = conversation.send(super::prompt()).await.unwrap();
    let mut bytes = 0;
    while let Some(event) = reply.next().await {
        if let EventKind::TextDelta { text } = &event.kind {
            bytes += text.len();
        }
    }
    let end = reply.outcome().await.unwrap();
    assert_eq!(
        (end.text.len(), bytes),
        (64 * 4, (32 + 64) * 4),
        "{:?}",
        end.error
    );
}

/// Runs `total` turns in `at_once` concurrent conversations, each of which is replaced after `each`
/// turns.
pub(crate) async fn run(host: &Host, at_once: usize, each: usize, total: usize) -> usize {
    let lives = (total / at_once / each).max(1);
    let lanes = (0..at_once).map(|_| {
        let host = host.clone();
        tokio::spawn(async move {
            for _ in 0..lives {
                // With one turn per conversation, each turn is a first one.
                let history = if each == 1 {
                    Vec::new()
                } else {
                    super::history()
                };
                let conversation = conversation(&host, history).await;
                for _ in 0..each {
                    turn(&conversation).await;
                }
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
    lives * each * at_once
}

/// Runs one turn after `history` in each of `count` conversations, 64 concurrently. They stay
/// active.
pub(crate) async fn idle(host: &Host, count: usize, history: &[callboard::chat::Message]) {
    for chunk in (0..count).collect::<Vec<_>>().chunks(64) {
        let talks = chunk
            .iter()
            .map(|_| async { turn(&conversation(host, history.to_vec()).await).await });
        futures_util::future::join_all(talks).await;
    }
}

/// Actor wake-ups so far.
pub(crate) async fn wake_ups(host: &Host) -> u64 {
    host.figures().await.total.wake_ups
}
