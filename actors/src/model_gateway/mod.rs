//! The gateway to one provider credential: permits (concurrency and rate limits), the fair queue,
//! retries, the circuit breaker and the fallback.
//!
//! A gateway is not an actor. Its state (permits and queue, retry bucket, breaker, configuration)
//! is behind short locks in an `Arc` that all callers share, so an uncontended call needs no
//! message and no task. The gateway is the only layer that retries.
//!
//! Promises, each with a test:
//! - A tenant with many calls does not starve another.
//! - No call starts while the provider asks for a pause.
//! - A call that waits for a retry holds no permit.
//! - A changed configuration applies to waiting calls too.
//! - A call of a subagent waits while the breaker is open; every other call fails at once.
//! - A failed call goes to the fallback once, before any content, and never for a fault of the
//!   request.

mod config;
mod status;
mod permits;
mod attempt;
pub mod exact;
mod retry;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

pub(crate) use config::CallBy;
pub use config::{Fallback, GatewayConfig};
pub use permits::{Cost, Permit, Permits, Queued};
pub use retry::{ModelRetryPolicy, RetryBucket};
pub use status::{GatewayStatus, ProviderWait, TenantWaiting, Waiting};

pub use crate::policy::CallClass;
use crate::{
    chat::{ModelParameters, ModelRequest},
    ids::TenantId,
    limits::{BUDGET_OUTPUT_TOKENS, BYTES_A_TOKEN, REQUEST_SLACK_TOKENS},
    metrics_collector::{Figure, MetricsCollectorRef, PrefixBreak, Tally},
    policy::{Breaker, HostShare, SharedFailures},
    ports::{Capabilities, Entropy, LlmProvider, ModelStream, ProviderError},
};

/// A shared handle to a gateway.
#[derive(Clone)]
pub struct ModelGatewayRef(Arc<Gateway>);

impl std::fmt::Debug for ModelGatewayRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModelGatewayRef({})", self.provider().name())
    }
}

struct Gateway {
    settings: RwLock<Arc<Settings>>,
    permits: Permits,
    health: parking_lot::Mutex<Health>,
    entropy: Arc<dyn Entropy>,
    collector: MetricsCollectorRef,
}

/// What [`ModelGatewayRef::configure`] replaces, as one value: a call sees all of it or nothing.
struct Settings {
    provider: Arc<dyn LlmProvider>,
    config: GatewayConfig,
    fallback: Option<ModelGatewayRef>,
}

#[derive(Default)]
struct Health {
    bucket: RetryBucket,
    breaker: Breaker,
    shared_failures: SharedFailures,
}

impl Health {
    /// Records that the provider answered a call.
    fn succeeded(&mut self, tenant: &TenantId, now: Duration) {
        self.breaker.succeeded();
        self.shared_failures.succeeded(tenant, now);
    }
}

impl ModelGatewayRef {
    /// Creates a gateway to `provider`. [`ModelGatewayRef::configure`] sets the fallback.
    pub(crate) fn new(
        provider: Arc<dyn LlmProvider>,
        config: GatewayConfig,
        entropy: Arc<dyn Entropy>,
        collector: MetricsCollectorRef,
    ) -> Self {
        let permits = Permits::new(&config);
        let settings = RwLock::new(Arc::new(Settings {
            provider,
            config,
            fallback: None,
        }));
        Self(Arc::new(Gateway {
            settings,
            permits,
            health: parking_lot::Mutex::default(),
            entropy,
            collector,
        }))
    }

    /// Changes the gateway in place, also for waiting calls. `fallback` is the gateway that
    /// `config` names.
    ///
    /// # Errors
    /// [`FallbackCycle`] when the chain of fallbacks leads back to this gateway; then nothing is
    /// changed.
    pub(crate) fn configure(
        &self,
        provider: Arc<dyn LlmProvider>,
        config: GatewayConfig,
        fallback: Option<Self>,
    ) -> Result<(), FallbackCycle> {
        let mut next = fallback.clone();
        while let Some(gateway) = next {
            if Arc::ptr_eq(&gateway.0, &self.0) {
                return Err(FallbackCycle);
            }
            next = gateway.settings().fallback.clone();
        }
        let same_credential = Arc::ptr_eq(&self.settings().provider, &provider);
        if !same_credential {
            self.0
                .with_health(|health| health.breaker = Breaker::default());
        }
        let settings = Arc::new(Settings {
            provider,
            config: config.clone(),
            fallback,
        });
        *self.0.settings.write() = settings;
        self.0.permits.configure(&config, same_credential);
        Ok(())
    }

    /// Changes this host's part of the provider's limits.
    pub(crate) fn share(&self, share: HostShare) {
        let settings = self.settings();
        self.0.permits.share(share, &settings.config);
    }

    /// Returns the capabilities of `model`.
    pub(crate) fn capabilities(&self, model: &str) -> Capabilities {
        self.settings().provider.capabilities(model)
    }

    /// Returns the capabilities of `model`, with what its fallbacks change about the size of a
    /// request: the smallest bound, and the attachments that any of them is sent.
    pub(crate) fn request_capabilities(&self, model: &str) -> Capabilities {
        let mut all = self.capabilities(model);
        for (fallback, gateway) in self.fallbacks() {
            let next = gateway.capabilities(&fallback.model);
            all.images |= next.images;
            all.documents |= next.documents;
            let bounds = [all.request_bytes_max, next.request_bytes_max];
            all.request_bytes_max = bounds.into_iter().flatten().min();
        }
        all
    }

    /// The fallback with this gateway in the chain, and the gateway that is asked.
    pub(crate) fn fallback_at(&self, name: &str) -> Option<(Self, FallbackModel)> {
        self.fallbacks()
            .find(|(fallback, ..)| fallback.gateway == name)
            .map(|(fallback, gateway)| {
                let model = FallbackModel::of(&fallback, &gateway);
                (gateway, model)
            })
    }

    /// The nearest fallback whose model has this name.
    pub(crate) fn fallback_of(&self, model: &str) -> Option<FallbackModel> {
        self.fallbacks()
            .find(|(fallback, _)| *fallback.model == *model)
            .map(|(fallback, gateway)| FallbackModel::of(&fallback, &gateway))
    }

    /// The chain of fallbacks, nearest first.
    fn fallbacks(&self) -> impl Iterator<Item = (Fallback, Self)> {
        let next = |gateway: &Self| {
            let settings = gateway.settings();
            settings
                .config
                .fallback
                .clone()
                .zip(settings.fallback.clone())
        };
        std::iter::successors(next(self), move |(_, gateway)| next(gateway))
    }

    /// How the provider's models are asked to answer by default.
    pub(crate) fn parameters(&self) -> ModelParameters {
        self.settings().config.parameters.clone()
    }

    /// Returns the models of the chain of fallbacks, nearest first.
    pub(crate) fn fallback_models(&self) -> Vec<Arc<str>> {
        let mut models = Vec::new();
        let mut gateway = Some(self.clone());
        while let Some(settings) = gateway.as_ref().map(Self::settings) {
            models.extend(
                settings
                    .config
                    .fallback
                    .iter()
                    .map(|fallback| fallback.model.clone()),
            );
            gateway = settings.fallback.clone();
        }
        models
    }

    /// Returns the current provider.
    pub(crate) fn provider(&self) -> Arc<dyn LlmProvider> {
        self.settings().provider.clone()
    }

    /// Returns a report on the gateway. It visits every waiting tenant: for people and scrapers,
    /// not for every call.
    pub(crate) fn status(&self) -> GatewayStatus {
        let settings = self.settings();
        let now = self.0.permits.now();
        let open = self.0.with_health(|health| health.breaker.open_for(now));
        let permits = self.0.permits.status();
        GatewayStatus {
            provider: settings.provider.name().to_owned(),
            free: permits.free,
            running: permits.running,
            waiting: permits.waiting,
            waits_for: permits.waits_for,
            tenants: permits.tenants,
            requests_left: permits.requests_left,
            tokens_left: permits.tokens_left,
            held_ms: permits.held.map(millis),
            breaker_open: open.is_some(),
            breaker_retry_ms: open.map(millis),
            fallback: settings
                .config
                .fallback
                .as_ref()
                .map(|fallback| fallback.gateway.clone()),
        }
    }

    /// Starts a call. Returns its stream as soon as the first content or the end has arrived. The
    /// stream holds the permit. A call that fails here goes to the fallback, if there is one.
    ///
    /// # Errors
    /// The error of the last attempt; with a fallback, the error of the fallback.
    ///
    /// # Cancel safety
    /// Dropping the future or the stream cancels the call and releases the permit.
    pub(crate) async fn stream(
        &self,
        by: &CallBy<'_>,
        request: ModelRequest,
        cancel: CancellationToken,
        notify: impl Fn(Waiting) + Send,
    ) -> Result<ModelStream, ProviderError> {
        self.stream_where(by, request, cancel, notify, |_, _, _| true)
            .await
    }

    /// Starts a call as [`ModelGatewayRef::stream`] does. Before it goes to a fallback, `fits`
    /// decides whether the request may be sent there; if not, the call ends with its error.
    ///
    /// # Errors
    /// The error of the last attempt.
    ///
    /// # Cancel safety
    /// Dropping the future or the stream cancels the call and releases the permit.
    pub(crate) async fn stream_where(
        &self,
        by: &CallBy<'_>,
        mut request: ModelRequest,
        cancel: CancellationToken,
        notify: impl Fn(Waiting) + Send,
        fits: impl Fn(&Fallback, &Capabilities, &ProviderError) -> bool + Send,
    ) -> Result<ModelStream, ProviderError> {
        // Sent with the end of this function, however it ends.
        let mut tally = Tally::new(self.0.collector.clone(), by.tenant.clone());
        let mut gateway = self.clone();
        loop {
            let attempts = gateway
                .0
                .attempts(by, &request, &cancel, &notify, &mut tally);
            let error = match attempts.await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let settings = gateway.settings();
            let (Some(next), Some(fallback)) = (&settings.fallback, &settings.config.fallback)
            else {
                return Err(error);
            };
            let capabilities = next.capabilities(&fallback.model);
            if !may_fall_back(&error) || !fits(fallback, &capabilities, &error) {
                return Err(error);
            }
            tracing::warn!(provider = settings.provider.name(), %error, fallback = fallback.gateway, "a model call goes to the fallback");
            notify(Waiting::Fallback {
                reason: error.code(),
                model: fallback.model.clone(),
            });
            request.model = fallback.model.clone();
            request.max_tokens = request.max_tokens.min(capabilities.fallback_answer_max());
            // The fallback provider has not cached the prefix. The break counts as one with a known
            // cause.
            tally.add(Figure::PrefixBroken {
                cause: PrefixBreak::Configuration,
                rebilled_tokens: cost(&request).tokens.saturating_sub(output(&request)),
            });
            gateway = next.clone();
        }
    }

    fn settings(&self) -> Arc<Settings> {
        self.0.settings()
    }
}

/// The model that a fallback asks.
#[derive(Debug, Clone)]
pub(crate) struct FallbackModel {
    /// Its name in its provider's API.
    pub(crate) model: Arc<str>,
    /// What it can do.
    pub(crate) capabilities: Capabilities,
}

impl FallbackModel {
    fn of(fallback: &Fallback, gateway: &ModelGatewayRef) -> Self {
        Self {
            model: fallback.model.clone(),
            capabilities: gateway.capabilities(&fallback.model),
        }
    }
}

/// The fallback of a gateway leads back to the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the fallback leads back to the gateway")]
pub(crate) struct FallbackCycle;

/// Whether a fallback may succeed: the endpoint failed or the account is exhausted, and the retries
/// are used up. Not for a wrong request or key, which the operator should see; not for a cancelled
/// call; and not for our own full queue, which would only fill the queue of the fallback.
fn may_fall_back(error: &ProviderError) -> bool {
    match error {
        ProviderError::RateLimited { .. }
        | ProviderError::QuotaExhausted { .. }
        | ProviderError::Server { .. }
        | ProviderError::Connection { .. }
        | ProviderError::SharedConnection { .. }
        | ProviderError::Untrusted { .. }
        | ProviderError::NotStarted { .. }
        | ProviderError::Timeout { .. }
        | ProviderError::Incomplete { .. }
        | ProviderError::BreakerOpen { .. } => true,
        ProviderError::Auth { .. }
        | ProviderError::InvalidRequest { .. }
        | ProviderError::Protocol { .. }
        | ProviderError::Cancelled
        | ProviderError::Unsupported(_)
        | ProviderError::Overloaded => false,
    }
}

/// Estimates the tokens of a call: the bytes of the request and an answer of usual length.
fn cost(request: &ModelRequest) -> Cost {
    let tools = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.as_str().len());
    let fixed = (request.system.as_deref().map_or(0, str::len) + tools.sum::<usize>()) as u64;
    let estimate = fixed.saturating_add(request.messages.estimate_bytes());
    Cost {
        tokens: (estimate / BYTES_A_TOKEN).saturating_add(output(request)),
        // Every token has at least one byte.
        most: fixed
            .saturating_add(request.messages.wire_bytes() as u64)
            .saturating_add(REQUEST_SLACK_TOKENS)
            .saturating_add(u64::from(request.max_tokens)),
    }
}

fn output(request: &ModelRequest) -> u64 {
    u64::from(request.max_tokens).clamp(1, BUDGET_OUTPUT_TOKENS)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
