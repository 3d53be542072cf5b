//! The port for tools that a model can call. Authors implement [`super::TypedTool`]; the executor
//! uses this erased form.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ArtifactStore, BoxFuture, CachePolicy, Reach};
use crate::{
    chat::{Message, RawJson, ToolDefinition},
    ids::{CallKey, Scope, TenantId},
    policy::{BreakerConfig, ToolRetryPolicy},
    skill::SkillActivationResult,
    stream::ChildProgress,
    tool::{EffectClass, OutputLevel, ToolError, ToolErrorType},
};

/// Which calls of the same batch may run beside a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Concurrency {
    /// The call runs beside any other call of its batch.
    #[default]
    Parallel,
    /// The call runs alone, at its place in the order of the batch.
    Exclusive,
    /// Any call except one that names the same file in this parameter. Those run in the order of
    /// the calls.
    PerFile(String),
}

/// Whether a person must approve a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Never needed: the tool only reads.
    Never,
    /// The session's approval mode decides.
    #[default]
    ByMode,
}

/// Origin of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolSource {
    /// Shipped with Callboard.
    BuiltIn,
    /// An MCP server.
    Mcp(String),
    /// The caller that sent the prompt; it runs the calls itself.
    Client,
    /// The embedding application.
    #[default]
    Custom,
}

/// The declaration of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Name, description and schema, as the model sees them.
    pub definition: ToolDefinition,
    /// What a repeated start of a call would do.
    pub effect: EffectClass,
    /// Which calls of the same batch may run beside it.
    pub concurrency: Concurrency,
    /// Whether a person must approve a call.
    pub approval: Approval,
    /// Longest run of one attempt.
    pub timeout: Duration,
    /// Retries of failed calls, if the effect class allows them.
    pub retry: ToolRetryPolicy,
    /// Origin of the tool.
    pub source: ToolSource,
    /// Version of the tool. Part of the cache key of its results.
    pub version: String,
    /// Default output level of its data. `None` leaves the choice to the call, the context and the
    /// host.
    pub level: Option<OutputLevel>,
    /// Whether the tool returns [`ToolOutput::Data`]. The model may then choose an `output_level`
    /// for a call.
    pub returns_data: bool,
    /// Whether and for how long a cached result answers later calls. Applies to `pure` calls only.
    pub cache: CachePolicy,
    /// Whether identical `pure` calls at the same time share one run.
    pub shared: bool,
    /// What the tool reaches outside the kernel.
    pub reach: Reach,
    /// When the circuit breaker stops calls after consecutive failures.
    pub breaker: BreakerConfig,
}

/// Default time limit of one attempt.
pub const TOOL_TIMEOUT: Duration = Duration::from_millis(120_000);

/// Default circuit breaker: five consecutive failures stop the tool for half a minute. The model
/// sees the failure a few times, and a failed service gets a pause.
const TOOL_BREAKER: BreakerConfig = BreakerConfig {
    failures: 5,
    open_for: Duration::from_secs(30),
};

impl ToolSpec {
    /// Creates a declaration with safe defaults: effect class `once`, parallel, approval by mode,
    /// 120 s.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        input_schema: RawJson,
    ) -> Self {
        Self {
            definition: ToolDefinition {
                name: name.into(),
                description: description.into(),
                input_schema,
            },
            effect: EffectClass::default(),
            concurrency: Concurrency::default(),
            approval: Approval::default(),
            timeout: TOOL_TIMEOUT,
            retry: ToolRetryPolicy::default(),
            source: ToolSource::default(),
            version: "1.0.0".to_owned(),
            level: None,
            returns_data: false,
            cache: CachePolicy::default(),
            shared: true,
            reach: Reach::default(),
            breaker: TOOL_BREAKER,
        }
    }

    /// The declaration of a tool that a caller brought. Whoever brings a tool may run it, so a call
    /// needs no approval.
    pub(crate) fn client(definition: &ToolDefinition) -> Self {
        let ToolDefinition {
            name,
            description,
            input_schema,
        } = definition.clone();
        Self::new(name, description, input_schema)
            .effect(EffectClass::Client)
            .approval(Approval::Never)
            .source(ToolSource::Client)
    }

    /// Declares that the tool only reads: effect class `pure`, no approval.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.effect = EffectClass::Pure;
        self.approval = Approval::Never;
        self
    }

    /// Sets the effect class.
    #[must_use]
    pub fn effect(mut self, effect: EffectClass) -> Self {
        self.effect = effect;
        self
    }

    /// Sets which calls may run beside it.
    #[must_use]
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets whether a person must approve a call.
    #[must_use]
    pub fn approval(mut self, approval: Approval) -> Self {
        self.approval = approval;
        self
    }

    /// Sets the time limit of one attempt.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the retry policy.
    #[must_use]
    pub fn retry(mut self, retry: ToolRetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Sets whether an attempt that timed out is retried. By default it is, unless the effect class
    /// is `once`.
    #[must_use]
    pub fn retry_on_timeout(mut self, yes: bool) -> Self {
        self.retry
            .retry_on
            .retain(|kind| *kind != ToolErrorType::Timeout);
        if yes {
            self.retry.retry_on.push(ToolErrorType::Timeout);
        }
        self
    }

    /// Sets the origin.
    #[must_use]
    pub fn source(mut self, source: ToolSource) -> Self {
        self.source = source;
        self
    }

    /// Sets the version.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the default output level of its data.
    #[must_use]
    pub fn level(mut self, level: OutputLevel) -> Self {
        self.level = Some(level);
        self
    }

    /// Declares that the tool returns data, so that the model may choose an output level.
    #[must_use]
    pub fn returns_data(mut self) -> Self {
        self.returns_data = true;
        self
    }

    /// Sets whether cached results answer later calls.
    #[must_use]
    pub fn cache(mut self, cache: CachePolicy) -> Self {
        self.cache = cache;
        self
    }

    /// Declares that identical calls at the same time run separately.
    #[must_use]
    pub fn not_shared(mut self) -> Self {
        self.shared = false;
        self
    }

    /// Sets what the tool reaches outside the kernel.
    #[must_use]
    pub fn reach(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Sets the circuit breaker.
    #[must_use]
    pub fn breaker(mut self, breaker: BreakerConfig) -> Self {
        self.breaker = breaker;
        self
    }

    /// Returns the tool's name.
    pub fn name(&self) -> &str {
        &self.definition.name
    }
}

/// What a call returns.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolOutput {
    /// An observation, which no output level shortens.
    Text(String),
    /// Data, formatted by the output level.
    Data(Value),
    /// An observation, and a user message with images and documents. The model reads the message
    /// behind the results of the batch.
    Shown {
        /// The observation, which no output level shortens.
        text: String,
        /// A user message without tool results.
        attachments: Message,
    },
    /// A loaded skill. The conversation decides whether it becomes active.
    Activation(Box<SkillActivationResult>),
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<SkillActivationResult> for ToolOutput {
    fn from(result: SkillActivationResult) -> Self {
        Self::Activation(Box::new(result))
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Reports the progress of a long call to watchers.
#[derive(Clone)]
pub struct Progress {
    lines: Arc<dyn Fn(String) + Send + Sync>,
    subagents: Option<Arc<dyn Fn(ChildProgress) + Send + Sync>>,
}

impl Progress {
    /// Creates a reporter that calls `sink` with each line. `sink` must not block.
    pub fn new(sink: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self {
            lines: Arc::new(sink),
            subagents: None,
        }
    }

    /// Also reports the progress of the call's subagent, to `sink`.
    pub(crate) fn with_subagents(
        self,
        sink: impl Fn(ChildProgress) + Send + Sync + 'static,
    ) -> Self {
        Self {
            subagents: Some(Arc::new(sink)),
            ..self
        }
    }

    /// Returns a reporter that changes each line before it is reported.
    pub(crate) fn map(self, change: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let lines = self.lines;
        Self {
            lines: Arc::new(move |line| lines(change(&line))),
            ..self
        }
    }

    /// Creates a reporter that drops every line.
    pub fn silent() -> Self {
        Self::new(drop)
    }

    /// Reports a line to watchers. The line is lost if they are too slow.
    pub fn report(&self, line: impl Into<String>) {
        (self.lines)(line.into());
    }

    /// Reports the progress of the call's subagent to watchers.
    pub(crate) fn report_subagent(&self, progress: ChildProgress) {
        if let Some(subagents) = &self.subagents {
            subagents(progress);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// Values of the embedding application by type, such as a database pool, a user, a trace.
#[derive(Clone, Default)]
pub struct Extensions(Arc<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Adds a value. Replaces a value of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(self, value: T) -> Self {
        let mut map = Arc::unwrap_or_clone(self.0);
        map.insert(TypeId::of::<T>(), Arc::new(value));
        Self(Arc::new(map))
    }

    /// Returns the value of a type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.0.len())
    }
}

/// The artifacts that a call can use.
#[derive(Clone)]
pub struct Artifacts {
    /// The artifact store.
    pub store: Arc<dyn ArtifactStore>,
    /// The owner of the artifacts: the root conversation of the call's family.
    pub owner: Scope,
}

impl fmt::Debug for Artifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Artifacts({})", self.owner.conversation)
    }
}

/// What a tool gets with a call.
#[derive(Debug, Clone)]
pub struct ToolContext {
    /// The permanent name of the call, including tenant and conversation. Use it as idempotency key
    /// for other systems.
    pub key: CallKey,
    /// Id of the call, assigned by the model's provider.
    pub tool_call_id: String,
    /// Cancelled when the round is interrupted or the time limit is reached. Stop soon: after a
    /// grace period the call's future is dropped.
    pub cancel: CancellationToken,
    /// When the time limit of this attempt is reached.
    pub deadline: Instant,
    /// Number of this attempt, from 0.
    pub attempt: u32,
    /// Reports progress to watchers.
    pub progress: Progress,
    /// Workspace folder of the conversation, if it has one.
    pub workspace: Option<Arc<PathBuf>>,
    /// Values of the embedding application.
    pub extensions: Extensions,
    /// Artifacts of the conversation, if the host stores any.
    pub artifacts: Option<Artifacts>,
}

/// A function that the model can call, with a JSON Schema for its arguments.
pub trait Tool: Send + Sync + 'static {
    /// Returns the declaration, the same for every call.
    fn spec(&self) -> &ToolSpec;

    /// Checks arguments before the start of the call is stored. The model reads the error and can
    /// correct the call.
    ///
    /// # Errors
    /// [`ToolError::invalid`].
    fn check(&self, arguments: &RawJson) -> Result<(), ToolError> {
        let _ = arguments;
        Ok(())
    }

    /// Returns the canonical form of the arguments, or `None` if the given form is canonical. A
    /// person sees and approves this form, and it is locked, cached and run. Called after
    /// [`Tool::check`] inside a decision: must be fast and depend on the text only.
    fn resolve(&self, arguments: &RawJson) -> Option<RawJson> {
        let _ = arguments;
        None
    }

    /// Whether this call only reads and so needs no approval, although the tool can change
    /// something. Called with the canonical arguments: must be fast and depend on the text only.
    fn only_reads(&self, arguments: &RawJson) -> bool {
        let _ = arguments;
        false
    }

    /// Returns the pattern that a person approves with "always": later calls of this conversation
    /// with an equal pattern need no approval. The default is the exact arguments.
    fn approval_pattern(&self, arguments: &RawJson) -> String {
        arguments.as_str().to_owned()
    }

    /// Runs the call. A failure is a [`ToolError`] that the model reads; a panic becomes one, too.
    ///
    /// # Cancel safety
    /// The future is dropped after the grace period. Work that must not be interrupted belongs in a
    /// separate task.
    fn call(
        &self,
        arguments: RawJson,
        context: ToolContext,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;

    /// Deletes what the tool stores for a tenant outside of conversations; the default stores
    /// nothing. Called when the tenant is erased ([`crate::host::TenantHandle::erase`]). A repeated
    /// call deletes what an earlier one left.
    ///
    /// # Errors
    /// The reason why not everything was deleted.
    fn forget<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<(), ToolError>> {
        let _ = tenant;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Deletes what the tool stores for a conversation outside of its journal; the default stores
    /// nothing. Called when the conversation is deleted or reset.
    ///
    /// # Errors
    /// The reason why not everything was deleted.
    fn forget_conversation<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<(), ToolError>> {
        let _ = scope;
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn Tool) {}
        let _ = takes;
    }

    #[test]
    fn an_undeclared_tool_is_once_asks_and_has_two_minutes() {
        let spec = ToolSpec::new("x", "y", RawJson::empty_object());

        assert_eq!(
            (spec.effect, spec.approval, spec.timeout),
            (
                EffectClass::Once,
                Approval::ByMode,
                Duration::from_secs(120)
            )
        );
    }

    #[test]
    fn a_timeout_is_tried_again_unless_the_tool_says_no() {
        let tries = |spec: ToolSpec| spec.retry.should_retry(ToolErrorType::Timeout, 0);
        let spec = ToolSpec::new("x", "y", RawJson::empty_object());

        assert!(tries(spec.clone()) && !tries(spec.clone().retry_on_timeout(false)));
        assert!(tries(
            spec.clone().retry_on_timeout(false).retry_on_timeout(true)
        ));
        assert!(
            spec.retry_on_timeout(false)
                .retry
                .should_retry(ToolErrorType::ResourceError, 0)
        );
    }
}
