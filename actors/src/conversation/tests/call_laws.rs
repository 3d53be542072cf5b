//! The laws of a batch: which calls may start, which need approval, and which single result each
//! call gets.

use super::{cast, client_laws, laws::Law, skill_laws};
use crate::{
    chat::{Message, RawJson, Role},
    conversation::{
        Consent,
        round::{
            Effect, Input, ModelOutcome,
            rules::{ApprovalMode, Recovery},
            volatile::{Cancelling, Work},
        },
    },
    journal::{
        ApprovalVerdict, Batch, Call, CallState, Durable, Entry, EntryBody, Phase,
        ToolExecutionResult, call_digest,
    },
    ports::{Approval, Concurrency},
    time::Timestamp,
    tool::EffectClass,
    tool_executor::RunResult,
};

impl Law<'_> {
    /// A start is allowed by effect class, approval and concurrency.
    pub(super) fn tool_started(
        &self,
        state: &Durable,
        batch: &Batch,
        index: u32,
        attempt: u32,
        input: Option<&RawJson>,
    ) {
        let call = &batch.calls[index as usize];
        let effect = cast::spec(&call.tool_use.name)
            .expect("a known tool")
            .effect;
        let begins = !matches!(call.state, CallState::Started { .. });
        assert!(
            !begins || skill_laws::allows(state, &call.tool_use.name),
            "an active skill forbids this tool"
        );
        match &call.state {
            CallState::Waiting => {
                assert!(
                    !self.is_stuck(state, batch, call),
                    "the loop guard lets this call through"
                );
                assert!(attempt == 0 && input == cast::hook(&call.tool_use.name).as_ref());
                assert!(
                    !asks(state, call) || self.before.rules.approval == ApprovalMode::Auto,
                    "no person agreed to this call"
                );
            }
            CallState::Allowed { input: agreed, .. } if !self.is_stuck(state, batch, call) => {
                assert_eq!(
                    (attempt, input),
                    (0, Some(agreed)),
                    "only what was agreed to runs"
                )
            }
            CallState::Started {
                attempt: last,
                input: first,
                ..
            } => {
                assert_eq!((attempt, input), (last + 1, first.as_ref()));
                match self.input {
                    Input::Recovered {
                        recovery: Recovery::Resume,
                    } => assert_ne!(effect, EffectClass::Once, "once is started once"),
                    Input::RetryDue { batch: seq, call } => {
                        assert_eq!((*seq, *call), (batch.seq, index));
                        assert!(
                            effect != EffectClass::Once
                                || self.not_started.contains(&(batch.seq, index)),
                            "once is started once"
                        );
                    }
                    other => panic!("a second start by {other:?}"),
                }
                return;
            }
            CallState::Allowed { .. }
            | CallState::Asked { .. }
            | CallState::AtClient { .. }
            | CallState::Finished(_) => {
                panic!("a start of a call that is {:?}", call.state)
            }
        }
        let exclusive = |call: &Call| concurrency(call) == Concurrency::Exclusive;
        for earlier in &batch.calls[..index as usize] {
            let open = !matches!(
                earlier.state,
                CallState::Finished(_) | CallState::Asked { .. } | CallState::AtClient { .. }
            );
            let blocks = exclusive(call)
                || exclusive(earlier)
                || (file(call).is_some() && file(call) == file(earlier));
            assert!(
                !(open && blocks),
                "call {index} overtakes another: {batch:?}"
            );
        }
    }

    pub(super) fn start_act(
        &self,
        entry: &Entry,
        batch: &Batch,
        index: u32,
        attempt: u32,
        input: Option<&RawJson>,
    ) {
        let tool_use = &batch.calls[index as usize].tool_use;
        let fits = self.outcome.effects.iter().filter(|effect| match effect {
            Effect::StartTool(start) => {
                start.work.seq == entry.seq
                    && (start.batch, start.call, start.attempt) == (batch.seq, index, attempt)
                    && (&start.tool_use.id, &start.tool_use.name) == (&tool_use.id, &tool_use.name)
                    && start.tool_use.input == *input.unwrap_or(&tool_use.input)
                    && start.spec.name() == tool_use.name
            }
            _ => false,
        });
        assert_eq!(fits.count(), 1, "what is journaled is what starts");
    }

    /// Each call gets one result, which fits how the call ended.
    pub(super) fn tool_finished(
        &self,
        state: &Durable,
        index: u32,
        call: &Call,
        outcome: &ToolExecutionResult,
        cancelling: Option<&Cancelling>,
        denied: bool,
    ) {
        let name = &call.tool_use.name;
        let id = &call.tool_use.id;
        let in_doubt = |at: &Timestamp| {
            let text = format!(
                "[outcome unknown] {name} was started at {at} and the host stopped before its result was recorded. It may have taken \
                 full, partial or no effect. Do not repeat it; check the state first, or ask the user."
            );
            assert_eq!(outcome, &ToolExecutionResult::error_text("IN_DOUBT", text));
        };
        let interrupted = |text: &str| {
            assert_eq!(
                outcome,
                &ToolExecutionResult::error_text("INTERRUPTED", text)
            )
        };
        if let Some((own, attempt, result, effect)) =
            self.own_result().filter(|(own, ..)| *own == index)
        {
            assert_eq!(own, index);
            assert!(matches!(call.state, CallState::Started { .. }));
            assert!(
                !self.is_tried_again(state, attempt, result, effect),
                "this result is tried again"
            );
            let Input::Tool { duration_ms, .. } = self.input else {
                return;
            };
            assert_eq!(
                (outcome.duration_ms, outcome.retry_count),
                (*duration_ms, attempt)
            );
            assert_eq!(
                outcome.last_error.is_some(),
                attempt > 0,
                "a later attempt says how the one before it failed (T-30)"
            );
            assert_eq!(
                outcome.is_error,
                self.activation_failed(state, result)
                    .unwrap_or(result.error_type().is_some())
            );
            match result {
                RunResult::Output(output) => assert_eq!(output.text, outcome.observation),
                RunResult::Error(error) => assert!(
                    outcome.observation.contains(&error.message)
                        && outcome.observation.contains(id)
                ),
                RunResult::Activation(_) => {}
                RunResult::NotBegun => assert_eq!(outcome.observation, "cancelled before start"),
                RunResult::TimedOut { .. } | RunResult::Panicked { .. } | RunResult::Cancelled => {
                    assert_eq!(
                        outcome.observation.contains("effect"),
                        effect == EffectClass::Once,
                        "a once call may have happened"
                    );
                }
            }
            return;
        }
        match (&call.state, cancelling) {
            (CallState::Finished(_), _) => panic!("a second result for {id}"),
            (CallState::Waiting, _) if denied => {
                assert_eq!(outcome.error_code.as_deref(), Some("APPROVAL_DENIED"))
            }
            (CallState::Waiting | CallState::Asked { .. } | CallState::Allowed { .. }, Some(_)) => {
                interrupted("cancelled before start")
            }
            (CallState::Started { effect, at, .. }, Some(cancelling)) => {
                let runs = self.before.work_of_call(index).is_some();
                assert!(cancelling.grace_over || !runs, "its answer is still taken");
                match (runs, effect, cancelling.grace_over) {
                    (false, EffectClass::Once, true) => in_doubt(at),
                    _ => interrupted("cancelled, effect unknown"),
                }
            }
            (CallState::Started { effect, at, .. }, None) => {
                assert!(
                    matches!(
                        self.input,
                        Input::Recovered {
                            recovery: Recovery::Resume
                        }
                    ),
                    "a result out of nothing for {id}"
                );
                assert_eq!(*effect, EffectClass::Once);
                in_doubt(at);
            }
            (CallState::AtClient { .. }, Some(_)) => interrupted("cancelled, effect unknown"),
            (CallState::AtClient { .. }, None) => self.client_call_finished(call, outcome),
            (CallState::Asked { .. }, None) => panic!("a result without an answer for {id}"),
            (CallState::Waiting | CallState::Allowed { .. }, None) => {
                let rules = &self.before.rules;
                let denied = rules.approval == ApprovalMode::Deny
                    || (rules.approval == ApprovalMode::Ask && !rules.has_approver);
                let code = outcome.error_code.as_deref();
                let batch = state.batch().expect("a batch is open");
                match cast::spec(name) {
                    _ if self.is_stuck(state, batch, call) => assert_eq!(code, Some("LOOP_GUARD")),
                    _ if crate::chat::fault(&call.tool_use).is_some() => {
                        assert_eq!(code, Some("INVALID_PARAMETERS"))
                    }
                    _ if !skill_laws::allows(state, name) => {
                        assert_eq!(code, Some("PERMISSION_DENIED"))
                    }
                    None => {
                        let brought = client_laws::is_brought(state, name);
                        assert!(!brought, "the caller runs its own tools");
                        assert_eq!(code, Some("NOT_FOUND"));
                    }
                    Some(_) if cast::is_bad(&call.tool_use.input) => {
                        assert_eq!(code, Some("INVALID_PARAMETERS"))
                    }
                    Some(_) => {
                        assert!(
                            denied && asks(state, call) && call.state == CallState::Waiting,
                            "nothing forbids {id}"
                        );
                        assert_eq!(code, Some("APPROVAL_DENIED"));
                    }
                }
            }
        }
    }

    /// Whether the loop guard refuses this call: the round got the same result from it too often.
    fn is_stuck(&self, state: &Durable, batch: &Batch, call: &Call) -> bool {
        let digest = call_digest(&call.tool_use.name, &call.tool_use.input);
        let repeats = &state.round.as_ref().expect("a round is open").repeats;
        repeats.times_before(digest, batch.seq) >= self.before.rules.identical_calls_max
    }

    pub(super) fn batch_rests(&self, batch: &Batch) {
        let after = self.after;
        let mut runs = 0;
        let mut waits = 0;
        let started: Vec<&Call> = batch
            .calls
            .iter()
            .filter(|call| matches!(call.state, CallState::Started { .. }))
            .collect();
        for (index, call) in batch.calls.iter().enumerate() {
            let work = after.work_of_call(index as u32).is_some();
            let retry = after.retries.contains_key(&(batch.seq, index as u32));
            let started = matches!(call.state, CallState::Started { .. });
            assert_eq!(
                usize::from(work) + usize::from(retry),
                usize::from(started),
                "call {index} waits for nothing: {batch:?}"
            );
            runs += usize::from(work);
            waits += usize::from(retry);
        }
        let of_calls = after
            .work
            .values()
            .filter(|work| !matches!(work, Work::Context { waiter: Some(_) }))
            .count();
        assert_eq!(
            (of_calls, after.retries.len()),
            (runs, waits),
            "work that belongs to no call"
        );
        let rules = &after.rules;
        let exclusive = started
            .iter()
            .any(|call| concurrency(call) == Concurrency::Exclusive);
        assert!(
            started.len() <= rules.parallel_tools_max && !(exclusive && started.len() > 1),
            "{batch:?}"
        );
        for (place, call) in started.iter().enumerate() {
            assert!(
                file(call).is_none()
                    || started[..place]
                        .iter()
                        .all(|other| file(other) != file(call)),
                "one call a file: {batch:?}"
            );
        }
        if after.cancelling.is_some() {
            assert_eq!(
                started.len(),
                batch
                    .calls
                    .iter()
                    .filter(|call| !matches!(call.state, CallState::Finished(_)))
                    .count()
            );
            return;
        }
        let mut behind_exclusive = false;
        for (index, call) in batch.calls.iter().enumerate() {
            if !matches!(call.state, CallState::Waiting | CallState::Allowed { .. }) {
                continue;
            }
            let alone = concurrency(call) == Concurrency::Exclusive;
            let file_is_open = (0..).zip(&batch.calls).any(|(place, other)| {
                let open = match other.state {
                    CallState::Started { .. } => true,
                    CallState::Waiting | CallState::Allowed { .. } => place < index,
                    CallState::Finished(_)
                    | CallState::Asked { .. }
                    | CallState::AtClient { .. } => false,
                };
                open && file(call).is_some() && file(call) == file(other)
            });
            let held = started.len() >= rules.parallel_tools_max
                || exclusive
                || behind_exclusive
                || file_is_open;
            assert!(
                held || (alone && !started.is_empty()),
                "call {index} could run: {batch:?}"
            );
            behind_exclusive |= alone;
        }
    }
}

pub(super) fn calls(state: &Durable) -> impl Iterator<Item = (u32, &Call)> {
    state
        .batch()
        .into_iter()
        .flat_map(|batch| (0..).zip(&batch.calls))
}

/// Whether a call needs approval: because its tool declares it, or because the outcome of an equal
/// call is unknown.
pub(super) fn asks(state: &Durable, call: &Call) -> bool {
    let by_mode =
        cast::spec(&call.tool_use.name).is_some_and(|spec| spec.approval == Approval::ByMode);
    let agreed = state
        .approved
        .contains(&cast::pattern(&call.tool_use.name, &call.tool_use.input));
    by_mode && !agreed
        || state
            .in_doubt
            .contains(&call_digest(&call.tool_use.name, &call.tool_use.input))
}

pub(super) fn concurrency(call: &Call) -> Concurrency {
    cast::spec(&call.tool_use.name).map_or(Concurrency::Parallel, |spec| spec.concurrency.clone())
}

/// The file that a call works on, after hooks and with the arguments that a person gave it.
pub(super) fn file(call: &Call) -> Option<String> {
    let Concurrency::PerFile(parameter) = concurrency(call) else {
        return None;
    };
    let input = match &call.state {
        CallState::Started {
            input: Some(used), ..
        } => used.clone(),
        _ => cast::hook(&call.tool_use.name).unwrap_or_else(|| call.tool_use.input.clone()),
    };
    let arguments: serde_json::Value = input.parse().ok()?;
    Some(
        arguments
            .get(parameter)?
            .as_str()?
            .trim_start_matches("./")
            .to_owned(),
    )
}

impl Law<'_> {
    /// A call that counts as not made is one that was refused as too large, or that goes to a
    /// fallback.
    pub(super) fn made_again(&self, state: &Durable, entry: &Entry, cancelled: bool) {
        match &entry.body {
            EntryBody::RequestRefused { bytes } => {
                let Input::Model {
                    outcome: ModelOutcome::Failed { error, partial },
                    ..
                } = self.input
                else {
                    panic!("refused out of nothing")
                };
                assert!(error.is_too_large() && partial.is_empty() && !cancelled);
                let round = state.round.as_deref().expect("a round is open");
                assert!(matches!(round.phase, Phase::Model { .. }) && round.refused_requests < 2);
                assert_eq!(*bytes, state.history.messages().wire_bytes() as u64);
            }
            EntryBody::FellBack { gateway, model, .. } => {
                let Input::Model {
                    outcome:
                        ModelOutcome::FellBack {
                            gateway: asked,
                            model: named,
                            ..
                        },
                    ..
                } = self.input
                else {
                    panic!("fell back out of nothing")
                };
                assert_eq!((gateway, &**model), (asked, &**named));
                assert!(!cancelled, "a canceled round asks no other model");
                let round = state.round.as_deref().expect("a round is open");
                assert!(matches!(round.phase, Phase::Model { .. }));
            }
            body => panic!("{body:?} takes no call back"),
        }
    }
}

/// Whether an effect must wait for the commit: answers to callers, and tools with side effects.
pub(super) fn must_wait(effect: &Effect) -> bool {
    match effect {
        Effect::Acknowledge { .. } | Effect::Answer { .. } => true,
        Effect::StartTool(start) => {
            cast::spec(start.spec.name()).expect("a known tool").effect != EffectClass::Pure
        }
        _ => false,
    }
}

/// Whether a message may enter from outside.
pub(super) fn is_plain_user(message: &Message) -> bool {
    message.role() == Role::User && message.tool_result_ids().is_empty()
}

/// Whether a stored answer is what the person answered.
pub(super) fn answers(
    call: &Call,
    given: &Consent,
    verdict: ApprovalVerdict,
    always: bool,
    changed: Option<&RawJson>,
) -> bool {
    let allowed = verdict == ApprovalVerdict::Allowed;
    match given {
        Consent::Once => allowed && !always && changed.is_none(),
        Consent::Always => allowed && always && changed.is_none(),
        Consent::Changed(input) => {
            let real = cast::hook(&call.tool_use.name).unwrap_or_else(|| input.clone());
            allowed && !always && !cast::is_bad(input) && changed == Some(&real)
        }
        Consent::Denied(_) => verdict == ApprovalVerdict::Denied && !always && changed.is_none(),
    }
}
