//! Decides about calls of tools that the caller brought: the call waits for the caller, through any
//! restart, until the result comes or its time is over.
//!
//! Pure.

use std::collections::HashSet;

use crate::{
    chat::ClientToolResult,
    conversation::round::{
        DecisionBuilder, Effect, Refusal,
        decision::fits_bytes,
        tools::{finish_call, open},
    },
    ids::WaiterId,
    journal::{Call, CallState, ToolExecutionResult, result_digest},
    tool::{ToolError, ToolErrorType},
};

/// The code of the error that the model reads when no result came.
const NO_RESULT: &str = "NO_CLIENT_RESULT";

/// The code of a call that failed at the caller.
const FAILED: &str = "CLIENT_ERROR";

/// Takes the results of calls that are at the caller. A result that is there already is accepted
/// once more, so that a caller may send again what it got no answer for.
pub(super) fn results(
    decision: &mut DecisionBuilder<'_>,
    results: &[ClientToolResult],
    waiter: WaiterId,
) {
    let durable = decision.durable;
    let mut taken: HashSet<&str> = HashSet::new();
    let mut finished = Vec::with_capacity(results.len());
    for result in results {
        let id = result.tool_call_id.as_str();
        if !taken.insert(id) {
            return decision.refuse(waiter, Refusal::AlreadyAnswered(id.to_owned()));
        }
        let at_client = durable
            .open_call(id)
            .filter(|(_, call)| matches!(call.state, CallState::AtClient { .. }));
        match (at_client, durable.client_result(id)) {
            (Some((index, call)), _) => {
                let outcome = outcome(decision, call, result);
                finished.push((index, call, outcome));
            }
            (None, Some(known)) if known == result_digest(&plain(result)) => {}
            (None, Some(_)) => {
                return decision.refuse(waiter, Refusal::AlreadyAnswered(id.to_owned()));
            }
            (None, None) => {
                return decision.refuse(waiter, Refusal::NoSuch("open call of a client tool"));
            }
        }
    }
    let bytes = finished
        .iter()
        .map(|(_, _, outcome)| outcome.observation.len());
    if let Err(refusal) = fits_bytes(durable, bytes.sum()) {
        return decision.refuse(waiter, refusal);
    }
    for (index, call, outcome) in finished {
        finish_call(decision, index as usize, call, outcome);
    }
    decision.effect(Effect::Answer { waiter });
}

/// Ends the calls whose caller is too late. The model reads that no result came.
pub(super) fn expire(decision: &mut DecisionBuilder<'_>) {
    let Some((_, batch)) = open(decision) else {
        return;
    };
    for (index, call) in (0..).zip(&batch.calls) {
        let CallState::AtClient { at, expires_at, .. } = call.state else {
            continue;
        };
        if expires_at > decision.now {
            continue;
        }
        let message = "the application that runs this tool sent no result in time; \
                       whether the call had an effect is not known";
        let error = ToolError::new(ToolErrorType::Timeout, message).code(NO_RESULT);
        let outcome = ToolExecutionResult {
            duration_ms: decision.now.ms_since(at),
            ..ToolExecutionResult::error(&error, &call.tool_use.id)
        };
        finish_call(decision, index, call, outcome);
    }
}

/// The outcome of a call that is at the caller.
fn outcome(
    decision: &DecisionBuilder<'_>,
    call: &Call,
    result: &ClientToolResult,
) -> ToolExecutionResult {
    let duration_ms = match call.state {
        CallState::AtClient { at, .. } => decision.now.ms_since(at),
        _ => 0,
    };
    let outcome = ToolExecutionResult {
        duration_ms,
        ..plain(result)
    };
    let (name, id) = (&call.tool_use.name, &call.tool_use.id);
    let tool = decision
        .durable
        .client_tools()
        .and_then(|all| all.get(name));
    match tool {
        Some(tool) => {
            let policy = &decision.volatile.rules.call_policy;
            policy.review_client(tool, outcome, id)
        }
        None => outcome,
    }
}

/// The result as the caller sent it.
fn plain(result: &ClientToolResult) -> ToolExecutionResult {
    let text = result.content.as_str();
    match result.is_error {
        true => ToolExecutionResult::error_text(FAILED, text),
        false => ToolExecutionResult::ok(text),
    }
}
