//! What an operator asks of a host that serves: tenants made, re-keyed and forgotten while it runs, and its configuration read again.
//!
//! One change at a time, behind a lock. What is to survive a restart is on the disk before it holds; a change that fails is taken back
//! whole. Running rounds are never touched: they keep what they began with.

mod routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use callboard_actors::ids::TenantId;
use futures_util::future::join_all;
use tokio::sync::{Mutex, Notify};

use super::{
    AppError, KeptError,
    gateways::{self, Outlets, outlets},
    kept::{DataFolder, Kept, KeptTenant},
    tenants::{OfServers, Outfit, Outfitter, share_differs},
};
use crate::{
    Host,
    config::{Config, ConfigError, TenantSection},
    http::{KeyHash, Keys, Reloaded, new_key},
};

/// Reads the configuration again: the same files, variables and flags.
pub(crate) type Reader = Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>;

/// The operator's hands. Cloning shares them.
#[derive(Clone)]
pub(crate) struct TenantOperator(Arc<Inner>);

struct Inner {
    host: Host,
    keys: Keys,
    folder: DataFolder,
    outfitter: Outfitter,
    reader: Reader,
    state: Mutex<State>,
    draining: Notify,
}

/// What holds now.
struct State {
    config: Arc<Config>,
    kept: Kept,
    outlets: Outlets,
    served: BTreeMap<TenantId, Standing>,
}

/// A tenant that is served.
#[derive(Clone)]
struct Standing {
    section: TenantSection,
    outfit: Outfit,
    /// The configuration file names it, and wins.
    from_file: bool,
}

/// A tenant as it is to be.
struct Wanted {
    section: TenantSection,
    from_file: bool,
}

impl TenantOperator {
    /// Takes over a host that serves nobody yet.
    pub(super) fn new(host: Host, folder: DataFolder, outfitter: Outfitter, config: Arc<Config>, kept: Kept, reader: Reader) -> Self {
        let state = Mutex::new(State { config, kept, outlets: Outlets::new(), served: BTreeMap::new() });
        Self(Arc::new(Inner { host, keys: Keys::new(), folder, outfitter, reader, state, draining: Notify::new() }))
    }

    /// Who is let in.
    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Waits until the operator asks for the end by the route.
    ///
    /// # Cancel safety
    /// No wish is lost when the future is dropped.
    pub(crate) async fn drained(&self) {
        self.0.draining.notified().await;
    }

    /// Serves everybody whom the configuration and what is kept name. Returns what there is to say of them.
    pub(super) async fn open(&self) -> Result<Vec<String>, AppError> {
        let mut state = self.0.state.lock().await;
        let (config, kept) = (state.config.clone(), state.kept.clone());
        self.apply(&mut state, config, kept).await?;
        Ok(state.served.values().flat_map(|standing| standing.outfit.notes.clone()).collect())
    }

    /// Those who are served.
    pub(crate) async fn tenants(&self) -> BTreeSet<TenantId> {
        self.0.state.lock().await.served.keys().cloned().collect()
    }

    /// Reads the configuration again and applies what differs; on an error nothing has changed.
    pub(crate) async fn read_again(&self) -> Result<Reloaded, AppError> {
        let mut state = self.0.state.lock().await;
        let inner = self.0.clone();
        let read = tokio::task::spawn_blocking(move || {
            let config = (inner.reader)()?;
            config.check().map(|()| config)
        });
        let mut config = read.await.map_err(|error| AppError::Tools(error.to_string()))??;
        let needs_restart = config.keep_fixed(&state.config);
        let mut kept = self.with_pauses(&state);
        for tenant in &config.tenants {
            // What the file says anew of a pause is younger than what was said at run time.
            let before = state.config.tenants.iter().find(|known| known.id == tenant.id).map(|known| known.paused);
            if tenant.paused.is_some()
                && before != Some(tenant.paused)
                && let Some(known) = kept.tenants.get_mut(&tenant.id)
            {
                known.paused = None;
            }
        }
        self.write(&kept).await?;
        let before = state.kept.clone();
        match self.apply(&mut state, Arc::new(config), kept).await {
            Ok(reloaded) => Ok(Reloaded { needs_restart, ..reloaded }),
            Err(error) => {
                self.write(&before).await?;
                Err(error)
            }
        }
    }

    /// What is kept, with the pauses as they are.
    fn with_pauses(&self, state: &State) -> Kept {
        let mut kept = state.kept.clone();
        for (id, standing) in &state.served {
            let paused = self.0.host.tenant(id).is_paused().unwrap_or_default();
            if paused != standing.section.paused.unwrap_or_default() || kept.tenants.get(id).is_some_and(|known| known.paused.is_some()) {
                kept.tenants.entry(id.clone()).or_default().paused = Some(paused);
            }
        }
        kept
    }

    /// Makes the host serve those whom this configuration and what is kept name, as they are to be. On an error all is as before.
    async fn apply(&self, state: &mut State, config: Arc<Config>, kept: Kept) -> Result<Reloaded, AppError> {
        let wanted = wanted(&config, &kept)?;
        let outlets = outlets(&config, wanted.iter().map(|wanted| wanted.section.provider.clone()), self.0.outfitter.redactor())?;
        let anew = self.outfits(state, &config, &wanted, &outlets).await?;
        if let Err(error) = self.exchange(state, &outlets, &anew).await {
            self.restore(state, &outlets, &anew).await;
            return Err(error);
        }
        let mut reloaded = Reloaded::default();
        for id in anew.keys() {
            let list = if state.served.contains_key(id) { &mut reloaded.changed } else { &mut reloaded.added };
            list.push(id.to_string());
        }
        let mut served = BTreeMap::new();
        for Wanted { section, from_file } in wanted {
            let before = state.served.remove(&section.id).map(|standing| standing.outfit);
            let Some(outfit) = anew.get(&section.id).cloned().or(before) else { continue };
            if let Err(error) = self.0.host.tenant(&section.id).pause(section.paused.unwrap_or_default()) {
                tracing::error!(%error, tenant = %section.id, "a pause was not taken");
            }
            served.insert(section.id.clone(), Standing { section, outfit, from_file });
        }
        for id in state.served.keys() {
            self.0.host.remove_tenant(id);
            self.0.outfitter.servers().close_of(id).await;
            reloaded.removed.push(id.to_string());
        }
        *state = State { config, kept, outlets, served };
        self.publish_keys(state);
        Ok(reloaded)
    }

    /// Outfits of the tenants that are new or differ.
    async fn outfits(
        &self,
        state: &State,
        config: &Arc<Config>,
        wanted: &[Wanted],
        outlets: &Outlets,
    ) -> Result<BTreeMap<TenantId, Outfit>, AppError> {
        let all = share_differs(&state.config, config);
        let moved = |section: &TenantSection| {
            let name = config.choose(section.provider.as_deref()).map(|provider| provider.name.clone()).unwrap_or_default();
            match (state.outlets.get(&name), outlets.get(&name)) {
                (Some(old), Some(new)) => old.model != new.model || !old.config.is_same_gateway(&new.config),
                _ => true,
            }
        };
        let is_same = |section: &TenantSection| {
            state.served.get(&section.id).is_some_and(|standing| standing.section.is_same_setup(section)) && !moved(section)
        };
        let anew: Vec<TenantSection> =
            wanted.iter().map(|wanted| &wanted.section).filter(|section| all || !is_same(section)).cloned().collect();
        let (outfitter, config, outlets) = (self.0.outfitter.clone(), config.clone(), outlets.clone());
        let of_servers = join_all(anew.iter().map(|section| outfitter.of_servers(&config, section))).await;
        let make = move || {
            let outfit = |(section, of_servers): (TenantSection, OfServers)| {
                Ok((section.id.clone(), outfitter.outfit(&config, &section, &outlets, of_servers)?))
            };
            anew.into_iter().zip(of_servers).map(outfit).collect()
        };
        tokio::task::spawn_blocking(make).await.map_err(|error| AppError::Tools(error.to_string()))?
    }

    /// Gives the host gateways and outfits.
    async fn exchange(&self, state: &State, outlets: &Outlets, anew: &BTreeMap<TenantId, Outfit>) -> Result<(), AppError> {
        gateways::add(&self.0.host, outlets, &state.outlets)?;
        for (id, outfit) in anew {
            let named = |error| AppError::Tenant { id: id.clone(), error: Box::new(AppError::Build(error)) };
            self.0.host.configure_tenant(id, outfit.config.clone()).await.map_err(named)?;
        }
        Ok(())
    }

    /// Takes an exchange back that failed half-way.
    async fn restore(&self, state: &State, outlets: &Outlets, anew: &BTreeMap<TenantId, Outfit>) {
        if let Err(error) = gateways::add(&self.0.host, &state.outlets, outlets) {
            tracing::error!(%error, "a gateway could not be put back");
        }
        for id in anew.keys() {
            match state.served.get(id) {
                Some(standing) => {
                    if let Err(error) = self.0.host.configure_tenant(id, standing.outfit.config.clone()).await {
                        tracing::error!(%error, tenant = %id, "a tenant could not be put back");
                    }
                }
                None => drop(self.0.host.remove_tenant(id)),
            }
        }
    }

    /// Lets the holders of these keys in, and nobody else.
    fn publish_keys(&self, state: &State) {
        let of = |standing: &Standing| {
            let id = standing.section.id.clone();
            let hashes: Vec<KeyHash> = standing.section.key_sha256.iter().filter_map(|hash| hash.parse().ok()).collect();
            hashes.into_iter().map(move |hash| (id.clone(), hash))
        };
        self.0.keys.replace(state.served.values().flat_map(of));
        self.0.keys.set_admin(state.config.admin_key_sha256.as_ref().and_then(|hash| hash.parse().ok()));
    }

    async fn write(&self, kept: &Kept) -> Result<(), AppError> {
        let (inner, kept) = (self.0.clone(), kept.clone());
        let write = tokio::task::spawn_blocking(move || inner.folder.write(&kept));
        write.await.map_err(|error| AppError::Tools(error.to_string()))?.map_err(AppError::Kept)
    }
}

/// Those who are to be served: whom the configuration names, and whom the operator made since.
fn wanted(config: &Config, kept: &Kept) -> Result<Vec<Wanted>, AppError> {
    let mut all: Vec<Wanted> = Vec::new();
    for section in &config.tenants {
        let mut section = section.clone();
        if let Some(known) = kept.tenants.get(&section.id) {
            section.key_sha256.retain(|hash| !known.replaced_sha256.contains(hash));
            add(&mut section, known);
        }
        all.push(Wanted { section, from_file: true });
    }
    for (id, known) in &kept.tenants {
        if config.tenants.iter().any(|tenant| tenant.id == *id) || (known.generated && !config.tenants.is_empty()) {
            continue;
        }
        let Some(mut section) = section_of(id, known)? else { continue };
        let named = |error: ConfigError| AppError::Tenant { id: id.clone(), error: Box::new(error.into()) };
        config.check_tenant(&section).map_err(named)?;
        add(&mut section, known);
        all.push(Wanted { section, from_file: false });
    }
    Ok(all)
}

/// The section of a tenant that the operator made; `None` for what is kept of one of the configuration file.
fn section_of(id: &TenantId, known: &KeptTenant) -> Result<Option<TenantSection>, AppError> {
    match &known.settings {
        Some(settings) => {
            let named = |error: ConfigError| AppError::Tenant { id: id.clone(), error: Box::new(error.into()) };
            TenantSection::from_json(id, settings).map(Some).map_err(named)
        }
        None if known.generated => Ok(Some(TenantSection::new(id.clone()))),
        None => Ok(None),
    }
}

fn add(section: &mut TenantSection, known: &KeptTenant) {
    let fresh = known.key_sha256.iter().filter(|hash| !section.key_sha256.contains(hash)).cloned().collect::<Vec<_>>();
    section.key_sha256.extend(fresh);
    section.paused = known.paused.or(section.paused);
}

/// What is kept of the tenant of a first start without configuration, and its key, which is nowhere but here.
pub(super) fn generated(kept: &mut Kept, id: TenantId) -> String {
    let key = new_key();
    let hash = KeyHash::of(&key).to_string();
    let tenant = KeptTenant { key_sha256: BTreeSet::from([hash]), generated: true, ..KeptTenant::default() };
    kept.tenants.insert(id, tenant);
    key
}

/// Why the operator's wish was not granted, for the layer above.
fn is_temporary(error: &AppError) -> bool {
    matches!(error, AppError::Kept(KeptError::Folder { .. } | KeptError::Unwritable { .. } | KeptError::Unreadable { .. }))
}
