//! Conversation configuration: the host's defaults, a tenant's overrides, and the resolver that
//! merges both into a `Setup`.
//!
//! Everything that setups share (gateways, prices, the token counter, the compactor) is created
//! once, in the [`SetupResolver`].

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::{BuildError, ToolSource, subagents::Subagents};
use crate::{
    chat::{ModelParameters, Thinking, ToolDefinition},
    compactor::{CompactorRef, MEMORY, Recall, RequestBytes},
    conversation::{
        OutboxRules, OutboxSetup, Ports, Setup, SkillRegistry, Toolset,
        round::rules::{ApprovalMode, ContextRules, Recovery},
    },
    ids::ConversationId,
    limits::{BYTES_A_TOKEN, Limits},
    model_gateway::{CallClass, FallbackCycle, GatewayConfig, ModelGatewayRef},
    policy::{Budget, HostShare, Prices, Pricing, TraceSampling},
    ports::{
        ArtifactStore, Extensions, Hook, LlmProvider, LockProvider, OutboxEvent, Schemas,
        SkillSource, Tool, TypedTool, erased,
    },
    skill::SkillPolicy,
    subagent::{CREATE_SUBAGENT, Children, CreateSubagent},
    tenant::Quotas,
    tokens::TokenCounter,
    tool::OutputLevel,
    tool_executor::{Mask, Permissions, ToolResources},
};

/// The name of the gateway to the host's own provider.
pub const HOST_GATEWAY: &str = "default";

/// The longest answer without a setting, thoughts excluded, in tokens.
const ANSWER_TOKENS: u32 = 8192;

/// The configuration that a tenant can override.
#[derive(Clone, Default)]
pub(super) struct ConversationDefaults {
    /// The name of a gateway; `None` for the host's own.
    pub(super) gateway: Option<String>,
    pub(super) model: Option<Arc<str>>,
    pub(super) system: Option<Arc<str>>,
    pub(super) parameters: ModelParameters,
    pub(super) tools: Vec<Arc<dyn Tool>>,
    pub(super) hooks: Vec<Arc<dyn Hook>>,
    pub(super) workspace: Option<Arc<PathBuf>>,
    pub(super) extensions: Extensions,
    pub(super) skills: Option<Arc<dyn SkillSource>>,
    pub(super) skill_policy: SkillPolicy,
    pub(super) approval: ApprovalMode,
    pub(super) has_approver: bool,
    pub(super) permissions: Permissions,
    pub(super) output_level: OutputLevel,
    pub(super) mask: Option<Mask>,
    pub(super) recovery: Recovery,
    /// The budget of each conversation.
    pub(super) budget: Budget,
    /// Whether models may start subagents.
    pub(super) subagents: bool,
    /// The models that skills may select beside the conversation's own; `*` matches any text.
    pub(super) skill_models: Arc<[String]>,
    /// What a receiver outside is informed of; `None` without one.
    pub(super) outbox: Option<OutboxSetup>,
}

/// The configuration of a tenant: its quotas, its budget, and its overrides of the host's defaults.
/// [`super::Host::configure_tenant`] applies it, at any time.
#[derive(Clone, Default)]
pub struct TenantConfig {
    pub(super) quotas: Quotas,
    pub(super) budget: Option<Budget>,
    pub(super) changes: Vec<Change>,
    pub(super) tools_error: Option<String>,
}

/// One override of the host's defaults.
#[derive(Clone)]
pub(super) enum Change {
    Gateway(String),
    Model(Arc<str>),
    System(Arc<str>),
    Parameters(ModelParameters),
    Tools(Vec<Arc<dyn Tool>>, Option<Arc<PathBuf>>),
    Skills(Arc<dyn SkillSource>),
    Approval(ApprovalMode, bool),
    Permissions(Permissions),
    ConversationBudget(Budget),
    Subagents(bool),
    SkillModels(Arc<[String]>),
    Outbox(OutboxSetup),
}

impl TenantConfig {
    /// A configuration without overrides: the host's own limits, model and tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the quotas: what the tenant may use at once and per minute, and its weight in fair
    /// queues.
    #[must_use]
    pub fn quotas(mut self, quotas: Quotas) -> Self {
        self.quotas = quotas;
        self
    }

    /// Sets the budget that all conversations of the tenant share, counted since the host started.
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets the budget of each conversation of the tenant.
    #[must_use]
    pub fn conversation_budget(self, budget: Budget) -> Self {
        self.with(Change::ConversationBudget(budget))
    }

    /// Sets the gateway, and so the provider credential, for the tenant's model calls
    /// ([`super::Host::add_gateway`]).
    #[must_use]
    pub fn gateway(self, name: impl Into<String>) -> Self {
        self.with(Change::Gateway(name.into()))
    }

    /// Sets the tenant's model.
    #[must_use]
    pub fn model(self, model: impl AsRef<str>) -> Self {
        self.with(Change::Model(model.as_ref().into()))
    }

    /// Sets the tenant's system prompt.
    #[must_use]
    pub fn system(self, system: impl AsRef<str>) -> Self {
        self.with(Change::System(system.as_ref().into()))
    }

    /// Sets the longest answer, in tokens.
    #[must_use]
    pub fn max_tokens(self, max_tokens: u32) -> Self {
        self.parameters(ModelParameters {
            max_tokens: Some(max_tokens),
            ..ModelParameters::default()
        })
    }

    /// Sets how the model is asked to answer. What is left open comes from the host's own
    /// parameters ([`super::HostBuilder::parameters`]).
    #[must_use]
    pub fn parameters(self, parameters: ModelParameters) -> Self {
        self.with(Change::Parameters(parameters))
    }

    /// Replaces the host's tools and their workspace.
    #[must_use]
    pub fn tools(mut self, source: impl ToolSource) -> Self {
        match source.tools() {
            Ok((tools, workspace)) => self.with(Change::Tools(tools, workspace)),
            Err(error) => {
                self.tools_error = Some(error);
                self
            }
        }
    }

    /// Replaces the host's source of skills.
    #[must_use]
    pub fn skills(self, skills: Arc<dyn SkillSource>) -> Self {
        self.with(Change::Skills(skills))
    }

    /// Replaces the host's list of models that skills may select
    /// ([`super::HostBuilder::skill_models`]).
    #[must_use]
    pub fn skill_models(self, models: impl IntoIterator<Item = String>) -> Self {
        self.with(Change::SkillModels(models.into_iter().collect()))
    }

    /// Sets whether the tenant's tools that change something may run.
    #[must_use]
    pub fn approval(self, approval: ApprovalMode) -> Self {
        self.with(Change::Approval(approval, approval == ApprovalMode::Ask))
    }

    /// Sets the permissions of the tenant's tool calls.
    #[must_use]
    pub fn permissions(self, permissions: Permissions) -> Self {
        self.with(Change::Permissions(permissions))
    }

    /// Sets whether the tenant's models may start subagents. Default: as
    /// [`super::HostBuilder::subagents`].
    #[must_use]
    pub fn subagents(self, may: bool) -> Self {
        self.with(Change::Subagents(may))
    }

    /// Stores a message in the outbox of the store for each of these events of the tenant's
    /// conversations, but not of those that `leaves_out` names and of subagents. `bell` is notified
    /// after a message is stored; a program that delivers them waits for it.
    #[must_use]
    pub fn outbox(
        self,
        events: impl IntoIterator<Item = OutboxEvent>,
        leaves_out: fn(&ConversationId) -> bool,
        bell: Arc<Notify>,
    ) -> Self {
        let rules = OutboxRules {
            events: Arc::new(events.into_iter().collect()),
            leaves_out,
        };
        self.with(Change::Outbox(OutboxSetup { rules, bell }))
    }

    fn with(mut self, change: Change) -> Self {
        self.changes.push(change);
        self
    }
}

impl std::fmt::Debug for TenantConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantConfig")
            .field("quotas", &self.quotas)
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

impl ConversationDefaults {
    /// These defaults with a tenant's overrides; the last override of a kind applies.
    fn changed(&self, changes: &[Change]) -> Self {
        changes.iter().fold(self.clone(), |mut defaults, change| {
            match change.clone() {
                Change::Gateway(name) => defaults.gateway = Some(name),
                Change::Model(model) => defaults.model = Some(model),
                Change::System(system) => defaults.system = Some(system),
                Change::Parameters(asked) => defaults.parameters = asked.or(&defaults.parameters),
                Change::Tools(tools, workspace) => {
                    (defaults.tools, defaults.workspace) = (tools, workspace)
                }
                Change::Skills(skills) => defaults.skills = Some(skills),
                Change::Approval(approval, has_approver) => {
                    (defaults.approval, defaults.has_approver) = (approval, has_approver)
                }
                Change::Permissions(permissions) => defaults.permissions = permissions,
                Change::ConversationBudget(budget) => defaults.budget = budget,
                Change::Subagents(may) => defaults.subagents = may,
                Change::SkillModels(models) => defaults.skill_models = models,
                Change::Outbox(rules) => defaults.outbox = Some(rules),
            }
            defaults
        })
    }
}

/// Merges defaults and overrides into setups. Owns the gateways by name, and what all setups of a
/// host share.
pub(super) struct SetupResolver {
    pub(super) defaults: ConversationDefaults,
    pub(super) gateway: ModelGatewayRef,
    pub(super) gateways: RwLock<BTreeMap<String, ModelGatewayRef>>,
    /// This host's part of the providers' limits.
    pub(super) share: Mutex<HostShare>,
    pub(super) gateway_config: GatewayConfig,
    pub(super) ports: Ports,
    pub(super) artifacts: Arc<dyn ArtifactStore>,
    pub(super) schemas: Option<Arc<dyn Schemas>>,
    pub(super) locks: Option<Arc<dyn LockProvider>>,
    pub(super) counter: Arc<TokenCounter>,
    pub(super) compactor: CompactorRef,
    pub(super) prices: Arc<Prices>,
    pub(super) subagents: Arc<Subagents>,
    pub(super) trace_sampling: TraceSampling,
    pub(super) limits: Arc<Limits>,
    /// The budget of a tenant whose configuration sets none.
    pub(super) tenant_budget: Budget,
}

impl SetupResolver {
    /// The gateway of this name, the host's own included.
    pub(super) fn gateway(&self, name: &str) -> Option<ModelGatewayRef> {
        if name == HOST_GATEWAY {
            return Some(self.gateway.clone());
        }
        self.gateways.read().get(name).cloned()
    }

    /// All gateways, the host's own first.
    pub(super) fn all_gateways(&self) -> Vec<(String, ModelGatewayRef)> {
        let others = self.gateways.read();
        let own = (HOST_GATEWAY.to_owned(), self.gateway.clone());
        std::iter::once(own)
            .chain(
                others
                    .iter()
                    .map(|(name, gateway)| (name.clone(), gateway.clone())),
            )
            .collect()
    }

    /// Adds a gateway, or changes one in place.
    ///
    /// # Errors
    /// As [`super::Host::add_gateway`].
    pub(super) fn add_gateway(
        &self,
        name: String,
        provider: Arc<dyn LlmProvider>,
        config: GatewayConfig,
    ) -> Result<(), BuildError> {
        // The lock is held throughout: two gateways that are added at once and name each other as
        // fallback would form a cycle.
        let mut gateways = self.gateways.write();
        let find = |gateways: &BTreeMap<String, ModelGatewayRef>, name: &str| {
            if name == HOST_GATEWAY {
                Some(self.gateway.clone())
            } else {
                gateways.get(name).cloned()
            }
        };
        let fallback = match &config.fallback {
            Some(fallback) if fallback.gateway == name => {
                return Err(BuildError::FallbackCycle(name));
            }
            Some(fallback) => Some(
                find(&gateways, &fallback.gateway)
                    .ok_or_else(|| BuildError::NoSuchGateway(fallback.gateway.clone()))?,
            ),
            None => None,
        };
        let known = find(&gateways, &name);
        let gateway = known.clone().unwrap_or_else(|| {
            ModelGatewayRef::new(
                provider.clone(),
                config.clone(),
                self.ports.entropy.clone(),
                self.ports.collector.clone(),
            )
        });
        gateway
            .configure(provider, config, fallback)
            .map_err(|FallbackCycle| BuildError::FallbackCycle(name.clone()))?;
        if known.is_none() {
            gateway.share(*self.share.lock());
            gateways.insert(name, gateway);
        }
        Ok(())
    }

    /// Sets this host's part of the limits of every provider.
    pub(super) fn share(&self, share: HostShare) {
        // No gateway is added meanwhile.
        let gateways = self.gateways.write();
        *self.share.lock() = share;
        let all = gateways.values().chain([&self.gateway]);
        all.for_each(|gateway| gateway.share(share));
    }

    /// The setup of tenants without overrides.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing or contradictory.
    pub(super) async fn default_setup(&self) -> Result<Arc<Setup>, BuildError> {
        self.resolve(&self.defaults, self.tenant_budget).await
    }

    /// The setup of a tenant's conversations.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing or contradictory.
    pub(super) async fn resolve_tenant(
        &self,
        tenant: &TenantConfig,
    ) -> Result<Arc<Setup>, BuildError> {
        if let Some(error) = &tenant.tools_error {
            return Err(BuildError::NoTools(error.clone()));
        }
        self.resolve(
            &self.defaults.changed(&tenant.changes),
            tenant.budget.unwrap_or(self.tenant_budget),
        )
        .await
    }

    async fn resolve(
        &self,
        defaults: &ConversationDefaults,
        tenant_budget: Budget,
    ) -> Result<Arc<Setup>, BuildError> {
        let defaults = defaults.clone();
        let gateway = match &defaults.gateway {
            Some(name) => self
                .gateway(name)
                .ok_or_else(|| BuildError::NoSuchGateway(name.clone()))?,
            None => self.gateway.clone(),
        };
        let mut tools = defaults.tools;
        if !tools.is_empty()
            && !tools
                .iter()
                .any(|tool| tool.spec().definition.name == Recall::NAME)
        {
            // Conversations with tools become long, so they get `recall`, which reads what a
            // compaction dropped.
            tools.push(erased(Recall::new(self.ports.sessions.clone())));
        }
        if defaults.subagents {
            tools.push(erased(CreateSubagent::new(self.subagents.clone())));
        }
        let skills = match defaults.skills {
            Some(source) => Some(Arc::new(
                SkillRegistry::open(source, defaults.skill_policy).await?,
            )),
            None => None,
        };
        let all = tools
            .into_iter()
            .chain(skills.iter().flat_map(SkillRegistry::tools));
        let tools = Arc::new(Toolset::new(all, self.schemas.as_deref())?);
        let model = defaults
            .model
            .unwrap_or_else(|| Arc::from(gateway.provider().default_model()));
        let capabilities = gateway.capabilities(&model);
        let parameters = defaults.parameters.or(&gateway.parameters());
        if parameters.thinking.is_some() && !capabilities.thinking {
            return Err(BuildError::NoThinking(model.to_string()));
        }
        // Thoughts count as a part of the answer, so their budget comes on top.
        let thoughts = match parameters.thinking {
            Some(Thinking::Budget(tokens)) => tokens,
            Some(Thinking::Off | Thinking::Adaptive) | None => 0,
        };
        // A small window keeps room for what is asked.
        let usual = match capabilities.context_window {
            0 => ANSWER_TOKENS,
            window => ANSWER_TOKENS.min(window / 4),
        };
        let max_tokens = parameters
            .max_tokens
            .unwrap_or(thoughts.saturating_add(usual))
            .min(capabilities.output_max.max(1));
        let checked = ModelParameters {
            max_tokens: Some(max_tokens),
            ..parameters.clone()
        };
        checked.check()?;
        let price = self.prices.get(&model).copied();
        let unpriced = gateway
            .fallback_models()
            .into_iter()
            .find(|model| self.prices.get(model).is_none());
        if (price.is_none() || unpriced.is_some())
            && (defaults.budget.micro_usd.is_some() || tenant_budget.micro_usd.is_some())
        {
            let model = unpriced.filter(|_| price.is_some()).unwrap_or(model);
            let nearest = self.prices.nearest(&model).map(str::to_owned);
            return Err(BuildError::NoPrice {
                model: model.to_string(),
                nearest,
            });
        }
        let fixed = fixed_bytes(defaults.system.as_deref(), &tools);
        let window = u64::from(capabilities.context_window);
        let pricing = Arc::new(Pricing {
            budget: defaults.budget,
            model: model.clone(),
            price,
            prices: self.prices.clone(),
            skill_models: defaults.skill_models,
            fixed_bytes: fixed,
            max_tokens: u64::from(max_tokens),
            window_tokens: window,
        });
        let tokens = gateway.exact_counter(&self.counter, &model);
        let trigger = self.compactor.settings().trigger;
        let context = ContextRules {
            window,
            max_tokens: u64::from(max_tokens),
            fixed: fixed / BYTES_A_TOKEN,
            trigger: (f64::from(capabilities.context_window) * trigger) as u64,
            bytes: RequestBytes::new(&gateway.request_capabilities(&model), fixed),
            memory_flush: self.compactor.settings().memory_flush && tools.get(MEMORY).is_some(),
        };
        let setup = Setup {
            gateway,
            context,
            tokens: Arc::new(tokens),
            compactor: self.compactor.clone(),
            model,
            system: defaults.system,
            max_tokens,
            output_max: capabilities.output_max,
            parameters,
            skills,
            tools,
            hooks: defaults.hooks.into(),
            approval: defaults.approval,
            has_approver: defaults.has_approver,
            window_tokens: window,
            recovery: defaults.recovery,
            resources: ToolResources {
                workspace: defaults.workspace,
                extensions: defaults.extensions,
                artifacts: Some(self.artifacts.clone()),
                permissions: defaults.permissions,
                output_level: defaults.output_level,
                locks: self.locks.clone(),
                mask: defaults.mask,
            },
            schemas: self.schemas.clone(),
            native_output: capabilities.output_schema,
            takes_documents: capabilities.documents,
            takes_thinking: capabilities.thinking,
            pricing,
            trace_sampling: self.trace_sampling,
            outbox: defaults.outbox,
            class: CallClass::Interactive,
            children: defaults
                .subagents
                .then(|| self.subagents.clone() as Arc<dyn Children>),
            child: None,
            limits: self.limits.clone(),
        };
        let child = Arc::new(child_of(&setup));
        Ok(Arc::new(Setup {
            child: Some(child),
            ..setup
        }))
    }
}

impl SetupResolver {
    /// The setup of a fan-out's subagents: that of `parent`'s subagents, with another model if
    /// `model` is set. An ephemeral fan-out has no stored journal, so its subagents do not get
    /// `recall`.
    pub(super) fn resolve_fan_out(
        &self,
        parent: &Arc<Setup>,
        model: Option<Arc<str>>,
        ephemeral: bool,
    ) -> Arc<Setup> {
        let child = parent.child.clone().unwrap_or_else(|| parent.clone());
        if model.is_none() && !ephemeral {
            return child;
        }
        let mut setup = Setup::clone(&child);
        if ephemeral {
            setup.tools = Arc::new(setup.tools.without(&[Recall::NAME]));
        }
        let model = model.unwrap_or_else(|| setup.model.clone());
        let capabilities = setup.gateway.capabilities(&model);
        let window = u64::from(capabilities.context_window);
        setup.max_tokens = setup.max_tokens.min(capabilities.output_max);
        setup.output_max = capabilities.output_max;
        let max_tokens = u64::from(setup.max_tokens);
        let fixed_bytes = fixed_bytes(setup.system.as_deref(), &setup.tools);
        let price = self.prices.get(&model).copied();
        let own = Pricing {
            model: model.clone(),
            price,
            fixed_bytes,
            max_tokens,
            window_tokens: window,
            ..Pricing::clone(&setup.pricing)
        };
        setup.pricing = Arc::new(own);
        let trigger =
            (f64::from(capabilities.context_window) * self.compactor.settings().trigger) as u64;
        setup.context = ContextRules {
            window,
            max_tokens,
            fixed: fixed_bytes / BYTES_A_TOKEN,
            trigger,
            bytes: RequestBytes::new(&setup.gateway.request_capabilities(&model), fixed_bytes),
            memory_flush: setup.context.memory_flush,
        };
        setup.tokens = Arc::new(setup.gateway.exact_counter(&self.counter, &model));
        setup.window_tokens = window;
        setup.native_output = capabilities.output_schema;
        setup.takes_documents = capabilities.documents;
        setup.takes_thinking = capabilities.thinking;
        setup.model = model;
        Arc::new(setup)
    }
}

/// The setup of the subagents of conversations with this setup: the same, but without the tool that
/// starts subagents and without an approver, so a call that needs approval is denied.
fn child_of(setup: &Setup) -> Setup {
    let tools = Arc::new(setup.tools.without(&[CREATE_SUBAGENT]));
    let fixed_bytes = fixed_bytes(setup.system.as_deref(), &tools);
    // Subagents share the budget of their family instead of having one each.
    let pricing = Arc::new(Pricing {
        fixed_bytes,
        budget: Budget::default(),
        ..Pricing::clone(&setup.pricing)
    });
    let context = ContextRules {
        fixed: fixed_bytes / BYTES_A_TOKEN,
        bytes: RequestBytes::new(
            &setup.gateway.request_capabilities(&setup.model),
            fixed_bytes,
        ),
        ..setup.context
    };
    Setup {
        tools,
        pricing,
        context,
        has_approver: false,
        outbox: None,
        class: CallClass::Subagent,
        children: None,
        child: None,
        ..setup.clone()
    }
}

/// Bytes of the system prompt and the tool definitions, which precede the messages of each request.
fn fixed_bytes(system: Option<&str>, tools: &Toolset) -> u64 {
    let tool = |tool: &ToolDefinition| {
        tool.name.len() + tool.description.len() + tool.input_schema.as_str().len()
    };
    (system.map_or(0, str::len) + tools.definitions().iter().map(tool).sum::<usize>()) as u64
}
