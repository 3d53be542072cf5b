//! Something a model can call. Authors write a [`super::TypedTool`]; the executor sees this erased form.

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
    chat::{RawJson, ToolDefinition},
    ids::{CallKey, Scope, TenantId},
    policy::{BreakerConfig, ToolRetryPolicy},
    skill::SkillActivationResult,
    stream::ChildProgress,
    tool::{EffectClass, OutputLevel, ToolError, ToolErrorType},
};

/// What may run beside a call of the same batch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Concurrency {
    /// Anything.
    #[default]
    Parallel,
    /// Nothing.
    Exclusive,
    /// Anything but another call that names the same file in this parameter; those run in call order.
    PerFile(String),
}

/// Whether a person must agree to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Never: the tool only reads.
    Never,
    /// As the session's approval mode says.
    #[default]
    ByMode,
}

/// Where a tool comes from (REQUIREMENTS G-05).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolSource {
    /// Shipped with Callboard.
    BuiltIn,
    /// An MCP server.
    Mcp(String),
    /// The embedding application.
    #[default]
    Custom,
}

/// All that is declared of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// What the model sees.
    pub definition: ToolDefinition,
    /// What a repeated start would do.
    pub effect: EffectClass,
    /// What may run beside it.
    pub concurrency: Concurrency,
    /// Whether a person must agree.
    pub approval: Approval,
    /// Longest run of one attempt (REQUIREMENTS T-05).
    pub timeout: Duration,
    /// When to try again, if the effect allows it.
    pub retry: ToolRetryPolicy,
    /// Where it comes from.
    pub source: ToolSource,
    /// Version of the tool; part of what its results are cached under (REQUIREMENTS T-02).
    pub version: String,
    /// The level of its data unless a call names one (REQUIREMENTS O-09).
    pub level: Option<OutputLevel>,
    /// It returns [`ToolOutput::Data`]: a model may name an `output_level` for a call (REQUIREMENTS O-12).
    pub returns_data: bool,
    /// Whether and for how long a result answers later calls. Counts for `pure` calls only.
    pub cache: CachePolicy,
    /// Identical `pure` calls that are made at the same time share one run (DESIGN §4.5).
    pub shared: bool,
    /// What of the outside it touches.
    pub reach: Reach,
    /// When it is left alone after failures in a row (REQUIREMENTS L-04).
    pub breaker: BreakerConfig,
}

/// REQUIREMENTS T-05: 120000 ms.
pub const TOOL_TIMEOUT: Duration = Duration::from_millis(120_000);

/// Five failures in a row open a tool's breaker, for half a minute. REQUIREMENTS L-04 names no numbers: these let a model see the
/// failure a few times and spare a service that is down.
pub const TOOL_BREAKER: BreakerConfig = BreakerConfig { failures: 5, open_for: Duration::from_secs(30) };

impl ToolSpec {
    /// A tool with the careful defaults: effect `once`, parallel, asks by mode, 120 s.
    pub fn new(name: impl Into<String>, description: impl Into<String>, input_schema: RawJson) -> Self {
        Self {
            definition: ToolDefinition { name: name.into(), description: description.into(), input_schema },
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

    /// Declares a tool that only reads: effect `pure`, never asks.
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

    /// Sets what may run beside it.
    #[must_use]
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets whether a person must agree.
    #[must_use]
    pub fn approval(mut self, approval: Approval) -> Self {
        self.approval = approval;
        self
    }

    /// Sets the longest run of one attempt.
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

    /// Sets whether an attempt that took too long is followed by another (REQUIREMENTS T-06); it is, unless this says no or the
    /// effect is `once`.
    #[must_use]
    pub fn retry_on_timeout(mut self, yes: bool) -> Self {
        self.retry.retry_on.retain(|kind| *kind != ToolErrorType::Timeout);
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

    /// Sets the level of its data.
    #[must_use]
    pub fn level(mut self, level: OutputLevel) -> Self {
        self.level = Some(level);
        self
    }

    /// Declares that it returns data, so that a model may name an output level.
    #[must_use]
    pub fn returns_data(mut self) -> Self {
        self.returns_data = true;
        self
    }

    /// Sets whether results answer later calls.
    #[must_use]
    pub fn cache(mut self, cache: CachePolicy) -> Self {
        self.cache = cache;
        self
    }

    /// Declares that each call runs by itself, even beside an identical one.
    #[must_use]
    pub fn not_shared(mut self) -> Self {
        self.shared = false;
        self
    }

    /// Sets what of the outside it touches.
    #[must_use]
    pub fn reach(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Sets when it is left alone.
    #[must_use]
    pub fn breaker(mut self, breaker: BreakerConfig) -> Self {
        self.breaker = breaker;
        self
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        &self.definition.name
    }
}

/// What a call returns (rulings on O-05..O-08).
#[derive(Debug, Clone, PartialEq)]
pub enum ToolOutput {
    /// Already an observation: never shortened by level.
    Text(String),
    /// Data that is formatted by output level.
    Data(Value),
    /// A skill that was loaded; the conversation decides whether it becomes active.
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

/// Lines that tell a watcher how a long call goes on.
#[derive(Clone)]
pub struct Progress {
    lines: Arc<dyn Fn(String) + Send + Sync>,
    subagents: Option<Arc<dyn Fn(ChildProgress) + Send + Sync>>,
}

impl Progress {
    /// Sends each line to `sink`, which must not block.
    pub fn new(sink: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self { lines: Arc::new(sink), subagents: None }
    }

    /// Sends to `sink` also how far the subagent of the call is.
    pub(crate) fn with_subagents(self, sink: impl Fn(ChildProgress) + Send + Sync + 'static) -> Self {
        Self { subagents: Some(Arc::new(sink)), ..self }
    }

    /// The same with each line changed on its way.
    pub(crate) fn map(self, change: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let lines = self.lines;
        Self { lines: Arc::new(move |line| lines(change(&line))), ..self }
    }

    /// Drops every line.
    pub fn silent() -> Self {
        Self::new(drop)
    }

    /// Tells watchers a line; lost when they are too slow.
    pub fn tell(&self, line: impl Into<String>) {
        (self.lines)(line.into());
    }

    /// Tells watchers how far the subagent of the call is.
    pub(crate) fn tell_subagent(&self, progress: ChildProgress) {
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

/// Values of the embedding application, by type: a database pool, a user, a trace.
#[derive(Clone, Default)]
pub struct Extensions(Arc<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Adds a value; replaces one of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(self, value: T) -> Self {
        let mut map = Arc::unwrap_or_clone(self.0);
        map.insert(TypeId::of::<T>(), Arc::new(value));
        Self(Arc::new(map))
    }

    /// The value of a type.
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.0.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.0.len())
    }
}

/// The artifacts of a call's conversation.
#[derive(Clone)]
pub struct Artifacts {
    /// Where they are kept.
    pub store: Arc<dyn ArtifactStore>,
    /// Who owns them: the root conversation of the call's tree.
    pub owner: Scope,
}

impl fmt::Debug for Artifacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Artifacts({})", self.owner.conversation)
    }
}

/// What a call may know and use.
#[derive(Debug, Clone)]
pub struct ToolContext {
    /// The call's name for ever; also tells tenant and conversation. The idempotency key to hand on to other systems.
    pub key: CallKey,
    /// The id that the model's server gave the call.
    pub tool_call_id: String,
    /// Cancelled when the round is interrupted or the time is over. Stop soon; after the grace the call is dropped.
    pub cancel: CancellationToken,
    /// When this attempt's time is over.
    pub deadline: Instant,
    /// Which start this is, from 0.
    pub attempt: u32,
    /// Where to tell how it goes.
    pub progress: Progress,
    /// The folder that the conversation works in, if any.
    pub workspace: Option<Arc<PathBuf>>,
    /// Values of the embedding application.
    pub extensions: Extensions,
    /// The artifacts of its conversation, if the host keeps any.
    pub artifacts: Option<Artifacts>,
}

/// A tool.
pub trait Tool: Send + Sync + 'static {
    /// What is declared of it; the same at every call.
    fn spec(&self) -> &ToolSpec;

    /// Checks arguments before anything is journaled as started. `Err` tells the model what to fix.
    ///
    /// # Errors
    /// [`ToolError::invalid`].
    fn check(&self, arguments: &RawJson) -> Result<(), ToolError> {
        let _ = arguments;
        Ok(())
    }

    /// The arguments in their one spelling, where that is not the given one: what is shown to a person, approved, locked, cached
    /// and run. Quick, and by the text alone: it is asked inside of a decision. Asked after [`Tool::check`] agreed.
    fn resolve(&self, arguments: &RawJson) -> Option<RawJson> {
        let _ = arguments;
        None
    }

    /// Whether this call, unlike others of a tool that changes something, only reads, so that it needs no approval. Quick, and by
    /// the text alone; asked of the arguments that would run.
    fn only_reads(&self, arguments: &RawJson) -> bool {
        let _ = arguments;
        false
    }

    /// What a person agrees to who says "always": calls with an equal pattern are not asked for again in this conversation. By
    /// default the exact arguments.
    fn approval_pattern(&self, arguments: &RawJson) -> String {
        arguments.as_str().to_owned()
    }

    /// Runs it. A failure is a [`ToolError`], read by the model; a panic becomes one too.
    ///
    /// # Cancel safety
    /// The future is dropped after the grace; what must not be cut belongs into a task of the tool's own.
    fn call(&self, arguments: RawJson, context: ToolContext) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;

    /// Takes away what it keeps of a tenant beyond its conversations; by default it keeps nothing. Asked of the tenant's tools when the
    /// tenant is erased ([`crate::host::TenantHandle::erase`]); asked again, it takes away the rest.
    ///
    /// # Errors
    /// What kept it from that; some of it is left then.
    fn forget<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<(), ToolError>> {
        let _ = tenant;
        Box::pin(std::future::ready(Ok(())))
    }

    /// Takes away what it keeps of a conversation beside its journal; by default it keeps nothing. Asked of the tenant's tools when the
    /// conversation is deleted or reset.
    ///
    /// # Errors
    /// What kept it from that; some of it is left then.
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

        assert_eq!((spec.effect, spec.approval, spec.timeout), (EffectClass::Once, Approval::ByMode, Duration::from_secs(120)));
    }

    #[test]
    fn a_timeout_is_tried_again_unless_the_tool_says_no() {
        let tries = |spec: ToolSpec| spec.retry.should_retry(ToolErrorType::Timeout, 0);
        let spec = ToolSpec::new("x", "y", RawJson::empty_object());

        assert!(tries(spec.clone()) && !tries(spec.clone().retry_on_timeout(false)));
        assert!(tries(spec.clone().retry_on_timeout(false).retry_on_timeout(true)));
        assert!(spec.retry_on_timeout(false).retry.should_retry(ToolErrorType::ResourceError, 0));
    }
}
