//! The attempts of one model call. Each attempt holds a permit; a failure before the first content
//! may be retried.

use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{CallBy, Gateway, Health, Permit, Queued, Settings, Waiting, cost};
use crate::{
    chat::{ModelRequest, Usage},
    limits::BREAKER_PROBES_MAX,
    metrics_collector::{Figure, Tally},
    policy::{CallClass, Permission, ProbeToken},
    ports::{ModelEvent, ModelStream, ProviderError},
};

/// A started stream: the first batch, already read, and the rest.
type Begun = (Vec<ModelEvent>, ModelStream);

impl Gateway {
    pub(super) fn settings(&self) -> std::sync::Arc<Settings> {
        self.settings.read().clone()
    }

    pub(super) fn with_health<T>(&self, act: impl FnOnce(&mut Health) -> T) -> T {
        act(&mut self.health.lock())
    }

    /// Tries until content arrives, an error is final, or the retry bucket is empty. A call of a
    /// subagent waits for an open breaker, which costs no retry. No permit is held between attempts.
    pub(super) async fn attempts(
        &self,
        by: &CallBy<'_>,
        request: &ModelRequest,
        cancel: &CancellationToken,
        notify: &(impl Fn(Waiting) + Send),
        tally: &mut Tally,
    ) -> Result<ModelStream, ProviderError> {
        let mut attempt = 0;
        let mut first = true;
        loop {
            let error = match self
                .attempt(by, request, cancel, first, notify, tally)
                .await
            {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            first &= matches!(error, ProviderError::BreakerOpen { .. });
            if let Some(delay) = self.breaker_wait(by, &error) {
                notify(Waiting::Retry {
                    attempt: attempt + 1,
                    delay,
                    reason: error.code(),
                });
                pause(delay, cancel).await?;
                continue;
            }
            let Some(delay) =
                self.settings()
                    .config
                    .retry
                    .delay(&error, attempt, self.entropy.fraction())
            else {
                return Err(error);
            };
            if !self.with_health(|health| health.bucket.take()) {
                return Err(error);
            }
            attempt += 1;
            tally.add(Figure::ModelRetried);
            notify(Waiting::Retry {
                attempt,
                delay,
                reason: error.code(),
            });
            pause(delay, cancel).await?;
        }
    }

    /// How long a call that ended in `error` waits for the breaker; `None` if it does not wait.
    fn breaker_wait(&self, by: &CallBy<'_>, error: &ProviderError) -> Option<Duration> {
        let waits = match by.class {
            CallClass::Subagent => self.settings().fallback.is_none(),
            CallClass::Interactive | CallClass::Background => false,
        };
        let now = self.permits.now();
        let (probes, open_for) = self
            .with_health(|health| (health.breaker.failed_probes(), health.breaker.open_for(now)));
        if !waits || probes >= BREAKER_PROBES_MAX {
            return None;
        }
        match error {
            ProviderError::BreakerOpen { retry_after } => Some(*retry_after),
            ProviderError::RateLimited { .. } => None,
            error if error.is_retryable() => open_for,
            _ => None,
        }
    }

    /// Makes one attempt, up to its first content.
    async fn attempt(
        &self,
        by: &CallBy<'_>,
        request: &ModelRequest,
        cancel: &CancellationToken,
        first: bool,
        notify: &(impl Fn(Waiting) + Send),
        tally: &mut Tally,
    ) -> Result<ModelStream, ProviderError> {
        let now = self.permits.now();
        // An open breaker refuses at once, instead of queuing first.
        if let Some(retry_after) = self.with_health(|health| health.breaker.open_for(now)) {
            return Err(ProviderError::BreakerOpen { retry_after });
        }
        let queued = |Queued {
                          position,
                          waits_for,
                          delay,
                      }| {
            notify(Waiting::Queued {
                position,
                waits_for,
                delay,
            })
        };
        let asked = self.permits.now();
        self.permits.carry(self.settings().provider.calls_max());
        let permit = self
            .permits
            .acquire(by, cost(request), cancel, queued)
            .await;
        // A wait that ended in an error is recorded as well.
        tally.add(Figure::WaitedForGateway(
            self.permits.now().saturating_sub(asked),
        ));
        let mut permit = permit?;
        // Read after the wait, so that a configuration changed meanwhile applies.
        let settings = self.settings();
        let now = self.permits.now();
        let permission = self.with_health(|health| {
            let permission = health.breaker.request(now);
            if first && !matches!(permission, Permission::Open(_)) {
                health.bucket.first_call();
            }
            permission
        });
        if let Permission::Open(retry_after) = permission {
            return Err(ProviderError::BreakerOpen { retry_after });
        }
        // If this future is dropped during a probe, the guard reports the probe as abandoned, so
        // that the breaker does not wait for its result.
        let probe = AbandonOnDrop {
            gateway: self,
            probe: permission.probe(),
        };
        permit.begin();
        notify(Waiting::Sent);
        let reported = Mutex::new(None);
        let report = |usage: Usage| {
            *reported.lock() = Some(usage);
            notify(Waiting::Reported { usage });
        };
        let result = self
            .first_content(&settings, request, cancel, &permit, &report, notify)
            .await;
        // The first calls show how many calls a connection carries.
        self.permits.carry(settings.provider.calls_max());
        let now = self.permits.now();
        self.with_health(|health| match &result {
            Ok(_) => health.succeeded(by.tenant, now),
            // No evidence about the provider, or the same evidence as another call's.
            Err(
                ProviderError::Cancelled
                | ProviderError::Untrusted { .. }
                | ProviderError::NotStarted { .. }
                | ProviderError::SharedConnection { .. },
            ) => health.breaker.abandoned(permission.probe()),
            Err(error)
                if error.is_retryable() && !matches!(error, ProviderError::RateLimited { .. }) =>
            {
                let breaker = &settings.config.breaker;
                if health.shared_failures.failed(by.tenant, now) {
                    health.breaker.failed(breaker, now, permission.probe());
                } else {
                    health.breaker.abandoned(permission.probe());
                }
            }
            // Any other answer shows that the provider responds.
            Err(_) => health.succeeded(by.tenant, now),
        });
        probe.disarm();
        match result {
            Ok((ahead, rest)) => Ok(Box::pin(WithPermit {
                ahead: Some(ahead),
                rest,
                permit,
            })),
            Err(error) => {
                match reported.into_inner() {
                    Some(usage) => permit.used(counted(&usage)),
                    None if nothing_was_used(&error) => permit.used(0),
                    None => {}
                }
                if let Some(wait) = error.retry_after() {
                    // Set before the permit is released: the next call would only get the same
                    // refusal.
                    self.permits.hold(wait);
                }
                Err(error)
            }
        }
    }

    /// Reads up to the first batch with content. An error before it may be retried, a later one may
    /// not.
    async fn first_content(
        &self,
        settings: &Settings,
        request: &ModelRequest,
        cancel: &CancellationToken,
        permit: &Permit,
        report: &impl Fn(Usage),
        notify: &(impl Fn(Waiting) + Send),
    ) -> Result<Begun, ProviderError> {
        let mut stream = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(ProviderError::Cancelled),
            stream = settings.provider.stream(request.clone(), cancel.clone()) => stream?,
        };
        loop {
            let next = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(ProviderError::Cancelled),
                next = stream.next() => next,
            };
            match next {
                Some(Ok(mut batch)) => {
                    batch.retain(|event| match event {
                        ModelEvent::Limits(limits) => {
                            self.permits.observe(limits, permit.tokens());
                            false
                        }
                        ModelEvent::Usage(usage) => {
                            report(*usage);
                            false
                        }
                        ModelEvent::Arguments(bytes) => {
                            notify(Waiting::Arguments { bytes: *bytes });
                            false
                        }
                        ModelEvent::Text(_)
                        | ModelEvent::Thinking(_)
                        | ModelEvent::Block(_)
                        | ModelEvent::Completed(_) => true,
                    });
                    if !batch.is_empty() {
                        return Ok((batch, stream));
                    }
                }
                Some(Err(error)) => return Err(error),
                None => return Err(ProviderError::without_end()),
            }
        }
    }
}

/// Waits between two attempts.
async fn pause(delay: Duration, cancel: &CancellationToken) -> Result<(), ProviderError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(ProviderError::Cancelled),
        () = tokio::time::sleep(delay) => Ok(()),
    }
}

/// Whether an error means that the provider processed no token. A call that timed out may have used
/// its input.
fn nothing_was_used(error: &ProviderError) -> bool {
    match error {
        ProviderError::Auth { .. }
        | ProviderError::InvalidRequest { .. }
        | ProviderError::RateLimited { .. }
        | ProviderError::QuotaExhausted { .. }
        | ProviderError::Server { .. }
        | ProviderError::Connection { .. }
        | ProviderError::SharedConnection { .. }
        | ProviderError::Untrusted { .. }
        | ProviderError::NotStarted { .. }
        | ProviderError::Unsupported(_)
        | ProviderError::Overloaded
        | ProviderError::BreakerOpen { .. } => true,
        ProviderError::Timeout { .. }
        | ProviderError::Protocol { .. }
        | ProviderError::Incomplete { .. }
        | ProviderError::Cancelled => false,
    }
}

/// Returns the tokens that count against the rate limit and the tenant's share. Cache reads do not
/// count, because the provider does not process them again.
fn counted(usage: &Usage) -> u64 {
    usage
        .input_uncached
        .saturating_add(usage.cache_write)
        .saturating_add(usage.output)
}

struct AbandonOnDrop<'a> {
    gateway: &'a Gateway,
    probe: Option<ProbeToken>,
}

impl AbandonOnDrop<'_> {
    fn disarm(mut self) {
        self.probe = None;
    }
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if self.probe.is_some() {
            self.gateway
                .with_health(|health| health.breaker.abandoned(self.probe));
        }
    }
}

/// A started stream with its first batch and its permit. Dropping the stream releases the permit.
struct WithPermit {
    ahead: Option<Vec<ModelEvent>>,
    rest: ModelStream,
    permit: Permit,
}

impl futures_util::Stream for WithPermit {
    type Item = Result<Vec<ModelEvent>, ProviderError>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let next = match self.ahead.take() {
            Some(batch) => std::task::Poll::Ready(Some(Ok(batch))),
            None => self.rest.poll_next_unpin(cx),
        };
        if let std::task::Poll::Ready(Some(Ok(batch))) = &next
            && let Some(ModelEvent::Completed(completion)) = batch.last()
            && let Some(usage) = &completion.usage
        {
            self.permit.used(counted(usage));
        }
        next
    }
}
