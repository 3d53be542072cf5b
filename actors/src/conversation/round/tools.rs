//! Decides about the calls of an open batch: which start, which need approval, which are retried,
//! and which results a cancellation leaves.
//!
//! Pure.

use std::{cell::OnceCell, sync::Arc};

use crate::{
    chat::{RawJson, fault},
    conversation::round::{
        DecisionBuilder, Effect, Refusal, StartTool, is_plain_user,
        rules::{ApprovalMode, CallCheck, Rules},
        skills, verdict,
        volatile::{Cancelling, Retry, Work},
        with_input,
    },
    ids::{Seq, WaiterId, WorkId},
    journal::{
        ApprovalVerdict, Batch, Call, CallState, EntryBody, OpenRound, Phase, ToolExecutionResult,
        call_digest,
    },
    limits::APPROVAL_MS,
    ports::{Concurrency, ToolSpec},
    subagent::{CREATE_SUBAGENT, SUBAGENT_LIMIT},
    tool::{EffectClass, OutputLevel, ToolError, ToolErrorType},
    tool_executor::{
        Observed, PlannedCall, Progress, RunResult, approval_denied, cancelled_before_start,
        cancelled_unknown, in_doubt, one_spelling, outcome, plan, stuck,
    },
};

/// How many characters of a failure a later attempt keeps: a line of a record, not a full text.
const LAST_ERROR_CHARS: usize = 500;

/// How many waiting calls of a batch are checked beyond its free places: the next calls may wait for
/// a file that is in use.
const CHECKS_AHEAD: usize = 16;

/// The last error of an attempt that was running when its host stopped.
const ENDED_WITH_ITS_HOST: &str = "the host stopped before a result was recorded";

/// What a waiting call may do now.
enum Admission {
    Open(Opened),
    Ask {
        input: RawJson,
        reason: &'static str,
        pattern: Option<String>,
    },
    /// The caller runs it.
    AtClient {
        input: Option<RawJson>,
    },
    Shut(ToolExecutionResult),
}

/// A call that may start.
struct Opened {
    spec: Arc<ToolSpec>,
    /// The arguments if they are not the model's.
    input: Option<RawJson>,
    /// The output level that the call asks for.
    level: Option<OutputLevel>,
}

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
        let admission = |allowed| {
            let error = is_subagent(call).then(|| {
                let count = subagents.get_or_init(|| Subagents::count(decision, round, batch));
                count.refusal(&decision.volatile.rules, before)
            });
            let error = error.flatten();
            Some(admission(decision, round, batch, call, error, allowed))
        };
        let (progress, admission) = match &call.state {
            CallState::Finished(_) => (Progress::Done, None),
            CallState::Asked { .. } | CallState::AtClient { .. } => (Progress::Asked, None),
            CallState::Started { .. } => (Progress::Running, None),
            // Checked once for each advance: a check parses the arguments.
            CallState::Waiting => (Progress::Waiting, admission(false)),
            CallState::Allowed { .. } => (Progress::Waiting, admission(true)),
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

/// The concurrency that a call needs: what its tool declares, and the file that it works on. A hook
/// or an approval can change the arguments, so the file comes from those that the tool gets.
fn needs(
    decision: &DecisionBuilder<'_>,
    call: &Call,
    admission: Option<&Admission>,
) -> (Concurrency, Option<String>) {
    let free = (Concurrency::Parallel, None);
    let (spec, input) = match (admission, &call.state) {
        (Some(Admission::Open(opened)), _) => (Some(opened.spec.clone()), opened.input.as_ref()),
        (_, CallState::Started { input, .. }) => (
            decision
                .volatile
                .rules
                .call_policy
                .spec(&call.tool_use.name),
            input.as_ref(),
        ),
        // A call awaiting approval or its caller blocks no other call; refused and finished calls need no lock.
        _ => return free,
    };
    let Some(spec) = spec else { return free };
    let file = match &spec.concurrency {
        Concurrency::PerFile(parameter) => {
            file_of(input.unwrap_or(&call.tool_use.input), parameter)
        }
        Concurrency::Parallel | Concurrency::Exclusive => None,
    };
    (spec.concurrency.clone(), file)
}

/// The file that a call names, normalized, so that two spellings of one path conflict.
fn file_of(input: &RawJson, parameter: &str) -> Option<String> {
    let arguments: serde_json::Map<String, serde_json::Value> = input.parse().ok()?;
    Some(one_spelling(arguments.get(parameter)?.as_str()?))
}

fn admission(
    decision: &DecisionBuilder<'_>,
    round: &OpenRound,
    batch: &Batch,
    call: &Call,
    subagent_refusal: Option<ToolError>,
    allowed: bool,
) -> Admission {
    let tool_use = &call.tool_use;
    let rules = &decision.volatile.rules;
    let digest = call_digest(&tool_use.name, &tool_use.input);
    let times = round.repeats.times_before(digest, batch.seq);
    if times >= rules.identical_calls_max {
        return Admission::Shut(stuck(&tool_use.name, times, &tool_use.id));
    }
    if let Some(fault) = fault(tool_use) {
        let error = ToolError::invalid(fault).not_started();
        return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
    }
    if let Some(error) = subagent_refusal {
        return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
    }
    if let Some(error) = skills::refusal(decision.durable, &tool_use.name) {
        return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
    }
    let brought = round.client_tool(&tool_use.name);
    let check = match brought {
        Some(tool) => rules.call_policy.check_client_call(tool, &tool_use.input),
        None => rules
            .call_policy
            .check_call(&tool_use.name, &tool_use.input),
    };
    let (spec, input, pattern, level) = match check {
        CallCheck::Refused(error) => {
            return Admission::Shut(ToolExecutionResult::error(&error, &tool_use.id));
        }
        CallCheck::Ready { input, .. } if brought.is_some() => {
            return Admission::AtClient { input };
        }
        CallCheck::Ready {
            spec,
            input,
            pattern,
            level,
        } => (spec, input, pattern, level),
    };
    let input = match &call.state {
        CallState::Allowed { input } => Some(input.clone()), // Exactly the approved arguments.
        _ => input,
    };
    let doubtful = decision.durable.in_doubt.contains(&digest);
    let unagreed = pattern
        .as_ref()
        .is_some_and(|pattern| !decision.durable.approved.contains(pattern));
    let asks = (unagreed || doubtful) && !allowed;
    match rules.approval {
        _ if !asks => Admission::Open(Opened { spec, input, level }),
        ApprovalMode::Auto => Admission::Open(Opened { spec, input, level }),
        ApprovalMode::Deny => Admission::Shut(approval_denied(
            &tool_use.id,
            "tools that change something are not allowed in this session",
        )),
        ApprovalMode::Ask if !rules.has_approver => Admission::Shut(approval_denied(
            &tool_use.id,
            "approval is needed and nobody is there to give it",
        )),
        ApprovalMode::Ask => {
            let reason = if doubtful {
                "the outcome of the same call before is unknown"
            } else {
                "this tool changes something"
            };
            Admission::Ask {
                input: input.unwrap_or_else(|| tool_use.input.clone()),
                reason,
                pattern: pattern.filter(|_| !doubtful),
            }
        }
    }
}

fn is_subagent(call: &Call) -> bool {
    call.tool_use.name == CREATE_SUBAGENT
}

/// The subagents that a round and its conversation began before the open batch.
struct Subagents {
    of_round: usize,
    ever: u64,
}

impl Subagents {
    fn count(decision: &DecisionBuilder<'_>, round: &OpenRound, batch: &Batch) -> Self {
        let here = || batch.calls.iter().filter(|call| is_subagent(call));
        let calls = round
            .assistant_messages
            .iter()
            .flat_map(|answer| answer.tool_uses());
        let of_round = calls.filter(|call| call.name == CREATE_SUBAGENT).count();
        let over = here()
            .filter(|call| matches!(call.state, CallState::Finished(_)))
            .count() as u64;
        let ever = decision
            .durable
            .tools
            .get(CREATE_SUBAGENT)
            .map_or(0, |tool| tool.calls);
        Self {
            of_round: of_round.saturating_sub(here().count()),
            ever: ever.saturating_sub(over),
        }
    }

    /// The error for a call that would exceed the subagent limit of its round or of the
    /// conversation. `before`: the calls for subagents before it in its batch.
    fn refusal(&self, rules: &Rules, before: usize) -> Option<ToolError> {
        let (whose, max) = if self.of_round + before >= rules.subagents_a_round_max {
            ("turn", rules.subagents_a_round_max as u64)
        } else if self.ever.saturating_add(before as u64) >= rules.subagents_max {
            ("conversation", rules.subagents_max)
        } else {
            return None;
        };
        let error = format!(
            "this {whose} has begun {max} subagents, and may begin no more; do the rest yourself"
        );
        Some(
            ToolError::new(ToolErrorType::ResourceError, error)
                .code(SUBAGENT_LIMIT)
                .not_started(),
        )
    }
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
    crate::conversation::round::budget::remind_before_last_result(decision);
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

/// Handles the end of an attempt: retries the call or records its result. The effect class comes
/// first: a `once` call that may have started is never retried. Then the tool's retry policy
/// decides.
pub(in crate::conversation) fn tool_ended(
    decision: &mut DecisionBuilder<'_>,
    work: WorkId,
    result: &RunResult,
    duration_ms: u64,
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
    let repeatable = spec.effect.may_repeat() || result.not_started();
    if let Some(error_type) = result.error_type()
        && repeatable
        && decision.volatile.cancelling.is_none()
        && spec.retry.should_retry(error_type, attempt)
    {
        let delay = spec.retry.delay(attempt);
        let round_id = round.id;
        let next = attempt + 1;
        let last_error = words(result, spec.effect, &call.tool_use.id);
        decision.effect(Effect::RetryLater {
            batch: batch.seq,
            call: index,
            attempt: next,
            delay,
            last_error,
        });
        decision.effect(Effect::ToolRetry {
            round_id,
            attempt: next,
            delay,
            reason: error_type.as_str().to_owned(),
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
    let words = outcome(result.clone(), effect, tool_call_id).words();
    match words.char_indices().nth(LAST_ERROR_CHARS) {
        Some((end, _)) => words.get(..end).unwrap_or_default().into(),
        None => words.into(),
    }
}

/// Starts the next attempt when its delay is over. A timer of a closed batch is ignored.
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

/// Applies a person's decision about a call that awaits approval.
pub(in crate::conversation) fn approval(
    decision: &mut DecisionBuilder<'_>,
    tool_call_id: &str,
    allow: bool,
    always: bool,
    waiter: WaiterId,
) {
    let found = decision
        .durable
        .open_call(tool_call_id)
        .filter(|(_, call)| matches!(call.state, CallState::Asked { .. }));
    let Some((index, call)) = found else {
        return decision.effect(Effect::Refuse {
            waiter,
            refusal: Refusal::NoSuch("open approval"),
        });
    };
    answer(decision, index, call, verdict(allow), always && allow);
    decision.effect(Effect::Answer { waiter });
}

/// Denies the approvals whose time is over.
pub(in crate::conversation) fn expire_approvals(decision: &mut DecisionBuilder<'_>) {
    let Some((_, batch)) = open(decision) else {
        return;
    };
    for (index, call) in batch.calls.iter().enumerate() {
        if matches!(call.state, CallState::Asked { expires_at, .. } if expires_at <= decision.now) {
            answer(
                decision,
                index_u32(index),
                call,
                ApprovalVerdict::Expired,
                false,
            );
        }
    }
}

fn answer(
    decision: &mut DecisionBuilder<'_>,
    index: u32,
    call: &Call,
    verdict: ApprovalVerdict,
    always: bool,
) {
    decision.entry(EntryBody::ApprovalAnswered {
        call: index,
        verdict,
        always,
    });
    let why = match verdict {
        ApprovalVerdict::Allowed => return,
        ApprovalVerdict::Denied => "the user did not approve this call",
        ApprovalVerdict::Expired => "nobody approved this call in time",
    };
    finish_call(
        decision,
        index as usize,
        call,
        approval_denied(&call.tool_use.id, why),
    );
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
