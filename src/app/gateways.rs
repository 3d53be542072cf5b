//! Gateways of a host that serves: one a provider of the configuration, so one a key.

use std::{collections::BTreeMap, sync::Arc};

use callboard_actors::{
    model_gateway::{Fallback, GatewayConfig},
    ports::LlmProvider,
};

use super::{AppError, OFFLINE_MODEL, build, masked::masked, usual_base_url};
use crate::{
    Host,
    config::{Config, ProviderConfig, ProviderKind},
    observe::Redactor,
};

/// A provider that can be called, and who stands in for it.
#[derive(Clone)]
pub(super) struct Outlet {
    /// As it is configured.
    pub(super) config: ProviderConfig,
    pub(super) provider: Arc<dyn LlmProvider>,
    /// The model that is asked where the tenant names none.
    pub(super) model: String,
}

/// Outlets by the provider's name.
pub(super) type Outlets = BTreeMap<String, Outlet>;

/// Every provider that is configured or that a tenant or a fallback names; their words are masked by `redactor`.
///
/// # Errors
/// A key that is not there, an address that is none.
pub(super) fn outlets(config: &Config, extra: impl IntoIterator<Item = Option<String>>, redactor: &Redactor) -> Result<Outlets, AppError> {
    let mut outlets = Outlets::new();
    let mut wanted: Vec<Option<String>> = config.providers.iter().map(|provider| Some(provider.name.clone())).collect();
    wanted.extend(config.tenants.iter().map(|tenant| tenant.provider.clone()));
    wanted.extend(extra);
    wanted.push(None);
    while let Some(name) = wanted.pop() {
        let chosen = config.choose(name.as_deref())?;
        if outlets.contains_key(&chosen.name) {
            continue;
        }
        wanted.extend(chosen.fallback.iter().map(|fallback| Some(fallback.provider.clone())));
        outlets.insert(chosen.name.clone(), outlet(chosen, redactor)?);
    }
    Ok(outlets)
}

fn outlet(chosen: &ProviderConfig, redactor: &Redactor) -> Result<Outlet, AppError> {
    let base_url = chosen.base_url.clone().or_else(|| usual_base_url(chosen.kind));
    let key = chosen.key()?.map(|secret| secret.expose().to_owned());
    let provider = build(chosen.kind, key, base_url, chosen.shows.as_deref()).map_err(|error| match error {
        Some(error) => AppError::Provider { name: chosen.name.clone(), error },
        None => AppError::BaseUrlWithoutProvider,
    })?;
    let model = chosen.model.clone().unwrap_or_else(|| match chosen.kind {
        ProviderKind::Offline => OFFLINE_MODEL.to_owned(),
        ProviderKind::Anthropic | ProviderKind::OpenAi => provider.default_model().to_owned(),
    });
    Ok(Outlet { config: chosen.clone(), provider: masked(provider, redactor), model })
}

impl Outlet {
    fn gateway(&self, usual: &GatewayConfig, all: &Outlets) -> GatewayConfig {
        let fallback = self.config.fallback.as_ref().and_then(|fallback| {
            let there = all.get(&fallback.provider)?;
            let model = fallback.model.as_ref().unwrap_or(&there.model);
            Some(Fallback { gateway: fallback.provider.clone(), model: Arc::from(model.as_str()) })
        });
        GatewayConfig {
            calls_max: self.config.concurrency.unwrap_or(usual.calls_max),
            requests_per_minute: self.config.rpm,
            tokens_per_minute: self.config.tpm,
            fallback,
            ..usual.clone()
        }
    }
}

/// Gives the host the gateways of `outlets` that differ from `before`, each after the one that stands in for it.
///
/// # Errors
/// What the host says of a fallback.
pub(super) fn add(host: &Host, outlets: &Outlets, before: &Outlets) -> Result<(), AppError> {
    let differs = |name: &String, outlet: &Outlet| before.get(name).is_none_or(|old| !old.config.is_same_gateway(&outlet.config));
    let mut left: Vec<(&String, &Outlet)> = outlets.iter().filter(|(name, outlet)| differs(name, outlet)).collect();
    while !left.is_empty() {
        let waits = |outlet: &Outlet, left: &[(&String, &Outlet)]| {
            outlet.config.fallback.as_ref().is_some_and(|fallback| left.iter().any(|(name, _)| **name == fallback.provider))
        };
        let (later, now): (Vec<_>, Vec<_>) = left.iter().copied().partition(|(_, outlet)| waits(outlet, &left));
        // A circle is refused by the configuration; the host would say so as well.
        let now = if now.is_empty() { std::mem::take(&mut left) } else { now };
        for (name, outlet) in now {
            host.add_gateway(name.clone(), outlet.provider.clone(), outlet.gateway(host.gateway_config(), outlets))?;
        }
        left.retain(|(name, _)| later.iter().any(|(other, _)| other == name));
    }
    Ok(())
}
