//! The builder of a [`Host`]: collects the configuration, checks it and starts the host's actors.

use crate::{
    chat::{Effort, ModelParameters},
    compactor::{CompactionSettings, CompactorRef},
    conversation::{
        Ports,
        round::rules::{ApprovalMode, Recovery},
    },
    host::{BuildError, ToolSource, directory::Directory},
    limits::Limits,
    memory::{MemoryArtifacts, MemoryEvents, MemorySessions},
    metrics_collector::MetricsCollectorRef,
    model_gateway::{GatewayConfig, ModelGatewayRef, ModelRetryPolicy},
    policy::{BreakerConfig, Budget, Prices, TraceSampling},
    ports::{
        ArtifactStore, Clock, DocumentText, Entropy, EventStore, Extensions, Hook, LlmProvider,
        LockProvider, Resource, Schemas, SessionBackend, SkillSource, SteadyClock, Tool,
    },
    skill::SkillPolicy,
    tenant::Tenants,
    tokens::TokenCounter,
    tool::OutputLevel,
    tool_executor::Permissions,
};
use std::sync::Arc;

use parking_lot::RwLock;

use super::{
    Host, HostInner,
    setup_resolver::{ConversationDefaults, SetupResolver},
    supervisor::{HostSupervisor, HostSupervisorArgs},
};

/// Configures and starts a [`Host`]. `H` is what `build` returns: the host, or a wrapper of it.
pub struct HostBuilder<H = Host> {
    wrap: fn(Host) -> H,
    defaults: ConversationDefaults,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    provider: Option<Arc<dyn LlmProvider>>,
    sessions: Option<Arc<dyn SessionBackend>>,
    events: Option<Arc<dyn EventStore>>,
    tools_error: Option<String>,
    compaction: CompactionSettings,
    tokens: Option<Arc<TokenCounter>>,
    artifacts: Option<Arc<dyn ArtifactStore>>,
    schemas: Option<Arc<dyn Schemas>>,
    resources: Vec<Arc<dyn Resource>>,
    locks: Option<Arc<dyn LockProvider>>,
    documents: Option<Arc<dyn DocumentText>>,
    limits: Limits,
    follows_orderly_stop: bool,
    prices: Prices,
    trace_sampling: TraceSampling,
    tenant_budget: Budget,
    retry: ModelRetryPolicy,
    breaker: BreakerConfig,
}

impl<H> HostBuilder<H> {
    /// A builder for a platform with this clock and this source of entropy. `wrap` converts the
    /// host into what `build` returns.
    pub fn new(clock: impl Clock, entropy: impl Entropy, wrap: fn(Host) -> H) -> Self {
        Self {
            wrap,
            defaults: ConversationDefaults::default(),
            clock: Arc::new(SteadyClock::new(Arc::new(clock))),
            entropy: Arc::new(entropy),
            provider: None,
            sessions: None,
            events: None,
            tools_error: None,
            compaction: CompactionSettings::default(),
            tokens: None,
            artifacts: None,
            schemas: None,
            resources: Vec::new(),
            locks: None,
            documents: None,
            limits: Limits::default(),
            follows_orderly_stop: false,
            prices: Prices::default(),
            trace_sampling: TraceSampling::Always,
            tenant_budget: Budget::default(),
            retry: ModelRetryPolicy::default(),
            breaker: BreakerConfig::default(),
        }
    }

    /// Sets the model provider. Required.
    #[must_use]
    pub fn provider(self, provider: impl LlmProvider) -> Self {
        self.shared_provider(Arc::new(provider))
    }

    /// Sets a model provider that the caller also uses elsewhere.
    #[must_use]
    pub fn shared_provider(mut self, provider: Arc<dyn LlmProvider>) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Sets the model. Default: the provider's default model.
    #[must_use]
    pub fn model(mut self, model: impl AsRef<str>) -> Self {
        self.defaults.model = Some(Arc::from(model.as_ref()));
        self
    }

    /// Sets the system prompt. Default: none.
    #[must_use]
    pub fn system(mut self, system: impl AsRef<str>) -> Self {
        self.defaults.system = Some(Arc::from(system.as_ref()));
        self
    }

    /// Sets the longest answer, in tokens. Default: the model's own maximum, up to 8192
    /// and a quarter of its window.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: u32) -> Self {
        self.defaults.parameters.max_tokens = Some(max_tokens);
        self
    }

    /// Sets the effort that the model spends on thinking. Default: the provider decides.
    #[must_use]
    pub fn effort(mut self, effort: Effort) -> Self {
        self.defaults.parameters.effort = Some(effort);
        self
    }

    /// Sets how the model is asked to answer. What a tenant ([`super::TenantConfig::parameters`])
    /// or a prompt ([`super::SendPrompt::parameters`]) asks comes before it, field by field.
    #[must_use]
    pub fn parameters(mut self, parameters: ModelParameters) -> Self {
        self.defaults.parameters = parameters.or(&self.defaults.parameters);
        self
    }

    /// Sets the store of journals. Default: in memory.
    #[must_use]
    pub fn sessions(self, sessions: impl SessionBackend) -> Self {
        self.shared_sessions(Arc::new(sessions))
    }

    /// Sets a store of journals that the caller also uses elsewhere.
    #[must_use]
    pub fn shared_sessions(mut self, sessions: Arc<dyn SessionBackend>) -> Self {
        self.sessions = Some(sessions);
        self
    }

    /// Configures compaction: when a context is compacted, and how.
    #[must_use]
    pub fn compaction(mut self, settings: CompactionSettings) -> Self {
        self.compaction = settings;
        self
    }

    /// Sets a token counter that the caller also uses elsewhere. Default: the built-in encoders.
    #[must_use]
    pub fn tokens(mut self, counter: Arc<TokenCounter>) -> Self {
        self.tokens = Some(counter);
        self
    }

    /// Sets the store of tool results that are too large to show. Default: in memory, up to 64 MiB
    /// per tenant.
    #[must_use]
    pub fn artifacts(mut self, artifacts: Arc<dyn ArtifactStore>) -> Self {
        self.artifacts = Some(artifacts);
        self
    }

    /// Adds a resource that [`Host::shutdown`] closes after the last conversation has ended, such
    /// as the MCP servers behind tools.
    #[must_use]
    pub fn closes(mut self, resource: Arc<dyn Resource>) -> Self {
        self.resources.push(resource);
        self
    }

    /// Sets the extractor that reads the text of PDFs for models that take no documents. Without
    /// one, such models get no PDFs: the prompt is refused.
    #[must_use]
    pub fn document_text(mut self, reader: impl DocumentText) -> Self {
        self.documents = Some(Arc::new(reader));
        self
    }

    /// Sets where the locks of files come from, for hosts that work in the same folders. Default: in
    /// the process, so that two hosts do not wait for each other.
    #[must_use]
    pub fn file_locks(mut self, locks: impl LockProvider) -> Self {
        self.locks = Some(Arc::new(locks));
        self
    }

    /// Sets the validator of tool arguments. It runs before anything of a tool call is journaled.
    #[must_use]
    pub fn schemas(mut self, schemas: Arc<dyn Schemas>) -> Self {
        self.schemas = Some(schemas);
        self
    }

    /// Sets the store of events. Default: in memory.
    #[must_use]
    pub fn events(mut self, events: impl EventStore) -> Self {
        self.events = Some(Arc::new(events));
        self
    }

    /// Adds tools. A source that fails is reported by [`HostBuilder::build`].
    #[must_use]
    pub fn tools(mut self, source: impl ToolSource) -> Self {
        match source.tools() {
            Ok((tools, workspace)) => {
                self.defaults.tools.extend(tools);
                self.defaults.workspace = workspace.or(self.defaults.workspace);
            }
            Err(error) => self.tools_error = Some(error),
        }
        self
    }

    /// Sets the source of skills. Models then get the tools `activate_skill` and `skill_resource`.
    #[must_use]
    pub fn skills(self, skills: impl SkillSource) -> Self {
        self.shared_skills(Arc::new(skills))
    }

    /// Sets a source of skills that the caller also uses elsewhere.
    #[must_use]
    pub fn shared_skills(mut self, skills: Arc<dyn SkillSource>) -> Self {
        self.defaults.skills = Some(skills);
        self
    }

    /// Sets the models that a skill may select beside the conversation's own; `*` in a name matches
    /// any text. Default: none. A skill that names any other model still activates, and the
    /// conversation's own model answers.
    #[must_use]
    pub fn skill_models(mut self, models: impl IntoIterator<Item = String>) -> Self {
        self.defaults.skill_models = models.into_iter().collect();
        self
    }

    /// Limits how deep skills may activate other skills. Default: three active at once.
    #[must_use]
    pub fn skill_policy(mut self, policy: SkillPolicy) -> Self {
        self.defaults.skill_policy = policy;
        self
    }

    /// Adds one tool.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        self.defaults.tools.push(tool);
        self
    }

    /// Gives models the tool `create_subagent`. It starts a subagent with one task, an empty
    /// history and the same tools except `create_subagent`. [`Limits`] bounds how many run at once.
    /// Off by default.
    #[must_use]
    pub fn subagents(mut self) -> Self {
        self.defaults.subagents = true;
        self
    }

    /// Adds a hook.
    #[must_use]
    pub fn hook(mut self, hook: impl Hook) -> Self {
        self.defaults.hooks.push(Arc::new(hook));
        self
    }

    /// Sets application values that every tool call can read.
    #[must_use]
    pub fn extensions(mut self, extensions: Extensions) -> Self {
        self.defaults.extensions = extensions;
        self
    }

    /// Sets whether tools that change something may run. Default: `Deny`, since no person was named
    /// who could approve. `Ask` also sets [`HostBuilder::has_approver`].
    #[must_use]
    pub fn approval(mut self, approval: ApprovalMode) -> Self {
        self.defaults.has_approver = approval == ApprovalMode::Ask;
        self.defaults.approval = approval;
        self
    }

    /// Sets whether a person answers approval requests. [`HostBuilder::approval`] sets it to true
    /// for `Ask` and to false otherwise. Without an approver, a call that needs approval is denied
    /// at once.
    #[must_use]
    pub fn has_approver(mut self, has_approver: bool) -> Self {
        self.defaults.has_approver = has_approver;
        self
    }

    /// Sets the permissions of tool calls: a permission level, and optionally the only tools that
    /// may run.
    #[must_use]
    pub fn permissions(mut self, permissions: Permissions) -> Self {
        self.defaults.permissions = permissions;
        self
    }

    /// Sets how much of a tool's data the model sees when neither the call nor the tool sets a
    /// level.
    #[must_use]
    pub fn output_level(mut self, level: OutputLevel) -> Self {
        self.defaults.output_level = level;
        self
    }

    /// Sets what happens to a round that was open when its host stopped. Default: it is resumed.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.defaults.recovery = recovery;
        self
    }

    /// Says that the last host on this store stopped without a crash, although rounds may be open.
    /// A round whose tools ran in three crashes, or one model call in ten, is not resumed; without
    /// this method every stop meanwhile counts as a crash.
    #[must_use]
    pub fn after_orderly_stop(mut self, follows_orderly_stop: bool) -> Self {
        self.follows_orderly_stop = follows_orderly_stop;
        self
    }

    /// Sets the host's limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the prices of models. They are needed for the cost of calls in usage and figures, and
    /// for budgets in money.
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = prices;
        self
    }

    /// Sets the budget of each conversation, over all its rounds. A round whose next model call
    /// exceeds it ends with the stop reason `budget`.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.defaults.budget = budget;
        self
    }

    /// Sets the budget that all conversations of a tenant share.
    /// [`super::TenantHandle::set_budget`] changes it for one tenant.
    #[must_use]
    pub fn tenant_budget(mut self, budget: Budget) -> Self {
        self.tenant_budget = budget;
        self
    }

    /// Sets when failed model calls are retried.
    #[must_use]
    pub fn model_retry(mut self, retry: ModelRetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Configures the circuit breaker: when calls to a failing provider stop, and for how long.
    #[must_use]
    pub fn breaker(mut self, breaker: BreakerConfig) -> Self {
        self.breaker = breaker;
        self
    }

    /// Masks secrets in tool results, errors, panics and progress, before a model, a watcher or the
    /// journal sees them.
    #[must_use]
    pub fn mask_results(mut self, mask: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.defaults.mask = Some(Arc::new(mask));
        self
    }

    /// Sets the share of rounds that open a tracing span. Default: all. Figures count every round,
    /// sampled or not.
    #[must_use]
    pub fn trace_sampling(mut self, sampling: TraceSampling) -> Self {
        self.trace_sampling = sampling;
        self
    }

    /// Starts the host on the current runtime.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing or contradictory.
    pub async fn build(self) -> Result<H, BuildError> {
        if let Some(error) = self.tools_error {
            return Err(BuildError::NoTools(error));
        }
        let provider = self.provider.ok_or(BuildError::NoProvider)?;
        let collector = MetricsCollectorRef::default();
        let limits = Arc::new(self.limits);
        let gateway_config = GatewayConfig {
            calls_max: limits.model_calls_max,
            calls_are_shared: false,
            waiting_max: limits.model_waiting_max,
            requests_per_minute: None,
            tokens_per_minute: None,
            retry: self.retry,
            breaker: self.breaker,
            fallback: None,
            parameters: ModelParameters::default(),
        };
        let ports = Ports {
            sessions: self
                .sessions
                .unwrap_or_else(|| Arc::new(MemorySessions::new())),
            store_health: Arc::default(),
            events: self
                .events
                .unwrap_or_else(|| Arc::new(MemoryEvents::from_limits(&limits))),
            clock: self.clock,
            entropy: self.entropy.clone(),
            collector: collector.clone(),
        };
        let compactor = CompactorRef::new(self.compaction, collector.clone());
        let resolver = SetupResolver {
            defaults: self.defaults,
            gateway: ModelGatewayRef::new(
                provider,
                gateway_config.clone(),
                self.entropy,
                collector.clone(),
            ),
            gateways: RwLock::default(),
            share: parking_lot::Mutex::default(),
            gateway_config,
            ports: ports.clone(),
            artifacts: self
                .artifacts
                .unwrap_or_else(|| Arc::new(MemoryArtifacts::new(ports.clock.clone()))),
            schemas: self.schemas,
            locks: self.locks,
            counter: self.tokens.unwrap_or_default(),
            compactor: compactor.clone(),
            prices: Arc::new(self.prices),
            subagents: Arc::default(),
            trace_sampling: self.trace_sampling,
            limits: limits.clone(),
            tenant_budget: self.tenant_budget,
        };
        let setup = resolver.default_setup().await?;
        let tenants =
            Arc::new(Tenants::new(&limits, ports.sessions.clone()).with_budget(self.tenant_budget));
        let directory = Directory::new(
            limits.clone(),
            ports.clone(),
            tenants.clone(),
            setup.clone(),
            tokio::runtime::Handle::current(),
            self.follows_orderly_stop,
        );
        resolver.subagents.set_directory(&directory);
        let args = HostSupervisorArgs {
            directory: directory.clone(),
            collector,
            compactor,
            events: ports.events.clone(),
            idle: limits.idle,
            sweep: limits.sweep,
        };
        let start = ractor::Actor::spawn(None, HostSupervisor, args).await;
        let (supervisor, _) = start.map_err(|error| BuildError::Start(error.to_string()))?;
        let inner = HostInner {
            supervisor: supervisor.get_cell(),
            directory,
            setup,
            ports,
            tenants,
            resolver,
            resources: self.resources,
            documents: self.documents,
            deletions: tokio_util::task::TaskTracker::new(),
        };
        Ok((self.wrap)(Host(Arc::new(inner))))
    }
}
