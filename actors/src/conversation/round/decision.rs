//! What a conversation's shell is to do, as values, and what each act waits for: the table of waits (DESIGN §4.3).
//!
//! Pure.

use std::{sync::Arc, time::Duration};

use crate::{
    chat::{MessageList, ToolUseBlock},
    ids::{RoundId, Seq, WaiterId, WorkId},
    journal::EntryBody,
    limits::{PINNED_BYTES_MAX, PINNED_LINES_MAX},
    policy::Amount,
    ports::ToolSpec,
    stream::Failure,
    time::Timestamp,
    tool::{EffectClass, OutputLevel},
};

/// What a caller learns when its prompt is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The round whose stream tells the rest.
    pub round_id: RoundId,
    /// Whether the prompt was already known by its client key.
    pub replayed: bool,
}

/// Why a caller is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A round is open and the caller did not want to wait.
    #[error("the conversation is busy with another prompt")]
    Busy,
    /// Too many prompts wait.
    #[error("too many prompts wait in this conversation")]
    InboxFull,
    /// The host is shutting down.
    #[error("the host is shutting down")]
    Draining,
    /// The client key was used with another body.
    #[error("this idempotency key was used with another body")]
    KeyReused,
    /// There is nothing to do that to: no open round, no such call, no such prompt.
    #[error("there is no such {0}")]
    NoSuch(&'static str),
    /// A round is open; end it first.
    #[error("a round is open; interrupt it first")]
    RoundOpen,
    /// The pinned lines are full.
    #[error("this line cannot be pinned: at most {PINNED_LINES_MAX} lines of together {PINNED_BYTES_MAX} bytes, none of them empty")]
    PinnedFull,
    /// The context cannot be made small enough.
    #[error("the context cannot be made to fit: the {0} alone is too large")]
    CannotShrink(&'static str),
    /// A skill cannot become active.
    #[error("{0}")]
    Skill(String),
    /// There is a conversation of that name already.
    #[error("there is a conversation of that name already, and it is not empty")]
    NotEmpty,
    /// What is said is not something that a person can say.
    #[error("a prompt or injection is a user message without tool results, and an import is a history without faults")]
    InvalidMessage,
}

impl Refusal {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Busy => "conversation_busy",
            Self::InboxFull => "inbox_full",
            Self::Draining => "draining",
            Self::KeyReused => "idempotency_key_reused",
            Self::NoSuch(_) => "not_found",
            Self::RoundOpen => "round_open",
            Self::PinnedFull => "pinned_full",
            Self::CannotShrink(_) => "context_too_large",
            Self::Skill(_) => "skill_refused",
            Self::NotEmpty => "conversation_exists",
            Self::InvalidMessage => "invalid_message",
        }
    }
}

/// The start of one attempt of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct StartTool {
    /// Its name in this life.
    pub work: WorkId,
    /// The batch: seq of the assistant entry.
    pub batch: Seq,
    /// Its place in the batch.
    pub call: u32,
    /// Id and name; `input` is the one to use.
    pub tool_use: ToolUseBlock,
    /// Which start it is, from 0.
    pub attempt: u32,
    /// What its tool declares.
    pub spec: Arc<ToolSpec>,
    /// How much of its data is shown.
    pub level: OutputLevel,
    /// How the attempt before it failed (REQUIREMENTS T-30).
    pub last_error: Option<Arc<str>>,
}

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Tell a caller that its prompt is safe.
    Acknowledge {
        /** Who. */
        waiter: WaiterId,
        /** What. */
        receipt: Receipt,
    },
    /// Tell a caller no.
    Refuse {
        /** Who. */
        waiter: WaiterId,
        /** Why. */
        refusal: Refusal,
    },
    /// Tell a caller that it is done and safe.
    Answer {
        /** Who. */
        waiter: WaiterId,
    },
    /// Reserve this of the tenant's budget, and answer at once as [`crate::conversation::round::Input::Budget`].
    Reserve {
        /** Its name. */
        work: WorkId,
        /** The model call that it is for. */
        step: u32,
        /** How much. */
        amount: Amount,
    },
    /// Call the model with the history as it is now.
    StartModel {
        /** Its name. */
        work: WorkId,
    },
    /// Measure the context, and say how it can be made to fit if it does not.
    MeasureContext {
        /** Its name. */
        work: WorkId,
        /** Who asked for a compaction. */
        waiter: Option<WaiterId>,
    },
    /// Have a background summary made of what a compaction dropped.
    Summarise {
        /** Its hash. */
        hash: String,
        /** What was dropped. */
        messages: MessageList,
    },
    /// A compaction came too late for what it was made of; it is counted.
    CompactionDropped,
    /// Start an attempt of a tool call.
    StartTool(StartTool),
    /// Ask again after a pause, as [`crate::conversation::round::Input::RetryDue`].
    RetryLater {
        /** The batch. */
        batch: Seq,
        /** Its call. */
        call: u32,
        /** Which attempt. */
        attempt: u32,
        /** The pause. */
        delay: Duration,
        /** How the attempt failed. */
        last_error: Arc<str>,
    },
    /// Tell watchers that a tool call will be tried again.
    ToolRetry {
        /** The round. */
        round_id: RoundId,
        /** Which attempt. */
        attempt: u32,
        /** The pause. */
        delay: Duration,
        /** Why. */
        reason: String,
    },
    /// Cancel the tokens of all open work; start the grace, unless it is over at once.
    CancelRound {
        /** The round. */
        round_id: RoundId,
        /** Why. */
        failure: Option<Failure>,
        /** No grace. */
        grace_over: bool,
    },
    /// Stop a piece of work; its answer is no longer awaited.
    Abort {
        /** Which. */
        work: WorkId,
    },
    /// Tell watchers where a waiting prompt stands.
    Queued {
        /** Its round. */
        round_id: RoundId,
        /** From 1. */
        position: usize,
    },
    /// The round waits for people only: give back what it holds, look again at the given time.
    Park {
        /** The round. */
        round_id: RoundId,
        /** When the first approval expires. */
        until: Option<Timestamp>,
    },
    /// The round is over: give back what it holds.
    RoundOver {
        /** The round. */
        round_id: RoundId,
    },
}

/// What an act waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Nothing.
    Now,
    /// The entries of its step, and all before, are durable.
    Stored,
}

impl Effect {
    /// The table of waits (DESIGN §4.3).
    pub fn when(&self) -> When {
        match self {
            Self::Acknowledge { .. } | Self::Answer { .. } => When::Stored,
            Self::StartTool(start) => match start.spec.effect {
                EffectClass::Pure => When::Now,
                EffectClass::Idempotent | EffectClass::Once => When::Stored,
            },
            Self::Refuse { .. }
            | Self::Reserve { .. }
            | Self::StartModel { .. }
            | Self::MeasureContext { .. }
            | Self::Summarise { .. }
            | Self::CompactionDropped
            | Self::RetryLater { .. }
            | Self::ToolRetry { .. }
            | Self::CancelRound { .. }
            | Self::Abort { .. }
            | Self::Queued { .. }
            | Self::Park { .. }
            | Self::RoundOver { .. } => When::Now,
        }
    }
}

/// What follows from an input.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decision {
    /// What is to be remembered, in order.
    pub entries: Vec<EntryBody>,
    /// What is to be done.
    pub effects: Vec<Effect>,
}

impl Decision {
    /// Whether nothing follows.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.effects.is_empty()
    }
}
