//! The public handle: a host, its tenants, their conversations. Callers see verbs, not mailboxes.
//!
//! Dropping the last handle stops the host at once and loses nothing that was acknowledged: what was open is taken up again by
//! the next host on the same store. [`Host::shutdown`] is the kind way.

mod fan_out_context;
mod builder;
pub(crate) mod directory;
mod errors;
mod events;
mod fan_out;
mod figures;
mod handle;
mod prompt;
mod setup_resolver;
mod output;
mod projection;
mod reply;
mod round_watch;
mod subagents;
mod status;
mod supervisor;
mod room;
mod setups;
mod tenants;
mod tool_source;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, RwLock},
    time::Duration,
};

use ractor::ActorCell;
use tokio::time::Instant;

pub use crate::conversation::WaitsFor;
pub use builder::HostBuilder;
pub use errors::{BuildError, OutcomeError, SendError};
pub use events::{Events, EventsFrom};
pub use fan_out::{CacheEffect, CacheShare, FanOut, FanOutRun, FanOutSummary, TaskEnd, TaskFailure};
pub use figures::{FiguresReader, HostFigures, SlotCounts};
pub use handle::{ConversationHandle, SendPrompt, SkillStanding, TenantHandle};
pub use output::{OutputError, SendAsError};
pub use prompt::Prompt;
pub use reply::Reply;
pub use setup_resolver::{OWN_GATEWAY, TenantConfig};
pub use status::{BudgetLeft, ContextStatus, ConversationState, ConversationStatus};
pub use tenants::Erased;
pub use tool_source::{ToolSource, ToolsInFolder};

use crate::{
    conversation::{Ports, Setup},
    ids::{Scope, TenantId},
    limits::RESOURCES_CLOSE_MAX,
    metrics_collector::{MetricsCollectorRef, Report},
    model_gateway::{GatewayConfig, GatewayStatus},
    ports::{DocumentText, LlmProvider, Resource, StoreError},
    tenant::Tenants,
    tool_executor::ToolEnvironment,
};

/// A host: many tenants' conversations in one process. Cloning shares it.
#[derive(Clone)]
pub struct Host(Arc<HostInner>);

pub(crate) struct HostInner {
    supervisor: ActorCell,
    directory: Arc<directory::Directory>,
    setup: Arc<Setup>,
    ports: Ports,
    tenants: Arc<Tenants>,
    collector: Arc<RwLock<Option<MetricsCollectorRef>>>,
    resources: Vec<Arc<dyn Resource>>,
    resolver: setup_resolver::SetupResolver,
    /// What reads documents for a model that is shown none.
    documents: Option<Arc<dyn DocumentText>>,
}

impl Drop for HostInner {
    fn drop(&mut self) {
        self.directory.stopped().cancel();
        self.supervisor.stop(None); // Its children end with it; nothing waits here.
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({} awake)", self.0.directory.awake())
    }
}

impl Host {
    /// A tenant by id. A wrong id is told by the first verb that needs it.
    pub fn tenant<T: TryInto<TenantId, Error: Into<SendError>>>(&self, id: T) -> TenantHandle {
        TenantHandle::new(self.0.clone(), id.try_into().map_err(Into::into))
    }

    /// How conversations of this host are set up, unless their tenant differs.
    pub fn setup(&self) -> &Arc<Setup> {
        &self.0.setup
    }

    /// How conversations of a tenant are set up from their next life on.
    pub fn setup_of(&self, tenant: &TenantId) -> Arc<Setup> {
        self.0.directory.setup_of(tenant)
    }

    /// Where the tools of a conversation run; for calls without a model ([`crate::tool_executor::call_once`]).
    pub fn environment(&self, scope: &Scope) -> ToolEnvironment {
        let tenant = self.0.tenants.get(&scope.tenant);
        let (resources, tools) = (self.setup_of(&scope.tenant).resources.clone(), tenant.tools().clone());
        ToolEnvironment::new(resources, tools, scope.clone(), self.0.ports.counters.clone())
    }

    /// Sets a tenant up, or changes it: its bounds hold from the next prompt or call on, what its conversations are made of from their
    /// next life on (after they slept).
    ///
    /// # Errors
    /// [`BuildError`] says what is missing; then the tenant stays as it was.
    pub async fn configure_tenant(&self, id: &TenantId, config: TenantConfig) -> Result<(), BuildError> {
        let setup = self.0.resolver.of_tenant(&config).await?;
        let budget = config.budget.unwrap_or(self.0.resolver.tenant_budget);
        self.0.resolver.artifacts.bound(id, config.quotas.artifact_bytes_max);
        self.0.directory.set_up(id.clone(), setup);
        self.0.tenants.get(id).configure(config.quotas, budget);
        Ok(())
    }

    /// Adds a gateway for tenants with a credential of their own. With the name of one that is there, that one is changed in place: bounds,
    /// provider and credential hold at once, also for calls that wait. [`OWN_GATEWAY`] names the host's own.
    ///
    /// # Errors
    /// [`BuildError::NoSuchGateway`] for a fallback that is not there yet, [`BuildError::FallbackCycle`] for one that leads back; then
    /// nothing is changed.
    pub fn add_gateway(&self, name: impl Into<String>, provider: Arc<dyn LlmProvider>, config: GatewayConfig) -> Result<(), BuildError> {
        self.0.resolver.add_gateway(name.into(), provider, config)
    }

    /// All gateways by name, the host's own first, and what they are doing.
    pub fn gateways(&self) -> Vec<(String, GatewayStatus)> {
        self.0.resolver.all_gateways().into_iter().map(|(name, gateway)| (name, gateway.status())).collect()
    }

    /// How this host goes about model calls where nothing else is said.
    pub fn gateway_config(&self) -> &GatewayConfig {
        &self.0.resolver.gateway_config
    }

    /// The ports that this host uses.
    pub fn ports(&self) -> &Ports {
        &self.0.ports
    }

    /// Where results are that were too large to show.
    pub fn artifacts(&self) -> &Arc<dyn crate::ports::ArtifactStore> {
        &self.0.resolver.artifacts
    }

    /// Conversations in memory.
    pub fn awake(&self) -> usize {
        self.0.directory.awake()
    }

    /// The host's figures.
    pub async fn report(&self) -> Report {
        let collector = self.0.collector.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        match collector {
            Some(collector) => collector.report().await.unwrap_or_default(),
            None => Report::default(),
        }
    }

    /// Takes up every round that was open when the last host on this store stopped (DESIGN §4.3). Returns how many.
    ///
    /// # Errors
    /// What the store said.
    pub async fn resume_interrupted(&self) -> Result<usize, StoreError> {
        let (mut after, mut count) = (None, 0);
        loop {
            let page = self.0.ports.sessions.list_open(crate::stream::Open::Running, None, after, 256).await?;
            let Some(last) = page.last() else { return Ok(count) };
            after = Some(last.clone());
            for scope in &page {
                self.0.directory.send(scope, crate::conversation::ConversationMsg::Resume);
                count += 1;
            }
        }
    }

    /// Puts idle conversations to sleep now.
    pub fn hibernate_idle(&self) {
        self.0.directory.sweep(Duration::ZERO);
    }

    /// Ends the host: no new round begins, open ones have `within` to end and are interrupted then; the store is flushed.
    /// Returns how many conversations were awake (REQUIREMENTS H-04).
    pub async fn shutdown(&self, within: Duration) -> usize {
        let awake = self.0.directory.drain(Instant::now() + within).await;
        self.0.directory.stopped().cancel(); // Watchers have all that was told, and go on elsewhere.
        let closing = futures_util::future::join_all(self.0.resources.iter().map(|resource| resource.close()));
        if tokio::time::timeout(RESOURCES_CLOSE_MAX, closing).await.is_err() {
            tracing::warn!("what belongs to the tools did not close in time");
        }
        if let Err(error) = self.0.ports.sessions.close(Duration::from_secs(10)).await {
            tracing::error!(%error, "the store did not close well");
        }
        self.0.supervisor.stop(None);
        awake
    }
}
