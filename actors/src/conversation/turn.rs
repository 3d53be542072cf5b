//! Decides what a conversation does next, and when a turn is over. Pure: no clock, no chance, no I/O; the shell in `mod.rs`
//! appends the entries and performs the acts (DESIGN §4.1).
//!
//! [`decide`] answers one input; [`advance`] says what follows from the state alone; [`step`] joins both and is what shell,
//! replay and tests call.

pub use super::{
    act::{Act, Gate, Receipt, Refusal, StartTool, Step},
    input::{Input, ModelOutcome, NewPrompt, OnBusy},
};
use super::{
    batch, budget, context, output, rounds, skills,
    volatile::{Cancelling, Recovery, Volatile},
};
use crate::{
    chat::{ContentBlock, Message, ProviderStop, RawJson, Role, ToolUseBlock, Usage},
    ids::{Seq, WaiterId, WorkId},
    journal::{AcceptedPrompt, ApplyError, ApprovalVerdict, Durable, Entry, EntryBody, OpenRound, Phase, WithdrawReason},
    limits::LOOP_REFUSALS_MAX,
    ports::ProviderError,
    stream::{Failure, StopReason},
    time::Timestamp,
};

/// The code of a failure that a tenant's quota of stored bytes caused.
pub const STORE_FULL_CODE: &str = "stored_bytes";

/// Builds a step; knows the seq that the next entry will have.
pub(super) struct Steps<'a> {
    pub(super) durable: &'a Durable,
    pub(super) volatile: &'a Volatile,
    pub(super) now: Timestamp,
    pub(super) step: Step,
}

impl<'a> Steps<'a> {
    fn new(durable: &'a Durable, volatile: &'a Volatile, now: Timestamp, step: Step) -> Self {
        Self { durable, volatile, now, step }
    }

    /// Adds an entry and names the work it orders. A life's first entry is `LifeStarted`.
    pub(super) fn entry(&mut self, body: EntryBody) -> WorkId {
        if self.step.entries.is_empty() && self.durable.epoch != self.volatile.life {
            self.step.entries.push(EntryBody::LifeStarted { nonce: self.volatile.nonce });
        }
        self.step.entries.push(body);
        let seq = Seq(self.durable.head.0 + self.step.entries.len() as u64);
        WorkId { epoch: self.volatile.life, seq, index: 0 }
    }

    pub(super) fn act(&mut self, act: Act) {
        self.step.acts.push(act);
    }

    pub(super) fn refuse(&mut self, waiter: WaiterId, refusal: Refusal) {
        self.act(Act::Refuse { waiter, refusal });
    }

    pub(super) fn finish(&mut self, round: &OpenRound, stop_reason: StopReason, error: Option<Failure>) {
        let latency_ms = self.now.ms_since(round.started_at);
        budget::settle_in_full(self);
        self.entry(EntryBody::RoundFinished { stop_reason, latency_ms, error });
        self.act(Act::RoundOver { round_id: round.id });
    }
}

/// What was appended and what is to be done, after [`step`] brought both halves up to date.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// The entries, applied to the state already, each with the state's events told by the shell before it was applied.
    pub entries: Vec<Entry>,
    /// The acts in order; those with [`Gate::Stored`] wait for all of `entries`.
    pub acts: Vec<Act>,
}

/// Takes one input to its end: decides, applies, and goes on while the state asks for more.
///
/// `before_apply` sees each entry with the state before it, to tell its events.
///
/// # Errors
/// [`ApplyError`] when a decision does not fit the state: a bug; the life is to end.
pub fn step(
    durable: &mut Durable,
    volatile: &mut Volatile,
    now: Timestamp,
    input: Input,
    mut before_apply: impl FnMut(&Durable, &Entry),
) -> Result<Outcome, ApplyError> {
    let mut outcome = Outcome::default();
    let mut next = decide(durable, volatile, now, &input, Step::default());
    volatile.note(&input);
    let mut first = true;
    loop {
        let changes_nothing = next.entries.is_empty() && !first; // Acts alone do not change what follows from the state.
        first = false;
        for body in next.entries.drain(..) {
            let entry = Entry { seq: durable.head.next(), epoch: volatile.life, at: now, body };
            before_apply(durable, &entry);
            durable.apply(&entry)?;
            outcome.entries.push(entry);
        }
        for act in &next.acts {
            volatile.absorb(act);
        }
        outcome.acts.append(&mut next.acts);
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

/// Answers one input. Changes nothing; adds to `step`, which is empty and lends its room.
pub fn decide(durable: &Durable, volatile: &Volatile, now: Timestamp, input: &Input, step: Step) -> Step {
    let mut steps = Steps::new(durable, volatile, now, step);
    match input {
        Input::Recovered { recovery } => recover(&mut steps, *recovery),
        Input::Prompt(prompt) => take_prompt(&mut steps, prompt),
        Input::Model { work, outcome, model } => model_ended(&mut steps, *work, outcome, model),
        Input::Budget { work, answer } => budget::answered(&mut steps, *work, answer),
        Input::Tool { work, result, duration_ms } => batch::tool_ended(&mut steps, *work, result, *duration_ms),
        Input::RetryDue { batch, call } => batch::retry(&mut steps, *batch, *call),
        Input::Approval { tool_call_id, allow, always, waiter } => batch::approval(&mut steps, tool_call_id, *allow, *always, *waiter),
        Input::Tick => batch::expire_approvals(&mut steps),
        Input::Interrupt { failure, waiter } => {
            interrupt(&mut steps, failure.clone());
            match (waiter, &durable.round) {
                (Some(waiter), Some(_)) => steps.act(Act::Answer { waiter: *waiter }),
                (Some(waiter), None) => steps.refuse(*waiter, Refusal::NoSuch("open round")),
                (None, _) => {}
            }
        }
        Input::Inject { id, message, waiter } => inject(&mut steps, id.as_ref(), message, *waiter),
        Input::Withdraw { prompt_id, reason, waiter } => {
            let waits = durable.inbox.iter().any(|prompt| prompt.id == *prompt_id);
            if waits {
                steps.entry(EntryBody::PromptWithdrawn { prompt_id: *prompt_id, reason: *reason });
            }
            match waiter {
                Some(waiter) if waits => steps.act(Act::Answer { waiter: *waiter }),
                Some(waiter) => steps.refuse(*waiter, Refusal::NoSuch("waiting prompt")),
                None => {}
            }
        }
        Input::Context { work, outcome } => context::measured(&mut steps, *work, outcome),
        Input::Compact { waiter } => context::asked(&mut steps, *waiter),
        Input::Pin { line, waiter } => context::pin(&mut steps, line, *waiter),
        Input::Import { messages, rounds, waiter } => rounds::import(&mut steps, messages, rounds, *waiter),
        Input::Rewind { round_id, waiter } => rounds::rewind(&mut steps, *round_id, *waiter),
        Input::Fork { copied, waiter } => rounds::fork(&mut steps, copied, *waiter),
        Input::Reset { waiter } => when_idle(&mut steps, *waiter, EntryBody::Reset {}),
        Input::ActivateSkill { loaded, waiter } => skills::activate(&mut steps, loaded, *waiter),
        Input::DeactivateSkill { name, waiter } => skills::deactivate(&mut steps, name, *waiter),
        Input::GraceOver { .. } | Input::Drain => {}
    }
    steps.step
}

/// What follows from the state alone. Changes nothing; adds to `step`, which is empty, and stays so when the conversation waits.
pub fn advance(durable: &Durable, volatile: &Volatile, now: Timestamp, step: Step) -> Step {
    let mut steps = Steps::new(durable, volatile, now, step);
    if !volatile.recovered {
        return steps.step;
    }
    let Some(round) = &durable.round else {
        if let Some(AcceptedPrompt { id, round_id, .. }) = durable.inbox.front().filter(|_| !volatile.draining) {
            context::refocus(&mut steps);
            skills::offer(&mut steps);
            budget::remind(&mut steps);
            steps.entry(EntryBody::RoundStarted { round_id: *round_id, prompt_ids: vec![*id] });
        }
        return steps.step;
    };
    match (&round.phase, &volatile.cancelling) {
        (Phase::Ready | Phase::Ended { .. }, Some(cancelling)) => interrupted(&mut steps, round, cancelling),
        (Phase::Ready, None) if volatile.reserving.is_some() => {} // The answer is on its way.
        (Phase::Ready, None) if round.repeats.refusals >= LOOP_REFUSALS_MAX => steps.finish(round, StopReason::LoopGuard, None), // F22
        (Phase::Ready, None) if volatile.is_store_full => steps.finish(round, StopReason::Error, Some(store_full())),
        (Phase::Ready, None) if round.steps >= volatile.rules.tool_iterations_max => {
            steps.finish(round, StopReason::IterationLimit, None);
        }
        (Phase::Ready, None) => match context::before_call(durable, volatile) {
            context::Before::Call => budget::call_model(&mut steps, round, round.steps + 1),
            context::Before::Measure => context::measure(&mut steps, None),
            context::Before::Wait => {}
        },
        (Phase::Ended { stop }, None) if output::refused(&mut steps, round, stop_reason(*stop)) => {}
        (Phase::Ended { stop }, None) => steps.finish(round, stop_reason(*stop), None),
        (Phase::Model { .. }, Some(cancelling)) if cancelling.grace_over || volatile.reserving.is_some() => {
            if let Some(work) = volatile.model_work() {
                steps.act(Act::Abort { work });
            }
            interrupted(&mut steps, round, cancelling);
        }
        (Phase::Model { .. }, _) => {}
        (Phase::Batch(open), Some(cancelling)) => batch::cancel(&mut steps, open, cancelling),
        (Phase::Batch(open), None) => batch::advance(&mut steps, round, open),
    }
    steps.step
}

/// The failure of a round whose tenant has as many bytes stored as it may have. Nothing more is asked of a model for it.
fn store_full() -> Failure {
    let message = "the stored bytes of this tenant are used up; a deletion makes room".to_owned();
    Failure { code: STORE_FULL_CODE.to_owned(), message, retry_after_ms: None }
}

fn interrupted(steps: &mut Steps<'_>, round: &OpenRound, cancelling: &Cancelling) {
    let budget = cancelling.failure.as_ref().is_some_and(|failure| failure.code == budget::BUDGET_CODE);
    let stop_reason = if budget { StopReason::Budget } else { StopReason::Interrupted };
    steps.finish(round, stop_reason, cancelling.failure.clone());
}

/// Why a round ends that the model ended.
fn stop_reason(stop: ProviderStop) -> StopReason {
    match stop {
        ProviderStop::EndTurn | ProviderStop::ToolUse | ProviderStop::PauseTurn | ProviderStop::Other => StopReason::EndTurn,
        ProviderStop::MaxTokens => StopReason::MaxTokens,
        ProviderStop::StopSequence => StopReason::StopSequence,
        ProviderStop::Refusal => StopReason::Refusal,
        ProviderStop::ContextWindowExceeded => StopReason::ContextTooLarge,
    }
}

/// Whether tools may run after this stop (R-06 as ruled).
fn runs_tools(stop: ProviderStop) -> bool {
    match stop {
        ProviderStop::EndTurn | ProviderStop::ToolUse | ProviderStop::StopSequence | ProviderStop::PauseTurn | ProviderStop::Other => true,
        ProviderStop::MaxTokens | ProviderStop::Refusal | ProviderStop::ContextWindowExceeded => false,
    }
}

fn recover(steps: &mut Steps<'_>, recovery: Recovery) {
    let Some(round) = &steps.durable.round else { return };
    let round_id = round.id;
    match (recovery, &round.phase) {
        (Recovery::Close, _) => steps.act(Act::CancelRound { round_id, failure: None, grace_over: true }),
        (Recovery::Resume, Phase::Model { .. }) => budget::call_model(steps, round, round.steps),
        (Recovery::Resume, Phase::Batch(open)) => batch::recover(steps, open),
        (Recovery::Resume, Phase::Ready | Phase::Ended { .. }) => {}
    }
}

fn take_prompt(steps: &mut Steps<'_>, prompt: &NewPrompt) {
    let (durable, waiter) = (steps.durable, prompt.waiter);
    if !is_plain_user(&prompt.message) {
        return steps.refuse(waiter, Refusal::InvalidMessage);
    }
    if let Some(key) = &prompt.client_key
        && let Some((known, round_id)) = durable.known_key(&key.key)
    {
        return if known.digest == key.digest {
            steps.act(Act::Acknowledge { waiter, receipt: Receipt { round_id, replayed: true } });
        } else {
            steps.refuse(waiter, Refusal::KeyReused);
        };
    }
    if steps.volatile.draining {
        return steps.refuse(waiter, Refusal::Draining);
    }
    let busy = durable.round.is_some() || !durable.inbox.is_empty();
    let full = durable.inbox.len() >= steps.volatile.rules.inbox_prompts_max;
    match (prompt.on_busy, &durable.round) {
        (OnBusy::Steer, Some(round)) if steps.volatile.cancelling.is_none() && prompt.output_schema.is_none() => {
            steps.entry(EntryBody::Injected { id: None, client_key: prompt.client_key.clone(), message: prompt.message.clone() });
            return steps.act(Act::Acknowledge { waiter, receipt: Receipt { round_id: round.id, replayed: false } });
        }
        _ if full => return steps.refuse(waiter, Refusal::InboxFull),
        (OnBusy::Reject, _) if busy => return steps.refuse(waiter, Refusal::Busy),
        (OnBusy::Interrupt, Some(_)) => interrupt(steps, None),
        (OnBusy::Queue | OnBusy::Reject | OnBusy::Interrupt | OnBusy::Steer, _) => {}
    }
    steps.entry(EntryBody::PromptAccepted {
        prompt_id: prompt.id,
        round_id: prompt.round_id,
        client_key: prompt.client_key.clone(),
        message: prompt.message.clone(),
        output_schema: prompt.output_schema.clone(),
    });
    steps.act(Act::Acknowledge { waiter, receipt: Receipt { round_id: prompt.round_id, replayed: false } });
    if busy {
        steps.act(Act::Queued { round_id: prompt.round_id, position: durable.inbox.len() + 1 });
    }
}

fn interrupt(steps: &mut Steps<'_>, failure: Option<Failure>) {
    if let Some(round) = &steps.durable.round
        && steps.volatile.cancelling.is_none()
    {
        steps.act(Act::CancelRound { round_id: round.id, failure, grace_over: false });
    }
}

fn inject(steps: &mut Steps<'_>, id: Option<&String>, message: &Message, waiter: WaiterId) {
    if !is_plain_user(message) {
        return steps.refuse(waiter, Refusal::InvalidMessage);
    }
    let known = id.is_some_and(|id| steps.durable.knows_injected(id));
    if !known {
        steps.entry(EntryBody::Injected { id: id.cloned(), client_key: None, message: message.clone() });
    }
    steps.act(Act::Answer { waiter });
}

/// Whether a message may enter from outside. Another one would be refused by the history only after it is journaled, and by each
/// life that follows.
fn is_plain_user(message: &Message) -> bool {
    message.role() == Role::User && message.tool_result_ids().is_empty()
}

pub(super) fn when_idle(steps: &mut Steps<'_>, waiter: WaiterId, body: EntryBody) {
    if steps.durable.round.is_some() || !steps.durable.inbox.is_empty() {
        return steps.refuse(waiter, Refusal::RoundOpen);
    }
    steps.entry(body);
    steps.act(Act::Answer { waiter });
}

fn model_ended(steps: &mut Steps<'_>, work: WorkId, outcome: &ModelOutcome, model: &str) {
    let Some(round) = &steps.durable.round else { return };
    if !steps.volatile.work.contains_key(&work) || round.phase != (Phase::Model { seq: work.seq }) {
        return;
    }
    let step = round.steps;
    let cost_micro_usd = budget::cost(steps, outcome, model);
    if !matches!(outcome, ModelOutcome::Completed { .. }) {
        budget::settle(steps, outcome, model);
    }
    match outcome {
        ModelOutcome::Completed { blocks, completion } => {
            let cancelled = steps.volatile.cancelling.is_some();
            let keep_calls = !cancelled && runs_tools(completion.stop);
            steps.entry(EntryBody::Assistant {
                step,
                message: assistant_message(blocks, keep_calls, true),
                stop: completion.stop,
                raw_stop: completion.raw_stop.clone(),
                usage: completion.usage.unwrap_or_default(),
                cost_micro_usd,
                partial: cancelled,
            });
            budget::settle(steps, outcome, model);
        }
        ModelOutcome::Failed { error: ProviderError::Auth { message }, .. } if round.steps <= 1 => {
            // R-14 as ruled: nothing was said yet, so the prompt leaves history; its text stays in the journal.
            for prompt_id in &round.prompts {
                steps.entry(EntryBody::PromptWithdrawn { prompt_id: *prompt_id, reason: WithdrawReason::ProviderAuth });
            }
            let failure = failure(&ProviderError::Auth { message: message.clone() });
            steps.finish(round, StopReason::Error, Some(failure));
        }
        ModelOutcome::Failed { error, partial } => {
            keep_partial(steps, step, partial);
            match &steps.volatile.cancelling {
                Some(cancelling) => interrupted(steps, round, cancelling),
                None => steps.finish(round, StopReason::Error, Some(failure(error))),
            }
        }
        ModelOutcome::Cancelled { partial } => {
            keep_partial(steps, step, partial);
            match &steps.volatile.cancelling {
                Some(cancelling) => interrupted(steps, round, cancelling),
                None => steps.finish(round, StopReason::Error, Some(failure(&ProviderError::Cancelled))),
            }
        }
    }
}

/// Keeps what came before a cut, without what cannot stand alone (DESIGN §4.2, R-15).
fn keep_partial(steps: &mut Steps<'_>, step: u32, partial: &[ContentBlock]) {
    if let Some(message) = assistant_message(partial, false, false) {
        steps.entry(EntryBody::Assistant {
            step,
            message: Some(message),
            stop: ProviderStop::Other,
            raw_stop: None,
            usage: Usage::default(),
            cost_micro_usd: None,
            partial: true,
        });
    }
}

/// The part of a reply that can enter history: no empty text, no repeated call id, no arguments that are no object, no thinking at the
/// end; calls and bare thinking only on request.
fn assistant_message(blocks: &[ContentBlock], keep_calls: bool, complete: bool) -> Option<Message> {
    let mut ids: Vec<&str> = Vec::new();
    let mut kept: Vec<ContentBlock> = Vec::with_capacity(blocks.len());
    for block in blocks {
        let keep = match block {
            ContentBlock::Text(text) => !text.text.trim().is_empty(),
            ContentBlock::Thinking(thinking) => complete || thinking.signature.is_some(),
            ContentBlock::ToolUse(call) => {
                let fits = keep_calls && call.input.is_object() && !ids.contains(&call.id.as_str());
                ids.extend(fits.then_some(call.id.as_str()));
                fits
            }
            ContentBlock::ToolResult(_) => false,
            ContentBlock::Other { .. } => complete,
        };
        if keep {
            kept.push(block.clone());
        }
    }
    // Thinking alone is no answer, and providers refuse a message that ends in it, as it does when its calls are dropped.
    while kept.last().is_some_and(|block| matches!(block.kind(), "thinking" | "redacted_thinking")) {
        kept.pop();
    }
    Message::new(Role::Assistant, &kept).ok()
}

/// A provider's error as watchers read it.
pub(super) fn failure(error: &ProviderError) -> Failure {
    let retry_after_ms = error.retry_after().map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    Failure { code: error.code().to_owned(), message: error.to_string(), retry_after_ms }
}

/// What a person reads of a verdict.
pub(super) fn verdict(allow: bool) -> ApprovalVerdict {
    if allow { ApprovalVerdict::Allowed } else { ApprovalVerdict::Denied }
}

/// The input that a call will really get.
pub(super) fn with_input(tool_use: &ToolUseBlock, input: Option<&RawJson>) -> ToolUseBlock {
    ToolUseBlock { input: input.unwrap_or(&tool_use.input).clone(), ..tool_use.clone() }
}
