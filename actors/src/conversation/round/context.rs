//! Decides whether the context is measured before the next model call, and what follows from the
//! measurement.
//!
//! The decision uses an estimate. Where the estimate leaves doubt, a task outside the actor
//! measures the context exactly. It answers that the request fits, or with a compacted history, or
//! with the part that is too large.
//!
//! Pure.

use crate::{
    chat::{Message, Role, reminder},
    compactor::{CompactionStep, MEMORY, Plan, reminder_at},
    conversation::round::{
        DecisionBuilder,
        decision::{Effect, Refusal},
        input::{ContextOutcome, Draft},
        volatile::{Volatile, Work},
    },
    ids::{WaiterId, WorkId},
    journal::{CompactionCause, Durable, EntryBody, OpenRound, Phase},
    limits::{PINNED_BYTES_MAX, PINNED_LINES_MAX},
    stream::{Failure, StopReason},
};

/// The [`WorkId`] index of a measurement; the calls of a batch use the low indexes.
const MEASURE: u32 = u32::MAX;

/// What has to happen before the next model call.
pub(in crate::conversation) enum Before {
    /// Nothing: call the model.
    Call,
    /// Measure the context first.
    Measure,
    /// Wait for the measurement under way.
    Wait,
}

/// Decides what has to happen before the next model call. A state that was measured once is not
/// measured again.
pub(in crate::conversation) fn before_call(durable: &Durable, volatile: &Volatile) -> Before {
    let rules = volatile.rules.context_of(durable);
    let messages = durable.history.messages();
    let is_in_doubt = rules.is_in_doubt(&durable.context.window)
        || rules.bytes.exceeds(messages, durable.context.refused_bytes);
    if !is_in_doubt || volatile.measured == Some(durable.head) {
        Before::Call
    } else if volatile
        .work
        .values()
        .any(|work| matches!(work, Work::Context { waiter: None }))
    {
        Before::Wait
    } else {
        Before::Measure
    }
}

/// Orders a measurement. With `waiter`, a caller asked for a compaction and awaits its end; `summary`
/// says whether it asked for a summary.
pub(in crate::conversation) fn measure(
    decision: &mut DecisionBuilder<'_>,
    waiter: Option<WaiterId>,
    summary: bool,
) {
    let work = WorkId {
        epoch: decision.volatile.epoch,
        seq: decision.durable.head,
        index: MEASURE - u32::from(waiter.is_some()),
    };
    decision.effect(Effect::MeasureContext {
        work,
        waiter,
        summary,
    });
}

/// Handles a caller's request for a compaction. Refused while a round is open, a prompt waits or
/// another measurement runs.
pub(in crate::conversation) fn asked(
    decision: &mut DecisionBuilder<'_>,
    summary: bool,
    waiter: WaiterId,
) {
    let under_way = decision
        .volatile
        .work
        .values()
        .any(|work| matches!(work, Work::Context { .. }));
    if decision.durable.round.is_some() || !decision.durable.inbox.is_empty() {
        decision.refuse(waiter, Refusal::RoundOpen);
    } else if under_way {
        decision.refuse(waiter, Refusal::Busy);
    } else {
        measure(decision, Some(waiter), summary);
    }
}

/// Handles the result of a measurement. A compaction is applied only between model calls, and only
/// if the history still starts with the messages that were measured.
pub(in crate::conversation) fn measured(
    decision: &mut DecisionBuilder<'_>,
    work: WorkId,
    outcome: &ContextOutcome,
) {
    let Some(Work::Context { waiter }) = decision.volatile.work.get(&work) else {
        return;
    };
    let waiter = *waiter;
    let round = decision.durable.round.as_deref();
    let at_border = round.is_none_or(|round| round.phase == Phase::Ready);
    match outcome {
        ContextOutcome::Fits => {}
        ContextOutcome::Compacted(draft)
            if at_border
                && decision
                    .durable
                    .history
                    .messages()
                    .starts_with(&draft.before) =>
        {
            match flush_id(decision, draft).filter(|_| waiter.is_none()) {
                Some(id) => flush(decision, id),
                None => compacted(decision, draft, waiter.is_some()),
            }
        }
        ContextOutcome::Compacted(_) => {
            // The history has changed since. It is measured again before the next model call.
            decision.effect(Effect::CompactionDropped);
            if let Some(waiter) = waiter {
                return decision.refuse(waiter, Refusal::RoundOpen);
            }
        }
        ContextOutcome::TooLarge {
            part,
            part_tokens,
            tokens,
            limit,
        } => match (waiter, round) {
            (Some(waiter), _) => return decision.refuse(waiter, Refusal::CannotShrink(part)),
            (None, Some(round)) if at_border && decision.volatile.cancelling.is_none() => {
                too_large(
                    decision,
                    round,
                    format!(
                        "the request cannot be made smaller than {tokens} tokens and may have {limit}; the {part} alone has {part_tokens}: make it \
                     shorter, or use a model with a larger window"
                    ),
                );
            }
            (None, _) => {}
        },
        ContextOutcome::TooManyBytes { bytes, limit } => match (waiter, round) {
            (Some(waiter), _) => {
                return decision.refuse(waiter, Refusal::CannotShrink("text of the messages"));
            }
            (None, Some(round)) if at_border && decision.volatile.cancelling.is_none() => {
                too_large(
                    decision,
                    round,
                    format!(
                        "the messages cannot be made smaller than {bytes} bytes, and the provider accepts {limit}: make the prompt shorter, or set \
                     `request_bytes_max` of the provider if it accepts more"
                    ),
                );
            }
            (None, _) => {}
        },
    }
    if let Some(waiter) = waiter {
        decision.effect(Effect::Answer { waiter });
    }
}

/// What the model reads before older messages leave its context.
const FLUSH: &str = "The context is nearly full. After this turn its older messages are replaced by a short \
summary. Save with the tool `memory` what you will need and have not saved; then go on with the task.";

/// Tokens of [`FLUSH`] and its tags, at most.
const FLUSH_TOKENS: u64 = 100;

/// The id of the reminder that is due before this compaction: one for each compaction of a round, if
/// the setting wants it and the uncompacted request has room for it. `None` if none is due. The
/// context is measured again before the call, as messages may join it meanwhile.
fn flush_id(decision: &DecisionBuilder<'_>, draft: &Draft) -> Option<String> {
    let durable = decision.durable;
    let round = durable.round.as_deref()?;
    let rules = decision.volatile.rules.context_of(durable);
    let (first, _) = draft.plans.first()?;
    let is_wanted = rules.memory_flush
        && durable
            .skills
            .narrowing()
            .is_none_or(|narrowing| narrowing.allows(MEMORY))
        && decision.volatile.cancelling.is_none()
        && round.model_calls + 1 < decision.volatile.rules.tool_iterations_max;
    // Attachments leave because of their bytes; no text is lost.
    let drops_text = first.steps != [CompactionStep::Attachments];
    if !is_wanted || !drops_text || first.before_tokens + FLUSH_TOKENS > rules.room() {
        return None;
    }
    let last = durable.context.last_compaction.as_ref();
    let id = format!("memory_flush:{}", last.map_or(0, |note| note.seq.0));
    (!durable.knows_injected(&id)).then_some(id)
}

fn flush(decision: &mut DecisionBuilder<'_>, id: String) {
    if let Ok(message) = Message::new(Role::User, &[reminder(FLUSH)]) {
        decision.entry(EntryBody::Injected {
            id: Some(id),
            client_key: None,
            message,
        });
    }
}

/// The most tokens of the messages that join the next call, if the model has been reminded to save
/// notes and has not been called since; `None` otherwise. With so much room to spare, that call has
/// the whole context.
pub(in crate::conversation) fn notes_waiting(durable: &Durable) -> Option<u64> {
    let pending = &durable.round.as_deref()?.pending;
    let reminder = reminder(FLUSH);
    let is_waiting = pending
        .iter()
        .chain(durable.history.messages().last())
        .flat_map(Message::blocks)
        .any(|block| block == reminder);
    // A token has at least one byte.
    let bytes = pending.iter().map(|message| message.wire().len() as u64);
    is_waiting.then(|| bytes.sum())
}

fn too_large(decision: &mut DecisionBuilder<'_>, round: &OpenRound, message: String) {
    let failure = Failure {
        code: "context_too_large".into(),
        message,
        retry_after_ms: None,
    };
    decision.finish(round, StopReason::ContextTooLarge, Some(failure));
}

/// Records that the provider refused the request of the open call as too large. The first time in a
/// round the call is made again, below the refused size; then the round ends with the error.
pub(in crate::conversation) fn refused(
    decision: &mut DecisionBuilder<'_>,
    round: &OpenRound,
    failure: Failure,
) {
    let messages = decision.durable.history.messages();
    let bytes = decision.volatile.rules.context.bytes.sent(messages);
    decision.entry(EntryBody::RequestRefused { bytes });
    if round.refused_requests > 0 {
        let message = format!(
            "{}; the request had been made smaller once, to {bytes} bytes of messages. The next prompt sends less: set `request_bytes_max` of the \
             provider to what it accepts",
            failure.message
        );
        let failure = Failure { message, ..failure };
        decision.finish(round, StopReason::Error, Some(failure));
    }
}

fn compacted(decision: &mut DecisionBuilder<'_>, draft: &Draft, asked: bool) {
    for (plan, input_hash) in &draft.plans {
        let Plan {
            edits,
            before_tokens,
            after_tokens,
            ..
        } = plan;
        let cause = if asked {
            CompactionCause::Asked
        } else if plan.steps == [CompactionStep::Attachments] {
            CompactionCause::Bytes
        } else {
            CompactionCause::Full
        };
        decision.entry(EntryBody::Compacted {
            cause,
            mode: plan.mode_name().to_owned(),
            edits: edits.clone(),
            input_hash: input_hash.clone(),
            before_tokens: *before_tokens,
            after_tokens: *after_tokens,
        });
    }
    // Only the first plan works on the measured messages, so only its span is a range of them.
    let first = draft.plans.first().map(|(plan, _)| plan);
    if let Some(span) = first
        .filter(|plan| plan.summarise)
        .and_then(|plan| plan.dropped.as_ref())
    {
        let messages = draft.before.range(span.from..span.to).cloned().collect();
        decision.effect(Effect::Summarise {
            hash: span.hash.clone(),
            messages,
        });
    }
}

/// Pins a line, which every compaction keeps, and injects it for the model. A line that is pinned
/// already is only confirmed.
pub(in crate::conversation) fn pin(
    decision: &mut DecisionBuilder<'_>,
    line: &str,
    waiter: WaiterId,
) {
    let context = &decision.durable.context;
    let line = line.trim();
    if !context.pinned.iter().any(|known| known == line) {
        if line.is_empty()
            || context.pinned.len() >= PINNED_LINES_MAX
            || context.pinned_bytes() + line.len() > PINNED_BYTES_MAX
        {
            return decision.refuse(waiter, Refusal::PinnedFull);
        }
        decision.entry(EntryBody::Pinned {
            line: line.to_owned(),
        });
        if let Ok(message) = Message::new(Role::User, &[reminder(&format!("# Context\n{line}"))]) {
            decision.entry(EntryBody::Injected {
                id: None,
                client_key: None,
                message,
            });
        }
    }
    decision.effect(Effect::Answer { waiter });
}

/// Repeats the pinned lines after every fifth round, before the prompt, so that the prompt stays
/// the last message.
pub(in crate::conversation) fn refocus(decision: &mut DecisionBuilder<'_>) {
    let context = &decision.durable.context;
    let finished = decision.durable.metrics.rounds;
    let Some(text) = reminder_at(finished, &context.pinned) else {
        return;
    };
    let id = format!("refocus:{finished}");
    if !decision.durable.knows_injected(&id)
        && let Ok(message) = Message::new(Role::User, &[reminder(&text)])
    {
        decision.entry(EntryBody::Injected {
            id: Some(id),
            client_key: None,
            message,
        });
    }
}
