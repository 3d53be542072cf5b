//! Decides what a conversation does next and when a round is over, without clock, randomness or
//! I/O. The shell in `run/` appends the entries and performs the effects.
//!
//! Pure.
//!
//! [`decide`] answers one input, and [`advance`] derives what follows from the state alone.
//! [`apply_input`] combines both; the shell, the replay and the tests call it.

mod admission;
mod approval;
pub(in crate::conversation) mod budget;
mod client_tools;
pub mod context;
pub(in crate::conversation) mod decision;
pub(in crate::conversation) mod input;
mod model;
pub(in crate::conversation) mod output;
mod prompt;
pub(in crate::conversation) mod rounds;
pub mod rules;
pub(in crate::conversation) mod skills;
pub(in crate::conversation) mod tools;
pub mod volatile;

pub(in crate::conversation) use self::model::KEPT_ANSWER_BYTES;
pub(crate) use self::{
    decision::{Receipt, StartTool},
    input::{ModelOutcome, NewPrompt},
};
pub use crate::conversation::round::{
    decision::{Decision, Effect, Refusal, When},
    input::{FailedAttempt, Input, OnBusy},
};
use crate::{
    chat::{ProviderStop, RawJson, ToolUseBlock},
    conversation::{
        command::Command,
        round::{
            rules::Recovery,
            volatile::{Cancelling, Volatile},
        },
    },
    ids::{Seq, WaiterId, WorkId},
    journal::{AcceptedPrompt, ApplyError, Durable, Entry, EntryBody, OpenRound, Phase},
    limits::{LOOP_REFUSALS_MAX, MODEL_CRASHES_MAX, ROUND_CRASHES_MAX},
    ports::ProviderError,
    stream::{Failure, StopReason},
    tenant::MemoryLeft,
    time::Timestamp,
};

/// The failure code of a round that ended because the tenant's storage quota is used up.
pub(crate) const STORE_FULL_CODE: &str = "stored_bytes";

/// Code of the failure of a round for which the host has no memory, and when to try again: other
/// rounds end within seconds.
const MEMORY_FULL_CODE: &str = "overloaded";
const MEMORY_FULL_RETRY_MS: u64 = 5000;

/// The failure code of a round that was ended because its tools ran in too many crashes, or its
/// model call did.
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

/// Decides one input without side effects. `made` is an empty buffer, passed in so that its
/// allocation is reused.
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
        Input::Prompt(prompt) => prompt::take_prompt(&mut decision, prompt),
        Input::Command { command, waiter } => take_command(&mut decision, command, *waiter),
        Input::Model {
            work,
            outcome,
            model,
            failed,
        } => model::model_ended(&mut decision, *work, outcome, model, failed),
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
            again,
        } => tools::tool_ended(&mut decision, *work, result, *duration_ms, *again),
        Input::RetryDue { batch, call } => tools::retry(&mut decision, *batch, *call),
        Input::Tick => {
            approval::expire_approvals(&mut decision);
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
            round_id,
            tool_call_id,
            answer,
        } => approval::approval(decision, *round_id, tool_call_id, answer, waiter),
        Command::ToolResults { results } => client_tools::results(decision, results, waiter),
        Command::Inject { id, message } => prompt::inject(decision, id.as_ref(), message, waiter),
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
        (Phase::Ready, None) if volatile.memory_left == MemoryLeft::Exceeded => {
            decision.finish(round, StopReason::Error, Some(memory_full()))
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

/// The failure of a round whose host has no memory for another answer: the answers of many rounds
/// would otherwise take what their prompts could not.
fn memory_full() -> Failure {
    Failure {
        code: MEMORY_FULL_CODE.to_owned(),
        message: "the host has no memory for a longer history now; try again later".to_owned(),
        retry_after_ms: Some(MEMORY_FULL_RETRY_MS),
    }
}

/// The failure of a round whose tools ran in too many crashes, or its model call. One of them may
/// take the whole process down, so no further activation tries it.
fn crashed_repeatedly(round: &OpenRound) -> Failure {
    Failure {
        code: CRASHED_CODE.to_owned(),
        message: match round.phase {
            Phase::Model { .. } => format!(
                "the host crashed {MODEL_CRASHES_MAX} times during this model call, \
                 which is not made again"
            ),
            _ => format!(
                "this round's tools ran in {ROUND_CRASHES_MAX} crashes of the host, \
                 and are not tried again"
            ),
        },
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

fn recover(decision: &mut DecisionBuilder<'_>, recovery: Recovery) {
    let Some(round) = &decision.durable.round else {
        return;
    };
    let round_id = round.id;
    // The round may have taken the process down, unless the activation before this one ended in
    // order.
    let crashed = !decision.volatile.in_order;
    if recovery == Recovery::Resume && crashed && round.is_at_its_last_crash() {
        return decision.effect(Effect::CancelRound {
            round_id,
            failure: Some(crashed_repeatedly(round)),
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
