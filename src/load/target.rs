//! The host under test: one in this process, or one that serves HTTP.

use std::sync::Arc;

use callboard_actors::{
    limits::Limits,
    ports::{LlmProvider, SessionBackend, erased},
    stream::EventKind,
};

use super::{
    LoadError, Plan, Remote, model,
    process::Process,
    tool::LoadTool,
    turn::{End, RoundOver, Seen, Turn, Watch},
};
use crate::Host;

/// The host under test.
pub(crate) enum Target {
    /// A host in this process.
    Host(Host),
    /// A running `callboard serve`.
    Remote(Remote),
}

/// Builds a host in this process for a plan, with a scripted model unless a provider is given.
///
/// # Errors
/// [`LoadError::Host`].
pub(crate) async fn host(
    plan: &Plan,
    provider: Option<Arc<dyn LlmProvider>>,
    model: Option<&str>,
    sessions: Option<Arc<dyn SessionBackend>>,
) -> Result<Host, LoadError> {
    let usual = Limits::default();
    let limits = Limits {
        model_calls_max: plan.model_concurrency,
        tool_iterations_max: usual.tool_iterations_max.max(plan.tools_per_turn + 1),
        // The scripted model repeats identical calls.
        identical_calls_max: u32::MAX,
        // The event rings of finished rounds are not part of the measurement.
        ring_age: std::time::Duration::from_secs(1),
        // All subagents of a fan-out must be able to run at once.
        tenant_turns_max: usual.tenant_turns_max.max(plan.subagents),
        // `idle` measures conversations that stay awake.
        idle_conversations_max: usize::MAX,
        ..usual
    };
    let tool = LoadTool {
        fault_rate: plan.fault_rate,
        seed: plan.seed,
    };
    let mut builder = Host::builder()
        .shared_provider(provider.unwrap_or_else(|| Arc::new(model::model(plan))))
        .limits(limits);
    if plan.tools_per_turn > 0 {
        builder = builder.tools([erased(tool)]);
    }
    if let Some(model) = model {
        builder = builder.model(model);
    }
    if let Some(sessions) = sessions {
        builder = builder.shared_sessions(sessions);
    }
    Ok(builder.build().await?)
}

impl Target {
    /// Runs a turn to its end.
    pub(super) async fn turn(&self, turn: &Turn) -> Seen {
        match self {
            Self::Host(host) => in_process(host, turn).await,
            Self::Remote(remote) => remote.turn(turn).await,
        }
    }

    /// Returns the process that holds the conversations, if it is known.
    pub(super) fn process(&self, plan: &Plan) -> Option<Process> {
        match self {
            Self::Host(_) => Some(Process::this()),
            Self::Remote(_) => plan.server_pid.map(Process::other),
        }
    }
}

/// Name of a tenant of the in-process host.
pub(super) fn tenant(number: usize) -> String {
    format!("load-{number}")
}

async fn in_process(host: &Host, turn: &Turn) -> Seen {
    let conversation = host
        .tenant(tenant(turn.tenant))
        .conversation(turn.conversation.as_str());
    let mut reply = match conversation.send(turn.prompt()).await {
        Ok(reply) => reply,
        Err(error) => return Seen::only(End::Refused(error.code().to_owned())),
    };
    let mut watch = Watch::new(turn);
    while let Some(event) = reply.next().await {
        watch.place([event.id.epoch.0, event.id.seq.0, u64::from(event.id.n)]);
        match &event.kind {
            EventKind::TextDelta { .. } if watch.text() => reply.interrupt(),
            EventKind::RoundFinished { end } => watch.over(&RoundOver {
                stop_reason: end.stop_reason.code(),
                error: end.error.as_ref().map(|failure| failure.code.as_str()),
                text: &end.text,
                tokens: end.usage.input() + end.usage.output,
            }),
            EventKind::Error { failure } => watch.failed(&failure.code),
            _ => {}
        }
    }
    watch.seen()
}
