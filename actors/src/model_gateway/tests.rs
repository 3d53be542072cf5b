//! Tests of the gateway's promises, with a scripted model and paused time.

mod fallback;
mod health;
mod limits;
mod live;
mod queue;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    chat::{Message, MessageList, ModelParameters, Usage},
    ids::TenantId,
    metrics_collector::MetricsCollectorRef,
    model_gateway::ModelRetryPolicy,
    policy::BreakerConfig,
    ports::{BoxFuture, ModelEvent, RateLimits},
    scripted::Reply,
    testing::{ScriptedModel, SeededEntropy, contract::example_request},
};

fn config() -> GatewayConfig {
    GatewayConfig {
        calls_max: 4,
        calls_are_shared: false,
        waiting_max: 1000,
        requests_per_minute: None,
        tokens_per_minute: None,
        retry: ModelRetryPolicy {
            max_retries: 0,
            ..ModelRetryPolicy::default()
        },
        breaker: BreakerConfig::default(),
        fallback: None,
        parameters: ModelParameters::default(),
    }
}

fn gateway(model: &Arc<impl LlmProvider>, config: GatewayConfig) -> ModelGatewayRef {
    ModelGatewayRef::new(
        model.clone(),
        config,
        Arc::new(SeededEntropy::new(7)),
        MetricsCollectorRef::default(),
    )
}

fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn request() -> ModelRequest {
    ModelRequest {
        messages: MessageList::from_iter([Message::user("hello")]),
        tools: [].into(),
        max_tokens: 100,
        ..example_request()
    }
}

fn limited(seconds: u64) -> Reply {
    Reply::error(ProviderError::RateLimited {
        retry_after: Some(Duration::from_secs(seconds)),
        message: "slow down".into(),
    })
}

/// A model that records when it was called.
struct Timed {
    inner: ScriptedModel,
    started: Instant,
    at: Mutex<Vec<Duration>>,
    limits: RateLimits,
    calls_max: AtomicUsize,
}

impl Timed {
    fn new(inner: ScriptedModel) -> Self {
        Self {
            inner,
            started: Instant::now(),
            at: Mutex::default(),
            limits: RateLimits::default(),
            calls_max: AtomicUsize::new(usize::MAX),
        }
    }

    fn times(&self) -> Vec<f64> {
        self.at
            .lock()
            .iter()
            .map(|at| (at.as_secs_f64() * 100.0).round() / 100.0)
            .collect()
    }
}

impl LlmProvider for Timed {
    fn name(&self) -> &str {
        "timed"
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        LlmProvider::capabilities(&self.inner, model)
    }

    fn calls_max(&self) -> usize {
        self.calls_max.load(Ordering::Relaxed)
    }

    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        self.at.lock().push(self.started.elapsed());
        let limits = self.limits;
        let inner = self.inner.stream(request, cancel);
        Box::pin(async move {
            let rest = inner.await?;
            let head = (!limits.is_empty()).then(|| Ok(vec![ModelEvent::Limits(limits)]));
            Ok(stream::iter(head).chain(rest).boxed())
        })
    }
}

/// Runs one call to its end. Returns the text, or the code of the error.
async fn call(gateway: &ModelGatewayRef, who: &str) -> Result<String, &'static str> {
    call_as(gateway, who, 1, &|_| {}).await
}

async fn call_as(
    gateway: &ModelGatewayRef,
    who: &str,
    weight: u32,
    notify: &(dyn Fn(Waiting) + Send + Sync),
) -> Result<String, &'static str> {
    let tenant = tenant(who);
    let by = CallBy {
        tenant: &tenant,
        weight,
        class: CallClass::Interactive,
    };
    let mut stream = gateway
        .stream(&by, request(), CancellationToken::new(), notify)
        .await
        .map_err(|error| error.code())?;
    let mut text = String::new();
    while let Some(batch) = stream.next().await {
        for event in batch.map_err(|error| error.code())? {
            match event {
                ModelEvent::Text(delta) => text.push_str(&delta),
                ModelEvent::Arguments(_) => {}
                ModelEvent::Limits(_) => panic!("the limits are the gateway's"),
                ModelEvent::Thinking(_)
                | ModelEvent::Usage(_)
                | ModelEvent::Block(_)
                | ModelEvent::Completed(_) => {}
            }
        }
    }
    Ok(text)
}

fn spawn(
    gateway: &ModelGatewayRef,
    who: &'static str,
) -> tokio::task::JoinHandle<Result<String, &'static str>> {
    let gateway = gateway.clone();
    tokio::spawn(async move { call(&gateway, who).await })
}

/// Lets every ready task run.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
