//! Puts a host together and says what is missing.

use crate::{
    chat::Effort,
    compactor::{CompactionSettings, CompactorRef},
    conversation::{
        Ports,
        round::rules::{ApprovalMode, Recovery},
    },
    host::{BuildError, ToolSource, directory::Directory},
    limits::Limits,
    memory::{MemoryArtifacts, MemoryEvents, MemorySessions},
    metrics_collector::Counters,
    model_gateway::{GatewayConfig, ModelGatewayRef, ModelRetryPolicy},
    policy::{BreakerConfig, Budget, Prices, TraceSampling},
    ports::{
        ArtifactStore, Clock, DocumentText, Entropy, EventStore, Extensions, Hook, LlmProvider, Resource, Schemas, SessionBackend,
        SkillSource, SteadyClock, Tool,
    },
    skill::SkillPolicy,
    tenant::Tenants,
    tokens::TokenCounter,
    tool::OutputLevel,
    tool_executor::Permissions,
};
use std::sync::{Arc, RwLock};

use super::{
    Host, HostInner,
    setup_resolver::{ConversationDefaults, SetupResolver},
    supervisor::{HostSupervisor, HostSupervisorArgs},
};

/// Collects what a [`Host`] is made of. `H` is what `build` returns: the host, or a wrapper of it.
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
    documents: Option<Arc<dyn DocumentText>>,
    limits: Limits,
    prices: Prices,
    trace_sampling: TraceSampling,
    tenant_budget: Budget,
    retry: ModelRetryPolicy,
    breaker: BreakerConfig,
}

impl<H> HostBuilder<H> {
    /// A builder for a platform with this clock and this source of chance; `wrap` makes what `build` returns.
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
            documents: None,
            limits: Limits::default(),
            prices: Prices::default(),
            trace_sampling: TraceSampling::Always,
            tenant_budget: Budget::default(),
            retry: ModelRetryPolicy::default(),
            breaker: BreakerConfig::default(),
        }
    }

    /// The model's provider. Needed.
    #[must_use]
    pub fn provider(self, provider: impl LlmProvider) -> Self {
        self.shared_provider(Arc::new(provider))
    }

    /// The model's provider, shared with others.
    #[must_use]
    pub fn shared_provider(mut self, provider: Arc<dyn LlmProvider>) -> Self {
        self.provider = Some(provider);
        self
    }

    /// The model; the provider's usual one otherwise.
    #[must_use]
    pub fn model(mut self, model: impl AsRef<str>) -> Self {
        self.defaults.model = Some(Arc::from(model.as_ref()));
        self
    }

    /// The system prompt.
    #[must_use]
    pub fn system(mut self, system: impl AsRef<str>) -> Self {
        self.defaults.system = Some(Arc::from(system.as_ref()));
        self
    }

    /// Longest answer in tokens; what the model can, up to 8192, otherwise.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: u32) -> Self {
        self.defaults.max_tokens = Some(max_tokens);
        self
    }

    /// How hard the model is to think.
    #[must_use]
    pub fn effort(mut self, effort: Effort) -> Self {
        self.defaults.effort = Some(effort);
        self
    }

    /// Where journals live; in memory otherwise.
    #[must_use]
    pub fn sessions(self, sessions: impl SessionBackend) -> Self {
        self.shared_sessions(Arc::new(sessions))
    }

    /// Where journals live, shared with others.
    #[must_use]
    pub fn shared_sessions(mut self, sessions: Arc<dyn SessionBackend>) -> Self {
        self.sessions = Some(sessions);
        self
    }

    /// When and how contexts are made smaller.
    #[must_use]
    pub fn compaction(mut self, settings: CompactionSettings) -> Self {
        self.compaction = settings;
        self
    }

    /// What counts tokens, shared with others; the built-in encoders otherwise.
    #[must_use]
    pub fn tokens(mut self, counter: Arc<TokenCounter>) -> Self {
        self.tokens = Some(counter);
        self
    }

    /// Where results go that are too large to show; in memory otherwise, up to 64 MiB a tenant.
    #[must_use]
    pub fn artifacts(mut self, artifacts: Arc<dyn ArtifactStore>) -> Self {
        self.artifacts = Some(artifacts);
        self
    }

    /// Something that is closed when the host shuts down, after the last conversation: the servers behind tools (REQUIREMENTS Q-06).
    #[must_use]
    pub fn closes(mut self, resource: Arc<dyn Resource>) -> Self {
        self.resources.push(resource);
        self
    }

    /// What reads the text of PDFs for a model that is shown none; without it they are refused then (REQUIREMENTS W-01).
    #[must_use]
    pub fn document_text(mut self, reader: impl DocumentText) -> Self {
        self.documents = Some(Arc::new(reader));
        self
    }

    /// What checks arguments against the schemas of tools, before anything of a call is journaled.
    #[must_use]
    pub fn schemas(mut self, schemas: Arc<dyn Schemas>) -> Self {
        self.schemas = Some(schemas);
        self
    }

    /// Where events live; in memory otherwise.
    #[must_use]
    pub fn events(mut self, events: impl EventStore) -> Self {
        self.events = Some(Arc::new(events));
        self
    }

    /// Adds tools.
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

    /// Where skills come from; with it, models have the tools `activate_skill` and `skill_resource` (REQUIREMENTS R-18).
    #[must_use]
    pub fn skills(self, skills: impl SkillSource) -> Self {
        self.shared_skills(Arc::new(skills))
    }

    /// Where skills come from, shared with others.
    #[must_use]
    pub fn shared_skills(mut self, skills: Arc<dyn SkillSource>) -> Self {
        self.defaults.skills = Some(skills);
        self
    }

    /// The models that a skill may choose beside the conversation's own; a name may hold `*` for any text. None otherwise: a skill that
    /// names another model is active and answered by the conversation's own.
    #[must_use]
    pub fn skill_models(mut self, models: impl IntoIterator<Item = String>) -> Self {
        self.defaults.skill_models = models.into_iter().collect();
        self
    }

    /// How deep skills may activate skills; three at once otherwise.
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

    /// Gives models the tool `create_subagent`: a task for a second agent with an empty history and the same tools but this one
    /// (REQUIREMENTS N-01, N-02). [`Limits`] bounds how many. Off unless asked for.
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

    /// Lends values of the application to every tool call.
    #[must_use]
    pub fn extensions(mut self, extensions: Extensions) -> Self {
        self.defaults.extensions = extensions;
        self
    }

    /// Whether tools that change something may run. `Deny` otherwise: nobody was asked.
    #[must_use]
    pub fn approval(mut self, approval: ApprovalMode) -> Self {
        self.defaults.has_approver = approval == ApprovalMode::Ask;
        self.defaults.approval = approval;
        self
    }

    /// Whether somebody is there to be asked; true after `approval(Ask)`. Without one, what needs approval is denied at once.
    #[must_use]
    pub fn has_approver(mut self, has_approver: bool) -> Self {
        self.defaults.has_approver = has_approver;
        self
    }

    /// What tool calls are allowed: a level, and the only tools that may run.
    #[must_use]
    pub fn permissions(mut self, permissions: Permissions) -> Self {
        self.defaults.permissions = permissions;
        self
    }

    /// How much of a tool's data is shown where neither the call nor the tool says so (REQUIREMENTS O-09).
    #[must_use]
    pub fn output_level(mut self, level: OutputLevel) -> Self {
        self.defaults.output_level = level;
        self
    }

    /// What becomes of a round that was open when its host stopped. Taken up again otherwise.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.defaults.recovery = recovery;
        self
    }

    /// Bounds.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// What models cost: for the cost of each call in usage and figures, and for budgets of money (REQUIREMENTS X-21).
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = prices;
        self
    }

    /// What each conversation may spend in all its rounds together (REQUIREMENTS L-05). A round whose next model call has no room
    /// ends with the stop reason `budget`.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.defaults.budget = budget;
        self
    }

    /// What all conversations of each tenant together may spend; [`super::TenantHandle::set_budget`] changes it for one.
    #[must_use]
    pub fn tenant_budget(mut self, budget: Budget) -> Self {
        self.tenant_budget = budget;
        self
    }

    /// When failed model calls are tried again.
    #[must_use]
    pub fn model_retry(mut self, retry: ModelRetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// When a failing provider is left alone.
    #[must_use]
    pub fn breaker(mut self, breaker: BreakerConfig) -> Self {
        self.breaker = breaker;
        self
    }

    /// Takes keys out of what tools return, of their errors, panics and progress, before a model, a watcher or the journal sees it.
    #[must_use]
    pub fn mask_results(mut self, mask: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.defaults.mask = Some(Arc::new(mask));
        self
    }

    /// How many turns begin a span for the subscriber of this process; all unless said otherwise. Figures are not sampled
    /// (REQUIREMENTS ).
    #[must_use]
    pub fn trace_sampling(mut self, sampling: TraceSampling) -> Self {
        self.trace_sampling = sampling;
        self
    }

    /// Starts the host on the current runtime.
    ///
    /// # Errors
    /// [`BuildError`] says what is missing.
    pub async fn build(self) -> Result<H, BuildError> {
        if let Some(error) = self.tools_error {
            return Err(BuildError::NoTools(error));
        }
        let provider = self.provider.ok_or(BuildError::NoProvider)?;
        let counters = Arc::new(Counters::default());
        let limits = Arc::new(self.limits);
        let gateway_config = GatewayConfig {
            calls_max: limits.model_calls_max,
            waiting_max: limits.model_waiting_max,
            requests_per_minute: None,
            tokens_per_minute: None,
            retry: self.retry,
            breaker: self.breaker,
            fallback: None,
        };
        let ports = Ports {
            sessions: self.sessions.unwrap_or_else(|| Arc::new(MemorySessions::new())),
            events: self.events.unwrap_or_else(|| Arc::new(MemoryEvents::from_limits(&limits))),
            clock: self.clock,
            entropy: self.entropy.clone(),
            counters: counters.clone(),
        };
        let compactor = CompactorRef::new(self.compaction, counters.clone(), ports.clock.clone());
        let resolver = SetupResolver {
            defaults: self.defaults,
            gateway: ModelGatewayRef::new(provider, gateway_config.clone(), self.entropy, counters.clone()),
            gateways: RwLock::default(),
            gateway_config,
            ports: ports.clone(),
            artifacts: self.artifacts.unwrap_or_else(|| Arc::new(MemoryArtifacts::new(ports.clock.clone()))),
            schemas: self.schemas,
            counter: self.tokens.unwrap_or_default(),
            compactor: compactor.clone(),
            prices: Arc::new(self.prices),
            subagents: Arc::default(),
            trace_sampling: self.trace_sampling,
            limits: limits.clone(),
            tenant_budget: self.tenant_budget,
        };
        let setup = resolver.default_setup().await?;
        let tenants = Arc::new(Tenants::new(&limits).with_budget(self.tenant_budget));
        let directory = Directory::new(limits.clone(), ports.clone(), tenants.clone(), setup.clone(), tokio::runtime::Handle::current());
        resolver.subagents.belong_to(&directory);
        let collector = Arc::default();
        let args = HostSupervisorArgs {
            directory: directory.clone(),
            counters: counters.clone(),
            compactor,
            collector: Arc::clone(&collector),
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
            collector,
            resolver,
            resources: self.resources,
            documents: self.documents,
        };
        Ok((self.wrap)(Host(Arc::new(inner))))
    }
}
