//! Whether the next model call fits its window, and what follows when it may not. Pure (REQUIREMENTS R-04, C-24..C-45 as ruled).
//!
//! The turn knows an estimate only. Where that leaves doubt, it orders the context to be measured, off the actor; the answer is a fit,
//! a history in place of the present one, or the part that is too large.
//!
//! Pure.

use crate::{
    chat::{Message, Role, reminder},
    compactor::{Plan, reminder_at},
    conversation::round::{
        DecisionBuilder,
        decision::{Effect, Refusal},
        input::{ContextOutcome, Draft},
        volatile::{Volatile, Work},
    },
    ids::{WaiterId, WorkId},
    journal::{CompactionCause, Durable, EntryBody, Phase},
    limits::{PINNED_BYTES_MAX, PINNED_LINES_MAX},
    stream::{Failure, StopReason},
};

/// The place of a measurement among the work of an entry; calls of a batch have the low numbers.
const MEASURE: u32 = u32::MAX;

/// What stands before a model call.
pub(in crate::conversation) enum Before {
    /// Nothing.
    Call,
    /// The context is to be measured.
    Measure,
    /// That is under way.
    Wait,
}

/// Looks at the context before a model call.
pub(in crate::conversation) fn before_call(durable: &Durable, volatile: &Volatile) -> Before {
    if !volatile.rules.context.is_in_doubt(&durable.context.window) || volatile.measured == Some(durable.head) {
        Before::Call
    } else if volatile.work.values().any(|work| matches!(work, Work::Context { waiter: None })) {
        Before::Wait
    } else {
        Before::Measure
    }
}

/// Orders a measurement. `waiter`: somebody asked for a compaction.
pub(in crate::conversation) fn measure(decision: &mut DecisionBuilder<'_>, waiter: Option<WaiterId>) {
    let work = WorkId { epoch: decision.volatile.life, seq: decision.durable.head, index: MEASURE - u32::from(waiter.is_some()) };
    decision.effect(Effect::MeasureContext { work, waiter });
}

/// Somebody asks for a compaction.
pub(in crate::conversation) fn asked(decision: &mut DecisionBuilder<'_>, waiter: WaiterId) {
    let under_way = decision.volatile.work.values().any(|work| matches!(work, Work::Context { .. }));
    if decision.durable.round.is_some() || !decision.durable.inbox.is_empty() {
        decision.refuse(waiter, Refusal::RoundOpen);
    } else if under_way {
        decision.refuse(waiter, Refusal::Busy);
    } else {
        measure(decision, Some(waiter));
    }
}

/// A measurement ended.
pub(in crate::conversation) fn measured(decision: &mut DecisionBuilder<'_>, work: WorkId, outcome: &ContextOutcome) {
    let Some(Work::Context { waiter }) = decision.volatile.work.get(&work) else { return };
    let waiter = *waiter;
    let round = decision.durable.round.as_ref();
    let at_border = round.is_none_or(|round| round.phase == Phase::Ready);
    match outcome {
        ContextOutcome::Fits => {}
        ContextOutcome::Compacted(draft) if at_border && decision.durable.history.messages().starts_with(&draft.before) => {
            let cause = if waiter.is_some() { CompactionCause::Asked } else { CompactionCause::Full };
            compacted(decision, draft, cause);
        }
        ContextOutcome::Compacted(_) => {
            // What was measured is no longer what is there; before the next call it is measured anew.
            decision.effect(Effect::CompactionDropped);
            if let Some(waiter) = waiter {
                return decision.refuse(waiter, Refusal::RoundOpen);
            }
        }
        ContextOutcome::TooLarge { part, part_tokens, tokens, limit } => match (waiter, round) {
            (Some(waiter), _) => return decision.refuse(waiter, Refusal::CannotShrink(part)),
            (None, Some(round)) if at_border && decision.volatile.cancelling.is_none() => {
                let failure = Failure {
                    code: "context_too_large".into(),
                    message: format!(
                        "the request cannot be made smaller than {tokens} tokens and may have {limit}; the {part} alone has {part_tokens}: make it \
                         shorter, or use a model with a larger window"
                    ),
                    retry_after_ms: None,
                };
                decision.finish(round, StopReason::ContextTooLarge, Some(failure));
            }
            (None, _) => {}
        },
    }
    if let Some(waiter) = waiter {
        decision.effect(Effect::Answer { waiter });
    }
}

fn compacted(decision: &mut DecisionBuilder<'_>, draft: &Draft, cause: CompactionCause) {
    for (plan, input_hash) in &draft.plans {
        let Plan { edits, before_tokens, after_tokens, .. } = plan;
        decision.entry(EntryBody::Compacted {
            cause,
            mode: plan.mode().as_str().to_owned(),
            edits: edits.clone(),
            input_hash: input_hash.clone(),
            before_tokens: *before_tokens,
            after_tokens: *after_tokens,
        });
    }
    // The first plan's span is one of what was measured.
    let first = draft.plans.first().map(|(plan, _)| plan);
    if let Some(span) = first.filter(|plan| plan.summarise).and_then(|plan| plan.dropped.as_ref()) {
        let messages = draft.before.range(span.from..span.to).cloned().collect();
        decision.effect(Effect::Summarise { hash: span.hash.clone(), messages });
    }
}

/// Keeps a line through every compaction (C-51), and tells it to the model.
pub(in crate::conversation) fn pin(decision: &mut DecisionBuilder<'_>, line: &str, waiter: WaiterId) {
    let context = &decision.durable.context;
    let line = line.trim();
    if !context.pinned.iter().any(|known| known == line) {
        if line.is_empty() || context.pinned.len() >= PINNED_LINES_MAX || context.pinned_bytes() + line.len() > PINNED_BYTES_MAX {
            return decision.refuse(waiter, Refusal::PinnedFull);
        }
        decision.entry(EntryBody::Pinned { line: line.to_owned() });
        if let Ok(message) = Message::new(Role::User, &[reminder(&format!("# Context\n{line}"))]) {
            decision.entry(EntryBody::Injected { id: None, client_key: None, message });
        }
    }
    decision.effect(Effect::Answer { waiter });
}

/// Reminds of the pinned lines at every fifth border of rounds (C-50), before the prompt, which stays last.
pub(in crate::conversation) fn refocus(decision: &mut DecisionBuilder<'_>) {
    let (context, finished) = (&decision.durable.context, decision.durable.metrics.rounds);
    let Some(text) = reminder_at(finished, &context.pinned) else { return };
    let id = format!("refocus:{finished}");
    if !decision.durable.knows_injected(&id)
        && let Ok(message) = Message::new(Role::User, &[reminder(&text)])
    {
        decision.entry(EntryBody::Injected { id: Some(id), client_key: None, message });
    }
}
