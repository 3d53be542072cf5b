//! The state that a journal folds into. [`Durable::apply`] returns an error for an entry that
//! cannot follow; it does no I/O and does not panic.
//!
//! Pure.

mod fold;
mod marks;
mod skills;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

pub use self::fold::{FoldError, fold, restore};
use super::{
    ActiveSkill, ApprovalVerdict, CompactionNote, Context, ConversationMetrics, Entry, EntryBody,
    Repeats, RoundMarks, SkillState, Spent, ToolAggregate, ToolExecutionResult, call_digest,
    client_keys::{KnownKey, OlderKeys},
    metrics::estimate,
    skills::refresh_at_compaction,
};
use crate::{
    chat::{
        ContentBlock, Edit, History, Message, MessageList, ModelParameters, ProviderStop, RawJson,
        Role, ToolResultBlock, ToolResultContent, ToolUseBlock, Usage, reminder,
    },
    ids::{CallKey, Epoch, PromptId, RoundId, Scope, Seq},
    limits::{APPROVED_PATTERNS_MAX, CLIENT_KEY_MS, CLIENT_KEYS_MAX, CLIENT_KEYS_WHOLE},
    stream::StopReason,
    time::Timestamp,
    tokens::WindowUse,
    tool::EffectClass,
};

/// Version of the snapshot format. Snapshots of other versions are ignored, and the journal is read
/// instead.
pub(crate) const SNAPSHOT_VERSION: u32 = 2;

/// Prefix of the client key of a subagent's prompt. The [`CallKey`] of the tool call that started
/// the subagent follows.
pub(crate) const CHILD_KEY: &str = "subagent of ";

/// Name of the tool whose calls also appear as subagents in the stream. It stands here because this
/// module imports no actor.
pub const CREATE_SUBAGENT: &str = "create_subagent";

/// The fold of a journal.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Durable {
    /// Epoch of the last activation that wrote.
    pub epoch: Epoch,
    /// Position of the last entry applied.
    pub head: Seq,
    /// Position of the last reset; 0 without one. Entries before it are never read again.
    #[serde(default)]
    pub reset_at: Seq,
    /// The messages that a model is sent.
    pub history: History,
    /// Where each round begins in `history`.
    #[serde(default)]
    pub rounds: RoundMarks,
    /// Prompts that wait for their round, oldest first.
    pub inbox: VecDeque<AcceptedPrompt>,
    /// The open round. `None` between rounds. Boxed, because most conversations are idle.
    pub round: Option<Box<OpenRound>>,
    /// The newest client keys and ids of injected messages, oldest first: at most 1000, none older
    /// than 24 hours.
    pub keys: VecDeque<KnownKey>,
    /// The keys before those, back to 24 hours.
    #[serde(default, skip_serializing_if = "OlderKeys::is_empty")]
    pub older_keys: OlderKeys,
    /// Digests of calls whose effect is in doubt. The next identical call needs approval.
    pub in_doubt: Vec<u64>,
    /// Patterns of calls that a person approved with "always", oldest first.
    #[serde(default)]
    pub approved: VecDeque<String>,
    /// Skills offered and active.
    #[serde(default)]
    pub skills: SkillState,
    /// Metrics of the conversation.
    pub metrics: ConversationMetrics,
    /// Metrics by tool name.
    pub tools: BTreeMap<String, ToolAggregate>,
    /// Usage of the last model call; zero after the history was replaced.
    pub last_usage: Usage,
    /// Use of the window, pinned lines, and the last compaction.
    #[serde(default)]
    pub context: Context,
    /// What the conversation has spent of its budget.
    #[serde(default)]
    pub spent: Spent,
}

/// A prompt in the inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct AcceptedPrompt {
    pub id: PromptId,
    /// Id of the round that the prompt will open.
    pub round_id: RoundId,
    /// The prompt as a user message.
    pub message: Message,
    /// JSON Schema of the answer. `None` for free text.
    #[serde(default)]
    pub output_schema: Option<RawJson>,
    /// When the prompt is withdrawn, or its round canceled. `None` without a deadline.
    #[serde(default)]
    pub deadline_at: Option<Timestamp>,
    /// How the model is asked to answer; `None` for the configuration's way.
    #[serde(default)]
    pub parameters: Option<Arc<ModelParameters>>,
}

/// A request that the answer be JSON of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct OutputRequest {
    pub schema: RawJson,
    /// Number of answers so far that did not fit the schema.
    pub refused: u32,
}

/// A round that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct OpenRound {
    /// Id of the round, which is also the id of its event stream.
    pub id: RoundId,
    /// The prompts that the round answers.
    pub prompts: Vec<PromptId>,
    pub started_at: Timestamp,
    /// Model calls that were decided.
    #[serde(rename = "steps")]
    pub model_calls: u32,
    /// Model calls that gave an answer.
    pub answers: u32,
    /// Batches of tool calls that are done.
    pub batches: u32,
    /// Tokens of its model calls so far.
    pub usage: Usage,
    /// What the round is doing.
    pub phase: Phase,
    /// Injected messages that wait for the end of the model call or batch.
    pub pending: Vec<Message>,
    /// The assistant messages of the round.
    #[serde(rename = "said")]
    pub assistant_messages: Vec<Message>,
    /// Counts for the loop guard.
    #[serde(default)]
    pub repeats: Repeats,
    /// The requested JSON Schema of the answer; `None` for free text.
    #[serde(default)]
    pub output: Option<OutputRequest>,
    /// Model calls that the provider refused as too large.
    #[serde(default)]
    pub refused_requests: u32,
    /// Activations that crashed while a tool call of the round ran, as far as a later one wrote an
    /// entry.
    #[serde(default)]
    pub crashes: u32,
    /// When the round is canceled; `None` without a deadline.
    #[serde(default)]
    pub deadline_at: Option<Timestamp>,
    /// How the model is asked to answer; `None` for the configuration's way.
    #[serde(default)]
    pub parameters: Option<Arc<ModelParameters>>,
}

impl OpenRound {
    /// Returns the text of the last assistant message.
    pub(crate) fn text(&self) -> String {
        self.assistant_messages
            .last()
            .map(Message::text)
            .unwrap_or_default()
    }

    /// Returns the text of the last assistant message, and the texts of all of them joined.
    pub(crate) fn texts(&self) -> (String, String) {
        let texts: Vec<String> = self.assistant_messages.iter().map(Message::text).collect();
        let mut full = String::with_capacity(texts.iter().map(|text| text.len() + 1).sum());
        for text in texts.iter().filter(|text| !text.is_empty()) {
            if !full.is_empty() {
                full.push('\n');
            }
            full.push_str(text);
        }
        (texts.into_iter().next_back().unwrap_or_default(), full)
    }

    /// Whether a tool call had started that has no result. Such a call may be what took the process
    /// down; a subagent's call is not, because the subagent has a round of its own.
    pub(crate) fn runs_a_tool(&self) -> bool {
        let Phase::Batch(batch) = &self.phase else {
            return false;
        };
        let runs = |call: &Call| call.is_started() && call.tool_use.name != CREATE_SUBAGENT;
        batch.calls.iter().any(runs)
    }

    /// Whether the round waits only for people's approvals.
    pub fn is_parked(&self) -> bool {
        match &self.phase {
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => false,
            Phase::Batch(batch) => batch.is_parked(),
        }
    }
}

/// What an open round is doing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The next model call is due.
    Ready,
    /// The model gave its final answer; the round is about to finish.
    Ended {
        /// The provider's stop reason.
        stop: ProviderStop,
    },
    /// A model call is running.
    Model {
        /// Position of the `model_call_started` entry.
        seq: Seq,
    },
    /// Tool calls are running or waiting.
    Batch(Batch),
}

/// The tool calls of one assistant message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Position of the assistant entry.
    pub seq: Seq,
    /// The assistant message.
    pub message: Message,
    /// The calls, in the order of the message.
    pub calls: Vec<Call>,
}

impl Batch {
    /// Whether every call has its result.
    pub(crate) fn is_done(&self) -> bool {
        self.calls
            .iter()
            .all(|call| matches!(call.state, CallState::Finished(_)))
    }

    /// Whether every unfinished call waits for a person.
    pub(crate) fn is_parked(&self) -> bool {
        !self.is_done()
            && self
                .calls
                .iter()
                .all(|call| matches!(call.state, CallState::Finished(_) | CallState::Asked { .. }))
    }

    /// Returns the earliest expiry of the open approvals.
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        let ends = self.calls.iter().filter_map(|call| {
            if let CallState::Asked { expires_at, .. } = &call.state {
                Some(*expires_at)
            } else {
                None
            }
        });
        ends.min()
    }
}

/// One call of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct Call {
    /// The `tool_use` block of the model.
    pub tool_use: ToolUseBlock,
    pub state: CallState,
}

impl Call {
    /// Whether the call has started and has no result yet.
    pub(crate) fn is_started(&self) -> bool {
        matches!(self.state, CallState::Started { .. })
    }
}

/// The progress of a tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Not started: queued, or not checked yet.
    Waiting,
    /// Waiting for a person's approval.
    Asked {
        /// The input that the person was shown.
        input: RawJson,
        /// When the approval expires and counts as denied.
        expires_at: Timestamp,
        /// The pattern that "always" would approve.
        #[serde(default)]
        pattern: Option<String>,
    },
    /// Approved for this input, not started yet.
    Allowed {
        /// The approved input.
        input: RawJson,
    },
    /// Started, or about to start.
    Started {
        /// The effect class of the call, which decides whether it may start again after a crash.
        effect: EffectClass,
        /// Time of the first start.
        at: Timestamp,
        /// Starts after the first.
        attempt: u32,
        /// The input, where it differs from the model's.
        input: Option<RawJson>,
    },
    /// Finished, with its one result.
    Finished(ToolExecutionResult),
}

/// Why an entry cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq} ({kind}) cannot follow: {why}")]
pub struct ApplyError {
    /// Position of the entry.
    pub seq: Seq,
    /// Kind of the entry.
    pub kind: &'static str,
    /// What the entry contradicts.
    pub why: String,
}

impl Durable {
    /// How the open round asks its model to answer; `None` for the configuration's way.
    pub(crate) fn asked_parameters(&self) -> Option<&ModelParameters> {
        self.round.as_deref()?.parameters.as_deref()
    }

    /// Looks up a client key. Returns the digest of the body that came with it, and the round of its
    /// prompt.
    pub(crate) fn known_key(&self, key: &str) -> Option<(u64, RoundId)> {
        self.keys
            .iter()
            .rev()
            .filter(|known| known.key == key)
            .find_map(|known| Some((known.digest, known.round_id?)))
            .or_else(|| self.older_keys.prompt(key))
    }

    /// Returns the parent of this conversation, named `own`, if this is a subagent: the client key
    /// of its prompt holds the tool call that started it. In other conversations such a client key
    /// means nothing.
    pub(crate) fn parent(&self, own: &Scope) -> Option<Scope> {
        let call = |known: &KnownKey| {
            known
                .key
                .strip_prefix(CHILD_KEY)?
                .split(' ')
                .next()?
                .parse::<CallKey>()
                .ok()
        };
        self.keys
            .iter()
            .filter_map(call)
            .find(|call| call.child() == *own)
            .map(|call| call.scope)
    }

    /// Whether a message with this id was injected. Injected ids and client keys have separate
    /// namespaces.
    pub(crate) fn knows_injected(&self, id: &str) -> bool {
        self.keys
            .iter()
            .any(|known| known.key == id && known.round_id.is_none())
            || self.older_keys.knows_injected(id)
    }

    /// Finds a call of the open batch by id. Returns its index and the call.
    pub(crate) fn open_call(&self, tool_call_id: &str) -> Option<(u32, &Call)> {
        let Some(OpenRound {
            phase: Phase::Batch(batch),
            ..
        }) = self.round.as_deref()
        else {
            return None;
        };
        let index = batch
            .calls
            .iter()
            .position(|call| call.tool_use.id == tool_call_id)?;
        Some((u32::try_from(index).ok()?, batch.calls.get(index)?))
    }

    /// Returns the open batch, if any.
    pub fn batch(&self) -> Option<&Batch> {
        match &self.round.as_ref()?.phase {
            Phase::Batch(batch) => Some(batch),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => None,
        }
    }

    /// Returns the epoch of the next activation. The first epoch of a journal is the clock in
    /// milliseconds. After a conversation was deleted, a new one with the same id therefore has
    /// higher epochs, and cursors of the deleted one do not match it.
    pub(crate) fn next_epoch(&self, now: Timestamp) -> Epoch {
        if self.head == Seq(0) {
            Epoch(now.0.max(1))
        } else {
            self.epoch.next()
        }
    }

    /// Applies one entry. No other function changes this state.
    ///
    /// # Errors
    /// [`ApplyError`] when the entry cannot follow. Do not use the state after an error.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), ApplyError> {
        self.try_apply(entry).map_err(|why| ApplyError {
            seq: entry.seq,
            kind: entry.body.kind(),
            why,
        })
    }

    fn try_apply(&mut self, entry: &Entry) -> Result<(), String> {
        if entry.seq != self.head.next() {
            return Err(format!("the journal is at {}", self.head));
        }
        if matches!(entry.body, EntryBody::Emptied {}) {
            // Emptied entries stand only at the start of a journal: the reset behind them is the
            // first entry that was kept.
            let is_first = self.epoch == Epoch(0);
            self.head = entry.seq;
            return if is_first {
                Ok(())
            } else {
                Err("an entry before it was not emptied".into())
            };
        }
        if self.epoch == Epoch(0) && self.head > Seq(0) && matches!(entry.body, EntryBody::Reset {})
        {
            self.epoch = entry.epoch; // The `LifeStarted` entry of its activation was emptied.
        }
        // `LifeStarted` begins the next epoch, or any epoch above 0 in an empty journal. Every
        // other entry belongs to the current epoch.
        let is_due = match (
            matches!(entry.body, EntryBody::LifeStarted { .. }),
            self.head,
        ) {
            (true, Seq(0)) => entry.epoch > Epoch(0),
            (true, _) => entry.epoch == self.epoch.next(),
            (false, _) => entry.epoch == self.epoch,
        };
        if !is_due {
            return Err(format!(
                "epoch {} in a journal of epoch {}",
                entry.epoch, self.epoch
            ));
        }
        self.head = entry.seq;
        if self.metrics.start_time == Timestamp::default() {
            self.metrics.start_time = entry.at;
        }
        self.metrics.end_time = entry.at;
        self.spent.apply(&entry.body)?;
        match &entry.body {
            EntryBody::LifeStarted { in_order, .. } => {
                self.epoch = entry.epoch;
                if let Some(round) = &mut self.round
                    && !in_order
                    && round.runs_a_tool()
                {
                    round.crashes += 1;
                }
            }
            EntryBody::PromptAccepted {
                prompt_id,
                round_id,
                client_key,
                message,
                output_schema,
                deadline_at,
                parameters,
            } => {
                if let Some(key) = client_key {
                    self.remember(key.key.clone(), key.digest, Some(*round_id), entry.at);
                }
                let message = message.clone();
                let output_schema = output_schema.clone();
                self.inbox.push_back(AcceptedPrompt {
                    id: *prompt_id,
                    round_id: *round_id,
                    message,
                    output_schema,
                    deadline_at: *deadline_at,
                    parameters: parameters.clone(),
                });
            }
            EntryBody::PromptWithdrawn { prompt_id, .. } => self.withdraw(*prompt_id)?,
            EntryBody::RoundStarted {
                round_id,
                prompt_ids,
            } => self.start_round(*round_id, prompt_ids, entry.at)?,
            EntryBody::ModelCallStarted { step, .. } => {
                self.metrics.api_calls += 1;
                let round = open(&mut self.round)?;
                if matches!(round.phase, Phase::Batch(_)) {
                    return Err("a batch is open".into());
                }
                round.model_calls = *step;
                round.phase = Phase::Model { seq: entry.seq };
            }
            EntryBody::Assistant {
                message,
                usage,
                failed_usage,
                stop,
                partial,
                cost_micro_usd,
                ..
            } => {
                let total = usage.plus(failed_usage);
                let round = open(&mut self.round)?;
                round.usage = round.usage.plus(&total);
                self.metrics.record_usage(&total);
                self.metrics.cost_micro_usd = self
                    .metrics
                    .cost_micro_usd
                    .saturating_add(cost_micro_usd.unwrap_or(0));
                self.assistant(entry.seq, message.as_ref(), usage, *stop, *partial)?;
            }
            EntryBody::BudgetSettled { .. } | EntryBody::Emptied {} => {} // Applied above.
            EntryBody::RequestRefused { bytes } => self.request_refused(*bytes)?,
            EntryBody::OutputRefused { fault } => self.output_refused(fault)?,
            EntryBody::ToolStarted {
                call,
                effect,
                attempt,
                input,
                ..
            } => {
                let call = self.call(*call)?;
                let at = match &call.state {
                    CallState::Started { at, .. } => *at,
                    CallState::Waiting | CallState::Allowed { .. } => entry.at,
                    CallState::Asked { .. } | CallState::Finished(_) => {
                        return Err("the call cannot start now".into());
                    }
                };
                call.state = CallState::Started {
                    effect: *effect,
                    at,
                    attempt: *attempt,
                    input: input.clone(),
                };
            }
            EntryBody::ToolFinished {
                call,
                outcome,
                name,
                ..
            } => self.tool_finished(*call, name, outcome)?,
            EntryBody::ApprovalAsked {
                call,
                resolved_input,
                expires_at,
                pattern,
                ..
            } => {
                let call = self.call(*call)?;
                if call.state != CallState::Waiting {
                    return Err("the call does not wait".into());
                }
                call.state = CallState::Asked {
                    input: resolved_input.clone(),
                    expires_at: *expires_at,
                    pattern: pattern.clone(),
                };
            }
            EntryBody::ApprovalAnswered {
                call,
                verdict,
                always,
            } => {
                let call = self.call(*call)?;
                let CallState::Asked { input, pattern, .. } = &call.state else {
                    return Err("no approval was asked".into());
                };
                let pattern = pattern.clone().filter(|_| *always);
                call.state = match verdict {
                    ApprovalVerdict::Allowed => CallState::Allowed {
                        input: input.clone(),
                    },
                    ApprovalVerdict::Denied | ApprovalVerdict::Expired => CallState::Waiting,
                };
                if let Some(pattern) = pattern.filter(|_| *verdict == ApprovalVerdict::Allowed) {
                    self.approve_always(pattern);
                }
            }
            EntryBody::Injected {
                id,
                client_key,
                message,
            } => {
                if let Some(id) = id {
                    self.remember(id.clone(), 0, None, entry.at);
                }
                if let Some(key) = client_key {
                    let round_id = open(&mut self.round)?.id;
                    self.remember(key.key.clone(), key.digest, Some(round_id), entry.at);
                }
                self.enter(message)?;
            }
            EntryBody::SkillsOffered { index, message } => {
                self.skills_offered(index, message.as_ref())?
            }
            EntryBody::SkillActivated {
                name,
                activation_id,
                by,
                level,
                modifier,
                message,
                text_digest,
            } => {
                let modifier = modifier.clone();
                let message = message.clone();
                let skill = ActiveSkill {
                    activation_id: *activation_id,
                    by: *by,
                    level: *level,
                    modifier,
                    message,
                };
                self.skill_activated(skills::Activated {
                    name,
                    at: entry.at,
                    skill,
                    text_digest: *text_digest,
                })?;
            }
            EntryBody::SkillDeactivated {
                name,
                activation_id,
            } => self.skill_deactivated(name, *activation_id)?,
            EntryBody::RoundFinished { .. } => {
                let round = self.round.take().ok_or("no round is open")?;
                if matches!(round.phase, Phase::Batch(_)) {
                    return Err("calls without a result are open".into());
                }
                for message in &round.pending {
                    push_user(&mut self.history, &mut self.context.window, message)?;
                }
                self.skills.round_over();
                self.metrics.rounds += 1;
            }
            EntryBody::Compacted {
                mode,
                edits,
                before_tokens,
                after_tokens,
                ..
            } => {
                self.compact(entry.seq, edits, mode, *before_tokens, *after_tokens)?;
            }
            EntryBody::Pinned { line } => self.context.pinned.push(line.clone()),
            EntryBody::Imported { messages, rounds } => {
                self.idle()?;
                let (history, repairs) = History::repair(messages.iter().cloned());
                if let Some(repair) = repairs.first() {
                    return Err(format!(
                        "imported message {}: {}",
                        repair.index, repair.what
                    ));
                }
                self.rounds = match rounds.as_slice() {
                    [] => RoundMarks::derive(entry.seq, history.messages()),
                    records => RoundMarks::from_records(records, history.messages())?,
                };
                self.history = history;
                self.last_usage = Usage::default(); // It describes the previous history.
                self.replaced();
                self.skills.history_replaced();
            }
            EntryBody::Rewound { round_id, keep } => {
                self.idle()?;
                if self.rounds.start(*round_id) != Some(*keep) {
                    return Err("no such round begins there".into());
                }
                self.history
                    .cut(*keep as usize)
                    .map_err(|error| error.to_string())?;
                self.rounds.cut(*keep as usize);
                self.last_usage = Usage::default(); // `spent` does not go back.
                self.replaced();
                self.skills.history_replaced();
            }
            EntryBody::Reset {} => {
                self.idle()?;
                let epoch = self.epoch;
                let head = self.head;
                *self = Self {
                    epoch,
                    head,
                    reset_at: entry.seq,
                    ..Self::default()
                };
            }
            EntryBody::Forked { in_doubt, .. } => {
                self.idle()?;
                self.in_doubt.clone_from(in_doubt);
            }
        }
        self.metrics.messages_count = self.history.messages().len() as u64;
        Ok(())
    }

    fn compact(
        &mut self,
        seq: Seq,
        edits: &[Edit],
        mode: &str,
        before_tokens: u64,
        after_tokens: u64,
    ) -> Result<(), String> {
        if self
            .round
            .as_ref()
            .is_some_and(|round| round.phase != Phase::Ready)
        {
            return Err("a call is open".into());
        }
        let len = self.history.messages().len();
        self.history = self
            .history
            .edited(edits)
            .map_err(|error| error.to_string())?;
        let moved = Edit::moves(edits, len);
        self.rounds
            .edited(len, |old| moved.get(old as usize).copied().flatten());
        self.context
            .window
            .counted(after_tokens, self.history.messages().estimate_bytes());
        self.repeat_skills(edits)?;
        self.context.last_compaction = Some(CompactionNote {
            seq,
            before_tokens,
            after_tokens,
            mode: mode.to_owned(),
        });
        self.metrics.compression_events += 1;
        Ok(())
    }

    /// Appends the messages of active skills that the edits removed, behind the new start of the
    /// history, so that the model keeps reading them.
    fn repeat_skills(&mut self, edits: &[Edit]) -> Result<(), String> {
        let head = edits
            .iter()
            .take_while(|edit| matches!(edit, Edit::Put(_)))
            .count();
        let head = u32::try_from(head).map_err(|error| error.to_string())?;
        let messages = self.history.messages();
        let gone = |message: &Message| !messages.iter().any(|kept| kept.holds_blocks_of(message));
        let again: Vec<Edit> = refresh_at_compaction(&mut self.skills)
            .into_iter()
            .filter(gone)
            .map(Edit::Put)
            .collect();
        if again.is_empty() {
            return Ok(());
        }
        for edit in &again {
            if let Edit::Put(message) = edit {
                self.context.window.appended(message.estimate_bytes());
            }
        }
        let len = messages.len();
        let edits = [vec![Edit::Keep(head)], again].concat();
        self.history = self
            .history
            .edited(&edits)
            .map_err(|error| error.to_string())?;
        let moved = Edit::moves(&edits, len);
        self.rounds
            .edited(len, |old| moved.get(old as usize).copied().flatten());
        Ok(())
    }

    /// Adds a message at an allowed place: never between a call and its result, and before the
    /// first model call of a round not behind the prompt, which can still be withdrawn.
    pub(super) fn enter(&mut self, message: &Message) -> Result<(), String> {
        match &mut self.round {
            Some(round)
                if round.model_calls == 0
                    || matches!(round.phase, Phase::Model { .. } | Phase::Batch(_)) =>
            {
                round.pending.push(message.clone());
                Ok(())
            }
            _ => push_user(&mut self.history, &mut self.context.window, message),
        }
    }

    /// Resets what depends on the history after it was replaced: no model call has seen the new
    /// one.
    fn replaced(&mut self) {
        let messages = self.history.messages();
        self.context
            .window
            .replaced(messages.len(), messages.estimate_bytes());
    }

    fn idle(&self) -> Result<(), String> {
        if self.round.is_some() {
            Err("a round is open".into())
        } else {
            Ok(())
        }
    }

    fn call(&mut self, index: u32) -> Result<&mut Call, String> {
        match &mut open(&mut self.round)?.phase {
            Phase::Batch(batch) => batch
                .calls
                .get_mut(index as usize)
                .ok_or_else(|| "no such call".into()),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => {
                Err("no batch is open".into())
            }
        }
    }

    fn remember(&mut self, key: String, digest: u64, round_id: Option<RoundId>, at: Timestamp) {
        self.keys.push_back(KnownKey {
            key,
            digest,
            round_id,
            at,
        });
        let is_old = |known: &KnownKey| at.ms_since(known.at) > CLIENT_KEY_MS;
        while self.keys.front().is_some_and(is_old) {
            self.keys.pop_front();
        }
        if self.keys.len() > CLIENT_KEYS_WHOLE
            && let Some(known) = self.keys.pop_front()
        {
            self.older_keys
                .push(&known, CLIENT_KEYS_MAX - CLIENT_KEYS_WHOLE, at);
        }
    }

    fn approve_always(&mut self, pattern: String) {
        if !self.approved.contains(&pattern) {
            self.approved.push_back(pattern);
        }
        while self.approved.len() > APPROVED_PATTERNS_MAX {
            self.approved.pop_front();
        }
    }

    fn withdraw(&mut self, id: PromptId) -> Result<(), String> {
        if let Some(place) = self.inbox.iter().position(|prompt| prompt.id == id) {
            self.inbox.remove(place);
            return Ok(());
        }
        let round = self
            .round
            .as_ref()
            .filter(|round| round.prompts.contains(&id) && round.model_calls <= 1)
            .ok_or("no such prompt")?;
        match round.phase {
            Phase::Batch(_) => Err("a batch is open".into()),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => {
                let prompt = self
                    .history
                    .withdraw_last_user()
                    .ok_or("the prompt is not last")?;
                self.context.window.taken_back(prompt.estimate_bytes());
                self.rounds.cut(self.history.messages().len());
                Ok(())
            }
        }
    }

    fn start_round(
        &mut self,
        id: RoundId,
        prompt_ids: &[PromptId],
        at: Timestamp,
    ) -> Result<(), String> {
        self.idle()?;
        self.rounds.begin(id, self.history.messages().len());
        let mut output = None;
        let mut deadline_at = None;
        let mut parameters = None;
        for prompt_id in prompt_ids {
            let place = self
                .inbox
                .iter()
                .position(|prompt| prompt.id == *prompt_id)
                .ok_or("a prompt is not in the inbox")?;
            if let Some(prompt) = self.inbox.remove(place) {
                push_user(&mut self.history, &mut self.context.window, &prompt.message)?;
                deadline_at = prompt.deadline_at;
                parameters = prompt.parameters;
                output = prompt
                    .output_schema
                    .map(|schema| OutputRequest { schema, refused: 0 });
            }
        }
        if self.inbox.is_empty() {
            self.inbox.shrink_to_fit(); // Most conversations are idle and need no capacity.
        }
        self.round = Some(Box::new(OpenRound {
            id,
            prompts: prompt_ids.to_vec(),
            started_at: at,
            model_calls: 0,
            answers: 0,
            batches: 0,
            usage: Usage::default(),
            phase: Phase::Ready,
            pending: Vec::new(),
            assistant_messages: Vec::new(),
            repeats: Repeats::default(),
            output,
            refused_requests: 0,
            crashes: 0,
            deadline_at,
            parameters,
        }));
        Ok(())
    }

    fn assistant(
        &mut self,
        seq: Seq,
        message: Option<&Message>,
        usage: &Usage,
        stop: ProviderStop,
        partial: bool,
    ) -> Result<(), String> {
        let round = open(&mut self.round)?;
        if !matches!(round.phase, Phase::Model { .. }) {
            return Err("no model call is open".into());
        }
        let bytes = message.map_or(0, Message::estimate_bytes);
        // Usage that the provider reports replaces the estimate of the context. Without a report,
        // the answer is added to the estimate.
        if usage.input() > 0 {
            self.last_usage = *usage;
            self.context.window.answered(
                usage,
                self.history.messages().estimate_bytes() + bytes as u64,
            );
        } else if message.is_some() {
            self.context.window.appended(bytes);
        }
        // The next model call continues an answer that the provider paused.
        let goes_on = stop == ProviderStop::PauseTurn && message.is_some() && !partial;
        round.phase = if goes_on {
            Phase::Ready
        } else {
            Phase::Ended { stop }
        };
        if let Some(message) = message {
            round.answers += 1;
            round.assistant_messages.push(message.clone());
            // A message with calls enters the history only together with their results, when the
            // batch is done: `history` never holds a call without its result.
            let calls = message.tool_uses();
            if calls.is_empty() {
                self.history
                    .push_assistant(message.clone())
                    .map_err(|error| error.to_string())?;
            } else {
                if message.role() != Role::Assistant {
                    return Err("calls in a message of another role".into());
                }
                let calls = calls
                    .into_iter()
                    .map(|tool_use| Call {
                        tool_use,
                        state: CallState::Waiting,
                    })
                    .collect();
                round.phase = Phase::Batch(Batch {
                    seq,
                    message: message.clone(),
                    calls,
                });
            }
        }
        if !matches!(round.phase, Phase::Batch(_)) {
            // Messages injected meanwhile get an answer before the round ends.
            if !round.pending.is_empty() && !partial {
                round.phase = Phase::Ready;
            }
            for message in std::mem::take(&mut round.pending) {
                push_user(&mut self.history, &mut self.context.window, &message)?;
            }
        }
        Ok(())
    }

    /// The call counts as not made: the round may make it again, smaller.
    fn request_refused(&mut self, bytes: u64) -> Result<(), String> {
        let round = open(&mut self.round)?;
        if !matches!(round.phase, Phase::Model { .. }) {
            return Err("no model call is open".into());
        }
        round.phase = Phase::Ready;
        round.model_calls = round.model_calls.saturating_sub(1);
        round.refused_requests += 1;
        self.context.refused_bytes = Some(bytes);
        Ok(())
    }

    fn output_refused(&mut self, fault: &str) -> Result<(), String> {
        let round = open(&mut self.round)?;
        let Phase::Ended { .. } = round.phase else {
            return Err("no answer is there".into());
        };
        round
            .output
            .as_mut()
            .ok_or("no schema was asked for")?
            .refused += 1;
        round.phase = Phase::Ready;
        let text = format!(
            "Your answer is not the JSON that was asked for: {fault}\nAnswer again, with the JSON value and nothing else."
        );
        let message =
            Message::new(Role::User, &[reminder(&text)]).map_err(|error| error.to_string())?;
        push_user(&mut self.history, &mut self.context.window, &message)
    }

    fn tool_finished(
        &mut self,
        index: u32,
        name: &str,
        outcome: &ToolExecutionResult,
    ) -> Result<(), String> {
        let call = self.call(index)?;
        if matches!(call.state, CallState::Finished(_)) {
            return Err("the call already has its result".into());
        }
        let digest = call_digest(name, &call.tool_use.input);
        let tokens = estimate(call.tool_use.input.as_str()) + estimate(&outcome.observation);
        let ran = matches!(call.state, CallState::Started { .. });
        call.state = CallState::Finished(outcome.clone());
        let in_doubt = outcome.error_code.as_deref() == Some("IN_DOUBT");
        if ran {
            // A call that was refused or cancelled before it started leaves an earlier doubt as it
            // was.
            self.in_doubt.retain(|known| *known != digest);
        }
        if in_doubt {
            self.in_doubt.push(digest);
        }
        self.metrics
            .record_tool_call(outcome.is_error, outcome.retry_count);
        self.tools.entry(name.to_owned()).or_default().record(
            outcome.is_error,
            outcome.retry_count,
            outcome.duration_ms,
            tokens,
        );
        let round = open(&mut self.round)?;
        let Phase::Batch(batch) = &round.phase else {
            return Err("no batch is open".into());
        };
        round.repeats.note(digest, batch.seq, outcome);
        if !batch.is_done() {
            return Ok(());
        }
        let results = batch.calls.iter().filter_map(|call| match &call.state {
            CallState::Finished(outcome) => Some(ToolResultBlock {
                tool_use_id: call.tool_use.id.clone(),
                content: ToolResultContent::Text(outcome.observation.clone()),
                is_error: outcome.is_error,
            }),
            CallState::Waiting
            | CallState::Asked { .. }
            | CallState::Allowed { .. }
            | CallState::Started { .. } => None,
        });
        // Messages injected meanwhile join the user message with the results, behind them.
        let after: Vec<ContentBlock> = std::mem::take(&mut round.pending)
            .iter()
            .flat_map(Message::blocks)
            .collect();
        let results = Message::tool_results(results, after);
        self.context.window.appended(results.estimate_bytes()); // The calls themselves are in their model call's usage.
        self.history
            .push_exchange(batch.message.clone(), results)
            .map_err(|error| error.to_string())?;
        round.batches += 1;
        round.phase = Phase::Ready;
        Ok(())
    }
}

fn open(round: &mut Option<Box<OpenRound>>) -> Result<&mut OpenRound, String> {
    round
        .as_deref_mut()
        .ok_or_else(|| "no round is open".into())
}

/// Appends a user message that no model call has seen, and counts it as an estimate.
fn push_user(
    history: &mut History,
    window: &mut WindowUse,
    message: &Message,
) -> Result<(), String> {
    window.appended(message.estimate_bytes());
    history
        .push_user(message.clone())
        .map_err(|error| error.to_string())
}

impl Serialize for History {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.messages().iter())
    }
}

impl<'de> Deserialize<'de> for History {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let messages = Vec::<Message>::deserialize(deserializer)?;
        let (history, repairs) = Self::repair(messages);
        match repairs.first() {
            None => Ok(history),
            Some(repair) => Err(serde::de::Error::custom(&repair.what)),
        }
    }
}

/// The messages of the history, for ports that take a list.
impl From<&History> for MessageList {
    fn from(history: &History) -> Self {
        history.messages().clone()
    }
}

/// Returns the status of a round that has ended. A round with a failure failed, whatever stopped
/// it: a caller that reads the status must not take what it has for an answer.
pub(crate) fn status_of(
    stop_reason: StopReason,
    failure: Option<&crate::stream::Failure>,
) -> crate::stream::RoundStatus {
    match stop_reason {
        StopReason::Error => crate::stream::RoundStatus::Error,
        _ if failure.is_some() => crate::stream::RoundStatus::Error,
        StopReason::EndTurn
        | StopReason::MaxTokens
        | StopReason::StopSequence
        | StopReason::Refusal
        | StopReason::IterationLimit
        | StopReason::LoopGuard
        | StopReason::Budget
        | StopReason::Interrupted
        | StopReason::ContextTooLarge => crate::stream::RoundStatus::Completed,
    }
}
