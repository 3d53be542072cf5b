//! Applies an operator's changes to a running host: adds, re-keys and removes tenants, and reloads
//! the configuration.
//!
//! A mutex allows one change at a time. A change that must survive a restart is on disk before it
//! takes effect; a change that fails is rolled back. Running rounds are not affected: they keep the
//! setup they started with.

mod follow;
mod routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use callboard_actors::ids::TenantId;
use futures_util::future::join_all;
use tokio::sync::{Mutex, Notify};

use super::{
    AppError, StoredTenantsError,
    gateways::{self, ProviderEntries, provider_entries},
    stored_tenants::{StoredTenant, StoredTenants},
    tenant_store::{TenantStore, Written},
    tenants::{McpTools, TenantProvisioner, TenantSetup, share_differs},
};
use crate::{
    Host,
    config::{Config, ConfigError, TenantSection},
    http::{KeyHash, Keys, Reloaded, new_key},
    webhooks::{Receivers, Webhooks},
};

/// Reads the configuration again, from the same files, variables and flags.
pub(crate) type Reader = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// Handle to the operator's functions. Clones share their state.
#[derive(Clone)]
pub(crate) struct TenantOperator(Arc<Inner>);

struct Inner {
    host: Host,
    keys: Keys,
    store: TenantStore,
    provisioner: TenantProvisioner,
    reader: Reader,
    state: Mutex<State>,
    draining: Notify,
}

/// The configuration and tenants that are in effect.
struct State {
    config: Arc<Config>,
    stored: StoredTenants,
    /// What is stored: `stored`, but for what is not stored yet, and for what other hosts changed and
    /// this one could not apply.
    written: Written,
    /// When to try again to apply what other hosts changed.
    try_again: Option<Instant>,
    entries: ProviderEntries,
    served: BTreeMap<TenantId, ServedTenant>,
}

/// A tenant that is served.
#[derive(Clone)]
struct ServedTenant {
    section: TenantSection,
    setup: TenantSetup,
    /// Whether the configuration file names the tenant and therefore wins.
    from_file: bool,
}

/// A tenant to serve.
struct ConfiguredTenant {
    section: TenantSection,
    from_file: bool,
}

impl TenantOperator {
    /// Takes over a host that serves no tenant yet.
    pub(super) fn new(
        host: Host,
        store: TenantStore,
        provisioner: TenantProvisioner,
        config: Arc<Config>,
        (stored, written): (StoredTenants, Written),
        reader: Reader,
    ) -> Self {
        let state = Mutex::new(State {
            config,
            stored,
            written,
            try_again: None,
            entries: ProviderEntries::new(),
            served: BTreeMap::new(),
        });
        Self(Arc::new(Inner {
            host,
            keys: Keys::new(),
            store,
            provisioner,
            reader,
            state,
            draining: Notify::new(),
        }))
    }

    /// The keys of all served tenants and of the operator.
    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The receivers of webhooks.
    pub(crate) fn webhooks(&self) -> &Webhooks {
        self.0.provisioner.webhooks()
    }

    /// Waits until the operator requests a shutdown by HTTP.
    ///
    /// # Cancel safety
    /// Cancel safe: a request that arrives while no future waits is kept for the next one.
    pub(crate) async fn drained(&self) {
        self.0.draining.notified().await;
    }

    /// Serves all tenants of the configuration and of `tenants.json`. Returns notes about them, one
    /// per line.
    pub(super) async fn open(&self) -> Result<Vec<String>, AppError> {
        let mut state = self.0.state.lock().await;
        let config = state.config.clone();
        let stored = state.stored.clone();
        self.apply(&mut state, config, stored).await?;
        Ok(state
            .served
            .values()
            .flat_map(|served_tenant| served_tenant.setup.notes.clone())
            .collect())
    }

    /// Stores what is kept about tenants.
    pub(crate) async fn store(&self) -> Result<(), AppError> {
        let mut state = self.0.state.lock().await;
        let stored = state.stored.clone();
        self.write(&mut state, &stored).await
    }

    /// Ids of the served tenants.
    pub(crate) async fn tenants(&self) -> BTreeSet<TenantId> {
        self.0.state.lock().await.served.keys().cloned().collect()
    }

    /// Reloads the configuration and applies the differences. On an error, nothing has changed.
    pub(crate) async fn read_again(&self) -> Result<Reloaded, AppError> {
        let mut state = self.current().await?;
        let inner = self.0.clone();
        let read = tokio::task::spawn_blocking(move || {
            let config = (inner.reader)()?;
            config.check().map(|()| config)
        });
        let mut config = read
            .await
            .map_err(|error| AppError::Tools(error.to_string()))??;
        super::window::ask_servers(&mut config).await;
        let needs_restart = config.keep_restart_only(&state.config);
        let mut stored = self.with_pauses(&state);
        for tenant in &config.tenants {
            // A pause that the file sets or changes since the last load overrides one that was set
            // at run time.
            let before = state
                .config
                .tenants
                .iter()
                .find(|known| known.id == tenant.id)
                .map(|known| known.paused);
            if tenant.paused.is_some()
                && before != Some(tenant.paused)
                && let Some(known) = stored.tenants.get_mut(&tenant.id)
            {
                known.paused = None;
            }
        }
        self.write(&mut state, &stored).await?;
        let before = state.stored.clone();
        match self.apply(&mut state, Arc::new(config), stored).await {
            Ok(reloaded) => Ok(Reloaded {
                needs_restart,
                ..reloaded
            }),
            Err(error) => {
                self.write(&mut state, &before).await?;
                Err(error)
            }
        }
    }

    /// The persisted state with the current pauses.
    fn with_pauses(&self, state: &State) -> StoredTenants {
        let mut stored = state.stored.clone();
        for (id, served_tenant) in &state.served {
            let paused = self.0.host.tenant(id).is_paused().unwrap_or_default();
            if paused != served_tenant.section.paused.unwrap_or_default()
                || stored
                    .tenants
                    .get(id)
                    .is_some_and(|known| known.paused.is_some())
            {
                stored.tenants.entry(id.clone()).or_default().paused = Some(paused);
            }
        }
        stored
    }

    /// Makes the host serve the tenants of `config` and `stored`. Order: build everything that can
    /// fail, exchange it in the host (rolled back on an error), and only then remove tenants and
    /// publish the keys, which cannot fail. On an error, the previous state stays in effect.
    async fn apply(
        &self,
        state: &mut State,
        config: Arc<Config>,
        stored: StoredTenants,
    ) -> Result<Reloaded, AppError> {
        let mut wanted = wanted(&config, &stored)?;
        // Quotas that a route set for a tenant of the file hold until the file is read again.
        if Arc::ptr_eq(&state.config, &config) {
            for ConfiguredTenant { section, from_file } in &mut wanted {
                if let Some(served) = state.served.get(&section.id).filter(|_| *from_file) {
                    section.quotas = served.section.quotas;
                }
            }
        }
        let entries = provider_entries(
            &config,
            wanted.iter().map(|wanted| wanted.section.provider.clone()),
            self.0.provisioner.redactor(),
        )?;
        let sections = wanted.iter().map(|wanted| &wanted.section);
        let receivers = Receivers::of(&config, sections, self.0.provisioner.redactor())?;
        let changed = self.setups(state, &config, &wanted, &entries).await?;
        if let Err(error) = self.exchange(state, &entries, &changed).await {
            self.restore(state, &entries, &changed).await;
            return Err(error);
        }
        let mut reloaded = Reloaded::default();
        for id in changed.keys() {
            let list = if state.served.contains_key(id) {
                &mut reloaded.changed
            } else {
                &mut reloaded.added
            };
            list.push(id.to_string());
        }
        let mut served = BTreeMap::new();
        for ConfiguredTenant { section, from_file } in wanted {
            let before = state
                .served
                .remove(&section.id)
                .map(|served_tenant| served_tenant.setup);
            let Some(setup) = changed.get(&section.id).cloned().or(before) else {
                continue;
            };
            if let Err(error) = self
                .0
                .host
                .tenant(&section.id)
                .pause(section.paused.unwrap_or_default())
            {
                tracing::error!(%error, tenant = %section.id, "a tenant could not be paused or resumed");
            }
            served.insert(
                section.id.clone(),
                ServedTenant {
                    section,
                    setup,
                    from_file,
                },
            );
        }
        for id in state.served.keys() {
            self.0.host.remove_tenant(id);
            self.0.provisioner.servers().close_of(id).await;
            reloaded.removed.push(id.to_string());
        }
        state.config = config;
        state.stored = stored;
        state.entries = entries;
        state.served = served;
        self.publish_keys(state);
        self.0.provisioner.webhooks().replace(receivers);
        Ok(reloaded)
    }

    /// Builds the setups of the tenants that are new or changed.
    async fn setups(
        &self,
        state: &State,
        config: &Arc<Config>,
        wanted: &[ConfiguredTenant],
        entries: &ProviderEntries,
    ) -> Result<BTreeMap<TenantId, TenantSetup>, AppError> {
        let all = share_differs(&state.config, config);
        let moved = |section: &TenantSection| {
            let name = config
                .choose(section.provider.as_deref())
                .map(|provider| provider.name.clone())
                .unwrap_or_default();
            match (state.entries.get(&name), entries.get(&name)) {
                (Some(old), Some(new)) => {
                    old.model != new.model || !old.config.is_same_gateway(&new.config)
                }
                _ => true,
            }
        };
        let is_same = |section: &TenantSection| {
            state
                .served
                .get(&section.id)
                .is_some_and(|served_tenant| served_tenant.section.is_same_setup(section))
                && !moved(section)
        };
        let changed: Vec<TenantSection> = wanted
            .iter()
            .map(|wanted| &wanted.section)
            .filter(|section| all || !is_same(section))
            .cloned()
            .collect();
        let provisioner = self.0.provisioner.clone();
        let config = config.clone();
        let entries = entries.clone();
        let of_servers = join_all(
            changed
                .iter()
                .map(|section| provisioner.of_servers(&config, section)),
        )
        .await;
        let make = move || {
            let setup = |(section, of_servers): (TenantSection, McpTools)| {
                Ok((
                    section.id.clone(),
                    provisioner.setup(&config, &section, &entries, of_servers)?,
                ))
            };
            changed.into_iter().zip(of_servers).map(setup).collect()
        };
        tokio::task::spawn_blocking(make)
            .await
            .map_err(|error| AppError::Tools(error.to_string()))?
    }

    /// Adds the gateways and setups to the host.
    async fn exchange(
        &self,
        state: &State,
        entries: &ProviderEntries,
        changed: &BTreeMap<TenantId, TenantSetup>,
    ) -> Result<(), AppError> {
        gateways::add(&self.0.host, entries, &state.entries)?;
        for (id, setup) in changed {
            let named = |error| AppError::Tenant {
                id: id.clone(),
                error: Box::new(AppError::Build(error)),
            };
            self.0
                .host
                .configure_tenant(id, setup.config.clone())
                .await
                .map_err(named)?;
        }
        Ok(())
    }

    /// Rolls back an exchange that failed half-way.
    async fn restore(
        &self,
        state: &State,
        entries: &ProviderEntries,
        changed: &BTreeMap<TenantId, TenantSetup>,
    ) {
        if let Err(error) = gateways::add(&self.0.host, &state.entries, entries) {
            tracing::error!(%error, "a gateway could not be restored");
        }
        for id in changed.keys() {
            match state.served.get(id) {
                Some(served_tenant) => {
                    if let Err(error) = self
                        .0
                        .host
                        .configure_tenant(id, served_tenant.setup.config.clone())
                        .await
                    {
                        tracing::error!(%error, tenant = %id, "a tenant could not be restored");
                    }
                }
                None => drop(self.0.host.remove_tenant(id)),
            }
        }
    }

    /// Replaces the table of keys by those of the served tenants and of the operator.
    fn publish_keys(&self, state: &State) {
        let of = |served_tenant: &ServedTenant| {
            let id = served_tenant.section.id.clone();
            let hashes: Vec<KeyHash> = served_tenant
                .section
                .key_sha256
                .iter()
                .filter_map(|hash| hash.parse().ok())
                .collect();
            hashes.into_iter().map(move |hash| (id.clone(), hash))
        };
        self.0.keys.replace(state.served.values().flat_map(of));
        self.0.keys.set_admin(
            state
                .config
                .admin_key_sha256
                .as_ref()
                .and_then(|hash| hash.parse().ok()),
        );
    }

    async fn write(&self, state: &mut State, stored: &StoredTenants) -> Result<(), AppError> {
        state.written = self.0.store.write(&state.written, stored).await?;
        Ok(())
    }
}

/// The tenants to serve: those of the configuration, and those that the operator added at run time.
fn wanted(config: &Config, stored: &StoredTenants) -> Result<Vec<ConfiguredTenant>, AppError> {
    let mut all: Vec<ConfiguredTenant> = Vec::new();
    for section in &config.tenants {
        let mut section = section.clone();
        follow::overlay(&mut section, stored);
        all.push(ConfiguredTenant {
            section,
            from_file: true,
        });
    }
    for (id, known) in &stored.tenants {
        if config.tenants.iter().any(|tenant| tenant.id == *id)
            || (known.generated && !config.tenants.is_empty())
        {
            continue;
        }
        let Some(mut section) = section_of(config, id, known)? else {
            continue;
        };
        let named = |error: ConfigError| AppError::Tenant {
            id: id.clone(),
            error: Box::new(error.into()),
        };
        config.check_tenant(&section).map_err(named)?;
        follow::overlay(&mut section, stored);
        all.push(ConfiguredTenant {
            section,
            from_file: false,
        });
    }
    Ok(all)
}

/// The section of a tenant that the operator added; `None` if `known` belongs to a tenant of the
/// configuration file.
fn section_of(
    config: &Config,
    id: &TenantId,
    known: &StoredTenant,
) -> Result<Option<TenantSection>, AppError> {
    match &known.settings {
        Some(settings) => {
            let named = |error: ConfigError| AppError::Tenant {
                id: id.clone(),
                error: Box::new(error.into()),
            };
            TenantSection::from_json(id, settings)
                .map(Some)
                .map_err(named)
        }
        None if known.generated => Ok(Some(config.own_tenant.section(id.clone()))),
        None => Ok(None),
    }
}

fn add(section: &mut TenantSection, known: &StoredTenant) {
    let fresh = known
        .key_sha256
        .iter()
        .filter(|hash| !section.key_sha256.contains(hash))
        .cloned()
        .collect::<Vec<_>>();
    section.key_sha256.extend(fresh);
    section.paused = known.paused.or(section.paused);
}

/// Adds the tenant of a first start without configuration. Returns its key, which is stored
/// nowhere.
pub(super) fn generated(stored: &mut StoredTenants, id: TenantId) -> String {
    let key = new_key();
    let hash = KeyHash::from_key(&key).to_string();
    let tenant = StoredTenant {
        key_sha256: BTreeSet::from([hash]),
        generated: true,
        ..StoredTenant::default()
    };
    stored.tenants.insert(id, tenant);
    key
}

/// Whether the operator's request failed because of the store, so that a retry may succeed.
fn is_temporary(error: &AppError) -> bool {
    matches!(
        error,
        AppError::StoredTenants(
            StoredTenantsError::Folder { .. }
                | StoredTenantsError::Unwritable { .. }
                | StoredTenantsError::Unreadable { .. }
                | StoredTenantsError::Database(_)
                | StoredTenantsError::Changed
        )
    )
}
