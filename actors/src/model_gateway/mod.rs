//! The door to one provider credential: how many calls run at once, who is next, who tries again (DESIGN §4.5).
//!
//! State: permits and waiters, the retry bucket, the breaker; behind short locks, in an `Arc` that every caller shares, so an
//! uncontended call costs no mail. Nothing here outlives a call but counters. The gateway is the only layer that retries.

mod config;
mod status;
mod permits;
pub mod exact;

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use crate::policy::CallClass;
pub use config::{CallBy, Fallback, GatewayConfig};
pub use permits::{Permit, Permits};
pub use status::{GatewayStatus, TenantWaiting, Waiting, WaitsFor};

use crate::{
    ids::TenantId,
    metrics_collector::Counters,
    policy::{Breaker, Pass, RetryBucket},
    ports::{Capabilities, Entropy, LlmProvider, ModelEvent, ModelRequest, ModelStream, ProviderError},
};

/// A shared handle to a gateway.
#[derive(Clone)]
pub struct ModelGatewayRef(Arc<Gateway>);

impl std::fmt::Debug for ModelGatewayRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModelGatewayRef({})", self.0.provider.name())
    }
}

struct Gateway {
    provider: Arc<dyn LlmProvider>,
    permits: Permits,
    config: GatewayConfig,
    health: std::sync::Mutex<Health>,
    started: Instant,
    entropy: Arc<dyn Entropy>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Health {
    bucket: RetryBucket,
    breaker: Breaker,
}

impl ModelGatewayRef {
    /// A gateway to `provider`.
    pub fn new(provider: Arc<dyn LlmProvider>, config: GatewayConfig, entropy: Arc<dyn Entropy>, counters: Arc<Counters>) -> Self {
        let permits = Permits::new(config.calls_max, config.waiting_max);
        Self(Arc::new(Gateway {
            provider,
            permits,
            config,
            health: std::sync::Mutex::default(),
            started: Instant::now(),
            entropy,
            counters,
        }))
    }

    /// What `model` can do.
    pub fn capabilities(&self, model: &str) -> Capabilities {
        self.0.provider.capabilities(model)
    }

    /// The provider behind it.
    pub fn provider(&self) -> &Arc<dyn LlmProvider> {
        &self.0.provider
    }

    /// What it is doing.
    pub fn status(&self) -> GatewayStatus {
        let (free, waiting) = self.0.permits.counts();
        let config = &self.0.config;
        let now = self.0.now();
        let open = self.0.with_health(|health| health.breaker.open_for(now));
        GatewayStatus {
            provider: self.0.provider.name().to_owned(),
            free,
            running: config.calls_max.saturating_sub(free),
            waiting,
            waits_for: (waiting > 0).then_some(WaitsFor::Calls),
            tenants: Vec::new(),
            requests_left: None,
            tokens_left: None,
            held_ms: None,
            breaker_open: open.is_some(),
            breaker_retry_ms: open.map(|open| u64::try_from(open.as_millis()).unwrap_or(u64::MAX)),
            fallback: config.fallback.as_ref().map(|fallback| fallback.gateway.clone()),
        }
    }

    /// Starts a call and returns its stream once the first content, the end or an error that stays is there. The permit is
    /// held by the stream.
    ///
    /// # Errors
    /// The error of the last attempt (P-10).
    ///
    /// # Cancel safety
    /// Dropping the future or the stream ends the call and gives the permit back.
    pub async fn stream(
        &self,
        by: &CallBy<'_>,
        request: ModelRequest,
        cancel: CancellationToken,
        tell: impl Fn(Waiting) + Send,
    ) -> Result<ModelStream, ProviderError> {
        let gateway = &*self.0;
        let mut attempt = 0;
        loop {
            let error = match gateway.attempt(by.tenant, request.clone(), cancel.clone(), attempt == 0, &tell).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let Some(delay) = gateway.config.retry.delay(&error, attempt, gateway.entropy.fraction()) else { return Err(error) };
            if !gateway.with_health(|health| health.bucket.take()) {
                return Err(error);
            }
            attempt += 1;
            gateway.counters.model_retries.add(1);
            tell(Waiting::Retry { attempt, delay, reason: error.code() });
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(ProviderError::Cancelled),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }
}

impl Gateway {
    fn with_health<T>(&self, act: impl FnOnce(&mut Health) -> T) -> T {
        act(&mut self.health.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// One attempt, up to its first content.
    async fn attempt(
        &self,
        tenant: &TenantId,
        request: ModelRequest,
        cancel: CancellationToken,
        first: bool,
        tell: &(impl Fn(Waiting) + Send),
    ) -> Result<ModelStream, ProviderError> {
        let permit = self
            .permits
            .acquire(tenant, &cancel, |position| tell(Waiting::Queued { position, waits_for: WaitsFor::Calls, delay: None }))
            .await?;
        let now = self.now();
        let pass = self.with_health(|health| {
            if first {
                health.bucket.first_call();
            }
            health.breaker.ask(now)
        });
        if let Pass::Open(retry_after) = pass {
            return Err(ProviderError::BreakerOpen { retry_after });
        }
        // A probe that is dropped must not keep the breaker waiting for its result.
        let probe = AbandonOnDrop { gateway: self, armed: pass == Pass::Probe };
        let result = self.first_content(request, cancel).await;
        let now = self.now();
        self.with_health(|health| match &result {
            Ok(_) => health.breaker.succeeded(),
            Err(error) if error.is_retryable() && !matches!(error, ProviderError::RateLimited { .. }) => {
                health.breaker.failed(&self.config.breaker, now);
            }
            Err(ProviderError::Cancelled) => health.breaker.abandoned(),
            // Any other answer shows that the provider is there.
            Err(_) => health.breaker.succeeded(),
        });
        probe.disarm();
        let (ahead, rest) = result?;
        let ahead = stream::iter(ahead.map(Ok));
        Ok(Box::pin(WithPermit { stream: ahead.chain(rest).boxed(), _permit: permit }))
    }

    /// Reads up to the first batch that holds content; an error before it may be retried, one after it may not.
    async fn first_content(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> Result<(Option<Vec<ModelEvent>>, ModelStream), ProviderError> {
        let mut stream = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(ProviderError::Cancelled),
            stream = self.provider.stream(request, cancel.clone()) => stream?,
        };
        loop {
            let next = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(ProviderError::Cancelled),
                next = stream.next() => next,
            };
            match next {
                Some(Ok(batch)) if batch.is_empty() => {}
                Some(Ok(batch)) => return Ok((Some(batch), stream)),
                Some(Err(error)) => return Err(error),
                None => return Ok((None, stream)),
            }
        }
    }
}

struct AbandonOnDrop<'a> {
    gateway: &'a Gateway,
    armed: bool,
}

impl AbandonOnDrop<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.gateway.with_health(|health| health.breaker.abandoned());
        }
    }
}

struct WithPermit {
    stream: ModelStream,
    _permit: Permit,
}

impl futures_util::Stream for WithPermit {
    type Item = Result<Vec<ModelEvent>, ProviderError>;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<Self::Item>> {
        self.stream.poll_next_unpin(cx)
    }
}
