//! The laws of every step. They state the requirements independently of the code under test, so
//! that a mutation of the round's decisions breaks one of them.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::{
    budget_laws::is_reminder,
    call_laws::{answers, asks, calls, is_plain_user, must_wait},
    cast, client_laws,
    entry_laws::{after_entry, expected_blocks},
    rounds::{after_rounds, fits, marks_hold},
    skill_laws,
};
use crate::{
    chat::{History, Message, ProviderStop, Role},
    conversation::{
        Command, Consent,
        round::{
            Effect, Input, ModelOutcome, OnBusy, Outcome, Receipt, When,
            input::ContextOutcome,
            rules::{ApprovalMode, Recovery},
            volatile::{Cancelling, Volatile, Work},
        },
    },
    ids::{RoundId, Seq, WaiterId, WorkId},
    journal::{
        ApprovalVerdict, Batch, Call, CallState, Durable, Entry, EntryBody, OpenRound, Phase,
        StoredEntry, WithdrawReason,
    },
    limits::{APPROVAL_MS, LOOP_REFUSALS_MAX, MODEL_CRASHES_MAX, ROUND_CRASHES_MAX},
    ports::ProviderError,
    stream::StopReason,
    time::Timestamp,
    tool::EffectClass,
    tool_executor::{Again, RunResult},
};

/// One step with the state before and after it.
pub(super) struct Law<'a> {
    pub(super) before: &'a Volatile,
    pub(super) after: &'a Volatile,
    pub(super) input: &'a Input,
    pub(super) outcome: &'a Outcome,
    pub(super) now: Timestamp,
    /// The calls whose last attempt reported that it did not start.
    pub(super) not_started: &'a BTreeSet<(Seq, u32)>,
    /// The wire forms of answers that the provider paused: the only assistant messages that may end
    /// a request.
    pub(super) paused: &'a mut BTreeSet<Bytes>,
}

impl Law<'_> {
    /// Checks a step against the laws and applies its entries to `shadow`, a fold of decoded
    /// entries. Returns the encoded entries.
    pub(super) fn check(mut self, shadow: &mut Durable, live: &Durable) -> Vec<StoredEntry> {
        self.reply(shadow);
        self.effects(shadow);
        let mut stored = Vec::with_capacity(self.outcome.entries.len());
        let mut denied = None;
        for (place, entry) in self.outcome.entries.iter().enumerate() {
            let encoded = entry.encode();
            let decoded = Entry::decode(&encoded).expect("an entry is readable");
            assert_eq!(&decoded, entry, "an entry survives its encoding");
            let finishes = |index| matches!(&decoded.body, EntryBody::ToolFinished { call, .. } if *call == index);
            if is_reminder(&decoded.body) {
                self.reminded(shadow, &decoded, self.outcome.entries.get(place + 1));
                shadow.apply(&decoded).expect("an entry can follow");
                stored.push(encoded);
                continue;
            }
            assert!(denied.is_none_or(finishes), "a no is the end of a call");
            self.entry(shadow, &decoded, denied);
            denied = match &decoded.body {
                EntryBody::ApprovalAnswered {
                    call,
                    verdict: ApprovalVerdict::Denied | ApprovalVerdict::Expired,
                    ..
                } => Some(*call),
                _ => None,
            };
            let before = (shadow.in_doubt.clone(), shadow.round.clone());
            let kept = (shadow.history.clone(), shadow.rounds.clone());
            shadow.apply(&decoded).expect("an entry can follow");
            after_entry(shadow, &before.0, before.1.as_deref(), &decoded);
            after_rounds(shadow, &kept.0, &kept.1, &decoded);
            stored.push(encoded);
        }
        assert_eq!(denied, None, "a no is the end of a call");
        assert_eq!(shadow, live, "the fold of the journal is the live state");
        assert_eq!(
            live.history.messages().first_fault(),
            None,
            "the history is valid"
        );
        marks_hold(live);
        self.rest(live);
        stored
    }

    pub(super) fn cancelling(&self, round: RoundId) -> Option<Cancelling> {
        let ordered = self.outcome.effects.iter().find_map(|effect| match effect {
            Effect::CancelRound {
                round_id,
                failure,
                grace_over,
            } if *round_id == round => Some(Cancelling {
                round_id: round,
                grace_over: *grace_over,
                failure: failure.clone(),
            }),
            _ => None,
        });
        let over = matches!(self.input, Input::GraceOver { round_id } if *round_id == round);
        let before = self
            .before
            .cancelling
            .clone()
            .filter(|cancelling| cancelling.round_id == round);
        before
            .map(|cancelling| Cancelling {
                grace_over: cancelling.grace_over || over,
                ..cancelling
            })
            .or(ordered)
    }

    fn count(&self, test: impl Fn(&EntryBody) -> bool) -> usize {
        self.outcome
            .entries
            .iter()
            .filter(|entry| test(&entry.body))
            .count()
    }

    /// The caller of this input gets exactly one answer, the right one; no other caller gets any.
    fn reply(&self, state: &Durable) {
        let replies: Vec<&Effect> = self
            .outcome
            .effects
            .iter()
            .filter(|effect| {
                matches!(
                    effect,
                    Effect::Acknowledge { .. } | Effect::Answer { .. } | Effect::Refuse { .. }
                )
            })
            .collect();
        let refused = |waiter: &WaiterId, code: &str| assert_refused(&replies, *waiter, code);
        let answered =
            |waiter: &WaiterId| assert_eq!(replies, [&Effect::Answer { waiter: *waiter }]);
        let idle = state.round.is_none() && state.inbox.is_empty();
        match self.input {
            Input::Prompt(prompt) => {
                let known = prompt.client_key.as_ref().and_then(|key| {
                    let known = state
                        .keys
                        .iter()
                        .rev()
                        .find(|known| known.key == key.key && known.round_id.is_some())?;
                    Some((known.round_id.unwrap(), known.digest == key.digest))
                });
                let acknowledged = |round_id: RoundId, replayed: bool| {
                    let receipt = Receipt { round_id, replayed };
                    assert_eq!(
                        replies,
                        [&Effect::Acknowledge {
                            waiter: prompt.waiter,
                            receipt
                        }]
                    );
                };
                let accepted = self.count(|body| matches!(body, EntryBody::PromptAccepted { .. }));
                let steers = prompt.on_busy == OnBusy::Steer
                    && prompt.output_schema.is_none()
                    && prompt.client_tools.is_none()
                    && state.round.is_some()
                    && self.before.cancelling.is_none();
                let mut takes = 0;
                match known {
                    _ if prompt
                        .message
                        .as_ref()
                        .is_some_and(|message| !is_plain_user(message)) =>
                    {
                        refused(&prompt.waiter, "invalid_message")
                    }
                    Some((round_id, true)) => acknowledged(round_id, true),
                    Some((_, false)) => refused(&prompt.waiter, "idempotency_key_reused"),
                    None if self.before.draining => refused(&prompt.waiter, "draining"),
                    None if prompt.message.is_none()
                        && !(idle && client_laws::ends_with_user(state)) =>
                    {
                        refused(&prompt.waiter, "nothing_to_answer")
                    }
                    None if steers => {
                        acknowledged(state.round.as_ref().unwrap().id, false);
                        let kept = |body: &EntryBody| matches!(body, EntryBody::Injected { client_key, .. } if *client_key == prompt.client_key);
                        assert_eq!(
                            self.count(kept),
                            1,
                            "the model reads a steering prompt, and its key is kept"
                        );
                    }
                    None if state.inbox.len() >= self.before.rules.inbox_prompts_max => {
                        refused(&prompt.waiter, "inbox_full")
                    }
                    None if prompt.on_busy == OnBusy::Reject && !idle => {
                        refused(&prompt.waiter, "conversation_busy")
                    }
                    None => {
                        acknowledged(prompt.round_id, false);
                        takes = 1;
                        let place = Effect::Queued {
                            round_id: prompt.round_id,
                            position: state.inbox.len() + 1,
                        };
                        assert_eq!(self.outcome.effects.contains(&place), !idle);
                        if let Some(round) = state
                            .round
                            .as_ref()
                            .filter(|_| prompt.on_busy == OnBusy::Interrupt)
                        {
                            assert!(
                                self.cancelling(round.id).is_some(),
                                "an interrupting prompt cancels"
                            );
                        }
                    }
                }
                assert_eq!(
                    accepted, takes,
                    "a prompt enters the inbox exactly when it is accepted"
                );
            }
            Input::Command { command, waiter } => {
                self.reply_to_command(state, command, *waiter, &replies)
            }
            Input::Withdraw { prompt_id, .. } => {
                let waits = state.inbox.iter().any(|prompt| prompt.id == *prompt_id);
                assert_eq!(
                    self.count(|body| matches!(body, EntryBody::PromptWithdrawn { .. })),
                    usize::from(waits)
                );
                assert!(replies.is_empty());
            }
            Input::Context { work, outcome } => match (self.before.work.get(work), outcome) {
                (
                    Some(Work::Context {
                        waiter: Some(waiter),
                    }),
                    ContextOutcome::Fits,
                ) => answered(waiter),
                (
                    Some(Work::Context {
                        waiter: Some(waiter),
                    }),
                    ContextOutcome::TooLarge { .. } | ContextOutcome::TooManyBytes { .. },
                ) => refused(waiter, "context_too_large"),
                (
                    Some(Work::Context {
                        waiter: Some(waiter),
                    }),
                    ContextOutcome::Compacted(_),
                ) => match self.count(|body| matches!(body, EntryBody::Compacted { .. })) {
                    0 => refused(waiter, "round_open"),
                    _ => answered(waiter),
                },
                (_, _) => assert!(replies.is_empty(), "no caller asked: {replies:?}"),
            },
            _ => assert!(replies.is_empty(), "no caller asked: {replies:?}"),
        }
        let interrupt = match self.input {
            Input::Command {
                command: Command::Interrupt,
                ..
            } => Some(&None),
            Input::Cancel { failure } => Some(failure),
            _ => None,
        };
        if let (Some(failure), Some(round)) = (interrupt, &state.round) {
            let cancelling = self.cancelling(round.id).expect("an interrupt cancels");
            assert!(
                self.before.cancelling.is_some()
                    || (cancelling.failure == *failure && !cancelling.grace_over)
            );
        }
    }

    /// The caller of a command gets exactly one answer, the right one.
    fn reply_to_command(
        &self,
        state: &Durable,
        command: &Command,
        waiter: WaiterId,
        replies: &[&Effect],
    ) {
        let refused = |code: &str| assert_refused(replies, waiter, code);
        let answered = || assert_eq!(replies, [&Effect::Answer { waiter }]);
        let idle = state.round.is_none() && state.inbox.is_empty();
        match command {
            Command::Approve {
                round_id,
                tool_call_id,
                answer,
            } => {
                let is_of_it = |asked| state.round.as_ref().is_some_and(|open| open.id == asked);
                let asked = calls(state)
                    .find(|(_, call)| call.tool_use.id == *tool_call_id)
                    .filter(|_| round_id.is_none_or(is_of_it));
                match asked.map(|(_, call)| &call.state) {
                    Some(CallState::Asked { .. }) => match answer {
                        Consent::Changed(input) if cast::is_bad(input) => {
                            refused("invalid_arguments")
                        }
                        _ => answered(),
                    },
                    _ => refused("not_found"),
                }
            }
            Command::ToolResults { results } => match client_laws::refusal(state, results) {
                Some(code) => refused(code),
                None => answered(),
            },
            Command::Interrupt if state.round.is_some() => answered(),
            Command::Interrupt => refused("not_found"),
            Command::Inject { message, .. } if !is_plain_user(message) => {
                refused("invalid_message")
            }
            Command::Inject { id, .. } => {
                answered();
                let known = id.as_ref().is_some_and(|id| {
                    state
                        .keys
                        .iter()
                        .any(|known| known.key == *id && known.round_id.is_none())
                });
                assert_eq!(
                    self.count(|body| matches!(body, EntryBody::Injected { .. })),
                    usize::from(!known),
                    "an id is taken once"
                );
            }
            Command::Compact { .. } if !idle => refused("round_open"),
            Command::Compact { .. }
                if self
                    .before
                    .work
                    .values()
                    .any(|work| matches!(work, Work::Context { .. })) =>
            {
                refused("conversation_busy")
            }
            Command::Compact { .. } => {
                assert!(
                    replies.is_empty(),
                    "a compaction is answered when it is over"
                );
                assert!(self.outcome.effects.iter().any(|effect| matches!(
                    effect,
                    Effect::MeasureContext {
                        waiter: Some(_),
                        ..
                    }
                )));
            }
            Command::Pin { line } => {
                let known = state.context.pinned.contains(line);
                let pinned = self.count(|body| matches!(body, EntryBody::Pinned { .. }));
                assert_eq!(pinned, usize::from(!known && !line.is_empty()));
                if line.is_empty() {
                    refused("pinned_full")
                } else {
                    answered()
                }
            }
            Command::ActivateSkill { loaded } if skill_laws::fits(state, self.before, loaded) => {
                answered()
            }
            Command::ActivateSkill { .. } => refused("skill_refused"),
            Command::DeactivateSkill { name } if state.skills.active.contains_key(name) => {
                answered()
            }
            Command::DeactivateSkill { .. } => refused("not_found"),
            Command::Import { messages, rounds }
                if !History::repair(messages.iter().cloned()).1.is_empty()
                    || !fits(rounds, messages) =>
            {
                refused("invalid_message")
            }
            Command::Rewind { round_id }
                if !state
                    .rounds
                    .as_slice()
                    .iter()
                    .any(|mark| mark.id == *round_id) =>
            {
                refused("not_found")
            }
            Command::Fork { .. } if !idle || !state.history.messages().is_empty() => {
                refused("conversation_exists")
            }
            Command::Fork { .. } => {
                answered();
                let kinds = |kind: &str| self.count(|body| body.kind() == kind);
                assert_eq!(
                    (kinds("forked"), kinds("imported")),
                    (1, 1),
                    "a fork says where it is from and what it took"
                );
            }
            Command::Import { .. } | Command::Rewind { .. } | Command::Reset if idle => answered(),
            Command::Import { .. } | Command::Rewind { .. } | Command::Reset => {
                refused("round_open")
            }
        }
    }

    /// Each piece of work is ordered by exactly one entry, and each effect fits its cause.
    fn effects(&self, state: &Durable) {
        let mut ordered: Vec<WorkId> = Vec::new();
        let mut ended: Vec<RoundId> = Vec::new();
        let own = self.own_result();
        let mut retries = 0;
        for effect in &self.outcome.effects {
            assert_eq!(
                effect.when() == When::Stored,
                must_wait(effect),
                "the table of waits: {effect:?}"
            );
            match effect {
                Effect::StartModel { work } => ordered.push(*work),
                Effect::MeasureContext { work, waiter, .. } => {
                    assert_eq!(
                        waiter.is_some(),
                        matches!(
                            self.input,
                            Input::Command {
                                command: Command::Compact { .. },
                                ..
                            }
                        )
                    );
                    assert!(work.epoch == self.before.epoch && self.after.work.contains_key(work));
                }
                Effect::CompactionDropped => assert!(matches!(
                    self.input,
                    Input::Context {
                        outcome: ContextOutcome::Compacted(_),
                        ..
                    }
                )),
                Effect::StartTool(start) => ordered.push(start.work),
                Effect::RoundOver { round_id } => ended.push(*round_id),
                Effect::ToolRetry {
                    batch,
                    call,
                    again: Again { attempt, delay, .. },
                    last_error,
                    ..
                } => {
                    retries += 1;
                    let (index, last, result, _) = own.expect("only a result is tried again");
                    assert!(
                        result.error_type().is_some() && !last_error.is_empty(),
                        "T-30"
                    );
                    assert_eq!(
                        (Some(*batch), *call, *attempt),
                        (state.batch().map(|batch| batch.seq), index, last + 1)
                    );
                    assert_eq!(delay.as_millis(), [1000, 1500][last as usize], "T-41");
                }
                Effect::Abort { work } => {
                    assert!(
                        self.before.work.contains_key(work) && !self.after.work.contains_key(work)
                    );
                    let round = state.round.as_ref().expect("a round is open").id;
                    assert!(
                        self.cancelling(round)
                            .is_some_and(|cancelling| cancelling.grace_over),
                        "nothing is aborted before the grace"
                    );
                }
                Effect::CancelRound {
                    round_id,
                    grace_over,
                    ..
                } => {
                    assert_eq!(Some(*round_id), state.round.as_ref().map(|round| round.id));
                    assert!(self.before.cancelling.is_none(), "a cancel happens once");
                    let closes = match self.input {
                        Input::Recovered { recovery } => {
                            let crashed = state.round.as_ref().is_some_and(|round| {
                                round.runs_a_tool() && round.crashes + 1 >= ROUND_CRASHES_MAX
                                    || matches!(round.phase, Phase::Model { .. })
                                        && round.model_crashes + 1 >= MODEL_CRASHES_MAX
                            });
                            *recovery == Recovery::Close || crashed && !self.before.in_order
                        }
                        _ => false,
                    };
                    let interrupts = match self.input {
                        Input::Cancel { .. }
                        | Input::Command {
                            command: Command::Interrupt,
                            ..
                        } => true,
                        Input::Prompt(prompt) => prompt.on_busy == OnBusy::Interrupt,
                        _ => false,
                    };
                    assert!(closes && *grace_over || interrupts && !grace_over);
                }
                Effect::Reserve { .. } => self.asked(effect),
                Effect::Queued { .. } => assert!(matches!(self.input, Input::Prompt(_))),
                Effect::Summarise { .. }
                | Effect::Acknowledge { .. }
                | Effect::Refuse { .. }
                | Effect::Answer { .. }
                | Effect::Park { .. } => {}
            }
        }
        let orders = self.outcome.entries.iter().filter(|entry| {
            matches!(
                entry.body,
                EntryBody::ModelCallStarted { .. } | EntryBody::ToolStarted { .. }
            )
        });
        let expected: Vec<WorkId> = orders
            .map(|entry| WorkId {
                epoch: entry.epoch,
                seq: entry.seq,
                index: 0,
            })
            .collect();
        let mut sorted = ordered.clone();
        let unsorted = ordered;
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "each order is carried out once");
        assert_eq!(unsorted, sorted, "in order");
        assert_eq!(
            ended.len(),
            self.count(|body| matches!(body, EntryBody::RoundFinished { .. }))
        );
        if let Some((_, attempt, result, effect)) = own {
            assert_eq!(
                retries,
                usize::from(self.is_tried_again(state, attempt, result, effect)),
                "effect class, then policy"
            );
        }
        if let Input::Model { work, outcome, .. } = self.input
            && self.before.work.contains_key(work)
        {
            let answers = self.count(|body| matches!(body, EntryBody::Assistant { .. }));
            match outcome {
                ModelOutcome::Completed { .. } => assert_eq!(answers, 1),
                ModelOutcome::FellBack { .. } => {
                    assert_eq!(answers, 0);
                    let falls = self.count(|body| matches!(body, EntryBody::FellBack { .. }));
                    let cancelled = state
                        .round
                        .as_ref()
                        .and_then(|round| self.cancelling(round.id));
                    assert_eq!(falls, usize::from(cancelled.is_none()));
                }
                ModelOutcome::Failed { partial, .. } | ModelOutcome::Cancelled { partial } => {
                    let auth = matches!(
                        outcome,
                        ModelOutcome::Failed {
                            error: ProviderError::Auth { .. },
                            ..
                        }
                    );
                    let withdrawn = auth
                        && state
                            .round
                            .as_ref()
                            .is_some_and(|round| round.model_calls == 1);
                    assert_eq!(
                        self.count(|body| matches!(body, EntryBody::PromptWithdrawn { .. })),
                        usize::from(withdrawn),
                        "R-14"
                    );
                    let kept = !withdrawn && expected_blocks(partial, false, false).is_some();
                    assert_eq!(
                        answers,
                        usize::from(kept),
                        "a partial answer is kept (R-15)"
                    );
                }
            }
        }
    }

    /// The attempt that this input ends: call, attempt, result, effect class.
    pub(super) fn own_result(&self) -> Option<(u32, u32, &RunResult, EffectClass)> {
        let Input::Tool { work, result, .. } = self.input else {
            return None;
        };
        match self.before.work.get(work)? {
            Work::Tool {
                call,
                attempt,
                spec,
                ..
            } => Some((*call, *attempt, result, spec.effect)),
            Work::Model | Work::Context { .. } => None,
        }
    }

    pub(super) fn is_tried_again(
        &self,
        state: &Durable,
        attempt: u32,
        result: &RunResult,
        effect: EffectClass,
    ) -> bool {
        let not_started = matches!(result, RunResult::Error(error) if error.not_started);
        let cancelled = state
            .round
            .as_ref()
            .is_some_and(|round| self.cancelling(round.id).is_some());
        (effect != EffectClass::Once || not_started)
            && !cancelled
            && attempt < cast::RETRIES_MAX
            && result.error_type().is_some_and(cast::retried)
    }

    fn entry(&mut self, state: &Durable, entry: &Entry, denied: Option<u32>) {
        let round = state.round.as_deref();
        let cancelling = round.and_then(|round| self.cancelling(round.id));
        assert_eq!(entry.epoch, self.before.epoch);
        assert_eq!(
            matches!(entry.body, EntryBody::LifeStarted { nonce, .. } if nonce == self.before.nonce),
            state.epoch != self.before.epoch,
            "an activation's first entry, and no other, is LifeStarted"
        );
        match &entry.body {
            EntryBody::LifeStarted { .. } => {}
            EntryBody::PromptAccepted { message, .. } => match message {
                Some(message) => assert!(is_plain_user(message)),
                None => assert!(client_laws::ends_with_user(state)),
            },
            EntryBody::PromptWithdrawn { prompt_id, reason } => match reason {
                WithdrawReason::ProviderAuth => {
                    let round = round.expect("a round is open");
                    assert!(
                        round.prompts.contains(prompt_id)
                            && round.model_calls == 1
                            && round.answers == 0,
                        "only at the first step (R-14)"
                    );
                    assert!(matches!(
                        self.input,
                        Input::Model {
                            outcome: ModelOutcome::Failed {
                                error: ProviderError::Auth { .. },
                                ..
                            },
                            ..
                        }
                    ));
                }
                WithdrawReason::Deadline | WithdrawReason::Caller => {
                    assert!(
                        state.inbox.iter().any(|prompt| prompt.id == *prompt_id),
                        "only what waits is taken back"
                    );
                }
            },
            EntryBody::RoundStarted {
                round_id,
                prompt_ids,
            } => {
                assert!(
                    round.is_none() && !self.before.draining && !matches!(self.input, Input::Drain),
                    "a drained activation starts no round"
                );
                let next = state.inbox.front().expect("a prompt waits");
                assert_eq!(
                    (round_id, prompt_ids),
                    (&next.round_id, &vec![next.id]),
                    "prompts are taken in order"
                );
            }
            EntryBody::OutputRefused { .. } => {
                let round = round.expect("a round is open");
                let output = round.output.as_ref().expect("a schema was asked for");
                assert!(
                    output.refused < 2 && !cast::fits(&round.text()) && cancelling.is_none(),
                    "asked again at most twice, for a reason"
                );
                let words =
                    matches!(round.phase, Phase::Ended { stop } if client_laws::is_an_answer(stop));
                assert!(words, "only an answer is judged");
            }
            EntryBody::RequestRefused { .. } | EntryBody::FellBack { .. } => {
                self.made_again(state, entry, cancelling.is_some())
            }
            EntryBody::BudgetSettled { .. } | EntryBody::SummaryBilled { .. } => {
                self.settled(state, entry)
            }
            EntryBody::ModelCallStarted {
                step,
                reserved,
                reserved_micro_usd,
            } => {
                self.call_ordered(state, *reserved, *reserved_micro_usd);
                assert_eq!(cancelling, None, "a cancelled round makes no call");
                let round = round.expect("a round is open");
                let again = matches!(round.phase, Phase::Model { .. });
                assert!(
                    !again
                        || matches!(
                            self.input,
                            Input::Recovered {
                                recovery: Recovery::Resume
                            } | Input::Budget { .. }
                        )
                );
                assert_eq!(
                    *step,
                    if again {
                        round.model_calls
                    } else {
                        round.model_calls + 1
                    }
                );
                assert!(*step <= self.before.rules.tool_iterations_max, "R-10");
                let last = state
                    .history
                    .messages()
                    .last()
                    .expect("a request is not empty");
                assert!(
                    last.role() == Role::User || self.paused.contains(last.wire()),
                    "a request ends with what a user said"
                );
                assert!(!last.blocks().is_empty());
                let rules = &self.before.rules.context;
                let refused = state.context.refused_bytes;
                let doubt = rules.is_in_doubt(&state.context.window)
                    || rules.bytes.exceeds(state.history.messages(), refused);
                let measured = self
                    .after
                    .measured
                    .is_some_and(|seq| seq.0 + 2 >= entry.seq.0);
                // The shell answers a reservation before any other input; this world may
                // interleave.
                let reserved = self.before.reserving.is_some();
                assert!(
                    again || !doubt || measured || reserved,
                    "no model is called with a context in doubt (R-04)"
                );
            }
            EntryBody::Assistant { .. } => self.assistant(state, entry, cancelling.is_some()),
            EntryBody::ToolStarted {
                call,
                attempt,
                effect,
                input,
                name,
                tool_call_id,
            } => {
                assert_eq!(cancelling, None, "a cancelled round starts no tool");
                let batch = state.batch().expect("a batch is open");
                let call_state = &batch.calls[*call as usize];
                assert_eq!(
                    (name, tool_call_id),
                    (&call_state.tool_use.name, &call_state.tool_use.id)
                );
                assert_eq!(*effect, cast::spec(name).expect("a known tool").effect);
                self.tool_started(state, batch, *call, *attempt, input.as_ref());
                self.start_act(entry, batch, *call, *attempt, input.as_ref());
            }
            EntryBody::ToolFinished {
                call,
                outcome,
                name,
                tool_call_id,
            } => {
                let batch = state.batch().expect("a batch is open");
                let found = &batch.calls[*call as usize];
                assert_eq!(
                    (name, tool_call_id),
                    (&found.tool_use.name, &found.tool_use.id)
                );
                self.tool_finished(
                    state,
                    *call,
                    found,
                    outcome,
                    cancelling.as_ref(),
                    denied == Some(*call),
                );
            }
            body @ EntryBody::ClientToolCalled { .. } => {
                self.client_call(state, body, cancelling.is_some());
            }
            EntryBody::ApprovalAsked {
                call,
                resolved_input,
                expires_at,
                ..
            } => {
                let call = &state.batch().expect("a batch is open").calls[*call as usize];
                let rules = &self.before.rules;
                assert_eq!(cancelling, None);
                assert!(
                    call.state == CallState::Waiting
                        && rules.approval == ApprovalMode::Ask
                        && rules.has_approver
                        && asks(state, call)
                );
                let real =
                    cast::hook(&call.tool_use.name).unwrap_or_else(|| call.tool_use.input.clone());
                assert_eq!(
                    (resolved_input, *expires_at),
                    (&real, self.now.plus_ms(APPROVAL_MS)),
                    "what is shown is what would run"
                );
            }
            EntryBody::ApprovalAnswered {
                call,
                verdict,
                always,
                changed,
                ..
            } => {
                let call = &state.batch().expect("a batch is open").calls[*call as usize];
                let CallState::Asked { expires_at, .. } = &call.state else {
                    panic!("no approval was asked")
                };
                let given = match self.input {
                    Input::Command {
                        command:
                            Command::Approve {
                                tool_call_id,
                                answer,
                                ..
                            },
                        ..
                    } if *tool_call_id == call.tool_use.id => Some(answer),
                    _ => None,
                };
                let is_over = matches!(self.input, Input::Tick) && *expires_at <= self.now;
                let fits = match given {
                    Some(given) => answers(call, given, *verdict, *always, changed.as_ref()),
                    None => *verdict == ApprovalVerdict::Expired && is_over,
                };
                assert!(fits, "{verdict:?} for {:?}", self.input);
            }
            EntryBody::Injected { message, .. } => assert!(is_plain_user(message)),
            body @ (EntryBody::SkillsOffered { .. }
            | EntryBody::SkillActivated { .. }
            | EntryBody::SkillDeactivated { .. }) => {
                self.skill_entry(state, body, cancelling.is_some());
            }
            EntryBody::RoundFinished {
                stop_reason,
                error,
                latency_ms,
            } => {
                let round = round.expect("a round is open");
                assert_eq!(*latency_ms, self.now.ms_since(round.started_at));
                let by_budget = *stop_reason == StopReason::Budget && cancelling.is_none();
                let (expected, code) = match by_budget {
                    true => (
                        StopReason::Budget,
                        self.refused(state).then(|| "budget".to_owned()),
                    ),
                    false => self.stop(round, cancelling.as_ref()),
                };
                assert_eq!(
                    (
                        *stop_reason,
                        error.as_ref().map(|error| error.code.as_str())
                    ),
                    (expected, code.as_deref())
                );
            }
            EntryBody::Compacted {
                before_tokens,
                after_tokens,
                ..
            } => {
                assert!(
                    round.is_none_or(|round| round.phase == Phase::Ready),
                    "only where no call is open"
                );
                let Input::Context {
                    work,
                    outcome: ContextOutcome::Compacted(draft),
                } = self.input
                else {
                    panic!("out of nothing")
                };
                assert!(
                    self.before.work.contains_key(work)
                        && state.history.messages().starts_with(&draft.before),
                    "only what was measured"
                );
                let plan = &draft.plans[0].0;
                assert_eq!(
                    (*before_tokens, *after_tokens),
                    (plan.before_tokens, plan.after_tokens)
                );
            }
            EntryBody::Emptied {} => panic!("no decision writes this"),
            EntryBody::Pinned { .. } => assert!(matches!(
                self.input,
                Input::Command {
                    command: Command::Pin { .. },
                    ..
                }
            )),
            EntryBody::Imported { .. }
            | EntryBody::Reset {}
            | EntryBody::Rewound { .. }
            | EntryBody::Forked { .. } => {
                assert!(round.is_none() && state.inbox.is_empty());
            }
        }
    }

    /// The stop reason and the error code that a round must end with now.
    fn stop(
        &self,
        round: &OpenRound,
        cancelling: Option<&Cancelling>,
    ) -> (StopReason, Option<String>) {
        if let Input::Model {
            outcome:
                ModelOutcome::Failed {
                    error: error @ ProviderError::Auth { .. },
                    ..
                },
            ..
        } = self.input
            && round.model_calls == 1
            && self.count(|body| matches!(body, EntryBody::PromptWithdrawn { .. })) == 1
        {
            return (StopReason::Error, Some(error.code().into()));
        }
        if let Some(cancelling) = cancelling {
            let code = cancelling
                .failure
                .as_ref()
                .map(|failure| failure.code.clone());
            let budget = code.as_deref() == Some("budget");
            return (
                if budget {
                    StopReason::Budget
                } else if code.as_deref() == Some("crashed_repeatedly") {
                    StopReason::Error
                } else {
                    StopReason::Interrupted
                },
                code,
            );
        }
        match (&round.phase, self.input) {
            (Phase::Ready, _) if round.repeats.refusals >= LOOP_REFUSALS_MAX => {
                (StopReason::LoopGuard, None)
            }
            (
                Phase::Ready,
                Input::Context {
                    outcome: ContextOutcome::TooLarge { .. } | ContextOutcome::TooManyBytes { .. },
                    ..
                },
            ) => (
                StopReason::ContextTooLarge,
                Some("context_too_large".into()),
            ),
            (
                Phase::Ready,
                Input::Model {
                    outcome: ModelOutcome::Failed { error, .. },
                    ..
                },
            ) if error.is_too_large() => {
                assert_eq!(
                    round.refused_requests, 2,
                    "a refused request is made once more"
                );
                (StopReason::Error, Some(error.code().into()))
            }
            (Phase::Ready, _) => {
                assert!(
                    round.model_calls >= self.before.rules.tool_iterations_max,
                    "a round that could go on goes on"
                );
                (StopReason::IterationLimit, None)
            }
            (
                _,
                Input::Model {
                    outcome: ModelOutcome::Failed { error, .. },
                    ..
                },
            ) => (StopReason::Error, Some(error.code().into())),
            (
                _,
                Input::Model {
                    outcome: ModelOutcome::Cancelled { .. },
                    ..
                },
            ) => (StopReason::Error, Some("cancelled".into())),
            (Phase::Ended { stop }, _)
                if client_laws::is_an_answer(*stop)
                    && round.output.is_some()
                    && !cast::fits(&round.text()) =>
            {
                assert_eq!(round.output.as_ref().map(|output| output.refused), Some(2));
                (StopReason::Error, Some("output_refused".into()))
            }
            (Phase::Ended { stop }, _) => {
                let reason = match stop {
                    ProviderStop::MaxTokens => StopReason::MaxTokens,
                    ProviderStop::StopSequence => StopReason::StopSequence,
                    ProviderStop::Refusal => StopReason::Refusal,
                    ProviderStop::ContextWindowExceeded => StopReason::ContextTooLarge,
                    ProviderStop::EndTurn
                    | ProviderStop::ToolUse
                    | ProviderStop::PauseTurn
                    | ProviderStop::Other => StopReason::EndTurn,
                };
                (reason, None)
            }
            (phase, input) => panic!("a round ends in {phase:?} by {input:?}"),
        }
    }

    fn assistant(&mut self, state: &Durable, entry: &Entry, cancelled: bool) {
        let EntryBody::Assistant {
            message,
            stop,
            usage,
            partial,
            step,
            ..
        } = &entry.body
        else {
            return;
        };
        let (Input::Model { work, outcome, .. }, Some(round)) = (self.input, &state.round) else {
            panic!("an answer out of nothing")
        };
        assert_eq!(
            (&round.phase, *step),
            (&Phase::Model { seq: work.seq }, round.model_calls),
            "an answer is to the open call"
        );
        assert!(self.before.work.contains_key(work) && work.epoch == self.before.epoch);
        let blocks = message.as_ref().map(Message::blocks);
        match outcome {
            ModelOutcome::Completed {
                blocks: said,
                completion,
                ..
            } => {
                let whole = !matches!(
                    completion.stop,
                    ProviderStop::MaxTokens
                        | ProviderStop::Refusal
                        | ProviderStop::ContextWindowExceeded
                );
                assert_eq!(
                    blocks,
                    expected_blocks(said, whole && !cancelled, true),
                    "what can stay of an answer stays (R-06)"
                );
                assert_eq!(
                    (*stop, *usage, *partial),
                    (
                        completion.stop,
                        completion.usage.unwrap_or_default(),
                        cancelled
                    )
                );
            }
            ModelOutcome::FellBack { .. } => assert_eq!((blocks, *partial), (None, true)),
            ModelOutcome::Failed { partial: said, .. }
            | ModelOutcome::Cancelled { partial: said } => {
                assert_eq!(
                    (blocks, *partial),
                    (expected_blocks(said, false, false), true)
                );
            }
        }
        if let Some(message) = message
            .as_ref()
            .filter(|_| *stop == ProviderStop::PauseTurn && !partial)
        {
            self.paused.insert(message.wire().clone());
        }
    }

    /// What must hold when nothing follows: the conversation waits for something.
    fn rest(&self, state: &Durable) {
        let after = self.after;
        self.skills_rest(state);
        let Some(round) = &state.round else {
            assert!(
                state.inbox.is_empty() || after.draining,
                "a prompt waits for nothing"
            );
            let asked = |work: &Work| matches!(work, Work::Context { waiter: Some(_) });
            assert!(
                after.work.values().all(asked)
                    && after.retries.is_empty()
                    && after.cancelling.is_none(),
                "a round leaves nothing behind"
            );
            return;
        };
        if let (Input::GraceOver { round_id }, Some(cancelling)) =
            (self.input, &self.before.cancelling)
        {
            assert!(
                *round_id != cancelling.round_id || *round_id != round.id,
                "after the grace a round is over"
            );
        }
        if matches!(self.input, Input::Tick) {
            let late = |(_, call): (u32, &Call)| matches!(call.state, CallState::Asked { expires_at, .. } | CallState::AtClient { expires_at, .. } if expires_at <= self.now);
            assert!(!calls(state).any(late), "what has expired is over");
        }
        if let Some(cancelling) = &after.cancelling {
            assert_eq!(cancelling.round_id, round.id);
            assert!(
                !cancelling.grace_over && !after.work.is_empty(),
                "a cancelled round without work ends"
            );
            assert!(after.retries.is_empty());
        }
        match &round.phase {
            _ if after.reserving.is_some() => self.reserving_rests(state),
            Phase::Ready => {
                let measures = |work: &Work| *work == Work::Context { waiter: None };
                assert!(
                    after.work.values().any(measures) && !self.outcome.effects.is_empty()
                        || self.before.work.values().any(measures)
                );
            }
            Phase::Ended { .. } => panic!("a round rests in {:?}", round.phase),
            Phase::Model { seq } => {
                let work = WorkId {
                    epoch: after.epoch,
                    seq: *seq,
                    index: 0,
                };
                let asked = |work: &Work| matches!(work, Work::Context { waiter: Some(_) });
                assert_eq!(
                    after
                        .work
                        .iter()
                        .filter(|(_, work)| !asked(work))
                        .collect::<Vec<_>>(),
                    [(&work, &Work::Model)]
                );
            }
            Phase::Batch(batch) => self.batch_rests(batch),
        }
        if round.is_parked() {
            let until = state.batch().and_then(Batch::expires_at);
            assert!(
                self.outcome.effects.contains(&Effect::Park {
                    round_id: round.id,
                    until
                }),
                "a round that waits for people is parked"
            );
        } else {
            assert!(
                !self
                    .outcome
                    .effects
                    .iter()
                    .any(|effect| matches!(effect, Effect::Park { .. })),
                "a round that works is not parked"
            );
        }
    }
}

fn assert_refused(replies: &[&Effect], waiter: WaiterId, code: &str) {
    let refuses = |effect: &&Effect| matches!(effect, Effect::Refuse { waiter: w, refusal } if *w == waiter && refusal.code() == code);
    assert!(
        replies.len() == 1 && replies.iter().all(refuses),
        "expected {code}: {replies:?}"
    );
}
