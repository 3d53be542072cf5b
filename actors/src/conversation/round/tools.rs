//! Decides about the calls of an open batch: which start, which are retried, and which results a
//! cancellation leaves.
//!
//! Pure.

use std::{cell::OnceCell, sync::Arc};

use crate::{
    chat::RawJson,
    conversation::round::{
        DecisionBuilder, Effect, StartTool,
        admission::{Admission, Opened, Subagents, admission, is_subagent, needs},
        budget,
        decision::is_plain_user,
        rules::CallCheck,
        skills,
        volatile::{Cancelling, Retry, Work},
        with_input,
    },
    ids::{Seq, WorkId},
    journal::{Batch, Call, CallState, EntryBody, OpenRound, Phase, ToolExecutionResult},
    limits::APPROVAL_MS,
    tool::{EffectClass, OutputLevel, ToolError, ToolErrorType},
    tool_executor::{
        Again, Observed, PlannedCall, Progress, RunResult, cancelled_before_start,
        cancelled_unknown, in_doubt, outcome, plan,
    },
};

/// How many waiting calls of a batch are checked beyond its free places: the next calls may wait for
/// a file that is in use.
const CHECKS_AHEAD: usize = 16;

/// The last error of an attempt that was running when its host stopped.
const ENDED_WITH_ITS_HOST: &str = "the host stopped before a result was recorded";

/// Starts, refuses or asks approval for every call that is ready now. A fresh batch is checked
/// whole, so that refusals and questions come at once. Later, when a place became free, only the
/// next waiting calls are checked: the work for a batch stays linear in its calls.
pub(in crate::conversation) fn advance(
    decision: &mut DecisionBuilder<'_>,
    round: &OpenRound,
    batch: &Batch,
) {
    let mut planned = Vec::with_capacity(batch.calls.len());
    let mut admissions = Vec::with_capacity(batch.calls.len());
    let subagents = OnceCell::new();
    let mut subagents_before = 0;
    let parallel_max = decision.volatile.rules.parallel_tools_max;
    let is_fresh = |call: &Call| matches!(call.state, CallState::Waiting);
    let mut checks_left = if batch.calls.iter().all(is_fresh) {
        batch.calls.len()
    } else {
        let running = batch.calls.iter().filter(|call| call.is_started()).count();
        match parallel_max.saturating_sub(running) {
            0 => 0,
            free => free + CHECKS_AHEAD,
        }
    };
    let mut unchecked = 0_usize;
    for (index, call) in batch.calls.iter().enumerate() {
        let before = subagents_before;
        subagents_before += usize::from(is_subagent(call));
        let waits = matches!(call.state, CallState::Waiting | CallState::Allowed { .. });
        if waits && checks_left == 0 {
            unchecked += 1;
            planned.push(PlannedCall::done());
            admissions.push(None);
            continue;
        }
        checks_left -= usize::from(waits);
        let admission = || {
            let error = is_subagent(call).then(|| {
                let count = subagents.get_or_init(|| Subagents::count(decision, round, batch));
                count.refusal(&decision.volatile.rules, before)
            });
            let error = error.flatten();
            let error = error.or_else(|| decision.volatile.memory_left.is_none().then(no_memory));
            Some(admission(decision, round, batch, call, error))
        };
        let (progress, admission) = match &call.state {
            CallState::Finished(_) => (Progress::Done, None),
            CallState::Asked { .. } | CallState::AtClient { .. } => (Progress::Asked, None),
            CallState::Started { .. } => (Progress::Running, None),
            // Checked once for each advance: a check parses the arguments.
            CallState::Waiting | CallState::Allowed { .. } => (Progress::Waiting, admission()),
        };
        let (concurrency, file) = needs(decision, call, admission.as_ref());
        let progress = match admission {
            Some(Admission::Shut(result)) => {
                finish_call(decision, index, call, result);
                admissions.push(None);
                Progress::Done
            }
            Some(Admission::Ask {
                input,
                reason,
                pattern,
            }) => {
                ask(decision, index, call, input, reason, pattern);
                admissions.push(None);
                Progress::Asked
            }
            Some(Admission::AtClient { input }) => {
                hand_over(decision, index_u32(index), call, input);
                admissions.push(None);
                Progress::Asked
            }
            other => {
                admissions.push(other);
                progress
            }
        };
        planned.push(PlannedCall {
            progress,
            concurrency,
            file,
        });
    }
    // `plan` picks the calls to start, in order: at most `parallel_tools_max` at once, an exclusive
    // call alone, and one call a file. The others stay waiting and are planned again when a result
    // arrives.
    for index in plan(&planned, parallel_max) {
        if let (Some(call), Some(Some(Admission::Open(opened)))) =
            (batch.calls.get(index), admissions.get(index))
        {
            start(decision, batch.seq, index, call, opened, None);
        }
    }
    let asked = planned.iter().any(|call| call.progress == Progress::Asked);
    if asked
        && unchecked == 0
        && planned
            .iter()
            .all(|call| matches!(call.progress, Progress::Asked | Progress::Done))
    {
        let until = batch
            .expires_at()
            .or(Some(decision.now.plus_ms(APPROVAL_MS)));
        decision.effect(Effect::Park {
            round_id: round.id,
            until,
        });
    }
}

/// The error of a call that does not start because the host has no memory for its result.
fn no_memory() -> ToolError {
    let error = "the host has no memory for a result now; try again later, and with less at once";
    ToolError::new(ToolErrorType::ResourceError, error).not_started()
}

fn ask(
    decision: &mut DecisionBuilder<'_>,
    index: usize,
    call: &Call,
    resolved_input: RawJson,
    reason: &str,
    pattern: Option<String>,
) {
    let expires_at = decision.now.plus_ms(APPROVAL_MS);
    decision.entry(EntryBody::ApprovalAsked {
        call: index_u32(index),
        tool_call_id: call.tool_use.id.clone(),
        name: call.tool_use.name.clone(),
        resolved_input,
        reason: reason.to_owned(),
        expires_at,
        pattern,
    });
}

/// Hands a call to the caller.
fn hand_over(decision: &mut DecisionBuilder<'_>, index: u32, call: &Call, input: Option<RawJson>) {
    let expires_at = decision
        .now
        .plus_ms(decision.volatile.rules.client_result_ms);
    decision.entry(EntryBody::ClientToolCalled {
        call: index,
        tool_call_id: call.tool_use.id.clone(),
        name: call.tool_use.name.clone(),
        input,
        expires_at,
    });
}

/// Starts the first attempt of a call, or with `again` a later one.
fn start(
    decision: &mut DecisionBuilder<'_>,
    batch: Seq,
    index: usize,
    call: &Call,
    opened: &Opened,
    again: Option<Retry>,
) {
    let Opened { spec, input, level } = opened;
    let (attempt, last_error) =
        again.map_or((0, None), |retry| (retry.attempt, Some(retry.last_error)));
    let tool_use = with_input(&call.tool_use, input.as_ref());
    let rules = &decision.volatile.rules;
    let level = OutputLevel::effective(
        *level,
        spec.level,
        window_used(decision),
        rules.output_level,
    );
    let work = decision.entry(EntryBody::ToolStarted {
        call: index_u32(index),
        tool_call_id: tool_use.id.clone(),
        name: tool_use.name.clone(),
        effect: spec.effect,
        attempt,
        input: input.clone(),
    });
    let call = index_u32(index);
    let spec = spec.clone();
    decision.effect(Effect::StartTool(StartTool {
        work,
        batch,
        call,
        tool_use,
        attempt,
        spec,
        level,
        last_error,
    }));
}

/// The fraction of the model's window that the last call used, from 0 to 1; 0 if the window is
/// unknown.
fn window_used(decision: &DecisionBuilder<'_>) -> f64 {
    let usage = &decision.durable.last_usage;
    let used = usage.input().saturating_add(usage.output);
    match decision.volatile.rules.window_tokens {
        0 => 0.0,
        window => used as f64 / window as f64,
    }
}

pub(super) fn finish_call(
    decision: &mut DecisionBuilder<'_>,
    index: usize,
    call: &Call,
    outcome: ToolExecutionResult,
) {
    budget::remind_before_last_result(decision);
    decision.entry(EntryBody::ToolFinished {
        call: index_u32(index),
        tool_call_id: call.tool_use.id.clone(),
        name: call.tool_use.name.clone(),
        outcome,
    });
}

pub(super) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// The open round and its batch, if a batch is open.
pub(super) fn open<'a>(decision: &DecisionBuilder<'a>) -> Option<(&'a OpenRound, &'a Batch)> {
    let round = decision.durable.round.as_ref()?;
    match &round.phase {
        Phase::Batch(batch) => Some((round, batch)),
        Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => None,
    }
}

/// Handles the end of an attempt: records the call's result, unless its executor tries it again and
/// the round goes on.
pub(in crate::conversation) fn tool_ended(
    decision: &mut DecisionBuilder<'_>,
    work: WorkId,
    result: &RunResult,
    duration_ms: u64,
    again: Option<Again>,
) {
    let Some(Work::Tool {
        call: index,
        attempt,
        spec,
        last_error,
    }) = decision.volatile.work.get(&work)
    else {
        return;
    };
    let index = *index;
    let attempt = *attempt;
    let Some((round, batch)) = open(decision) else {
        return;
    };
    let Some(call) = batch.calls.get(index as usize) else {
        return;
    };
    if matches!(call.state, CallState::Finished(_)) {
        return;
    }
    if let Some(again) = again.filter(|_| decision.volatile.cancelling.is_none()) {
        decision.effect(Effect::ToolRetry {
            round_id: round.id,
            batch: batch.seq,
            call: index,
            again,
            last_error: words(result, spec.effect, &call.tool_use.id),
        });
        return;
    }
    let last_error = last_error.as_deref().map(str::to_owned);
    let (behind, outcome) = match result {
        RunResult::Activation(loaded) => {
            skills::model_activation(decision, loaded, spec.effect, &call.tool_use.id)
        }
        result => (
            shown(result),
            outcome(result.clone(), spec.effect, &call.tool_use.id),
        ),
    };
    let outcome = ToolExecutionResult {
        duration_ms,
        retry_count: attempt,
        last_error,
        ..outcome
    };
    let outcome =
        decision
            .volatile
            .rules
            .call_policy
            .review(spec.name(), outcome, &call.tool_use.id);
    if let Some(behind) = behind.filter(|_| !outcome.is_error) {
        decision.entry(behind); // First, since the history places the message after the result.
    }
    finish_call(decision, index as usize, call, outcome);
}

/// The entry with the images and documents that a tool shows.
fn shown(result: &RunResult) -> Option<EntryBody> {
    let RunResult::Output(Observed {
        attachments: Some(message),
        ..
    }) = result
    else {
        return None;
    };
    is_plain_user(message).then(|| EntryBody::Injected {
        id: None,
        client_key: None,
        message: message.clone(),
    })
}

/// A failure in words, shortened, for the record of the next attempt.
pub(in crate::conversation) fn words(
    result: &RunResult,
    effect: EffectClass,
    tool_call_id: &str,
) -> Arc<str> {
    outcome(result.clone(), effect, tool_call_id).words().into()
}

/// Starts the next attempt when its delay is over. The delay of a closed batch is ignored.
pub(in crate::conversation) fn retry(decision: &mut DecisionBuilder<'_>, seq: Seq, index: u32) {
    let Some((_, batch)) = open(decision).filter(|(_, batch)| batch.seq == seq) else {
        return;
    };
    let (Some(retry), Some(call)) = (
        decision.volatile.retries.get(&(seq, index)).cloned(),
        batch.calls.get(index as usize),
    ) else {
        return;
    };
    if decision.volatile.cancelling.is_none() {
        start_again(decision, batch, index as usize, call, retry);
    }
}

fn start_again(
    decision: &mut DecisionBuilder<'_>,
    batch: &Batch,
    index: usize,
    call: &Call,
    again: Retry,
) {
    let CallState::Started { input, .. } = &call.state else {
        return;
    };
    match decision
        .volatile
        .rules
        .call_policy
        .check_call(&call.tool_use.name, &call.tool_use.input)
    {
        CallCheck::Ready { spec, level, .. } => {
            start(
                decision,
                batch.seq,
                index,
                call,
                &Opened {
                    spec,
                    input: input.clone(),
                    level,
                },
                Some(again),
            );
        }
        CallCheck::Refused(error) => finish_call(
            decision,
            index,
            call,
            ToolExecutionResult::error(&error, &call.tool_use.id),
        ),
    }
}

/// Ends the calls of a canceled batch. Each call gets exactly one result: calls that never started
/// at once, running ones when they answer or when the grace period is over.
pub(in crate::conversation) fn cancel(
    decision: &mut DecisionBuilder<'_>,
    batch: &Batch,
    cancelling: &Cancelling,
) {
    for (index, call) in batch.calls.iter().enumerate() {
        let work = decision.volatile.work_of_call(index_u32(index));
        let result = match (&call.state, work) {
            (CallState::Finished(_), _) => continue,
            (CallState::Waiting | CallState::Asked { .. } | CallState::Allowed { .. }, _) => {
                cancelled_before_start()
            }
            (CallState::Started { .. }, Some(_)) if !cancelling.grace_over => continue, // Its own result is still accepted.
            (
                CallState::Started {
                    effect: EffectClass::Once,
                    at,
                    ..
                },
                None,
            ) if cancelling.grace_over => in_doubt(&call.tool_use.name, *at),
            // The caller may be running it.
            (CallState::AtClient { .. }, _) => cancelled_unknown(),
            (CallState::Started { .. }, work) => {
                if let Some(work) = work {
                    decision.effect(Effect::Abort { work });
                }
                cancelled_unknown()
            }
        };
        finish_call(decision, index, call, result);
    }
}

/// Recovers a batch after a crash: restarts the calls that may repeat, and ends `once` calls with
/// an unknown outcome.
pub(in crate::conversation) fn recover(decision: &mut DecisionBuilder<'_>, batch: &Batch) {
    for (index, call) in batch.calls.iter().enumerate() {
        let CallState::Started {
            effect,
            at,
            attempt,
            ..
        } = &call.state
        else {
            continue;
        };
        if effect.may_repeat() {
            start_again(
                decision,
                batch,
                index,
                call,
                Retry {
                    attempt: attempt + 1,
                    last_error: ENDED_WITH_ITS_HOST.into(),
                },
            );
        } else {
            finish_call(decision, index, call, in_doubt(&call.tool_use.name, *at));
        }
    }
}
