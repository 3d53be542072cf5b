//! The state that a journal folds into. `apply` refuses what cannot follow; it never panics and asks nobody.
//!
//! Pure.

mod marks;
mod skills;

use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    ActiveSkill, ApprovalVerdict, CompactionNote, Context, ConversationMetrics, Entry, EntryBody, Repeats, RoundMarks, SkillState, Spent,
    ToolAggregate, ToolExecutionResult, call_digest, metrics::estimate, skills::refresh_at_compaction,
};
use crate::{
    chat::{
        ContentBlock, Edit, History, Message, MessageList, ProviderStop, RawJson, Role, ToolResultBlock, ToolResultContent, ToolUseBlock,
        Usage, reminder,
    },
    ids::{CallKey, Epoch, PromptId, RoundId, Scope, Seq},
    journal::Loaded,
    limits::{APPROVED_PATTERNS_MAX, CLIENT_KEY_MS, CLIENT_KEYS_MAX},
    stream::StopReason,
    time::Timestamp,
    tokens::WindowUse,
    tool::EffectClass,
};

/// Version of the snapshot form; another one is thrown away.
pub const SNAPSHOT_VERSION: u32 = 2;

/// What the client key of a subagent's prompt begins with; behind it stands the [`CallKey`] of the call that gave it.
pub const CHILD_KEY: &str = "subagent of ";

/// The fold of a journal.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Durable {
    /// The last life that wrote.
    pub epoch: Epoch,
    /// The last entry applied.
    pub head: Seq,
    /// The last reset; 0 without one. No entry before it is of any use.
    #[serde(default)]
    pub reset_at: Seq,
    /// What was said.
    pub history: History,
    /// Where in it each round begins.
    #[serde(default)]
    pub rounds: RoundMarks,
    /// Prompts accepted and not begun, oldest first.
    pub inbox: VecDeque<AcceptedPrompt>,
    /// The open round.
    pub round: Option<OpenRound>,
    /// Client keys and injected ids, oldest first; the last 1000 or 24 h.
    pub keys: VecDeque<KnownKey>,
    /// Digests of calls whose effect is in doubt: an identical next call needs approval.
    pub in_doubt: Vec<u64>,
    /// Patterns of calls that a person allowed for good, oldest first.
    #[serde(default)]
    pub approved: VecDeque<String>,
    /// Its skills.
    #[serde(default)]
    pub skills: SkillState,
    /// Figures of the conversation.
    pub metrics: ConversationMetrics,
    /// Figures by tool.
    pub tools: BTreeMap<String, ToolAggregate>,
    /// Usage of the last model call.
    pub last_usage: Usage,
    /// How full the window is and what stays in it.
    #[serde(default)]
    pub context: Context,
    /// What counts against its budget.
    #[serde(default)]
    pub spent: Spent,
}

/// A prompt in the inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedPrompt {
    /// Its id.
    pub id: PromptId,
    /// The round it will open.
    pub round_id: RoundId,
    /// What was said.
    pub message: Message,
    /// The JSON Schema that the answer must fit.
    #[serde(default)]
    pub output_schema: Option<RawJson>,
}

/// An answer that must be JSON of a schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputWish {
    /// The schema.
    pub schema: RawJson,
    /// Answers that did not fit.
    pub refused: u32,
}

/// A client key or injected id that was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownKey {
    /// The text.
    pub key: String,
    /// Digest of the body that came with it.
    pub digest: u64,
    /// The round it led to; none for injected messages.
    pub round_id: Option<RoundId>,
    /// When.
    pub at: Timestamp,
}

/// A round that is not over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenRound {
    /// Its id and its stream's.
    pub id: RoundId,
    /// Its prompts.
    pub prompts: Vec<PromptId>,
    /// When it began.
    pub started_at: Timestamp,
    /// Model calls ordered.
    #[serde(rename = "steps")]
    pub model_calls: u32,
    /// Model calls that gave something.
    pub answers: u32,
    /// Batches finished.
    pub batches: u32,
    /// Tokens so far.
    pub usage: Usage,
    /// What is going on.
    pub phase: Phase,
    /// Injected messages that wait for the end of the model call or batch.
    pub pending: Vec<Message>,
    /// Its assistant messages.
    pub said: Vec<Message>,
    /// Calls that it makes again and again.
    #[serde(default)]
    pub repeats: Repeats,
    /// What its answer must be.
    #[serde(default)]
    pub output: Option<OutputWish>,
}

impl OpenRound {
    /// The text of the last assistant message.
    pub fn text(&self) -> String {
        self.said.last().map(Message::text).unwrap_or_default()
    }

    /// The text of the last assistant message, and of all of them, one after the other.
    pub fn texts(&self) -> (String, String) {
        let texts: Vec<String> = self.said.iter().map(Message::text).collect();
        let mut full = String::with_capacity(texts.iter().map(|text| text.len() + 1).sum());
        for text in texts.iter().filter(|text| !text.is_empty()) {
            if !full.is_empty() {
                full.push('\n');
            }
            full.push_str(text);
        }
        (texts.into_iter().next_back().unwrap_or_default(), full)
    }

    /// Whether nothing but answers of people are awaited.
    pub fn is_parked(&self) -> bool {
        match &self.phase {
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => false,
            Phase::Batch(batch) => batch.is_parked(),
        }
    }
}

/// What goes on in a round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A model call is due.
    Ready,
    /// The model has said its last; the round is to be finished.
    Ended {
        /// Why it stopped.
        stop: ProviderStop,
    },
    /// A model call, ordered by the entry at `seq`.
    Model {
        /// The ordering entry.
        seq: Seq,
    },
    /// A batch of tool calls.
    Batch(Batch),
}

/// The calls of one assistant message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The assistant entry.
    pub seq: Seq,
    /// Its message.
    pub message: Message,
    /// Its calls, in order.
    pub calls: Vec<Call>,
}

impl Batch {
    /// Whether every call has its result.
    pub fn is_done(&self) -> bool {
        self.calls.iter().all(|call| matches!(call.state, CallState::Finished(_)))
    }

    /// Whether the only open calls await a person.
    pub fn is_parked(&self) -> bool {
        !self.is_done() && self.calls.iter().all(|call| matches!(call.state, CallState::Finished(_) | CallState::Asked { .. }))
    }

    /// The soonest end of an approval.
    pub fn expires_at(&self) -> Option<Timestamp> {
        let ends = self
            .calls
            .iter()
            .filter_map(|call| if let CallState::Asked { expires_at, .. } = &call.state { Some(*expires_at) } else { None });
        ends.min()
    }
}

/// One call of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The model's call.
    pub tool_use: ToolUseBlock,
    /// How far it is.
    pub state: CallState,
}

impl Call {
    /// Whether it runs, or is about to.
    pub fn is_started(&self) -> bool {
        matches!(self.state, CallState::Started { .. })
    }
}

/// How far a call is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// Not begun: queued, or not planned yet.
    Waiting,
    /// A person is asked.
    Asked {
        /// What was shown to them.
        input: RawJson,
        /// When no answer counts as no.
        expires_at: Timestamp,
        /// What they would agree to by "always".
        #[serde(default)]
        pattern: Option<String>,
    },
    /// A person agreed to this input; not begun.
    Allowed {
        /// What was agreed to.
        input: RawJson,
    },
    /// Begun, or about to.
    Started {
        /// What a repeated start would do.
        effect: EffectClass,
        /// When it was first started.
        at: Timestamp,
        /// Starts after the first.
        attempt: u32,
        /// The input, where it is not the model's.
        input: Option<RawJson>,
    },
    /// It has its one result.
    Finished(ToolExecutionResult),
}

/// Says why an entry cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {seq} ({kind}) cannot follow: {why}")]
pub struct ApplyError {
    /// Which entry.
    pub seq: Seq,
    /// Its kind.
    pub kind: &'static str,
    /// Why.
    pub why: String,
}

impl Durable {
    /// Looks up a client key, with the round it led to.
    pub fn known_key(&self, key: &str) -> Option<(&KnownKey, RoundId)> {
        self.keys.iter().rev().filter(|known| known.key == key).find_map(|known| Some((known, known.round_id?)))
    }

    /// The conversation that began this one, whose name is `own`, if it is a subagent's: its prompt is named by the call that gave it.
    /// A prompt of that name elsewhere says nothing.
    pub fn parent(&self, own: &Scope) -> Option<Scope> {
        let call = |known: &KnownKey| known.key.strip_prefix(CHILD_KEY)?.split(' ').next()?.parse::<CallKey>().ok();
        self.keys.iter().filter_map(call).find(|call| call.child() == *own).map(|call| call.scope)
    }

    /// Whether a message with this id was injected. Such ids and client keys are different names.
    pub fn knows_injected(&self, id: &str) -> bool {
        self.keys.iter().any(|known| known.key == id && known.round_id.is_none())
    }

    /// The call with this id in the open batch, with its index.
    pub fn open_call(&self, tool_call_id: &str) -> Option<(u32, &Call)> {
        let Some(OpenRound { phase: Phase::Batch(batch), .. }) = &self.round else { return None };
        let index = batch.calls.iter().position(|call| call.tool_use.id == tool_call_id)?;
        Some((u32::try_from(index).ok()?, batch.calls.get(index)?))
    }

    /// The open batch.
    pub fn batch(&self) -> Option<&Batch> {
        match &self.round.as_ref()?.phase {
            Phase::Batch(batch) => Some(batch),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => None,
        }
    }

    /// The epoch of a life that begins now. The first one's is the clock in milliseconds, so that a conversation that was deleted and made
    /// anew does not take a cursor of the old one for its own (DESIGN §4.6): nothing of what was deleted need be kept for that.
    pub fn next_life(&self, now: Timestamp) -> Epoch {
        if self.head == Seq(0) { Epoch(now.0.max(1)) } else { self.epoch.next() }
    }

    /// Applies one entry: the only way this state changes.
    ///
    /// # Errors
    /// [`ApplyError`] when the entry cannot follow; the state is then not to be used.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), ApplyError> {
        self.try_apply(entry).map_err(|why| ApplyError { seq: entry.seq, kind: entry.body.kind(), why })
    }

    fn try_apply(&mut self, entry: &Entry) -> Result<(), String> {
        if entry.seq != self.head.next() {
            return Err(format!("the journal is at {}", self.head));
        }
        if matches!(entry.body, EntryBody::Emptied {}) {
            // They stand at the start: the reset behind them was the first to be kept.
            let is_first = self.epoch == Epoch(0);
            self.head = entry.seq;
            return if is_first { Ok(()) } else { Err("an entry before it was not emptied".into()) };
        }
        if self.epoch == Epoch(0) && self.head > Seq(0) && matches!(entry.body, EntryBody::Reset {}) {
            self.epoch = entry.epoch; // The life that wrote it began in an emptied entry.
        }
        let is_due = match (matches!(entry.body, EntryBody::LifeStarted { .. }), self.head) {
            (true, Seq(0)) => entry.epoch > Epoch(0),
            (true, _) => entry.epoch == self.epoch.next(),
            (false, _) => entry.epoch == self.epoch,
        };
        if !is_due {
            return Err(format!("epoch {} in a journal of epoch {}", entry.epoch, self.epoch));
        }
        self.head = entry.seq;
        if self.metrics.start_time == Timestamp::default() {
            self.metrics.start_time = entry.at;
        }
        self.metrics.end_time = entry.at;
        self.spent.apply(&entry.body)?;
        match &entry.body {
            EntryBody::LifeStarted { .. } => self.epoch = entry.epoch,
            EntryBody::PromptAccepted { prompt_id, round_id, client_key, message, output_schema } => {
                if let Some(key) = client_key {
                    self.remember(key.key.clone(), key.digest, Some(*round_id), entry.at);
                }
                let (message, output_schema) = (message.clone(), output_schema.clone());
                self.inbox.push_back(AcceptedPrompt { id: *prompt_id, round_id: *round_id, message, output_schema });
            }
            EntryBody::PromptWithdrawn { prompt_id, .. } => self.withdraw(*prompt_id)?,
            EntryBody::RoundStarted { round_id, prompt_ids } => self.start_round(*round_id, prompt_ids, entry.at)?,
            EntryBody::ModelCallStarted { step, .. } => {
                self.metrics.api_calls += 1;
                let round = open(&mut self.round)?;
                if matches!(round.phase, Phase::Batch(_)) {
                    return Err("a batch is open".into());
                }
                round.model_calls = *step;
                round.phase = Phase::Model { seq: entry.seq };
            }
            EntryBody::Assistant { message, usage, stop, partial, cost_micro_usd, .. } => {
                self.metrics.cost_micro_usd = self.metrics.cost_micro_usd.saturating_add(cost_micro_usd.unwrap_or(0));
                self.assistant(entry.seq, message.as_ref(), usage, *stop, *partial)?;
            }
            EntryBody::BudgetSettled { .. } | EntryBody::Emptied {} => {} // See `Spent`; and the beginning.
            EntryBody::OutputRefused { fault } => self.output_refused(fault)?,
            EntryBody::ToolStarted { call, effect, attempt, input, .. } => {
                let call = self.call(*call)?;
                let at = match &call.state {
                    CallState::Started { at, .. } => *at,
                    CallState::Waiting | CallState::Allowed { .. } => entry.at,
                    CallState::Asked { .. } | CallState::Finished(_) => return Err("the call cannot start now".into()),
                };
                call.state = CallState::Started { effect: *effect, at, attempt: *attempt, input: input.clone() };
            }
            EntryBody::ToolFinished { call, outcome, name, .. } => self.tool_finished(*call, name, outcome)?,
            EntryBody::ApprovalAsked { call, resolved_input, expires_at, pattern, .. } => {
                let call = self.call(*call)?;
                if call.state != CallState::Waiting {
                    return Err("the call does not wait".into());
                }
                call.state = CallState::Asked { input: resolved_input.clone(), expires_at: *expires_at, pattern: pattern.clone() };
            }
            EntryBody::ApprovalAnswered { call, verdict, always } => {
                let call = self.call(*call)?;
                let CallState::Asked { input, pattern, .. } = &call.state else { return Err("nobody was asked".into()) };
                let pattern = pattern.clone().filter(|_| *always);
                call.state = match verdict {
                    ApprovalVerdict::Allowed => CallState::Allowed { input: input.clone() },
                    ApprovalVerdict::Denied | ApprovalVerdict::Expired => CallState::Waiting,
                };
                if let Some(pattern) = pattern.filter(|_| *verdict == ApprovalVerdict::Allowed) {
                    self.approve_always(pattern);
                }
            }
            EntryBody::Injected { id, client_key, message } => {
                if let Some(id) = id {
                    self.remember(id.clone(), 0, None, entry.at);
                }
                if let Some(key) = client_key {
                    let round_id = open(&mut self.round)?.id;
                    self.remember(key.key.clone(), key.digest, Some(round_id), entry.at);
                }
                self.enter(message)?;
            }
            EntryBody::SkillsOffered { index, message } => self.skills_offered(index, message.as_ref())?,
            EntryBody::SkillActivated { name, activation_id, by, level, modifier, message, text_digest } => {
                let (modifier, message) = (modifier.clone(), message.clone());
                let skill = ActiveSkill { activation_id: *activation_id, by: *by, level: *level, modifier, message };
                self.skill_activated(skills::Activated { name, at: entry.at, skill, text_digest: *text_digest })?;
            }
            EntryBody::SkillDeactivated { name, activation_id } => self.skill_deactivated(name, *activation_id)?,
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
            EntryBody::Compacted { mode, edits, before_tokens, after_tokens, .. } => {
                self.compact(entry.seq, edits, mode, *before_tokens, *after_tokens)?;
            }
            EntryBody::Pinned { line } => self.context.pinned.push(line.clone()),
            EntryBody::Imported { messages, rounds } => {
                self.idle()?;
                let (history, repairs) = History::repair(messages.iter().cloned());
                if let Some(repair) = repairs.first() {
                    return Err(format!("imported message {}: {}", repair.index, repair.what));
                }
                self.rounds = match rounds.as_slice() {
                    [] => RoundMarks::derive(entry.seq, history.messages()),
                    records => RoundMarks::of_records(records, history.messages())?,
                };
                self.history = history;
                self.last_usage = Usage::default(); // It told of another history.
                self.replaced();
                self.skills.history_replaced();
            }
            EntryBody::Rewound { round_id, keep } => {
                self.idle()?;
                if self.rounds.start(*round_id) != Some(*keep) {
                    return Err("no such round begins there".into());
                }
                self.history.cut(*keep as usize).map_err(|error| error.to_string())?;
                self.rounds.cut(*keep as usize);
                self.last_usage = Usage::default(); // It told of a longer history. What was spent stays spent.
                self.replaced();
                self.skills.history_replaced();
            }
            EntryBody::Reset {} => {
                self.idle()?;
                let (epoch, head) = (self.epoch, self.head);
                *self = Self { epoch, head, reset_at: entry.seq, ..Self::default() };
            }
            EntryBody::Forked { in_doubt, .. } => {
                self.idle()?;
                self.in_doubt.clone_from(in_doubt);
            }
        }
        self.metrics.messages_count = self.history.messages().len() as u64;
        Ok(())
    }

    fn compact(&mut self, seq: Seq, edits: &[Edit], mode: &str, before_tokens: u64, after_tokens: u64) -> Result<(), String> {
        if self.round.as_ref().is_some_and(|round| round.phase != Phase::Ready) {
            return Err("a call is open".into());
        }
        let len = self.history.messages().len();
        self.history = self.history.edited(edits).map_err(|error| error.to_string())?;
        let moved = Edit::moves(edits, len);
        self.rounds.edited(len, |old| moved.get(old as usize).copied().flatten());
        self.context.window.counted(after_tokens, self.history.messages().wire_bytes() as u64);
        self.say_skills_again(edits)?;
        self.context.last_compaction = Some(CompactionNote { seq, before_tokens, after_tokens, mode: mode.to_owned() });
        self.metrics.compression_events += 1;
        Ok(())
    }

    /// What active skills say stays before the model: what the edits dropped of it stands behind the new head of the history again.
    fn say_skills_again(&mut self, edits: &[Edit]) -> Result<(), String> {
        let head = edits.iter().take_while(|edit| matches!(edit, Edit::Put(_))).count();
        let head = u32::try_from(head).map_err(|error| error.to_string())?;
        let messages = self.history.messages();
        let gone = |message: &Message| !messages.iter().any(|kept| kept.holds_blocks_of(message));
        let again: Vec<Edit> = refresh_at_compaction(&mut self.skills).into_iter().filter(gone).map(Edit::Put).collect();
        if again.is_empty() {
            return Ok(());
        }
        for edit in &again {
            if let Edit::Put(message) = edit {
                self.context.window.appended(message.wire().len());
            }
        }
        let (len, edits) = (messages.len(), [vec![Edit::Keep(head)], again].concat());
        self.history = self.history.edited(&edits).map_err(|error| error.to_string())?;
        let moved = Edit::moves(&edits, len);
        self.rounds.edited(len, |old| moved.get(old as usize).copied().flatten());
        Ok(())
    }

    /// Takes a message in where it may stand: never between a call and its result (REQUIREMENTS S-34), and before the first call not behind
    /// the prompt, which can still be withdrawn.
    pub(super) fn enter(&mut self, message: &Message) -> Result<(), String> {
        match &mut self.round {
            Some(round) if round.model_calls == 0 || matches!(round.phase, Phase::Model { .. } | Phase::Batch(_)) => {
                round.pending.push(message.clone());
                Ok(())
            }
            _ => push_user(&mut self.history, &mut self.context.window, message),
        }
    }

    /// The history is another one, which no model call has seen.
    fn replaced(&mut self) {
        let messages = self.history.messages();
        self.context.window.replaced(messages.len(), messages.wire_bytes() as u64);
    }

    fn idle(&self) -> Result<(), String> {
        if self.round.is_some() { Err("a round is open".into()) } else { Ok(()) }
    }

    fn call(&mut self, index: u32) -> Result<&mut Call, String> {
        match &mut open(&mut self.round)?.phase {
            Phase::Batch(batch) => batch.calls.get_mut(index as usize).ok_or_else(|| "no such call".into()),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => Err("no batch is open".into()),
        }
    }

    fn remember(&mut self, key: String, digest: u64, round_id: Option<RoundId>, at: Timestamp) {
        self.keys.push_back(KnownKey { key, digest, round_id, at });
        while self.keys.len() > CLIENT_KEYS_MAX || self.keys.front().is_some_and(|known| at.ms_since(known.at) > CLIENT_KEY_MS) {
            self.keys.pop_front();
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
        let round = self.round.as_ref().filter(|round| round.prompts.contains(&id) && round.model_calls <= 1).ok_or("no such prompt")?;
        match round.phase {
            Phase::Batch(_) => Err("a batch is open".into()),
            Phase::Ready | Phase::Ended { .. } | Phase::Model { .. } => {
                let prompt = self.history.withdraw_last_user().ok_or("the prompt is not last")?;
                self.context.window.taken_back(prompt.wire().len());
                self.rounds.cut(self.history.messages().len());
                Ok(())
            }
        }
    }

    fn start_round(&mut self, id: RoundId, prompt_ids: &[PromptId], at: Timestamp) -> Result<(), String> {
        self.idle()?;
        self.rounds.begin(id, self.history.messages().len());
        let mut output = None;
        for prompt_id in prompt_ids {
            let place = self.inbox.iter().position(|prompt| prompt.id == *prompt_id).ok_or("a prompt is not in the inbox")?;
            if let Some(prompt) = self.inbox.remove(place) {
                push_user(&mut self.history, &mut self.context.window, &prompt.message)?;
                output = prompt.output_schema.map(|schema| OutputWish { schema, refused: 0 });
            }
        }
        if self.inbox.is_empty() {
            self.inbox.shrink_to_fit(); // Most conversations are idle, most of the time.
        }
        self.round = Some(OpenRound {
            id,
            prompts: prompt_ids.to_vec(),
            started_at: at,
            model_calls: 0,
            answers: 0,
            batches: 0,
            usage: Usage::default(),
            phase: Phase::Ready,
            pending: Vec::new(),
            said: Vec::new(),
            repeats: Repeats::default(),
            output,
        });
        Ok(())
    }

    fn assistant(&mut self, seq: Seq, message: Option<&Message>, usage: &Usage, stop: ProviderStop, partial: bool) -> Result<(), String> {
        let round = open(&mut self.round)?;
        if !matches!(round.phase, Phase::Model { .. }) {
            return Err("no model call is open".into());
        }
        round.usage = round.usage.plus(usage);
        self.metrics.record_usage(usage);
        let bytes = message.map_or(0, |message| message.wire().len());
        if usage.input() > 0 {
            self.last_usage = *usage;
            self.context.window.answered(usage, (self.history.messages().wire_bytes() + bytes) as u64);
        } else if message.is_some() {
            self.context.window.appended(bytes);
        }
        let goes_on = stop == ProviderStop::PauseTurn && message.is_some() && !partial; // R-06 as ruled
        round.phase = if goes_on { Phase::Ready } else { Phase::Ended { stop } };
        if let Some(message) = message {
            round.answers += 1;
            round.said.push(message.clone());
            let calls = message.tool_uses();
            if calls.is_empty() {
                self.history.push_assistant(message.clone()).map_err(|error| error.to_string())?;
            } else {
                if message.role() != Role::Assistant {
                    return Err("calls in a message of another role".into());
                }
                let calls = calls.into_iter().map(|tool_use| Call { tool_use, state: CallState::Waiting }).collect();
                round.phase = Phase::Batch(Batch { seq, message: message.clone(), calls });
            }
        }
        if !matches!(round.phase, Phase::Batch(_)) {
            // A person who spoke meanwhile is heard before the round ends.
            if !round.pending.is_empty() && !partial {
                round.phase = Phase::Ready;
            }
            for message in std::mem::take(&mut round.pending) {
                push_user(&mut self.history, &mut self.context.window, &message)?;
            }
        }
        Ok(())
    }

    fn output_refused(&mut self, fault: &str) -> Result<(), String> {
        let round = open(&mut self.round)?;
        let Phase::Ended { .. } = round.phase else { return Err("no answer is there".into()) };
        round.output.as_mut().ok_or("no schema was asked for")?.refused += 1;
        round.phase = Phase::Ready;
        let text = format!("Your answer is not the JSON that was asked for: {fault}\nAnswer again, with the JSON value and nothing else.");
        let message = Message::new(Role::User, &[reminder(&text)]).map_err(|error| error.to_string())?;
        push_user(&mut self.history, &mut self.context.window, &message)
    }

    fn tool_finished(&mut self, index: u32, name: &str, outcome: &ToolExecutionResult) -> Result<(), String> {
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
            // A call that was refused or cancelled before it began leaves the doubt as it was.
            self.in_doubt.retain(|known| *known != digest);
        }
        if in_doubt {
            self.in_doubt.push(digest);
        }
        self.metrics.record_tool_call(outcome.is_error, outcome.retry_count);
        self.tools.entry(name.to_owned()).or_default().record(outcome.is_error, outcome.retry_count, outcome.duration_ms, tokens);
        let round = open(&mut self.round)?;
        let Phase::Batch(batch) = &round.phase else { return Err("no batch is open".into()) };
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
            CallState::Waiting | CallState::Asked { .. } | CallState::Allowed { .. } | CallState::Started { .. } => None,
        });
        // S-24 as ruled: what was injected meanwhile stands in the same user message, after the results.
        let after: Vec<ContentBlock> = std::mem::take(&mut round.pending).iter().flat_map(Message::blocks).collect();
        let results = Message::tool_results(results, after);
        self.context.window.appended(results.wire().len()); // The calls are part of what their model call is known to have cost.
        self.history.push_exchange(batch.message.clone(), results).map_err(|error| error.to_string())?;
        round.batches += 1;
        round.phase = Phase::Ready;
        Ok(())
    }
}

fn open(round: &mut Option<OpenRound>) -> Result<&mut OpenRound, String> {
    round.as_mut().ok_or_else(|| "no round is open".into())
}

/// Appends a user message that no model call has seen.
fn push_user(history: &mut History, window: &mut WindowUse, message: &Message) -> Result<(), String> {
    window.appended(message.wire().len());
    history.push_user(message.clone()).map_err(|error| error.to_string())
}

/// Folds entries onto a state. A panic inside is an error too: a journal must not be able to end a host.
///
/// # Errors
/// What the first entry that does not decode or apply said.
pub fn fold<'a>(mut state: Durable, entries: impl IntoIterator<Item = &'a crate::journal::StoredEntry>) -> Result<Durable, String> {
    catch_unwind(AssertUnwindSafe(move || {
        for stored in entries {
            let entry = Entry::decode(stored).map_err(|error| error.to_string())?;
            state.apply(&entry).map_err(|error| error.to_string())?;
        }
        Ok(state)
    }))
    .unwrap_or_else(|_| Err("reading the journal panicked".into()))
}

#[derive(Serialize, Deserialize)]
struct Snapshot<D> {
    version: u32,
    state: D,
}

impl Durable {
    /// Writes a snapshot of this state. A cache: thrown away on any doubt.
    pub fn snapshot(&self) -> Bytes {
        Bytes::from(serde_json::to_vec(&Snapshot { version: SNAPSHOT_VERSION, state: self }).unwrap_or_default())
    }

    fn from_snapshot(upto: Seq, bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let snapshot: Snapshot<Self> = serde_json::from_str(text).ok()?;
        (snapshot.version == SNAPSHOT_VERSION && snapshot.state.head == upto).then_some(snapshot.state)
    }
}

/// Builds the state of what was loaded. `None` when the snapshot is of no use and the entries before it are needed.
///
/// # Errors
/// What the first entry that does not decode or apply said.
pub fn restore(loaded: &Loaded) -> Option<Result<Durable, String>> {
    let base = match &loaded.snapshot {
        Some((upto, bytes)) => Durable::from_snapshot(*upto, bytes)?,
        None => Durable::default(),
    };
    let folded = fold(base, &loaded.entries);
    if folded.is_err() && loaded.snapshot.is_some() {
        return None;
    }
    Some(folded)
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

/// The messages of the history; for ports that hand them on.
impl From<&History> for MessageList {
    fn from(history: &History) -> Self {
        history.messages().clone()
    }
}

/// Whether a stop reason means that the round failed.
pub(crate) fn status_of(stop_reason: StopReason) -> crate::stream::RoundStatus {
    match stop_reason {
        StopReason::Error => crate::stream::RoundStatus::Error,
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
