//! The model of the world: it streams text, thinks, calls tools, and fails, as the dice say. Each
//! request is checked as a strict provider would check it.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{bugs::Bug, schemas, skills, tools, world::World};
use crate::{
    chat::{ContentBlock, ModelRequest, RawJson, Role, ToolResultBlock},
    ports::{Capabilities, ProviderError},
    testing::{Reply, ScriptedModel},
};

/// The model of one process.
pub(super) fn model(world: &Arc<World>, process: u64) -> Arc<ScriptedModel> {
    let seen = world.clone();
    let running: Arc<std::sync::OnceLock<std::sync::Weak<ScriptedModel>>> = Arc::default();
    let me = running.clone();
    let model = ScriptedModel::answering(move |request, call| {
        if !seen.is_alive(process) {
            return Reply::stall();
        }
        if let Some(model) = running.get().and_then(std::sync::Weak::upgrade) {
            let counts = model.counts();
            let busy = counts.started - counts.finished - counts.dropped;
            let max = seen.plan.limits.model_calls_max;
            if busy > max {
                seen.violated(format!("{busy} model calls run at once, {max} may"));
            }
        }
        check(&seen, request);
        reply(&seen, request, call)
    });
    let model = Arc::new(model.capabilities(Capabilities {
        context_window: world.plan.model.window,
        output_max: 500,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: true,
        documents: true,
        request_bytes_max: None,
        thinking: false,
    }));
    let _ = me.set(Arc::downgrade(&model));
    model
}

/// Every request is valid: the first and the last message are a user's, no message is empty, each
/// tool call has exactly one result in the next message, and all words come from one tenant.
fn check(world: &World, request: &ModelRequest) {
    let skips = world.plan.bug == Some(Bug::SkipsCancelledResult);
    if let Some(fault) = first_fault(request, skips) {
        world.violated(format!("a request to the model is not valid: {fault}"));
    }
}

fn is_cancelled(result: &ToolResultBlock) -> bool {
    result.content.text().contains("cancelled before start")
}

/// The first fault of a request. With `skips`, the adapter of the model leaves out the results of
/// cancelled calls.
fn first_fault(request: &ModelRequest, skips: bool) -> Option<String> {
    let mut calls: Vec<String> = Vec::new();
    let mut tenants: Vec<String> = Vec::new();
    let mut before = Role::Assistant;
    for (index, message) in request.messages.iter().enumerate() {
        before = message.role();
        if index == 0 && before != Role::User {
            return Some("the first message is not a user's".to_owned());
        }
        let blocks = message.blocks();
        if blocks.is_empty() {
            return Some(format!("message {index} is empty"));
        }
        let mut results = Vec::new();
        let mut next = Vec::new();
        for block in &blocks {
            match block {
                ContentBlock::ToolResult(result) if skips && is_cancelled(result) => {}
                ContentBlock::ToolResult(result) => results.push(result.tool_use_id.clone()),
                ContentBlock::ToolUse(call) => next.push(call.id.clone()),
                ContentBlock::Text(text) if message.role() == Role::User => {
                    let tenant = text.text.split_once('/').map(|(tenant, _)| tenant);
                    tenants.extend(tenant.filter(|t| t.starts_with("t-")).map(str::to_owned));
                }
                _ => {}
            }
        }
        if results != calls {
            return Some(format!(
                "message {index}: results {results:?} for calls {calls:?}"
            ));
        }
        calls = next;
    }
    tenants.dedup();
    if tenants.len() > 1 {
        return Some(format!("it holds words of several tenants: {tenants:?}"));
    }
    if !calls.is_empty() {
        return Some(format!("calls without results at the end: {calls:?}"));
    }
    (before == Role::Assistant).then(|| "the last message is not a user's".to_owned())
}

fn reply(world: &World, request: &ModelRequest, call: usize) -> Reply {
    let (dice, manners) = (&world.model_dice, &world.plan.model);
    let said = request
        .messages
        .last()
        .map(|message| message.text())
        .unwrap_or_default();
    let said: String = said.chars().take(24).collect();
    let calm = world.is_calm();
    world.with(|facts| facts.figures.model_calls += 1);
    let faulty = |what: &str| {
        world.log(format_args!("model call {call} after {said:?}: {what}"));
        world.with(|facts| facts.figures.model_faults += 1);
    };
    if !calm && dice.percent(manners.refused) {
        faulty("refused");
        return Reply::error(refusal(world)).after(Duration::from_millis(dice.below(300)));
    }
    let mut reply = text(world, call);
    if !calm && !request.tools.is_empty() && dice.percent(manners.tools) {
        for n in 0..dice.between(1, 3) {
            reply = tool_call(world, reply, call, n, request);
        }
    }
    if !calm && has_skills(request) && world.extra_dice.percent(15) {
        let name = skills::name(world.extra_dice.below(4));
        let id = format!("skill-{call}-{}", world.extra_dice.below(1_000_000));
        let input = RawJson::of(&json!({ "skill_name": name })).unwrap();
        reply = reply.and_tool_with_id(id, "activate_skill", input);
    }
    if !calm && dice.percent(manners.broken) {
        faulty("broken");
        let error = ProviderError::Connection {
            message: "reset".into(),
        };
        return match dice.below(3) {
            0 => reply.then_fail(error),
            1 => reply.then_cut(),
            _ => reply.fail_after(dice.below(4) as usize, error),
        };
    }
    if !calm && dice.percent(manners.stalled) {
        faulty("stalled");
        return reply.then_stall();
    }
    world.log(format_args!(
        "model call {call} after {said:?}: {} messages",
        request.messages.len()
    ));
    reply
}

fn has_skills(request: &ModelRequest) -> bool {
    let mut tools = request.tools.iter();
    tools.any(|tool| tool.name == "activate_skill")
}

fn refusal(world: &World) -> ProviderError {
    let dice = &world.model_dice;
    let message = String::from("not now");
    let retry_after = dice
        .percent(50)
        .then(|| Duration::from_millis(dice.below(4000)));
    match dice.below(6) {
        0 | 1 => ProviderError::RateLimited {
            retry_after,
            message,
        },
        2 => ProviderError::Server {
            status: 500,
            retry_after: None,
            message,
        },
        3 => ProviderError::Server {
            status: 529,
            retry_after,
            message,
        },
        4 => ProviderError::Connection { message },
        _ => ProviderError::InvalidRequest {
            status: 400,
            message,
        },
    }
}

fn text(world: &World, call: usize) -> Reply {
    let (dice, manners) = (&world.model_dice, &world.plan.model);
    // Enough to fill a small window in a few rounds.
    let length = if manners.window < 10_000 { 30 } else { 1 };
    let words = format!("answer {call} of the model. ");
    let mut words = words.repeat((dice.between(1, 6) * length) as usize);
    if world.plan.extras.schemas > 0 && world.extra_dice.percent(50) {
        words = schemas::answer(call);
    }
    let reply = if dice.percent(15) {
        Reply::thinking("let me think").and_text(words)
    } else {
        Reply::text(words)
    };
    let reply = reply.chunks(dice.between(1, 5) as usize);
    if dice.percent(manners.slow) {
        let ms = Duration::from_millis;
        reply
            .after(ms(dice.below(1200)))
            .chunk_delay(ms(dice.below(400)))
    } else {
        reply
    }
}

fn tool_call(world: &World, reply: Reply, call: usize, n: u64, request: &ModelRequest) -> Reply {
    let (dice, manners) = (&world.model_dice, &world.plan.model);
    let id = format!("call-{call}-{n}-{}", dice.below(1_000_000));
    let has_subagents = request
        .tools
        .iter()
        .any(|tool| tool.name == "create_subagent");
    if has_subagents && dice.percent(manners.subagents) {
        world.with(|facts| facts.figures.subagents += 1);
        let task = format!("subtask {}", dice.below(1000));
        let input = RawJson::of(&json!({ "task": task })).unwrap();
        return reply.and_tool_with_id(id, "create_subagent", input);
    }
    let (name, input) = match dice.below(24) {
        0 => ("unknown", json!({})),
        1 => ("pay", json!("not an object")),
        _ => (dice.pick(&tools::NAMES), json!({ "n": dice.below(4) })),
    };
    reply.and_tool_with_id(id, name, RawJson::of(&input).unwrap())
}
