//! The model of an in-process load run. It answers with the prompt's mark, calls tools first, and
//! injects faults by a seed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use callboard_actors::{
    chat::{ModelRequest, Role},
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError, TypedTool},
    scripted::Reply,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Plan, tool::LoadTool};
use crate::mock_model::{Fault, MARK};

/// How long a stalled stream blocks: an adapter's idle deadline, shortened so that a run reaches
/// it.
const STALL: Duration = Duration::from_secs(2);

/// Faults that this model can inject. Faults that need a wire are the mock's.
const FAULTS: [Fault; 8] = [
    Fault::RateLimited,
    Fault::Overloaded,
    Fault::ServerError,
    Fault::Reset,
    Fault::Stall,
    Fault::Half,
    Fault::MalformedJson,
    Fault::ErrorEvent,
];

/// Replies by the plan of a load run.
pub(super) struct LoadModel {
    latency: Duration,
    chunk_delay: Duration,
    chunks: usize,
    words: Arc<str>,
    tools: u32,
    fault_rate: f64,
    seed: u64,
    calls: AtomicU64,
}

impl LoadModel {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            latency: plan.model_latency,
            chunk_delay: plan.chunk_delay,
            chunks: plan.chunks,
            words: "word".repeat(plan.chunks).into(),
            tools: plan.tools_per_turn,
            fault_rate: plan.fault_rate,
            seed: plan.seed,
            calls: AtomicU64::new(0),
        }
    }

    fn reply(&self, request: &ModelRequest) -> Reply {
        let mut calls_before = 0;
        let mut prompt = String::new();
        for message in request.messages.iter().rev() {
            match message.role() {
                Role::Assistant => calls_before += 1,
                Role::User if message.tool_result_ids().is_empty() => {
                    prompt = message.text();
                    break;
                }
                Role::User | Role::System => {}
            }
        }
        let mark = prompt.split(' ').next().filter(|word| word.starts_with(MARK)).unwrap_or_default();
        let nth = self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = Fault::of_call(nth, self.seed, self.fault_rate, &FAULTS);
        let asks = calls_before < self.tools && !request.tools.is_empty();
        let reply = if asks {
            let argument = if fault == Some(Fault::MalformedJson) { json!(7) } else { json!(format!("{mark}-{calls_before}")) };
            Reply::tool(LoadTool::NAME, &json!({ "argument": argument }))
        } else {
            Reply::text(format!("{mark} {}", self.words)).chunks(self.chunks).chunk_delay(self.chunk_delay)
        };
        let message = || "fault injected by the load model".to_owned();
        let server = |status| ProviderError::Server { status, retry_after: None, message: message() };
        let half = self.chunks / 2;
        match fault {
            Some(Fault::RateLimited) => {
                Reply::error(ProviderError::RateLimited { retry_after: Some(Duration::from_secs(1)), message: message() })
            }
            Some(Fault::Overloaded) => Reply::error(server(529)),
            Some(Fault::ServerError) => Reply::error(server(500)),
            Some(Fault::Reset) => Reply::error(ProviderError::Connection { message: message() }),
            Some(Fault::Half) if !asks => reply.fail_after(half, ProviderError::Connection { message: message() }),
            Some(Fault::ErrorEvent) => reply.fail_after(half, server(0)),
            Some(Fault::Stall) => {
                Reply::text(format!("{mark} ")).chunks(2).chunk_delay(STALL).then_fail(ProviderError::Timeout { message: message() })
            }
            Some(_) | None => reply,
        }
    }
}

impl LlmProvider for LoadModel {
    fn name(&self) -> &str {
        "in-process"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        Capabilities {
            context_window: 10_000_000,
            output_max: 8192,
            tools: true,
            output_schema: false,
            counts_tokens: false,
            images: false,
            documents: false,
        }
    }

    fn stream(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        self.reply(&request).after(self.latency).play(&request, cancel)
    }
}
