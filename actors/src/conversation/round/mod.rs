//! Decides what a conversation does next and when a round is over, without clock, randomness or
//! I/O. The shell in `run/` appends the entries and performs the effects.
//!
//! Pure.
//!
//! [`decide`] answers one input, and [`advance`] derives what follows from the state alone.
//! [`apply_input`] combines both; the shell, the replay and the tests call it.

pub(in crate::conversation) mod budget;
mod client_tools;
pub mod context;
pub(in crate::conversation) mod decision;
pub(in crate::conversation) mod input;
pub(in crate::conversation) mod output;
pub(in crate::conversation) mod rounds;
pub mod rules;
pub(in crate::conversation) mod skills;
pub(in crate::conversation) mod tools;
pub mod volatile;

use std::collections::HashSet;

pub(crate) use self::{
    decision::{Receipt, StartTool},
    input::{ModelOutcome, NewPrompt},
};
pub use crate::conversation::round::{
    decision::{Decision, Effect, Refusal, When},
    input::{FailedAttempt, Input, OnBusy},
};
use crate::{
    chat::{ContentBlock, Message, ProviderStop, RawJson, Role, ToolUseBlock, Usage, storable},
    conversation::{
        command::Command,
        round::{
            budget::Bill,
            decision::{fits, is_plain_user},
            rules::Recovery,
            volatile::{Cancelling, Volatile},
        },
    },
    ids::{Seq, WaiterId, WorkId},
    journal::{
        AcceptedPrompt, ApplyError, ApprovalVerdict, Durable, Entry, EntryBody, OpenRound, Phase,
        WithdrawReason,
    },
    limits::{LOOP_REFUSALS_MAX, ROUND_CRASHES_MAX},
    ports::ProviderError,
    stream::{Failure, StopReason},
    time::Timestamp,
};

/// The failure code of a round that ended because the tenant's storage quota is used up.
pub(crate) const STORE_FULL_CODE: &str = "stored_bytes";

/// The failure code of a round that was ended because its tools ran in too many crashes.
pub(crate) const CRASHED_CODE: &str = "crashed_repeatedly";

/// Builds a decision. Knows the seq that the next entry will have.
pub(in crate::conversation) struct DecisionBuilder<'a> {
    pub(in crate::conversation) durable: &'a Durable,
    pub(in crate::conversation) volatile: &'a Volatile,
    pub(in crate::conversation) now: Timestamp,
    pub(in crate::conversation) made: Decision,
}

impl<'a> DecisionBuilder<'a> {
    fn new(durable: &'a Durable, volatile: &'a Volatile, now: Timestamp, made: Decision) -> Self {
        Self {
            durable,
            volatile,
            now,
            made,
        }
    }

    /// Adds an entry and returns the id of the work that the entry orders. Puts `LifeStarted`
    /// before the first entry of an activation.
    pub(in crate::conversation) fn entry(&mut self, body: EntryBody) -> WorkId {
        if self.made.entries.is_empty() && self.durable.epoch != self.volatile.epoch {
            self.made.entries.push(EntryBody::LifeStarted {
                nonce: self.volatile.nonce,
                in_order: self.volatile.in_order,
            });
        }
        self.made.entries.push(body);
        let seq = Seq(self.durable.head.0 + self.made.entries.len() as u64);
        WorkId {
            epoch: self.volatile.epoch,
            seq,
            index: 0,
        }
    }

    pub(in crate::conversation) fn effect(&mut self, effect: Effect) {
        self.made.effects.push(effect);
    }

    pub(in crate::conversation) fn refuse(&mut self, waiter: WaiterId, refusal: Refusal) {
        self.effect(Effect::Refuse { waiter, refusal });
    }

    pub(in crate::conversation) fn finish(
        &mut self,
        round: &OpenRound,
        stop_reason: StopReason,
        error: Option<Failure>,
    ) {
        let latency_ms = self.now.ms_since(round.started_at);
        budget::settle_in_full(self);
        self.entry(EntryBody::RoundFinished {
            stop_reason,
            latency_ms,
            error,
        });
        self.effect(Effect::RoundOver { round_id: round.id });
    }
}

/// The entries and effects of one input, with both halves of the state already updated.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The entries, already applied. The shell saw each one, with the state before it, through
    /// `before_apply`.
    pub entries: Vec<Entry>,
    /// The effects, in order. Those with [`When::Stored`] wait for all of `entries`.
    pub effects: Vec<Effect>,
}

/// Handles one input completely: decides, applies the entries, and advances until the state asks
/// for nothing more.
///
/// `before_apply` sees each entry with the state before it, so that the shell can derive the
/// events.
///
/// # Errors
/// [`ApplyError`] when a decision does not fit the state. That is a bug, and the activation must
/// end.
pub fn apply_input(
    durable: &mut Durable,
    volatile: &mut Volatile,
    now: Timestamp,
    input: Input,
    mut before_apply: impl FnMut(&Durable, &Entry),
) -> Result<Outcome, ApplyError> {
    let mut outcome = Outcome::default();
    let mut next = decide(durable, volatile, now, &input, Decision::default());
    volatile.note(&input);
    let mut first = true;
    // Each pass applies what was decided and asks `advance` what follows now. Effects alone do not
    // change what `advance` decides, so a pass without entries ends the loop. The first pass is the
    // exception: its input may have changed the volatile state.
    loop {
        let changes_nothing = next.entries.is_empty() && !first;
        first = false;
        for body in next.entries.drain(..) {
            let entry = Entry {
                seq: durable.head.next(),
                epoch: volatile.epoch,
                at: now,
                body,
            };
            before_apply(durable, &entry);
            durable.apply(&entry)?;
            outcome.entries.push(entry);
        }
        for effect in &next.effects {
            volatile.absorb(effect);
        }
        outcome.effects.append(&mut next.effects);
        if changes_nothing {
            break;
        }
        next = advance(durable, volatile, now, next);
        if next.is_empty() {
            break;
        }
    }
    Ok(outcome)
}

/// Decides one input without side effects. `made` is an empty buffer, passed in so that its allocation is reused.
pub fn decide(
    durable: &Durable,
    volatile: &Volatile,
    now: Timestamp,
    input: &Input,
    made: Decision,
) -> Decision {
    let mut decision = DecisionBuilder::new(durable, volatile, now, made);
    match input {
        Input::Recovered { recovery } => recover(&mut decision, *recovery),
        Input::Prompt(prompt) => take_prompt(&mut decision, prompt),
        Input::Command { command, waiter } => take_command(&mut decision, command, *waiter),
        Input::Model {
            work,
            outcome,
            model,
            failed,
        } => model_ended(&mut decision, *work, outcome, model, failed),
        Input::Budget { work, answer } => budget::answered(&mut decision, *work, answer),
        Input::Summary(bill) => {
            decision.entry(EntryBody::SummaryBilled {
                model: bill.model.to_string(),
                usage: bill.usage,
                cost_micro_usd: bill.cost_micro_usd,
            });
        }
        Input::Tool {
            work,
            result,
            duration_ms,
        } => tools::tool_ended(&mut decision, *work, result, *duration_ms),
        Input::RetryDue { batch, call } => tools::retry(&mut decision, *batch, *call),
        Input::Tick => {
            tools::expire_approvals(&mut decision);
            client_tools::expire(&mut decision);
        }
        Input::Cancel { failure } => interrupt(&mut decision, failure.clone()),
        Input::Withdraw { prompt_id, reason } => {
            if durable.inbox.iter().any(|prompt| prompt.id == *prompt_id) {
                decision.entry(EntryBody::PromptWithdrawn {
                    prompt_id: *prompt_id,
                    reason: *reason,
                });
            }
        }
        Input::Context { work, outcome } => context::measured(&mut decision, *work, outcome),
        Input::GraceOver { .. } | Input::Drain => {}
    }
    decision.made
}

/// Decides a caller's command.
fn take_command(decision: &mut DecisionBuilder<'_>, command: &Command, waiter: WaiterId) {
    match command {
        Command::Interrupt if decision.durable.round.is_none() => {
            decision.refuse(waiter, Refusal::NoSuch("open round"))
        }
        Command::Interrupt => {
            interrupt(decision, None);
            decision.effect(Effect::Answer { waiter });
        }
        Command::Approve {
            tool_call_id,
            allow,
            always,
        } => tools::approval(decision, tool_call_id, *allow, *always, waiter),
        Command::ToolResults { results } => client_tools::results(decision, results, waiter),
        Command::Inject { id, message } => inject(decision, id.as_ref(), message, waiter),
        Command::Compact { summary } => context::asked(decision, *summary, waiter),
        Command::Pin { line } => context::pin(decision, line, waiter),
        Command::Import { messages, rounds } => rounds::import(decision, messages, rounds, waiter),
        Command::Rewind { round_id } => rounds::rewind(decision, *round_id, waiter),
        Command::Fork { copied } => rounds::fork(decision, copied, waiter),
        Command::Reset => when_idle(decision, waiter, EntryBody::Reset {}),
        Command::ActivateSkill { loaded } => skills::activate(decision, loaded, waiter),
        Command::DeactivateSkill { name } => skills::deactivate(decision, name, waiter),
    }
}

/// Decides what follows from the state alone, without side effects. `made` is an empty buffer; it
/// stays empty when the conversation waits for an input.
pub fn advance(durable: &Durable, volatile: &Volatile, now: Timestamp, made: Decision) -> Decision {
    let mut decision = DecisionBuilder::new(durable, volatile, now, made);
    if !volatile.recovered {
        return decision.made;
    }
    let Some(round) = &durable.round else {
        if let Some(AcceptedPrompt { id, round_id, .. }) =
            durable.inbox.front().filter(|_| !volatile.draining)
        {
            context::refocus(&mut decision);
            skills::offer(&mut decision);
            budget::remind(&mut decision);
            decision.entry(EntryBody::RoundStarted {
                round_id: *round_id,
                prompt_ids: vec![*id],
            });
        }
        return decision.made;
    };
    match (&round.phase, &volatile.cancelling) {
        (Phase::Ready | Phase::Ended { .. }, Some(cancelling)) => {
            interrupted(&mut decision, round, cancelling)
        }
        (Phase::Ready, None) if volatile.reserving.is_some() => {} // The shell answers `Effect::Reserve` before anything else.
        // The model keeps repeating calls that the loop guard refused.
        (Phase::Ready, None) if round.repeats.refusals >= LOOP_REFUSALS_MAX => {
            decision.finish(round, StopReason::LoopGuard, None)
        }
        (Phase::Ready, None) if volatile.is_store_full => {
            decision.finish(round, StopReason::Error, Some(store_full()))
        }
        (Phase::Ready, None) if round.model_calls >= volatile.rules.tool_iterations_max => {
            decision.finish(round, StopReason::IterationLimit, None); // The round has used up its model calls.
        }
        (Phase::Ready, None) => match context::before_call(durable, volatile) {
            context::Before::Call => {
                budget::call_model(&mut decision, round, round.model_calls + 1)
            }
            context::Before::Measure => context::measure(&mut decision, None, false),
            context::Before::Wait => {}
        },
        (Phase::Ended { stop }, None)
            if output::refused(&mut decision, round, stop_reason(*stop)) => {}
        (Phase::Ended { stop }, None) => decision.finish(round, stop_reason(*stop), None),
        (Phase::Model { .. }, Some(cancelling))
            if cancelling.grace_over || volatile.reserving.is_some() =>
        {
            if let Some(work) = volatile.model_work() {
                decision.effect(Effect::Abort { work });
            }
            interrupted(&mut decision, round, cancelling);
        }
        (Phase::Model { .. }, _) => {}
        (Phase::Batch(open), Some(cancelling)) => tools::cancel(&mut decision, open, cancelling),
        (Phase::Batch(open), None) => tools::advance(&mut decision, round, open),
    }
    decision.made
}

/// The failure of a round whose tenant has used up its storage quota. The round makes no further
/// model call.
fn store_full() -> Failure {
    let message = "the stored bytes of this tenant are used up; a deletion makes room".to_owned();
    Failure {
        code: STORE_FULL_CODE.to_owned(),
        message,
        retry_after_ms: None,
    }
}

/// The failure of a round whose tools ran in too many crashes. One of them may take the
/// whole process down, so no further activation tries it.
fn crashed_repeatedly() -> Failure {
    Failure {
        code: CRASHED_CODE.to_owned(),
        message: format!(
            "this round's tools ran in {ROUND_CRASHES_MAX} crashes of the host, and are not tried again"
        ),
        retry_after_ms: None,
    }
}

fn interrupted(decision: &mut DecisionBuilder<'_>, round: &OpenRound, cancelling: &Cancelling) {
    let code = cancelling
        .failure
        .as_ref()
        .map(|failure| failure.code.as_str());
    let stop_reason = match code {
        Some(budget::BUDGET_CODE) => StopReason::Budget,
        Some(CRASHED_CODE) => StopReason::Error,
        Some(_) | None => StopReason::Interrupted,
    };
    decision.finish(round, stop_reason, cancelling.failure.clone());
}

/// The stop reason of a round that ends with the model's answer.
fn stop_reason(stop: ProviderStop) -> StopReason {
    match stop {
        ProviderStop::EndTurn
        | ProviderStop::ToolUse
        | ProviderStop::PauseTurn
        | ProviderStop::Other => StopReason::EndTurn,
        ProviderStop::MaxTokens => StopReason::MaxTokens,
        ProviderStop::StopSequence => StopReason::StopSequence,
        ProviderStop::Refusal => StopReason::Refusal,
        ProviderStop::ContextWindowExceeded => StopReason::ContextTooLarge,
    }
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

fn recover(decision: &mut DecisionBuilder<'_>, recovery: Recovery) {
    let Some(round) = &decision.durable.round else {
        return;
    };
    let round_id = round.id;
    // A tool may have taken the process down, unless the activation before this one ended in order.
    let crashed = !decision.volatile.in_order && round.runs_a_tool();
    if recovery == Recovery::Resume && crashed && round.crashes + 1 >= ROUND_CRASHES_MAX {
        return decision.effect(Effect::CancelRound {
            round_id,
            failure: Some(crashed_repeatedly()),
            grace_over: true,
        });
    }
    match (recovery, &round.phase) {
        (Recovery::Close, _) => decision.effect(Effect::CancelRound {
            round_id,
            failure: None,
            grace_over: true,
        }),
        (Recovery::Resume, Phase::Model { .. }) => {
            budget::call_model(decision, round, round.model_calls)
        }
        (Recovery::Resume, Phase::Batch(open)) => tools::recover(decision, open),
        (Recovery::Resume, Phase::Ready | Phase::Ended { .. }) => {}
    }
}

fn take_prompt(decision: &mut DecisionBuilder<'_>, prompt: &NewPrompt) {
    let durable = decision.durable;
    let waiter = prompt.waiter;
    let message = prompt.message.as_ref();
    if message.is_some_and(|message| !is_plain_user(message)) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    let key = prompt.client_key.as_ref();
    let known = key.and_then(|key| Some((key, durable.known_key(&key.key)?)));
    #[cfg(test)]
    let known = known.filter(|_| !crate::planted::is(crate::planted::Bug::ForgetsClientKeys));
    if let Some((key, (digest, round_id))) = known {
        return if digest == key.digest {
            decision.effect(Effect::Acknowledge {
                waiter,
                receipt: Receipt {
                    round_id,
                    replayed: true,
                },
            });
        } else {
            decision.refuse(waiter, Refusal::KeyReused);
        };
    }
    if decision.volatile.draining {
        return decision.refuse(waiter, Refusal::Draining);
    }
    if let Some(Err(refusal)) = message.map(|message| fits(durable, message)) {
        return decision.refuse(waiter, refusal);
    }
    let busy = durable.round.is_some() || !durable.inbox.is_empty();
    let full = durable.inbox.len() >= decision.volatile.rules.inbox_prompts_max;
    if message.is_none() && (busy || !awaits_an_answer(durable)) {
        return decision.refuse(waiter, Refusal::NothingToAnswer);
    }
    match (prompt.on_busy, &durable.round) {
        (OnBusy::Steer, Some(round))
            if decision.volatile.cancelling.is_none()
                && prompt.output_schema.is_none()
                && prompt.parameters.is_none()
                && prompt.client_tools.is_none()
                && let Some(message) = message =>
        {
            decision.entry(EntryBody::Injected {
                id: None,
                client_key: prompt.client_key.clone(),
                message: message.clone(),
            });
            return decision.effect(Effect::Acknowledge {
                waiter,
                receipt: Receipt {
                    round_id: round.id,
                    replayed: false,
                },
            });
        }
        _ if full => return decision.refuse(waiter, Refusal::InboxFull),
        (OnBusy::Reject, _) if busy => return decision.refuse(waiter, Refusal::Busy),
        (OnBusy::Interrupt, Some(_)) => interrupt(decision, None),
        (OnBusy::Queue | OnBusy::Reject | OnBusy::Interrupt | OnBusy::Steer, _) => {}
    }
    decision.entry(EntryBody::PromptAccepted {
        prompt_id: prompt.id,
        round_id: prompt.round_id,
        client_key: prompt.client_key.clone(),
        message: prompt.message.clone(),
        output_schema: prompt.output_schema.clone(),
        deadline_at: prompt.deadline_at,
        parameters: prompt.parameters.clone(),
        client_tools: prompt.client_tools.clone(),
    });
    decision.effect(Effect::Acknowledge {
        waiter,
        receipt: Receipt {
            round_id: prompt.round_id,
            replayed: false,
        },
    });
    if busy {
        decision.effect(Effect::Queued {
            round_id: prompt.round_id,
            position: durable.inbox.len() + 1,
        });
    }
}

/// Whether the history ends with what a model answers: a message of a user, or results of tools.
fn awaits_an_answer(durable: &Durable) -> bool {
    let last = durable.history.messages().last();
    last.is_some_and(|last| last.role() == Role::User)
}

fn interrupt(decision: &mut DecisionBuilder<'_>, failure: Option<Failure>) {
    if let Some(round) = &decision.durable.round
        && decision.volatile.cancelling.is_none()
    {
        decision.effect(Effect::CancelRound {
            round_id: round.id,
            failure,
            grace_over: false,
        });
    }
}

fn inject(
    decision: &mut DecisionBuilder<'_>,
    id: Option<&String>,
    message: &Message,
    waiter: WaiterId,
) {
    if !is_plain_user(message) {
        return decision.refuse(waiter, Refusal::InvalidMessage);
    }
    let known = id.is_some_and(|id| decision.durable.knows_injected(id));
    if !known {
        if let Err(refusal) = fits(decision.durable, message) {
            return decision.refuse(waiter, refusal);
        }
        decision.entry(EntryBody::Injected {
            id: id.cloned(),
            client_key: None,
            message: message.clone(),
        });
    }
    decision.effect(Effect::Answer { waiter });
}

pub(in crate::conversation) fn when_idle(
    decision: &mut DecisionBuilder<'_>,
    waiter: WaiterId,
    body: EntryBody,
) {
    if decision.durable.round.is_some() || !decision.durable.inbox.is_empty() {
        return decision.refuse(waiter, Refusal::RoundOpen);
    }
    decision.entry(body);
    decision.effect(Effect::Answer { waiter });
}

fn model_ended(
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
        ModelOutcome::Completed { blocks, completion } => {
            let cancelled = decision.volatile.cancelling.is_some();
            let keep_calls = !cancelled && runs_tools(completion.stop);
            decision.entry(EntryBody::Assistant {
                step,
                message: assistant_message(blocks, keep_calls, true),
                stop: completion.stop,
                raw_stop: completion.raw_stop.clone(),
                usage: completion.usage.unwrap_or_default(),
                failed_usage: bill.failed,
                cost_micro_usd: bill.cost_micro_usd,
                partial: cancelled,
            });
            budget::settle(decision, &bill);
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

/// Keeps what a call that failed or was canceled used, and its partial answer without the blocks
/// that are not valid alone: tool calls, unsigned thinking.
fn keep_partial(
    decision: &mut DecisionBuilder<'_>,
    step: u32,
    partial: &[ContentBlock],
    bill: &Bill,
) {
    let message = assistant_message(partial, false, false);
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
            ContentBlock::Other { .. } => complete,
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

/// A provider's error in the form that watchers see.
pub(in crate::conversation) fn failure(error: &ProviderError) -> Failure {
    let retry_after_ms = error
        .retry_after()
        .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    Failure {
        code: error.code().to_owned(),
        message: error.to_string(),
        retry_after_ms,
    }
}

/// The verdict that the journal records for a person's decision.
pub(in crate::conversation) fn verdict(allow: bool) -> ApprovalVerdict {
    if allow {
        ApprovalVerdict::Allowed
    } else {
        ApprovalVerdict::Denied
    }
}

/// The call with the input that the tool gets: `input`, or the model's own if it is `None`.
pub(in crate::conversation) fn with_input(
    tool_use: &ToolUseBlock,
    input: Option<&RawJson>,
) -> ToolUseBlock {
    ToolUseBlock {
        input: input.unwrap_or(&tool_use.input).clone(),
        ..tool_use.clone()
    }
}
