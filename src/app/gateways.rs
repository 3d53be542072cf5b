//! Gateways of a host that serves: one for each configured provider, and so one for each provider
//! key.

use std::{collections::BTreeMap, sync::Arc};

use callboard_actors::{
    host::{HOST_GATEWAY, TenantConfig},
    ids::TenantId,
    model_gateway::{Fallback, GatewayConfig},
    ports::LlmProvider,
};

use super::{AppError, Chosen, OFFLINE_MODEL, TENANT, build, masked::masked, usual_base_url};
use crate::{
    Host,
    config::{Config, ProviderConfig, ProviderKind},
    observe::Redactor,
};

/// A provider that can be called, with its configuration.
#[derive(Clone)]
pub(super) struct ProviderEntry {
    /// The provider's configuration.
    pub(super) config: ProviderConfig,
    pub(super) provider: Arc<dyn LlmProvider>,
    /// The model of tenants that name none.
    pub(super) model: String,
}

/// Configured providers by name.
pub(super) type ProviderEntries = BTreeMap<String, ProviderEntry>;

/// Builds every provider that is configured or that a tenant or a fallback names. `redactor` masks
/// their answers and errors.
///
/// # Errors
/// A missing key or an invalid address.
pub(super) fn provider_entries(
    config: &Config,
    extra: impl IntoIterator<Item = Option<String>>,
    redactor: &Redactor,
) -> Result<ProviderEntries, AppError> {
    let mut entries = ProviderEntries::new();
    let mut wanted: Vec<Option<String>> = config
        .providers
        .iter()
        .map(|provider| Some(provider.name.clone()))
        .collect();
    wanted.extend(config.tenants.iter().map(|tenant| tenant.provider.clone()));
    wanted.extend(extra);
    wanted.push(None);
    while let Some(name) = wanted.pop() {
        let chosen = config.choose(name.as_deref())?;
        if entries.contains_key(&chosen.name) {
            continue;
        }
        wanted.extend(
            chosen
                .fallback
                .iter()
                .map(|fallback| Some(fallback.provider.clone())),
        );
        entries.insert(
            chosen.name.clone(),
            provider_entry(chosen, config, redactor)?,
        );
    }
    Ok(entries)
}

fn provider_entry(
    chosen: &ProviderConfig,
    config: &Config,
    redactor: &Redactor,
) -> Result<ProviderEntry, AppError> {
    let base_url = chosen
        .base_url
        .clone()
        .or_else(|| usual_base_url(chosen.kind));
    let key = chosen.key()?.map(|secret| secret.expose().to_owned());
    let provider = build(chosen, config, key, base_url).map_err(|error| match error {
        Some(error) => AppError::Provider {
            name: chosen.name.clone(),
            error,
        },
        None => AppError::BaseUrlWithoutProvider,
    })?;
    let model = chosen.model.clone().unwrap_or_else(|| match chosen.kind {
        ProviderKind::Offline => OFFLINE_MODEL.to_owned(),
        ProviderKind::Anthropic
        | ProviderKind::OpenAi
        | ProviderKind::OpenAiResponses
        | ProviderKind::Gemini => provider.default_model().to_owned(),
    });
    Ok(ProviderEntry {
        config: chosen.clone(),
        provider: masked(provider, redactor),
        model,
    })
}

impl ProviderEntry {
    fn gateway(&self, usual: &GatewayConfig, all: &ProviderEntries) -> GatewayConfig {
        let fallback = self.config.fallback.as_ref().and_then(|fallback| {
            let there = all.get(&fallback.provider)?;
            let model = fallback.model.as_ref().unwrap_or(&there.model);
            Some(Fallback {
                gateway: fallback.provider.clone(),
                model: Arc::from(model.as_str()),
            })
        });
        GatewayConfig {
            calls_max: self.config.concurrency.unwrap_or(usual.calls_max),
            calls_are_shared: self.config.concurrency.is_some(),
            requests_per_minute: self.config.rpm,
            tokens_per_minute: self.config.tpm,
            fallback,
            retry: self.config.retry.clone(),
            parameters: self.config.parameters.clone(),
            ..usual.clone()
        }
    }
}

/// The gateway of a host for one person (`run`, `chat`, `fanout`): limits, retries, parameters and
/// fallbacks of the chosen provider.
pub(super) struct OwnGateway {
    entry: Option<ProviderEntry>,
    fallbacks: ProviderEntries,
}

impl OwnGateway {
    /// Builds the chain of fallbacks. Providers outside of it need no key.
    ///
    /// # Errors
    /// A missing key or an invalid address of a fallback.
    pub(super) fn new(
        config: &Config,
        chosen: &Chosen,
        provider: Arc<dyn LlmProvider>,
        redactor: &Redactor,
    ) -> Result<Self, AppError> {
        let mut fallbacks = ProviderEntries::new();
        let mut last = chosen.config.as_ref();
        while let Some(fallback) = last.and_then(|provider| provider.fallback.as_ref()) {
            if fallbacks.contains_key(&fallback.provider) {
                break;
            }
            let next = config.choose(Some(&fallback.provider))?;
            fallbacks.insert(next.name.clone(), provider_entry(next, config, redactor)?);
            last = Some(next);
        }
        let entry = chosen.config.clone().map(|config| ProviderEntry {
            config,
            provider,
            model: chosen.model.clone(),
        });
        Ok(Self { entry, fallbacks })
    }

    /// Applies it to the host's own gateway, and to the setup of the person's conversations.
    ///
    /// # Errors
    /// The host's error for a fallback or a parameter.
    pub(super) async fn configure(self, host: &Host) -> Result<(), AppError> {
        let Some(entry) = self.entry else {
            return Ok(());
        };
        let wanted = entry.gateway(host.gateway_config(), &self.fallbacks);
        if wanted == *host.gateway_config() {
            return Ok(());
        }
        add(host, &self.fallbacks, &ProviderEntries::new())?;
        host.add_gateway(HOST_GATEWAY, entry.provider, wanted)?;
        let tenant = TenantId::new(TENANT).map_err(|error| AppError::Tools(error.to_string()))?;
        host.configure_tenant(&tenant, TenantConfig::new()).await?;
        Ok(())
    }
}

/// Adds the gateways that differ from `before` to the host. Fallback gateways come first, because a
/// gateway refers to its fallback by name.
///
/// # Errors
/// The host's error for a fallback.
pub(super) fn add(
    host: &Host,
    entries: &ProviderEntries,
    before: &ProviderEntries,
) -> Result<(), AppError> {
    let differs = |name: &String, entry: &ProviderEntry| {
        before
            .get(name)
            .is_none_or(|old| !old.config.is_same_gateway(&entry.config))
    };
    let mut left: Vec<(&String, &ProviderEntry)> = entries
        .iter()
        .filter(|(name, entry)| differs(name, entry))
        .collect();
    while !left.is_empty() {
        let waits =
            |entry: &ProviderEntry, left: &[(&String, &ProviderEntry)]| {
                entry.config.fallback.as_ref().is_some_and(|fallback| {
                    left.iter().any(|(name, _)| **name == fallback.provider)
                })
            };
        let (later, now): (Vec<_>, Vec<_>) = left
            .iter()
            .copied()
            .partition(|(_, entry)| waits(entry, &left));
        // Only a cycle of fallbacks leaves `now` empty. The configuration refuses cycles, and the
        // host reports an error for one.
        let now = if now.is_empty() {
            std::mem::take(&mut left)
        } else {
            now
        };
        for (name, entry) in now {
            host.add_gateway(
                name.clone(),
                entry.provider.clone(),
                entry.gateway(host.gateway_config(), entries),
            )?;
        }
        left.retain(|(name, _)| later.iter().any(|(other, _)| other == name));
    }
    Ok(())
}
