//! Composes the host of `serve`: one store, one gateway per provider, and a separate setup for each
//! tenant.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use callboard_actors::{
    ids::{Scope, TenantId},
    ports::StoreError,
    tokens::TokenCounter,
};

use super::{
    AppError, Opening, Sessions, TENANT,
    gateways::provider_entries,
    operator::{self, Reader, TenantOperator},
    peers::DatabasePeers,
    resume::{Resumed, keep_resuming, keep_taking_over, left_behind, resume_interrupted},
    stored_tenants::DataFolder,
    tenant_store::TenantStore,
    tenants::TenantProvisioner,
    tools::artifacts,
};
use crate::{
    Host, clock::SystemClock, config::Config, http::Peers, observe::Redactor, storage::ServingLease,
};

/// A host that is ready to serve, and what to report about it.
pub(crate) struct Serving {
    /// The right to serve a database that other hosts may reach; `None` for other stores.
    pub(crate) lease: Option<ServingLease>,
    /// The other hosts on the database; `None` for a host that serves alone.
    pub(crate) peers: Option<Arc<dyn Peers>>,
    /// The store of the host.
    pub(crate) sessions: Sessions,
    pub(crate) host: Host,
    pub(crate) operator: TenantOperator,
    /// Name and model of the default provider, for tenants that name none.
    pub(crate) provider: String,
    pub(crate) model: String,
    /// The file or the address of the session store; `None` in memory.
    pub(crate) store: Option<String>,
    /// Lines for the operator, such as why a tenant has no bash.
    pub(crate) notes: Vec<String>,
    /// The generated tenant of a host without configured tenants.
    pub(crate) single: Option<Single>,
    /// Conversations of single calls that an earlier host left behind.
    pub(crate) left_behind: Vec<Scope>,
    /// The file to create when the host stops without a crash.
    pub(crate) stop_mark: PathBuf,
}

/// The only tenant of a host without configuration.
pub(crate) enum Single {
    /// Created by this start. The key is shown once and stored nowhere. [`TenantOperator::store`]
    /// stores its hash when nothing can fail any more: a start that fails leaves no key behind that
    /// was never shown.
    Made { tenant: TenantId, key: String },
    /// Created by an earlier start. The file holds the hash of its key, or else the database does.
    Known {
        tenant: TenantId,
        file: Option<PathBuf>,
    },
}

/// Builds a host for all tenants of the configuration and the data folder. `redactor` masks tool
/// results; it may learn more keys later.
///
/// # Errors
/// An invalid configuration, or a resource that is not available.
pub(crate) async fn serving(
    mut config: Config,
    reader: Reader,
    redactor: Redactor,
    standby: bool,
) -> Result<Serving, AppError> {
    config.check()?;
    super::window::ask_servers(&mut config).await;
    let folder = DataFolder::take(&config.data_dir)?;
    let follows_orderly_stop = folder.follows_orderly_stop();

    let sessions = Sessions::open(&config, None, Opening::OrCreate).await?;
    let peers = peers(&sessions, config.peer_address.as_ref())?;
    let lease = lease(&sessions, peers.as_deref(), standby).await?;
    let store = TenantStore::new(folder, &sessions);
    let written = store.open().await?;
    let mut stored = written.tenants.clone();
    let single = single(&config, &mut stored, store.is_shared())?;
    let provisioner = TenantProvisioner::start(&config, redactor.clone(), sessions.notes())?;
    let mut notes = config.warnings();
    let artifacts = artifacts(&config, &sessions, Arc::new(SystemClock), &mut notes).await;
    let chosen = config.choose(None)?.name.clone();
    let Some(entry) = provider_entries(&config, [], &redactor)?.remove(&chosen) else {
        return Err(AppError::Tools(format!("there is no provider `{chosen}`")));
    };
    let builder = Host::builder();
    #[cfg(all(feature = "pdf", target_os = "linux"))]
    let builder = builder.document_text(crate::sandbox::PdfText::new());
    let host = builder
        .shared_provider(entry.provider.clone())
        .shared_sessions(sessions.backend())
        .artifacts(artifacts)
        .output_level(config.tool_rules.output_level.unwrap_or_default())
        .permissions(super::permissions(&config))
        .skill_policy(config.tool_rules.skill_policy())
        .prices(config.prices.clone())
        .compaction(config.compaction.clone())
        .tokens(Arc::new(TokenCounter::new(config.tokens.registry())))
        .limits(config.limits.clone())
        .after_orderly_stop(follows_orderly_stop)
        .trace_sampling(config.observability.sampling())
        .mask_results(move |text| redactor.mask_exact(text))
        .closes(Arc::new(provisioner.servers().clone()))
        .build()
        .await?;

    let stop_mark = super::stored_tenants::stop_mark(&config.data_dir);
    let operator = TenantOperator::new(
        host.clone(),
        store,
        provisioner,
        Arc::new(config),
        (stored, written),
        reader,
    );
    notes.extend(operator.open().await?);
    let store = sessions.place();
    let left_behind = left_behind(&host, &operator.tenants().await).await;
    let mut left_behind = left_behind.map_err(|error| sessions.error(error))?;
    if let Some(peers) = &peers {
        // Single calls that other hosts answer now.
        let others = peers.owned_elsewhere(left_behind.clone()).await;
        let others = others.map_err(|error| sessions.error(error))?;
        let others: BTreeSet<Scope> = others.into_iter().map(|(scope, _)| scope).collect();
        left_behind.retain(|scope| !others.contains(scope));
    }
    Ok(Serving {
        lease,
        peers,
        sessions,
        host,
        operator,
        provider: chosen,
        model: entry.model,
        store,
        notes,
        single,
        left_behind,
        stop_mark,
    })
}

/// The other hosts, for a host that they reach at `address`.
fn peers(
    sessions: &Sessions,
    address: Option<&String>,
) -> Result<Option<Arc<dyn Peers>>, AppError> {
    let (Sessions::Postgres(store, _), Some(address)) = (sessions, address) else {
        return Ok(None);
    };
    let peers = DatabasePeers::new(store.clone(), address.clone())?;
    Ok(Some(Arc::new(peers)))
}

/// How often a host that waits looks whether the other one is gone.
const STANDBY_LOOK: Duration = Duration::from_secs(1);

/// Takes the right to serve a database that several hosts may reach; `None` for other stores.
async fn lease(
    sessions: &Sessions,
    peers: Option<&dyn Peers>,
    standby: bool,
) -> Result<Option<ServingLease>, AppError> {
    let Sessions::Postgres(store, address) = sessions else {
        return Ok(None);
    };
    let mut is_waiting = false;
    loop {
        match store.serving_lease(peers.map(Peers::address)).await {
            Ok(Some(lease)) => return Ok(Some(lease)),
            Ok(None) if !standby => return Err(AppError::Served(address.clone())),
            // A database that is away while this host waits may come back.
            Err(error) if !is_waiting => return Err(sessions.error(error)),
            Ok(None) | Err(_) => {}
        }
        if !is_waiting {
            is_waiting = true;
            tracing::info!("another host serves the database; waiting for its end");
        }
        tokio::time::sleep(STANDBY_LOOK).await;
    }
}

/// Adds the tenant of a host without configured tenants, unless an earlier start did.
fn single(
    config: &Config,
    stored: &mut super::stored_tenants::StoredTenants,
    is_shared: bool,
) -> Result<Option<Single>, AppError> {
    if !config.tenants.is_empty() {
        return Ok(None);
    }
    let tenant = TenantId::new(TENANT).map_err(|error| AppError::Tools(error.to_string()))?;
    if stored
        .tenants
        .get(&tenant)
        .is_some_and(|known| known.generated)
    {
        return Ok(Some(Single::Known {
            tenant,
            file: (!is_shared).then(|| super::stored_tenants_file(&config.data_dir)),
        }));
    }
    if stored
        .tenants
        .values()
        .any(|known| known.settings.is_some())
    {
        return Ok(None);
    }
    let key = operator::generated(stored, tenant.clone());
    Ok(Some(Single::Made { tenant, key }))
}

impl Serving {
    /// Resumes the rounds that the last host left open, and erases what single calls left behind.
    ///
    /// # Errors
    /// The store's error.
    pub(crate) async fn resume(
        host: &Host,
        operator: &TenantOperator,
        sessions: &Sessions,
        left_behind: Vec<Scope>,
    ) -> Result<Resumed, StoreError> {
        let is_locked = |scope: &Scope| sessions.is_locked(scope);
        resume_interrupted(host, &operator.tenants().await, left_behind, is_locked).await
    }

    /// Resumes open rounds that no activation runs, now and then, until it is dropped; on a database
    /// of several hosts also those of hosts that are gone, at once.
    pub(crate) async fn keep_resuming(host: &Host, operator: &TenantOperator, sessions: &Sessions) {
        let is_locked = |scope: &Scope| sessions.is_locked(scope);
        let own = keep_resuming(host, || operator.tenants(), is_locked);
        match sessions {
            Sessions::Postgres(store, _) => {
                tokio::join!(own, keep_taking_over(host, store, || operator.tenants()));
            }
            Sessions::Sqlite(..) | Sessions::Memory(_) => own.await,
        }
    }
}
