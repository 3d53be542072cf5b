//! The model of an in-process load run. It answers with the prompt's mark, calls tools first, and
//! injects faults by a seed.

use std::{sync::Arc, time::Duration};

use callboard_actors::{
    chat::{ModelRequest, Role},
    ports::{Capabilities, ProviderError, TypedTool},
    scripted::{Reply, ScriptedModel},
};
use serde_json::json;

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

/// The model that replies by `plan`.
pub(super) fn model(plan: &Plan) -> ScriptedModel {
    let script = Script {
        latency: plan.model_latency,
        chunk_delay: plan.chunk_delay,
        chunks: plan.chunks,
        words: "word".repeat(plan.chunks).into(),
        tools: plan.tools_per_turn,
        fault_rate: plan.fault_rate,
        seed: plan.seed,
    };
    let capabilities = Capabilities {
        context_window: 10_000_000,
        output_max: 8192,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: false,
        documents: false,
        request_bytes_max: None,
        thinking: false,
    };
    ScriptedModel::answering(move |request, nth| {
        script.reply(request, nth as u64).after(script.latency)
    })
    .named("in-process")
    .capabilities(capabilities)
    .without_record()
}

/// The parts of a plan that replies depend on.
struct Script {
    latency: Duration,
    chunk_delay: Duration,
    chunks: usize,
    words: Arc<str>,
    tools: u32,
    fault_rate: f64,
    seed: u64,
}

impl Script {
    fn reply(&self, request: &ModelRequest, nth: u64) -> Reply {
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
        let mark = prompt
            .split(' ')
            .next()
            .filter(|word| word.starts_with(MARK))
            .unwrap_or_default();
        let fault = Fault::of_call(nth, self.seed, self.fault_rate, &FAULTS);
        let asks = calls_before < self.tools && !request.tools.is_empty();
        let reply = if asks {
            let argument = if fault == Some(Fault::MalformedJson) {
                json!(7)
            } else {
                json!(format!("{mark}-{calls_before}"))
            };
            Reply::tool(LoadTool::NAME, &json!({ "argument": argument }))
        } else {
            Reply::text(format!("{mark} {}", self.words))
                .chunks(self.chunks)
                .chunk_delay(self.chunk_delay)
        };
        let message = || "fault injected by the load model".to_owned();
        let server = |status| ProviderError::Server {
            status,
            retry_after: None,
            message: message(),
        };
        let half = self.chunks / 2;
        match fault {
            Some(Fault::RateLimited) => Reply::error(ProviderError::RateLimited {
                retry_after: Some(Duration::from_secs(1)),
                message: message(),
            }),
            Some(Fault::Overloaded) => Reply::error(server(529)),
            Some(Fault::ServerError) => Reply::error(server(500)),
            Some(Fault::Reset) => Reply::error(ProviderError::Connection { message: message() }),
            Some(Fault::Half) if !asks => {
                reply.fail_after(half, ProviderError::Connection { message: message() })
            }
            Some(Fault::ErrorEvent) => reply.fail_after(half, server(0)),
            Some(Fault::Stall) => Reply::text(format!("{mark} "))
                .chunks(2)
                .chunk_delay(STALL)
                .then_fail(ProviderError::Timeout { message: message() }),
            Some(_) | None => reply,
        }
    }
}
