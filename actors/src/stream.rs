//! The events that watchers see. Plain data: only the stream writer assigns event ids.
//!
//! Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    chat::{Message, RawJson, Usage},
    ids::{ConversationId, Epoch, EventId, RoundId},
    time::Timestamp,
};

/// What a conversation waits for. The store keeps the state beside the journal, so that a sweep
/// finds interrupted rounds after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Open {
    /// No round is open.
    #[default]
    None,
    /// A round is running, or was running when its host stopped.
    Running,
    /// A round waits for a person's approval or a far deadline.
    Parked,
}

/// One event of a stream. Readers must ignore unknown types.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct StreamEvent {
    /// Position in the stream.
    pub id: EventId,
    pub conversation_id: ConversationId,
    /// The round that the event belongs to. `None` for events between rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_id: Option<RoundId>,
    /// Type and content of the event.
    #[serde(flatten)]
    pub kind: EventKind,
}

impl StreamEvent {
    /// Returns the event as one line of JSON, as `--json` and SSE send it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Adds the event to `out`, as [`StreamEvent::to_json`] returns it.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let _ = serde_json::to_writer(out, self); // Writing to memory cannot fail.
    }
}

/// Why a round ended.
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
    /// Returns the value as it is written in JSON.
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

    /// Whether the round did its work. `callboard` exits with 0 for these reasons only.
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

/// Progress of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundStatus {
    /// The prompt is accepted; the round has not begun.
    #[default]
    Pending,
    /// The round is running.
    InProgress,
    /// Ended with an answer, at a limit of its model calls, or interrupted by its user.
    Completed,
    /// Ended by a failure, which [`RoundEnd::error`] names: of the provider, of a deadline, of a
    /// budget, or of a context that does not fit.
    Error,
}

/// A failure as watchers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable code for programs.
    pub code: String,
    /// What happened and what to do, for people. Contains no path and no key.
    pub message: String,
    /// Milliseconds after which a retry makes sense. `None` if no time is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The end of a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct RoundEnd {
    /// `Completed` or `Error`.
    pub status: RoundStatus,
    pub stop_reason: StopReason,
    /// Text of the last assistant message.
    pub text: String,
    /// Text of all assistant messages of the round.
    pub full_text: String,
    /// Tokens of all model calls of the round.
    pub usage: Usage,
    /// Milliseconds from start to end.
    pub latency_ms: u64,
    /// The failure, when `status` is `Error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// The state of a conversation, sent to a watcher whose cursor is older than the kept events. The
/// events after it continue from this state.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// Whether a round is open or waits for a person. The event's `round_id` names the round.
    pub open: Open,
    /// Number of finished rounds.
    pub rounds: u64,
    /// The last messages of the history, at most 64 KiB.
    pub messages: Vec<Message>,
    /// Number of earlier messages, which the history returns.
    pub messages_before: u64,
}

/// State of a subagent, as the watchers of its parent see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SubagentState {
    /// Its task was sent.
    Started,
    /// Working. Published at most once per second, with the progress.
    Running,
    /// Finished; its answer is the result of the call.
    Finished,
    /// Failed, or ended before it had an answer.
    Failed,
}

impl SubagentState {
    /// Returns the value as it is written in JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
        }
    }
}

/// Progress of a subagent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChildProgress {
    /// Model calls so far.
    pub(crate) steps: u32,
    /// Input and output tokens of those calls.
    pub(crate) tokens: u64,
}

impl ChildProgress {
    /// Converts to the event for the parent's watchers.
    pub(crate) fn event(self, id: ConversationId) -> EventKind {
        EventKind::Subagent {
            id,
            state: SubagentState::Running,
            steps: Some(self.steps),
            tokens: Some(self.tokens),
        }
    }
}

/// Type and content of an event.
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
        /// The first line of the result, shortened.
        summary: String,
        /// The next lines of the result, shortened, four at most. Empty for a failed call.
        #[serde(skip_serializing_if = "String::is_empty")]
        preview: String,
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
    /// A call of a tool that the caller brought: the caller runs it and sends its result.
    ClientToolCall {
        tool_call_id: String,
        name: String,
        input: RawJson,
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
        /// Model calls so far. Present only while `Running`.
        #[serde(skip_serializing_if = "Option::is_none")]
        steps: Option<u32>,
        /// Input and output tokens so far. Present only while `Running`.
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
    /// Whether the event follows from a journal entry. A full store may drop other events.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Subagent {
                state: SubagentState::Running,
                ..
            } => false,
            Self::RoundStarted {}
            | Self::ToolCall { .. }
            | Self::ToolResult { .. }
            | Self::ApprovalRequired { .. }
            | Self::ClientToolCall { .. }
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

    /// Returns the event's `type`, as it is written in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::RoundStarted {} => "round_started",
            Self::TextDelta { .. } => "text_delta",
            Self::ThinkingDelta { .. } => "thinking_delta",
            Self::ToolCall { .. } => "tool_call",
            Self::ToolProgress { .. } => "tool_progress",
            Self::ToolResult { .. } => "tool_result",
            Self::ApprovalRequired { .. } => "approval_required",
            Self::ClientToolCall { .. } => "client_tool_call",
            Self::Retry { .. } => "retry",
            Self::Usage { .. } => "usage",
            Self::Context { .. } => "context",
            Self::Compaction { .. } => "compaction",
            Self::SkillActivated { .. } => "skill_activated",
            Self::Subagent { .. } => "subagent",
            Self::Queued { .. } => "queued",
            Self::Message { .. } => "message",
            Self::TurnRestarted { .. } => "turn_restarted",
            Self::Snapshot { .. } => "snapshot",
            Self::RoundFinished { .. } => "round_finished",
            Self::Error { .. } => "error",
        }
    }

    /// Whether the event ends the stream of a round.
    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self, Self::RoundFinished { .. } | Self::Error { .. })
    }

    /// Estimates the bytes of the event in memory.
    pub fn size(&self) -> usize {
        64 + self.text_bytes()
    }

    /// Returns the bytes of the texts.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::TextDelta { text } | Self::ThinkingDelta { text } => text.len(),
            Self::ToolProgress { tool_call_id, text } => tool_call_id.len() + text.len(),
            Self::ToolCall { summary, input, .. } => summary.len() + input.as_str().len(),
            Self::ToolResult {
                summary, preview, ..
            } => summary.len() + preview.len(),
            Self::ApprovalRequired { input, .. } | Self::ClientToolCall { input, .. } => {
                input.as_str().len()
            }
            Self::Message { message, .. } => message.wire().len(),
            Self::RoundFinished { end } => end.text.len() + end.full_text.len(),
            Self::Snapshot { snapshot } => snapshot
                .messages
                .iter()
                .map(|message| message.wire().len())
                .sum(),
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
