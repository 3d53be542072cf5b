//! The public API of a running host: handles to the host, its tenants and their conversations.
//! Callers see methods, not mailboxes.
//!
//! Dropping the last [`Host`] handle stops the host at once. Acknowledged data is not lost: the
//! next host on the same store resumes the rounds that were open. [`Host::shutdown`] lets open
//! rounds finish first.

mod fan_out_context;
mod builder;
pub(crate) mod directory;
mod errors;
mod events;
mod fan_out;
mod figures;
mod handle;
mod skills;
mod views;
mod prompt;
mod setup_resolver;
mod output;
mod projection;
mod reply;
mod round_watch;
mod subagents;
mod status;
mod supervisor;
mod store_admission;
mod setups;
mod tenants;
mod tool_source;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use ractor::ActorCell;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub use crate::conversation::{StoreOutage, WaitsFor};
pub use builder::HostBuilder;
pub use errors::{BuildError, OutcomeError, SendError};
pub use events::{Events, EventsFrom};
pub use fan_out::{
    CacheEffect, CacheShare, FanOut, FanOutRun, FanOutSummary, StoredFanOut, TaskEnd, TaskFailure,
    stored_fan_outs,
};
pub use figures::{FiguresReader, HostFigures, SlotCounts};
pub use handle::{ConversationHandle, SendPrompt, TenantHandle};
pub use output::{OutputError, SendAsError};
pub use prompt::Prompt;
pub use reply::Reply;
pub use setup_resolver::{HOST_GATEWAY, TenantConfig};
pub use skills::SkillStatus;
pub use status::{BudgetLeft, ContextStatus, ConversationState, ConversationStatus};
pub use tenants::Erased;
pub use tool_source::{ToolSource, ToolsInFolder};

use crate::{
    conversation::{LoadFailure, Ports, Setup},
    ids::{Scope, TenantId},
    journal::Durable,
    limits::RESOURCES_CLOSE_MAX,
    model_gateway::{GatewayConfig, GatewayStatus},
    policy::HostShare,
    ports::{DocumentText, LlmProvider, Resource, StoreError},
    reads::ReadPermit,
    tenant::Tenants,
    tool_executor::ToolEnvironment,
};

/// A running host: the conversations of many tenants in one process. Clones share the same host.
#[derive(Clone)]
pub struct Host(Arc<HostInner>);

pub(crate) struct HostInner {
    supervisor: ActorCell,
    directory: Arc<directory::Directory>,
    setup: Arc<Setup>,
    ports: Ports,
    tenants: Arc<Tenants>,
    resources: Vec<Arc<dyn Resource>>,
    resolver: setup_resolver::SetupResolver,
    /// Extracts the text of documents for models that take no documents. `None`: such prompts are
    /// refused.
    documents: Option<Arc<dyn DocumentText>>,
    /// Deletions under way.
    deletions: TaskTracker,
}

impl Drop for HostInner {
    fn drop(&mut self) {
        self.directory.stopped().cancel();
        self.supervisor.stop(None); // Stops its children too. `drop` does not wait for them.
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({} awake)", self.0.directory.awake())
    }
}

impl HostInner {
    /// Refuses what must be stored while the store cannot be written.
    fn writable(&self) -> Result<(), SendError> {
        match self.ports.store_health.outage() {
            Some(outage) => Err(StoreError::from(outage).into()),
            None => Ok(()),
        }
    }

    /// Waits for a place among the reads of a tenant's journals. Such a read holds a part of the
    /// journal, or all of it, in memory.
    async fn read_permit(&self, scope: &Scope) -> ReadPermit {
        crate::reads::permit(self.tenants.get(&scope.tenant).reads()).await
    }

    /// Reads a conversation from the store, a few at a time for each tenant. Activations and other
    /// tenants do not wait for these reads.
    async fn read_stored(&self, scope: &Scope) -> Result<Durable, LoadFailure> {
        let permit = self.read_permit(scope).await;
        crate::conversation::load_within(&*self.ports.sessions, scope, &permit).await
    }
}

impl Host {
    /// Returns a handle to a tenant. A malformed id is reported by the first method that needs the
    /// id.
    pub fn tenant<T: TryInto<TenantId, Error: Into<SendError>>>(&self, id: T) -> TenantHandle {
        TenantHandle::new(self.0.clone(), id.try_into().map_err(Into::into))
    }

    /// The setup of this host's conversations, unless their tenant has another one.
    pub fn setup(&self) -> &Arc<Setup> {
        &self.0.setup
    }

    /// The setup that a tenant's conversations get at their next activation.
    pub fn setup_of(&self, tenant: &TenantId) -> Arc<Setup> {
        self.0.directory.setup_of(tenant)
    }

    /// The environment in which a conversation's tools run, for calls without a model
    /// ([`crate::tool_executor::call_once`]). Whether those calls are traced is drawn here, once,
    /// as for a round.
    pub fn environment(&self, scope: &Scope) -> ToolEnvironment {
        let tenant = self.0.tenants.get(&scope.tenant);
        let setup = self.setup_of(&scope.tenant);
        let entropy = &self.0.ports.entropy;
        let traces = setup.trace_sampling.samples(|| entropy.fraction());
        ToolEnvironment::new(
            setup.resources.clone(),
            tenant.tools().clone(),
            scope.clone(),
            self.0.ports.collector.clone(),
        )
        .traces_alone(traces)
    }

    /// Configures a tenant, or changes its configuration. Quotas and budget apply from the next
    /// prompt or call on. The setup of its conversations applies from their next activation on, so
    /// active conversations keep the old one until they sleep.
    ///
    /// # Errors
    /// [`BuildError`] names what is missing. The tenant then keeps its former configuration.
    pub async fn configure_tenant(
        &self,
        id: &TenantId,
        config: TenantConfig,
    ) -> Result<(), BuildError> {
        let setup = self.0.resolver.resolve_tenant(&config).await?;
        let budget = config.budget.unwrap_or(self.0.resolver.tenant_budget);
        self.0
            .resolver
            .artifacts
            .bound(id, config.quotas.artifact_bytes_max);
        self.0.directory.set_up(id.clone(), setup);
        self.0.tenants.get(id).configure(config.quotas, budget);
        Ok(())
    }

    /// Adds a gateway, for tenants with their own provider credential. An existing gateway of this
    /// name is changed in place: limits, provider and credential apply at once, also to waiting
    /// calls. [`HOST_GATEWAY`] names the host's own gateway.
    ///
    /// # Errors
    /// [`BuildError::NoSuchGateway`] when the fallback gateway does not exist,
    /// [`BuildError::FallbackCycle`] when the chain of fallbacks leads back to this gateway.
    /// Nothing is changed then.
    pub fn add_gateway(
        &self,
        name: impl Into<String>,
        provider: Arc<dyn LlmProvider>,
        config: GatewayConfig,
    ) -> Result<(), BuildError> {
        self.0.resolver.add_gateway(name.into(), provider, config)
    }

    /// Sets this host's part of the limits that several hosts keep together: a provider's requests
    /// and tokens per minute, its calls at once ([`GatewayConfig::calls_are_shared`]), and each
    /// tenant's [`crate::tenant::Quotas`] of prompts, rounds, requests and tokens. It may change at
    /// any time; what was used stays used.
    pub fn share_limits(&self, share: HostShare) {
        self.0.resolver.share(share);
        self.0.tenants.share(share);
    }

    /// The names and status of all gateways, the host's own first.
    pub fn gateways(&self) -> Vec<(String, GatewayStatus)> {
        self.0
            .resolver
            .all_gateways()
            .into_iter()
            .map(|(name, gateway)| (name, gateway.status()))
            .collect()
    }

    /// The settings of the host's own gateway: limits, retries and circuit breaker. Settings of
    /// other gateways can start from a copy.
    pub fn gateway_config(&self) -> &GatewayConfig {
        &self.0.resolver.gateway_config
    }

    /// The ports that this host uses: stores, clock and entropy.
    pub fn ports(&self) -> &Ports {
        &self.0.ports
    }

    /// The store of tool results that are too large to show to a model.
    pub fn artifacts(&self) -> &Arc<dyn crate::ports::ArtifactStore> {
        &self.0.resolver.artifacts
    }

    /// The outage of the store, while appends fail. Prompts are refused then. The outage ends with
    /// the first append that is stored; until then open rounds wait.
    pub fn store_outage(&self) -> Option<StoreOutage> {
        self.0.ports.store_health.outage()
    }

    /// The number of conversations that are not asleep.
    pub fn awake(&self) -> usize {
        self.0.directory.awake()
    }

    /// Whether a conversation is active on this host, or is about to be.
    pub fn is_awake(&self, scope: &Scope) -> bool {
        !matches!(
            self.0.directory.activity(scope),
            directory::Activity::Asleep | directory::Activity::Failed(_)
        )
    }

    /// Resumes every round that was open when the last host on this store stopped. Returns the
    /// number of conversations that it woke. Rounds that wait for an approval are not resumed.
    ///
    /// # Errors
    /// The [`StoreError`] of the first page that cannot be read.
    pub async fn resume_interrupted(&self) -> Result<usize, StoreError> {
        let mut after = None;
        let mut count = 0;
        loop {
            let page = self
                .0
                .ports
                .sessions
                .list_open(crate::stream::Open::Running, None, after, 256)
                .await?;
            let Some(last) = page.last() else {
                return Ok(count);
            };
            after = Some(last.clone());
            for scope in &page {
                self.0
                    .directory
                    .send(scope, crate::conversation::ConversationMsg::Resume);
                count += 1;
            }
        }
    }

    /// Puts all idle conversations to sleep, however recently they were used.
    pub fn hibernate_idle(&self) {
        self.0.directory.sweep(Duration::ZERO);
    }

    /// Shuts the host down. No new round begins; open rounds have `within` to end and are
    /// interrupted after it. Then the resources behind tools and the stores are closed. Returns how
    /// many conversations were awake when the shutdown began.
    pub async fn shutdown(&self, within: Duration) -> usize {
        let awake = self.0.directory.drain(Instant::now() + within).await;
        // Conversations first, then what they use: watchers, the tools' resources and artifacts,
        // the store, the actors.
        self.0.directory.stopped().cancel(); // Watchers have all events now.
        let closing = futures_util::future::join_all(
            (self.0.resources.iter().map(|resource| resource.close())).chain([self
                .0
                .resolver
                .artifacts
                .close()]),
        );
        if tokio::time::timeout(RESOURCES_CLOSE_MAX, closing)
            .await
            .is_err()
        {
            tracing::warn!("what belongs to the tools did not close in time");
        }
        self.settle(RESOURCES_CLOSE_MAX).await;
        if let Err(error) = self.0.ports.sessions.close(Duration::from_secs(10)).await {
            tracing::error!(%error, "the store did not close well");
        }
        self.0.supervisor.stop(None);
        awake
    }

    /// Closes the store at once, within `within`. Rounds stay open, and the next host of the store
    /// resumes them. Deletions under way have a moment to end before, and what tenants spent is
    /// stored.
    ///
    /// # Errors
    /// Those of the store, which may then lack acknowledged work.
    pub async fn close_store(&self, within: Duration) -> Result<(), StoreError> {
        self.settle(RESOURCES_CLOSE_MAX.min(within)).await;
        self.0.ports.sessions.close(within).await
    }

    /// Waits for deletions, which bill what they cut, and stores what tenants spent.
    async fn settle(&self, within: Duration) {
        let deletions = &self.0.deletions;
        deletions.close();
        if tokio::time::timeout(within, deletions.wait())
            .await
            .is_err()
        {
            tracing::warn!("some conversations are not deleted yet");
        }
        self.0.tenants.store_spending().await;
    }
}
