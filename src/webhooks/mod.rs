//! Webhooks: delivers the messages of the outbox to the receivers that the operator configured.
//!
//! The outbox is the only queue. A message is in it from the transaction that stored the end of its
//! round until a receiver took it or the host gave it up, so a crash loses none; a receiver may get
//! one twice. `plan` decides who may be called when, `signature` signs, `delivery` calls.
//!
//! **Invariant:** only operators choose receivers. A request of a tenant cannot name a URL: the host
//! would call whatever the tenant cannot reach itself.

mod signature;
mod plan;
mod delivery;

use std::{collections::BTreeMap, fmt, sync::Arc};

use callboard_actors::{host::TenantConfig, ids::TenantId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

pub(crate) use delivery::deliver;
use signature::SigningKey;

use crate::{
    config::{Config, ConfigError, Origin, TenantSection, WebhookConfig, WebhookReceiver},
    http::{WebhookShown, is_single_call},
    observe::Redactor,
    web::{UrlPolicy, WebClient},
};

/// A receiver that can be called.
pub(crate) struct Receiver {
    url: String,
    keys: Vec<SigningKey>,
}

/// The receivers of a configuration, and how they are called.
pub(crate) struct Receivers {
    of_tenants: BTreeMap<TenantId, Arc<Receiver>>,
    client: WebClient,
    settings: WebhookConfig,
}

/// The receivers that are in effect. Clones share them.
#[derive(Clone)]
pub(crate) struct Webhooks(Arc<Inner>);

struct Inner {
    receivers: RwLock<Option<Arc<Receivers>>>,
    bell: Arc<Notify>,
    /// What became of the messages of each tenant, since the start of the host.
    figures: Mutex<BTreeMap<TenantId, WebhookShown>>,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Webhooks")
    }
}

impl Webhooks {
    /// Without a receiver, until [`Webhooks::replace`].
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            receivers: RwLock::new(None),
            bell: Arc::default(),
            figures: Mutex::default(),
        }))
    }

    /// What was delivered, for metrics and operators.
    pub(crate) fn figures(&self) -> BTreeMap<TenantId, WebhookShown> {
        self.0.figures.lock().clone()
    }

    fn note(&self, tenant: &TenantId, change: impl FnOnce(&mut WebhookShown)) {
        change(self.0.figures.lock().entry(tenant.clone()).or_default());
    }

    /// Notes that no message waits, before those that do are counted.
    fn none_pending(&self) {
        let mut figures = self.0.figures.lock();
        figures.values_mut().for_each(|counts| counts.pending = 0);
    }

    /// Exchanges the receivers. A call that is under way ends at the old one.
    pub(crate) fn replace(&self, receivers: Receivers) {
        *self.0.receivers.write() = Some(Arc::new(receivers));
        self.0.bell.notify_one();
    }

    fn receivers(&self) -> Option<Arc<Receivers>> {
        self.0.receivers.read().clone()
    }

    /// Adds to a tenant's configuration what its receiver is informed of.
    ///
    /// # Errors
    /// Those of [`Config::webhook_of`].
    pub(crate) fn configure(
        &self,
        config: &Config,
        tenant: &TenantSection,
        setup: TenantConfig,
    ) -> Result<TenantConfig, ConfigError> {
        Ok(match config.webhook_of(tenant)? {
            Some(receiver) => {
                let bell = self.0.bell.clone();
                setup.outbox(receiver.events, is_single_call, bell)
            }
            None => setup,
        })
    }
}

impl Receivers {
    /// The receivers of these tenants. `redactor` masks their secrets from now on.
    ///
    /// # Errors
    /// A URL that may not be reached, an entry of the allow-list that is none, or a secret that is
    /// missing or malformed.
    pub(crate) fn of<'a>(
        config: &Config,
        tenants: impl Iterator<Item = &'a TenantSection>,
        redactor: &Redactor,
    ) -> Result<Self, ConfigError> {
        let settings = config.webhook.clone();
        let wrong = |problem: String| ConfigError::Inconsistent {
            at: Origin::Default,
            problem,
        };
        let policy = settings
            .allow_hosts
            .iter()
            .try_fold(UrlPolicy::public(), |policy, entry| policy.allow(entry))
            .map_err(|error| wrong(format!("`webhook.allow_hosts` {error}")))?;
        let mut of_tenants = BTreeMap::new();
        for tenant in tenants {
            let Some(WebhookReceiver { url, secrets, .. }) = config.webhook_of(tenant)? else {
                continue;
            };
            policy.check_url(&url).map_err(|denied| {
                wrong(format!(
                    "the webhook of tenant `{}`: {denied}; `[webhook] allow_hosts` permits more",
                    tenant.id
                ))
            })?;
            redactor.learn(secrets.iter().flat_map(|secret| {
                let text = secret.expose();
                [text, text.trim_start_matches("whsec_")]
            }));
            let keys = secrets
                .iter()
                .filter_map(|secret| SigningKey::of(secret.expose()))
                .collect();
            of_tenants.insert(tenant.id.clone(), Arc::new(Receiver { url, keys }));
        }
        let client = WebClient::builder()
            .policy(policy)
            .connect(settings.timeout)
            .idle(settings.timeout)
            .total(settings.timeout)
            .build()
            .map_err(|error| wrong(format!("[webhook]: {error}")))?;
        Ok(Self {
            of_tenants,
            client,
            settings,
        })
    }
}
