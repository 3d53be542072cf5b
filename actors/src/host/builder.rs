//! Puts a host together and says what is missing.

use std::{path::PathBuf, sync::Arc};

use super::{
    Host, HostInner,
    supervisor::{HostSupervisor, HostSupervisorArgs},
};
use crate::{
    conversation::{
        Ports, Setup, Spending, Toolset, ToolsetError,
        volatile::{ApprovalMode, Recovery},
    },
    host::directory::Directory,
    limits::Limits,
    memory::{MemoryArtifacts, MemoryEvents, MemorySessions},
    metrics_collector::Counters,
    model_gateway::{GatewayConfig, ModelGatewayRef},
    policy::{BreakerConfig, Budget, ModelRetryPolicy, Prices},
    ports::{
        ArtifactStore, Clock, Effort, Entropy, EventStore, Extensions, Hook, LlmProvider, OutputLevel, Resource, Schemas, SessionBackend,
        Tool,
    },
    tenant::Tenants,
    tool_executor::{Lent, Permissions},
};

/// Collects what a [`Host`] is made of. `H` is what `build` returns: the host, or a wrapper of it.
pub struct HostBuilder<H = Host> {
    wrap: fn(Host) -> H,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    provider: Option<Arc<dyn LlmProvider>>,
    model: Option<Arc<str>>,
    system: Option<Arc<str>>,
    max_tokens: Option<u32>,
    effort: Option<Effort>,
    sessions: Option<Arc<dyn SessionBackend>>,
    events: Option<Arc<dyn EventStore>>,
    tools: Vec<Arc<dyn Tool>>,
    tools_error: Option<String>,
    hooks: Vec<Arc<dyn Hook>>,
    workspace: Option<Arc<PathBuf>>,
    extensions: Extensions,
    artifacts: Option<Arc<dyn ArtifactStore>>,
    schemas: Option<Arc<dyn Schemas>>,
    resources: Vec<Arc<dyn Resource>>,
    approval: ApprovalMode,
    has_approver: bool,
    permissions: Permissions,
    output_level: OutputLevel,
    recovery: Recovery,
    limits: Limits,
    prices: Prices,
    budget: Budget,
    tenant_budget: Budget,
    retry: ModelRetryPolicy,
    breaker: BreakerConfig,
}

/// Why a host could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No model.
    #[error("a host needs a provider: call .provider(…)")]
    NoProvider,
    /// The tools cannot be.
    #[error(transparent)]
    Tools(#[from] ToolsetError),
    /// A budget of money, and nothing to reckon it with.
    #[error("a budget of money needs a price for the model `{model}`{}", nearest.as_ref().map(|name| format!("; the nearest price is for `{name}`")).unwrap_or_default())]
    NoPrice {
        /// The model.
        model: String,
        /// The name with a price that is most like it.
        nearest: Option<String>,
    },
    /// The tools were not to be had.
    #[error("the tools could not be made: {0}")]
    NoTools(String),
    /// The actors could not be started.
    #[error("the host's actors could not be started: {0}")]
    Start(String),
}

/// Tools, and the folder that they work in.
pub type ToolsInFolder = (Vec<Arc<dyn Tool>>, Option<Arc<PathBuf>>);

/// Something that brings tools: a list, or a set-up that may have failed.
pub trait ToolSource {
    /// The tools, the folder they work in, or why there are none.
    ///
    /// # Errors
    /// A line for the person who configures the host.
    fn tools(self) -> Result<ToolsInFolder, String>;
}

impl ToolSource for Vec<Arc<dyn Tool>> {
    fn tools(self) -> Result<ToolsInFolder, String> {
        Ok((self, None))
    }
}

impl<const N: usize> ToolSource for [Arc<dyn Tool>; N] {
    fn tools(self) -> Result<ToolsInFolder, String> {
        Ok((self.into(), None))
    }
}

impl<H> HostBuilder<H> {
    /// A builder for a platform with this clock and this source of chance; `wrap` makes what `build` returns.
    pub fn new(clock: impl Clock, entropy: impl Entropy, wrap: fn(Host) -> H) -> Self {
        Self {
            wrap,
            clock: Arc::new(clock),
            entropy: Arc::new(entropy),
            provider: None,
            model: None,
            system: None,
            max_tokens: None,
            effort: None,
            sessions: None,
            events: None,
            tools: Vec::new(),
            tools_error: None,
            hooks: Vec::new(),
            workspace: None,
            extensions: Extensions::default(),
            artifacts: None,
            schemas: None,
            resources: Vec::new(),
            approval: ApprovalMode::default(),
            has_approver: false,
            permissions: Permissions::default(),
            output_level: OutputLevel::default(),
            recovery: Recovery::default(),
            limits: Limits::default(),
            prices: Prices::default(),
            budget: Budget::default(),
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
        self.model = Some(Arc::from(model.as_ref()));
        self
    }

    /// The system prompt.
    #[must_use]
    pub fn system(mut self, system: impl AsRef<str>) -> Self {
        self.system = Some(Arc::from(system.as_ref()));
        self
    }

    /// Longest answer in tokens; what the model can, up to 8192, otherwise.
    #[must_use]
    pub fn max_tokens(mut self, max_tokens: u32) -> Self {
        self.max_tokens = Some(max_tokens);
        self
    }

    /// How hard the model is to think.
    #[must_use]
    pub fn effort(mut self, effort: Effort) -> Self {
        self.effort = Some(effort);
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
                self.tools.extend(tools);
                self.workspace = workspace.or(self.workspace);
            }
            Err(error) => self.tools_error = Some(error),
        }
        self
    }

    /// Adds one tool.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        self.tools.push(tool);
        self
    }

    /// Adds a hook.
    #[must_use]
    pub fn hook(mut self, hook: impl Hook) -> Self {
        self.hooks.push(Arc::new(hook));
        self
    }

    /// Lends values of the application to every tool call.
    #[must_use]
    pub fn extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// Whether tools that change something may run. `Deny` otherwise: nobody was asked.
    #[must_use]
    pub fn approval(mut self, approval: ApprovalMode) -> Self {
        self.has_approver = approval == ApprovalMode::Ask;
        self.approval = approval;
        self
    }

    /// Whether somebody is there to be asked; true after `approval(Ask)`. Without one, what needs approval is denied at once.
    #[must_use]
    pub fn has_approver(mut self, has_approver: bool) -> Self {
        self.has_approver = has_approver;
        self
    }

    /// What tool calls are allowed: a level, and the only tools that may run.
    #[must_use]
    pub fn permissions(mut self, permissions: Permissions) -> Self {
        self.permissions = permissions;
        self
    }

    /// How much of a tool's data is shown where neither the call nor the tool says so (REQUIREMENTS O-09).
    #[must_use]
    pub fn output_level(mut self, level: OutputLevel) -> Self {
        self.output_level = level;
        self
    }

    /// What becomes of a round that was open when its host stopped. Taken up again otherwise.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.recovery = recovery;
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
        self.budget = budget;
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

    /// Starts the host on the current runtime.
    ///
    /// # Errors
    /// [`BuildError`] says what is missing.
    pub async fn build(self) -> Result<H, BuildError> {
        if let Some(error) = self.tools_error {
            return Err(BuildError::NoTools(error));
        }
        let provider = self.provider.ok_or(BuildError::NoProvider)?;
        let tools = Arc::new(Toolset::new(self.tools, self.schemas.as_deref())?);
        let model = self.model.unwrap_or_else(|| Arc::from(provider.default_model()));
        let capabilities = provider.capabilities(&model);
        let max_tokens = self.max_tokens.unwrap_or_else(|| capabilities.output_max.min(8192));
        let price = self.prices.of(&model).copied();
        if price.is_none() && (self.budget.micro_usd.is_some() || self.tenant_budget.micro_usd.is_some()) {
            let nearest = self.prices.nearest(&model).map(str::to_owned);
            return Err(BuildError::NoPrice { model: model.to_string(), nearest });
        }
        let tool_bytes = tools.definitions().iter().map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.as_str().len());
        let spending = Arc::new(Spending {
            budget: self.budget,
            price,
            fixed_bytes: (self.system.as_deref().map_or(0, str::len) + tool_bytes.sum::<usize>()) as u64,
            max_tokens: u64::from(max_tokens),
            window_tokens: u64::from(capabilities.context_window),
        });
        let counters = Arc::new(Counters::default());
        let limits = Arc::new(self.limits);
        let config = GatewayConfig {
            calls_max: limits.model_calls_max,
            waiting_max: limits.model_waiting_max,
            retry: self.retry,
            breaker: self.breaker,
        };
        let ports = Ports {
            sessions: self.sessions.unwrap_or_else(|| Arc::new(MemorySessions::new())),
            events: self.events.unwrap_or_else(|| Arc::new(MemoryEvents::from_limits(&limits))),
            clock: self.clock,
            entropy: self.entropy.clone(),
            counters: counters.clone(),
        };
        let setup = Arc::new(Setup {
            gateway: ModelGatewayRef::new(provider, config, self.entropy, counters.clone()),
            model,
            system: self.system,
            max_tokens,
            effort: self.effort,
            tools,
            hooks: self.hooks.into(),
            approval: self.approval,
            has_approver: self.has_approver,
            window_tokens: u64::from(capabilities.context_window),
            recovery: self.recovery,
            lent: Lent {
                workspace: self.workspace,
                extensions: self.extensions,
                artifacts: Some(self.artifacts.unwrap_or_else(|| Arc::new(MemoryArtifacts::new(ports.clock.clone())))),
                permissions: self.permissions,
                output_level: self.output_level,
            },
            schemas: self.schemas,
            native_output: capabilities.output_schema,
            spending,
            limits: limits.clone(),
        });
        let tenants = Arc::new(Tenants::new(&limits).with_budget(self.tenant_budget));
        let directory = Directory::new(setup.clone(), ports.clone(), tenants.clone(), tokio::runtime::Handle::current());
        let collector = Arc::default();
        let args = HostSupervisorArgs {
            directory: directory.clone(),
            counters: counters.clone(),
            collector: Arc::clone(&collector),
            idle: limits.idle,
            sweep: limits.sweep,
        };
        let start = ractor::Actor::spawn(None, HostSupervisor, args).await;
        let (supervisor, _) = start.map_err(|error| BuildError::Start(error.to_string()))?;
        let inner = HostInner { supervisor: supervisor.get_cell(), directory, setup, ports, tenants, collector, resources: self.resources };
        Ok((self.wrap)(Host(Arc::new(inner))))
    }
}
