//! Tests of a running host, in process: a scripted model, in-memory stores and paused time.

mod attaching;
mod attachments;
mod bounds;
mod budgets;
mod catching_up;
mod client_keys;
mod client_tools;
mod compaction_settings;
mod clocks;
mod context;
mod consent;
mod crossing;
mod deleting;
mod door;
mod faults;
mod families;
mod fan_out;
mod fan_out_names;
mod file_locks;
mod event_memory;
mod events;
mod gateways;
mod history_memory;
mod figures;
mod fits;
mod lives;
mod money;
mod outages;
mod outbox;
mod outputs;
mod owners;
mod pace;
mod parameters;
mod quotas;
mod reads;
mod resumes;
mod rewinds;
mod rounds;
mod simulation;
mod skills;
mod sleeping;
mod status;
mod stored;
mod subagents;
mod tenants;
mod tools;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

use super::{ConversationHandle, Host, HostBuilder};
use crate::{
    chat::RawJson,
    memory::MemorySessions,
    ports::{
        BoxFuture, CachePolicy, LlmProvider, SessionBackend, Tool, ToolContext, ToolOutput,
        ToolSpec,
    },
    stream::{EventKind, StreamEvent},
    testing::{ManualClock, SeededEntropy},
    time::Timestamp,
    tool::{EffectClass, ToolError},
};

/// A builder with a fixed clock and a seeded source of entropy.
fn builder(model: &Arc<impl LlmProvider>) -> HostBuilder {
    let clock = ManualClock::at(Timestamp(1_795_300_000_000));
    HostBuilder::new(clock, SeededEntropy::new(7), |host| host).shared_provider(model.clone())
}

async fn host(model: &Arc<impl LlmProvider>) -> Host {
    builder(model).build().await.unwrap()
}

fn conversation(host: &Host) -> ConversationHandle {
    host.tenant("acme").conversation("c-1")
}

/// A store for several hosts in sequence.
fn store() -> Arc<dyn SessionBackend> {
    Arc::new(MemorySessions::new())
}

type Run =
    Arc<dyn Fn(ToolContext) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync>;

/// A tool that runs a closure and counts its starts.
struct Probe {
    spec: ToolSpec,
    starts: Arc<AtomicUsize>,
    run: Run,
}

impl Tool for Probe {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(
        &self,
        _: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        (self.run)(context)
    }
}

/// The tool, with results that are kept for an hour.
fn cached(inner: Arc<dyn Tool>) -> Arc<dyn Tool> {
    let spec = inner.spec().clone().cache(CachePolicy::Cacheable);
    Arc::new(Cached { spec, inner })
}

struct Cached {
    spec: ToolSpec,
    inner: Arc<dyn Tool>,
}

impl Tool for Cached {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call(
        &self,
        input: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        self.inner.call(input, context)
    }
}

fn probe<F>(
    name: &str,
    effect: EffectClass,
    run: impl Fn(ToolContext) -> F + Send + Sync + 'static,
) -> (Arc<dyn Tool>, Arc<AtomicUsize>)
where
    F: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    let starts = Arc::new(AtomicUsize::new(0));
    let spec = ToolSpec::new(name, "A tool of the tests.", RawJson::empty_object())
        .read_only()
        .effect(effect);
    let spec = spec.timeout(Duration::from_secs(10));
    let tool = Probe {
        spec,
        starts: starts.clone(),
        run: Arc::new(move |context| Box::pin(run(context))),
    };
    (Arc::new(tool), starts)
}

/// Stops a host as [`Host::shutdown`] does, but leaves its store open for the next host.
async fn stop(host: &Host, within: Duration) {
    host.0
        .directory
        .drain(tokio::time::Instant::now() + within)
        .await;
    host.0.directory.stopped().cancel();
}

/// Waits until `condition` holds. Works with paused time.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("never: {what}");
}

fn kinds(events: &[Arc<StreamEvent>]) -> Vec<&'static str> {
    events
        .iter()
        // One per model call, and asserted where it matters.
        .filter(|event| !matches!(event.kind, EventKind::Context { .. }))
        .map(|event| match &event.kind {
            EventKind::RoundStarted {} => "round_started",
            EventKind::TextDelta { .. } => "text_delta",
            EventKind::ThinkingDelta { .. } => "thinking_delta",
            EventKind::ToolCall { .. } => "tool_call",
            EventKind::ToolProgress { .. } => "tool_progress",
            EventKind::ToolResult { .. } => "tool_result",
            EventKind::ApprovalRequired { .. } => "approval_required",
            EventKind::ClientToolCall { .. } => "client_tool_call",
            EventKind::Retry { .. } => "retry",
            EventKind::Usage { .. } => "usage",
            EventKind::Context { .. } => "context",
            EventKind::Compaction { .. } => "compaction",
            EventKind::Queued { .. } => "queued",
            EventKind::Message { .. } => "message",
            EventKind::SkillActivated { .. } => "skill_activated",
            EventKind::Subagent { .. } => "subagent",
            EventKind::TurnRestarted { .. } => "turn_restarted",
            EventKind::Snapshot { .. } => "snapshot",
            EventKind::RoundFinished { .. } => "round_finished",
            EventKind::Error { .. } => "error",
        })
        .collect()
}

/// The lines that this thread logs, from its start to its drop: the fields of each event.
struct Log {
    lines: Arc<Mutex<String>>,
    panics_at: Arc<Mutex<Option<&'static str>>>,
    _default: tracing::subscriber::DefaultGuard,
    /// With one subscriber alone, a line that another test's thread reaches first is off for all.
    _other: tracing::Dispatch,
}

impl Log {
    fn start() -> Self {
        let lines = Arc::new(Mutex::new(String::new()));
        let panics_at = Arc::new(Mutex::new(None));
        let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let _default = tracing::subscriber::set_default(Lines(lines.clone(), panics_at.clone()));
        Self {
            lines,
            panics_at,
            _default,
            _other,
        }
    }

    /// Panics at the next line with these words.
    fn panics_at(&self, words: &'static str) {
        *self.panics_at.lock() = Some(words);
    }

    fn text(&self) -> String {
        self.lines.lock().clone()
    }
}

struct Lines(Arc<Mutex<String>>, Arc<Mutex<Option<&'static str>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields<'l>(&'l mut String);
        impl tracing::field::Visit for Fields<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{}={value:?} ", field.name()));
            }
        }
        let mut lines = self.0.lock();
        lines.push_str(&format!("{} ", event.metadata().level()));
        event.record(&mut Fields(&mut lines));
        lines.push('\n');
        let mut panics_at = self.1.lock();
        if lines
            .lines()
            .next_back()
            .is_some_and(|line| panics_at.is_some_and(|words| line.contains(words)))
        {
            *panics_at = None;
            drop((lines, panics_at));
            panic!("at a line of the log");
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
