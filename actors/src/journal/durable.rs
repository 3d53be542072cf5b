//! The state that a journal folds into. [`Durable::apply`] returns an error for an entry that
//! cannot follow; it does no I/O and does not panic.
//!
//! Pure.

mod apply;
mod fold;
mod marks;
mod open_round;
mod skills;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub use self::{
    fold::{FoldError, fold, restore},
    open_round::{
        AcceptedPrompt, Batch, Call, CallState, FallbackCall, OpenRound, OutputRequest, Phase,
    },
};
use super::{
    ChildKey, Context, ConversationMetrics, Entry, RoundMarks, SkillState, Spent, ToolAggregate,
    ToolExecutionResult,
    client_keys::{KnownKey, OlderKeys},
    digest,
};
use crate::{
    chat::{ClientTools, History, Message, MessageList, ModelParameters, Usage},
    ids::{Epoch, RoundId, Scope, Seq},
    small_map::SmallMap,
    stream::StopReason,
    time::Timestamp,
};

/// Version of the snapshot format. Snapshots of other versions are ignored, and the journal is read
/// instead.
pub(crate) const SNAPSHOT_VERSION: u32 = 2;

/// Prefix of the key under which the digest of a caller's tool result is remembered; the id of the
/// call follows. The first character keeps it apart from the keys that clients choose.
const CLIENT_RESULT_KEY: &str = "\u{1f}result of ";

/// Digest of what the model reads of a result, to know a result that is sent again.
pub(crate) fn result_digest(outcome: &ToolExecutionResult) -> u64 {
    let kind: &[u8] = if outcome.is_error { b"e" } else { b"r" };
    digest(&[kind, outcome.observation.as_bytes()].concat())
}

/// The key under which the digest of the caller's result of a call is remembered.
fn client_result_key(tool_call_id: &str) -> String {
    format!("{CLIENT_RESULT_KEY}{tool_call_id}")
}

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
    pub tools: SmallMap<String, ToolAggregate>,
    /// Usage of the last model call; zero after the history was replaced.
    pub last_usage: Usage,
    /// Use of the window, pinned lines, and the last compaction.
    #[serde(default)]
    pub context: Context,
    /// What the conversation has spent of its budget.
    #[serde(default)]
    pub spent: Spent,
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
    /// Bytes of the messages that are held in memory: of the history, and of what waits to enter it.
    pub(crate) fn message_bytes(&self) -> usize {
        self.history.messages().kept_bytes() + self.waiting_bytes()
    }

    /// Bytes of what waits to enter the history: prompts, injected messages, answers with open calls and
    /// their results.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let prompts = self.inbox.iter().map(AcceptedPrompt::kept_bytes);
        prompts.sum::<usize>() + self.round.as_ref().map_or(0, |round| round.waiting_bytes())
    }

    /// The fallback that the next model call asks; `None` for the configured way.
    pub(crate) fn fallback(&self) -> Option<&FallbackCall> {
        self.round.as_ref()?.fallback.as_ref()
    }

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

    /// The digest of the result that a call at a caller has got; `None` if this id was never a call
    /// at a caller, or is no longer remembered.
    pub(crate) fn client_result(&self, tool_call_id: &str) -> Option<u64> {
        let (digest, _) = self.known_key(&client_result_key(tool_call_id))?;
        Some(digest)
    }

    /// The tools that the caller of the open round brought.
    pub(crate) fn client_tools(&self) -> Option<&ClientTools> {
        self.round.as_deref()?.client_tools.as_deref()
    }

    /// Returns the parent of this conversation, named `own`, if this is a subagent: the client key
    /// of its prompt holds the tool call that started it. In other conversations such a client key
    /// means nothing.
    pub(crate) fn parent(&self, own: &Scope) -> Option<Scope> {
        let call = |known: &KnownKey| Some(ChildKey::parse(&known.key)?.call);
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
