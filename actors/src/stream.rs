//! What watchers see: the events of INTERFACES §3. Plain data; ids are given by the stream writer alone.
//!
//! Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    chat::{Message, RawJson, Usage},
    ids::{ConversationId, Epoch, EventId, RoundId},
    time::Timestamp,
};

/// What a conversation waits for, kept in its head row so that nobody stays interrupted (DESIGN §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Open {
    /// No round is open.
    #[default]
    None,
    /// A round runs, or ran when its host stopped.
    Running,
    /// A round waits for a person or a far deadline.
    Parked,
}

/// One event. Unknown types must be ignorable by readers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamEvent {
    /// Place in the stream.
    pub id: EventId,
    /// Whose.
    pub conversation_id: ConversationId,
    /// Which round; absent for what belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_id: Option<RoundId>,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl StreamEvent {
    /// One line of JSON, as `--json` and SSE send it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Why a round ended (INTERFACES §2, `stop_reason`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the words of the contract")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    Refusal,
    IterationLimit,
    LoopGuard,
    Budget,
    Interrupted,
    ContextTooLarge,
    Error,
}

impl StopReason {
    /// The value as it is written.
    pub fn code(self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::Refusal => "refusal",
            Self::IterationLimit => "iteration_limit",
            Self::LoopGuard => "loop_guard",
            Self::Budget => "budget",
            Self::Interrupted => "interrupted",
            Self::ContextTooLarge => "context_too_large",
            Self::Error => "error",
        }
    }

    /// Whether the work was done: the exit code 0 of INTERFACES §2.
    pub fn is_done(self) -> bool {
        match self {
            Self::EndTurn | Self::MaxTokens | Self::StopSequence => true,
            Self::Refusal
            | Self::IterationLimit
            | Self::LoopGuard
            | Self::Budget
            | Self::Interrupted
            | Self::ContextTooLarge
            | Self::Error => false,
        }
    }
}

/// Status of a round (REQUIREMENTS V-02).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundStatus {
    /// Accepted, not begun.
    #[default]
    Pending,
    /// Running.
    InProgress,
    /// Ended by itself or by a bound.
    Completed,
    /// Ended by a failure.
    Error,
}

/// What failed, for watchers: a stable code and a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable code.
    pub code: String,
    /// What happened and what to do; no path, no key.
    pub message: String,
    /// When trying again makes sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The end of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundEnd {
    /// `completed` or `error`.
    pub status: RoundStatus,
    /// Why.
    pub stop_reason: StopReason,
    /// The last assistant message's text.
    pub text: String,
    /// All assistant text of the round.
    pub full_text: String,
    /// Tokens of all its calls.
    pub usage: Usage,
    /// From its start to its end.
    pub latency_ms: u64,
    /// What failed, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// How a conversation stands: the answer to a cursor that can be told of no more. What follows it goes on from there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// Whether a round is open, and whether it waits for a person; the event's `round_id` says which.
    pub open: Open,
    /// Rounds that are over.
    pub rounds: u64,
    /// The last messages of the history, at most 64 KiB of them.
    pub messages: Vec<Message>,
    /// Messages before those: the history has them.
    pub messages_before: u64,
}

/// How a subagent stands, as its parent's watchers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SubagentState {
    /// Its task was given to it.
    Started,
    /// It works; told once a second at most, with how far it is.
    Running,
    /// Its answer is the result of the call.
    Finished,
    /// It failed, or was ended before it had an answer.
    Failed,
}

impl SubagentState {
    /// The value as it is written.
    pub fn code(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}

/// How far a subagent is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChildProgress {
    /// Model calls.
    pub(crate) steps: u32,
    /// Tokens of them, in and out.
    pub(crate) tokens: u64,
}

impl ChildProgress {
    /// As its parent's watchers are told.
    pub(crate) fn event(self, id: ConversationId) -> EventKind {
        EventKind::Subagent { id, state: SubagentState::Running, steps: Some(self.steps), tokens: Some(self.tokens) }
    }
}

/// What happened. See INTERFACES §3 for each.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields of the contract")]
pub enum EventKind {
    RoundStarted {},
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        text: String,
    },
    ToolCall {
        tool_call_id: String,
        name: String,
        summary: String,
        input: RawJson,
    },
    ToolProgress {
        tool_call_id: String,
        text: String,
    },
    ToolResult {
        tool_call_id: String,
        name: String,
        is_error: bool,
        summary: String,
        duration_ms: u64,
        retry_count: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        artifact_id: Option<String>,
    },
    ApprovalRequired {
        tool_call_id: String,
        name: String,
        input: RawJson,
        reason: String,
        expires_at: Timestamp,
    },
    Retry {
        layer: &'static str,
        attempt: u32,
        delay_ms: u64,
        reason: String,
    },
    Usage {
        #[serde(flatten)]
        usage: Usage,
        #[serde(skip_serializing_if = "Option::is_none")]
        cost_usd: Option<f64>,
    },
    Context {
        tokens: u64,
        window: u64,
        fraction: f64,
    },
    Compaction {
        mode: String,
        before_tokens: u64,
        after_tokens: u64,
    },
    SkillActivated {
        name: String,
        level: u8,
    },
    Subagent {
        id: ConversationId,
        state: SubagentState,
        /// Model calls so far; told while it is running.
        #[serde(skip_serializing_if = "Option::is_none")]
        steps: Option<u32>,
        /// Tokens so far, in and out.
        #[serde(skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
    },
    Queued {
        position: usize,
    },
    Message {
        message: Message,
        partial: bool,
    },
    TurnRestarted {
        epoch: Epoch,
    },
    Snapshot {
        #[serde(flatten)]
        snapshot: Box<Snapshot>,
    },
    RoundFinished {
        #[serde(flatten)]
        end: Arc<RoundEnd>,
    },
    Error {
        #[serde(flatten)]
        failure: Failure,
    },
}

impl EventKind {
    /// Whether the event tells of a journal entry; others may be dropped when a store is full.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Subagent { state: SubagentState::Running, .. } => false,
            Self::RoundStarted {}
            | Self::ToolCall { .. }
            | Self::ToolResult { .. }
            | Self::ApprovalRequired { .. }
            | Self::Usage { .. }
            | Self::Compaction { .. }
            | Self::Message { .. }
            | Self::SkillActivated { .. }
            | Self::Subagent { .. }
            | Self::TurnRestarted { .. }
            | Self::Snapshot { .. }
            | Self::RoundFinished { .. }
            | Self::Error { .. } => true,
            Self::TextDelta { .. }
            | Self::ThinkingDelta { .. }
            | Self::ToolProgress { .. }
            | Self::Retry { .. }
            | Self::Context { .. }
            | Self::Queued { .. } => false,
        }
    }

    /// Whether a round's stream ends here.
    pub fn ends_stream(&self) -> bool {
        matches!(self, Self::RoundFinished { .. } | Self::Error { .. })
    }

    /// Bytes that the event roughly takes in memory.
    pub fn size(&self) -> usize {
        64 + match self {
            Self::TextDelta { text } | Self::ThinkingDelta { text } => text.len(),
            Self::ToolProgress { tool_call_id, text } => tool_call_id.len() + text.len(),
            Self::ToolCall { summary, input, .. } => summary.len() + input.as_str().len(),
            Self::ToolResult { summary, .. } => summary.len(),
            Self::ApprovalRequired { input, .. } => input.as_str().len(),
            Self::Message { message, .. } => message.wire().len(),
            Self::RoundFinished { end } => end.text.len() + end.full_text.len(),
            Self::Snapshot { snapshot } => snapshot.messages.iter().map(|message| message.wire().len()).sum(),
            Self::SkillActivated { name, .. } => name.len(),
            Self::Subagent { id, .. } => id.as_str().len(),
            Self::RoundStarted {}
            | Self::Retry { .. }
            | Self::Usage { .. }
            | Self::Context { .. }
            | Self::Compaction { .. }
            | Self::Queued { .. }
            | Self::TurnRestarted { .. }
            | Self::Error { .. } => 0,
        }
    }
}
