//! `serve` put together: one host over one store, a gateway a provider, every tenant with what is its own.

use std::{path::PathBuf, sync::Arc};

use callboard_actors::{
    ids::{Scope, TenantId},
    ports::StoreError,
    tokens::TokenCounter,
};

use super::{
    AppError, Opening, Sessions, TENANT,
    gateways::outlets,
    kept::DataFolder,
    operator::{self, Reader, TenantOperator},
    resume::{Resumed, left_behind, resume_interrupted},
    tenants::Outfitter,
    tools::artifacts,
};
use crate::{Host, clock::SystemClock, config::Config, observe::Redactor};

/// A host that is ready to serve, and what to say of it.
pub(crate) struct Serving {
    pub(crate) host: Host,
    pub(crate) operator: TenantOperator,
    /// Name and model of the provider that is asked where a tenant names none.
    pub(crate) provider: String,
    pub(crate) model: String,
    /// The file of the sessions, if there is one.
    pub(crate) store: Option<PathBuf>,
    /// Lines for the operator: that a tenant has no bash, and why.
    pub(crate) notes: Vec<String>,
    /// The tenant that is served without configuration.
    pub(crate) single: Option<Single>,
    /// Conversations of single calls that an earlier host left behind.
    pub(crate) left_behind: Vec<Scope>,
}

/// The one tenant of a host without configuration.
pub(crate) enum Single {
    /// It was made now: this is its key, kept nowhere.
    Made { tenant: TenantId, key: String },
    /// It was made at an earlier start.
    Known { tenant: TenantId, file: PathBuf },
}

/// Puts a host together for everybody whom the configuration and the data folder name. Results of tools are masked by `redactor`, which
/// may learn more later.
///
/// # Errors
/// What is wrong with the configuration, or cannot be had.
pub(crate) async fn serving(config: Config, reader: Reader, redactor: Redactor) -> Result<Serving, AppError> {
    config.check()?;
    let folder = DataFolder::take(&config.data_dir)?;
    let mut kept = folder.read()?;
    let single = single(&config, &mut kept)?;
    if matches!(single, Some(Single::Made { .. })) {
        // Kept before it is shown: a key that was printed opens the door after a crash, too.
        folder.write(&kept)?;
    }

    let sessions = Sessions::open(&config, None, Opening::OrCreate).await?;
    let outfitter = Outfitter::start(&config, redactor.clone())?;
    let mut notes = config.warnings();
    let artifacts = artifacts(&config.data_dir, Arc::new(SystemClock), &mut notes).await;
    let chosen = config.choose(None)?.name.clone();
    let Some(outlet) = outlets(&config, [], &redactor)?.remove(&chosen) else {
        return Err(AppError::Tools(format!("there is no provider `{chosen}`")));
    };
    let builder = Host::builder();
    #[cfg(all(feature = "pdf", target_os = "linux"))]
    let builder = builder.document_text(crate::sandbox::PdfText::new());
    let host = builder
        .shared_provider(outlet.provider.clone())
        .shared_sessions(sessions.backend())
        .artifacts(artifacts)
        .prices(config.prices.clone())
        .compaction(config.compaction.clone())
        .tokens(Arc::new(TokenCounter::new(config.tokens.registry())))
        .limits(config.limits.clone())
        .trace_sampling(config.observability.sampling())
        .mask_results(move |text| redactor.mask_exact(text))
        .closes(Arc::new(outfitter.servers().clone()))
        .build()
        .await?;

    let operator = TenantOperator::new(host.clone(), folder, outfitter, Arc::new(config), kept, reader);
    notes.extend(operator.open().await?);
    let store = sessions.path().map(ToOwned::to_owned);
    let left_behind = left_behind(&host, &operator.tenants().await).await;
    let left_behind = left_behind.map_err(|error| AppError::Store { path: store.clone().unwrap_or_default(), error })?;
    Ok(Serving { host, operator, provider: chosen, model: outlet.model, store, notes, single, left_behind })
}

/// Makes the tenant of a host without any, unless it was made before.
fn single(config: &Config, kept: &mut super::kept::Kept) -> Result<Option<Single>, AppError> {
    if !config.tenants.is_empty() {
        return Ok(None);
    }
    let tenant = TenantId::new(TENANT).map_err(|error| AppError::Tools(error.to_string()))?;
    if kept.tenants.get(&tenant).is_some_and(|known| known.generated) {
        return Ok(Some(Single::Known { tenant, file: super::kept_file(&config.data_dir) }));
    }
    if kept.tenants.values().any(|known| known.settings.is_some()) {
        return Ok(None);
    }
    let key = operator::generated(kept, tenant.clone());
    Ok(Some(Single::Made { tenant, key }))
}

impl Serving {
    /// Takes up what the last host left open, and erases what it left behind of single calls.
    ///
    /// # Errors
    /// What the store said.
    pub(crate) async fn resume(host: &Host, operator: &TenantOperator, left_behind: Vec<Scope>) -> Result<Resumed, StoreError> {
        resume_interrupted(host, &operator.tenants().await, left_behind).await
    }
}
