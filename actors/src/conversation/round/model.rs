//! Decides about the end of a model call: what of its answer enters the history, what it cost, and
//! whether the round goes on.
//!
//! Pure.

use std::collections::HashSet;

use crate::{
    chat::{ContentBlock, Message, ProviderStop, Role, Usage, storable},
    conversation::round::{
        DecisionBuilder, FailedAttempt, ModelOutcome,
        budget::{self, Bill},
        context, failure, interrupted, memory_full,
    },
    ids::WorkId,
    journal::{EntryBody, Phase, WithdrawReason},
    ports::ProviderError,
    stream::StopReason,
};

pub(super) fn model_ended(
    decision: &mut DecisionBuilder<'_>,
    work: WorkId,
    outcome: &ModelOutcome,
    model: &str,
    failed: &[FailedAttempt],
) {
    let Some(round) = &decision.durable.round else {
        return;
    };
    if !decision.volatile.work.contains_key(&work)
        || round.phase != (Phase::Model { seq: work.seq })
    {
        return;
    }
    let step = round.model_calls;
    let bill = budget::bill(decision, outcome, model, failed);
    match outcome {
        ModelOutcome::Completed {
            blocks,
            completion,
            has_memory,
        } => {
            let cancelled = decision.volatile.cancelling.is_some();
            let keep_calls = !cancelled && runs_tools(completion.stop);
            let has_memory = *has_memory;
            let message = has_memory.then(|| assistant_message(blocks, keep_calls, true));
            decision.entry(EntryBody::Assistant {
                step,
                message: message.flatten(),
                stop: completion.stop,
                raw_stop: completion.raw_stop.clone(),
                usage: completion.usage.unwrap_or_default(),
                failed_usage: bill.failed,
                cost_micro_usd: bill.cost_micro_usd,
                partial: cancelled || !has_memory,
            });
            budget::settle(decision, &bill);
            if !has_memory && !cancelled {
                decision.finish(round, StopReason::Error, Some(memory_full()));
            }
        }
        ModelOutcome::Failed {
            error: ProviderError::Auth { message },
            ..
        } if round.model_calls <= 1 => {
            // The model has said nothing yet, so the prompt leaves the history and the user can
            // send it again with a valid key. Its text stays in the journal.
            budget::settle(decision, &bill);
            for prompt_id in &round.prompts {
                decision.entry(EntryBody::PromptWithdrawn {
                    prompt_id: *prompt_id,
                    reason: WithdrawReason::ProviderAuth,
                });
            }
            let failure = failure(&ProviderError::Auth {
                message: message.clone(),
            });
            decision.finish(round, StopReason::Error, Some(failure));
        }
        ModelOutcome::Failed { error, partial }
            if error.is_too_large()
                && partial.is_empty()
                && bill.failed.is_zero()
                && decision.volatile.cancelling.is_none() =>
        {
            budget::settle(decision, &bill);
            context::refused(decision, round, failure(error));
        }
        ModelOutcome::FellBack {
            gateway,
            model,
            error,
        } if decision.volatile.cancelling.is_none() => {
            // Before the settlement: while a reservation is open, the settlement counts the usage.
            decision.entry(EntryBody::FellBack {
                gateway: gateway.clone(),
                model: model.to_string(),
                reason: error.code().to_owned(),
                failed_usage: bill.failed,
                cost_micro_usd: bill.cost_micro_usd.filter(|_| !bill.failed.is_zero()),
            });
            budget::settle(decision, &bill);
        }
        ModelOutcome::FellBack { error, .. } => {
            keep_partial(decision, step, &[], &bill);
            match &decision.volatile.cancelling {
                Some(cancelling) => interrupted(decision, round, cancelling),
                None => decision.finish(round, StopReason::Error, Some(failure(error))),
            }
        }
        ModelOutcome::Failed { error, partial } => {
            keep_partial(decision, step, partial, &bill);
            match &decision.volatile.cancelling {
                Some(cancelling) => interrupted(decision, round, cancelling),
                None => decision.finish(round, StopReason::Error, Some(failure(error))),
            }
        }
        ModelOutcome::Cancelled { partial } => {
            keep_partial(decision, step, partial, &bill);
            match &decision.volatile.cancelling {
                Some(cancelling) => interrupted(decision, round, cancelling),
                None => decision.finish(
                    round,
                    StopReason::Error,
                    Some(failure(&ProviderError::Cancelled)),
                ),
            }
        }
    }
}

/// Bytes of an answer that is kept although the host has no memory left: few models write more.
pub(in crate::conversation) const KEPT_ANSWER_BYTES: usize = 64 * 1024;

/// Whether an answer enters the history: a long one needs memory.
fn has_memory(decision: &DecisionBuilder<'_>, answer: &[ContentBlock]) -> bool {
    let bytes = answer.iter().map(|block| match block {
        ContentBlock::Text(text) => text.text.len(),
        ContentBlock::ToolUse(call) => call.input.as_str().len(),
        other => serde_json::to_vec(other).map_or(0, |json| json.len()),
    });
    !decision.volatile.memory_left.is_none() || bytes.sum::<usize>() <= KEPT_ANSWER_BYTES
}

/// Keeps what a call that failed or was canceled used, and its partial answer without the blocks
/// that are not valid alone: tool calls, unsigned thinking.
fn keep_partial(
    decision: &mut DecisionBuilder<'_>,
    step: u32,
    partial: &[ContentBlock],
    bill: &Bill,
) {
    let kept = has_memory(decision, partial).then_some(partial);
    let message = assistant_message(kept.unwrap_or_default(), false, false);
    let was_billed = !bill.failed.is_zero();
    if message.is_some() || was_billed {
        // Before the settlement: while a reservation is open, the settlement counts the usage.
        decision.entry(EntryBody::Assistant {
            step,
            message,
            stop: ProviderStop::Other,
            raw_stop: None,
            usage: Usage::default(),
            failed_usage: bill.failed,
            cost_micro_usd: bill.cost_micro_usd.filter(|_| was_billed),
            partial: true,
        });
    }
    budget::settle(decision, bill);
}

/// The part of an answer that can enter the history. Drops empty text, repeated call ids, and
/// thinking at the end. Keeps tool calls only with `keep_calls`, faulty ones in a valid form, and
/// unsigned thinking only with `complete`.
fn assistant_message(blocks: &[ContentBlock], keep_calls: bool, complete: bool) -> Option<Message> {
    let mut ids: HashSet<&str> = HashSet::new();
    let mut kept: Vec<ContentBlock> = Vec::with_capacity(blocks.len());
    for block in blocks {
        let keep = match block {
            ContentBlock::Text(text) => !text.text.trim().is_empty(),
            ContentBlock::Thinking(thinking) => complete || thinking.signature.is_some(),
            ContentBlock::ToolUse(call) => {
                if keep_calls && ids.insert(call.id.as_str()) {
                    kept.push(ContentBlock::ToolUse(storable(call.clone())));
                }
                false
            }
            ContentBlock::ToolResult(_) => false,
            ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
                complete
            }
        };
        if keep {
            kept.push(block.clone());
        }
    }
    // Thinking alone is no answer. Providers refuse a message that ends in thinking, which happens
    // when its tool calls were dropped.
    while kept
        .last()
        .is_some_and(|block| matches!(block.kind(), "thinking" | "redacted_thinking"))
    {
        kept.pop();
    }
    Message::new(Role::Assistant, &kept).ok()
}

/// Whether the calls of an answer run: only if the answer was not cut off and not refused.
fn runs_tools(stop: ProviderStop) -> bool {
    match stop {
        ProviderStop::EndTurn
        | ProviderStop::ToolUse
        | ProviderStop::StopSequence
        | ProviderStop::PauseTurn
        | ProviderStop::Other => true,
        ProviderStop::MaxTokens | ProviderStop::Refusal | ProviderStop::ContextWindowExceeded => {
            false
        }
    }
}
