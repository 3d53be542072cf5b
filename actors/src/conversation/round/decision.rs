//! The effects that a decision asks the shell to perform, as values, and whether each waits for the
//! commit of its entries.
//!
//! Pure.

use std::sync::Arc;

use crate::{
    chat::{Message, MessageList, Role, ToolUseBlock},
    ids::{RoundId, Seq, WaiterId, WorkId},
    journal::{Durable, EntryBody},
    limits::{HISTORY_BYTES_MAX, PENDING_MESSAGES_MAX, PINNED_BYTES_MAX, PINNED_LINES_MAX},
    policy::Amount,
    ports::ToolSpec,
    stream::Failure,
    time::Timestamp,
    tool::{EffectClass, OutputLevel},
    tool_executor::Again,
};

/// The answer to an accepted prompt, sent when the prompt is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The round whose stream reports the rest. For a replayed prompt, the round of the first one;
    /// for a steering prompt, the open round.
    pub round_id: RoundId,
    /// Whether the client key was known, so that nothing was accepted a second time.
    pub replayed: bool,
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A round is open and the prompt asked not to wait.
    #[error("the conversation is busy with another prompt")]
    Busy,
    /// The inbox holds as many prompts as it may.
    #[error("too many prompts wait in this conversation")]
    InboxFull,
    /// The host is shutting down.
    #[error("the host is shutting down")]
    Draining,
    /// The client key was used before with another body.
    #[error("this idempotency key was used with another body")]
    KeyReused,
    /// The object of the request does not exist; names its kind: open round, open approval, waiting
    /// prompt.
    #[error("there is no such {0}")]
    NoSuch(&'static str),
    /// The tool call has its result already, and it is another one.
    #[error("this tool call has its result already: {0}")]
    AlreadyAnswered(String),
    /// The prompt has no message, and the history does not end with one of a user, or a round is
    /// open.
    #[error(
        "there is nothing to answer: the history must end with a user's message or tool results"
    )]
    NothingToAnswer,
    /// The request needs an idle conversation, and a round is open.
    #[error("a round is open; interrupt it first")]
    RoundOpen,
    /// The line is empty, or the limits of pinned lines are reached.
    #[error(
        "this line cannot be pinned: at most {PINNED_LINES_MAX} lines of together {PINNED_BYTES_MAX} bytes, none of them empty"
    )]
    PinnedFull,
    /// No compaction makes the context fit; names the part that is too large.
    #[error("the context cannot be made to fit: the {0} alone is too large")]
    CannotShrink(&'static str),
    /// The skill cannot become active; says why.
    #[error("{0}")]
    Skill(String),
    /// A fork needs an empty conversation, and this one is not empty.
    #[error("there is a conversation of that name already, and it is not empty")]
    NotEmpty,
    /// The message is not one that a user can send.
    #[error(
        "a prompt or injection is a user message without tool results, and an import is a history without faults"
    )]
    InvalidMessage,
    /// The arguments that a person gave a tool call cannot be used; says why.
    #[error("the call cannot run with these arguments: {0}")]
    Arguments(String),
}

impl Refusal {
    /// The stable error code, as API clients see it.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Busy => "conversation_busy",
            Self::InboxFull => "inbox_full",
            Self::Draining => "draining",
            Self::KeyReused => "idempotency_key_reused",
            Self::NoSuch(_) => "not_found",
            Self::AlreadyAnswered(_) => "already_answered",
            Self::NothingToAnswer => "nothing_to_answer",
            Self::RoundOpen => "round_open",
            Self::PinnedFull => "pinned_full",
            Self::CannotShrink(_) => "context_too_large",
            Self::Skill(_) => "skill_refused",
            Self::NotEmpty => "conversation_exists",
            Self::InvalidMessage => "invalid_message",
            Self::Arguments(_) => "invalid_arguments",
        }
    }
}

/// Whether a message may enter from outside. The history would refuse any other message only after
/// it is in the journal, and again at every activation.
pub(super) fn is_plain_user(message: &Message) -> bool {
    message.role() == Role::User && message.tool_result_ids().is_empty()
}

/// Refuses a message that makes the history larger than any compaction is made for.
pub(super) fn fits(durable: &Durable, message: &Message) -> Result<(), Refusal> {
    fits_with(durable.message_bytes(), [message])
}

/// Refuses a message for the open round that is too large, or one too many of those that wait until
/// its model call or its calls of tools have ended.
pub(super) fn may_enter(durable: &Durable, message: &Message) -> Result<(), Refusal> {
    let waiting = durable
        .round
        .as_ref()
        .map_or(0, |round| round.pending.len());
    if waiting >= PENDING_MESSAGES_MAX {
        return Err(Refusal::InboxFull);
    }
    fits(durable, message)
}

/// Refuses messages that together are a larger history than any compaction is made for.
pub(super) fn all_fit(messages: &[Message]) -> Result<(), Refusal> {
    fits_with(0, messages)
}

fn fits_with<'a>(
    held: usize,
    messages: impl IntoIterator<Item = &'a Message>,
) -> Result<(), Refusal> {
    bounded(held + messages.into_iter().map(Message::kept_bytes).sum::<usize>())
}

/// Refuses tool results with these bytes, as [`fits`] refuses a message.
pub(super) fn fits_bytes(durable: &Durable, added: usize) -> Result<(), Refusal> {
    bounded(durable.message_bytes().saturating_add(added))
}

fn bounded(bytes: usize) -> Result<(), Refusal> {
    match bytes {
        ..=HISTORY_BYTES_MAX => Ok(()),
        _ => Err(Refusal::CannotShrink("history")),
    }
}

/// The start of one attempt of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct StartTool {
    /// The id under which the attempt reports its end.
    pub work: WorkId,
    /// The seq of the assistant entry that holds the calls.
    pub batch: Seq,
    /// The index of the call in its batch.
    pub call: u32,
    /// The call; `input` is what the tool gets, after hooks and approval.
    pub tool_use: ToolUseBlock,
    /// The number of the attempt; 0 is the first.
    pub attempt: u32,
    /// The declaration of the tool.
    pub spec: Arc<ToolSpec>,
    /// How much of the tool's data the model sees.
    pub level: OutputLevel,
    /// The failure of the previous attempt in words; `None` for the first attempt.
    pub last_error: Option<Arc<str>>,
}

/// Something for the shell to do.
#[allow(missing_docs, reason = "the field names say it")]
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Answer a caller that its prompt is stored.
    Acknowledge {
        waiter: WaiterId,
        /// Names the round whose stream the caller watches.
        receipt: Receipt,
    },
    /// Answer a caller with an error.
    Refuse {
        waiter: WaiterId,
        /// The error; nothing was stored for the request.
        refusal: Refusal,
    },
    /// Answer a caller that its request is done and stored.
    Answer {
        /// Registered by the shell when the mail arrived.
        waiter: WaiterId,
    },
    /// Reserve from the tenant's budget. The shell answers at once with
    /// [`crate::conversation::round::Input::Budget`].
    Reserve {
        /// The id that the answer carries.
        work: WorkId,
        /// The number of the model call in its round, from 1.
        step: u32,
        /// The estimate for the coming call.
        amount: Amount,
    },
    /// Call the model with the present history.
    StartModel {
        /// The id under which the call reports its end.
        work: WorkId,
    },
    /// Measure the context, and plan a compaction if it does not fit.
    MeasureContext {
        work: WorkId,
        /// The caller that asked for a compaction; `None` before a model call.
        waiter: Option<WaiterId>,
        /// Whether that caller asked for a summary.
        summary: bool,
    },
    /// Summarize in the background what a compaction dropped.
    Summarise {
        /// The hash of the dropped messages, under which the summary is kept.
        hash: String,
        messages: MessageList,
    },
    /// Count a compaction that was discarded because the history had changed.
    CompactionDropped,
    /// Start an attempt of a tool call.
    StartTool(StartTool),
    /// Publish that the executor will try a tool call again. It asks for that attempt by
    /// [`crate::conversation::round::Input::RetryDue`].
    ToolRetry {
        round_id: RoundId,
        /// The seq of the assistant entry that holds the calls.
        batch: Seq,
        /// The index of the call in its batch.
        call: u32,
        /// The coming attempt.
        again: Again,
        /// The failure of the last attempt in words.
        last_error: Arc<str>,
    },
    /// Cancel all open work of the round and start the grace period.
    CancelRound {
        round_id: RoundId,
        /// The failure that the round ends with; `None` for a plain interrupt.
        failure: Option<Failure>,
        /// Whether to skip the grace period: open work is aborted without awaiting its results.
        grace_over: bool,
    },
    /// Abort work without awaiting its result.
    Abort {
        /// No longer open: a late result is ignored.
        work: WorkId,
    },
    /// Publish the position of a waiting prompt.
    Queued {
        round_id: RoundId,
        /// The position in the inbox, from 1.
        position: usize,
    },
    /// Only people and the caller are awaited: release the round's permit and look for what has
    /// expired at `until`.
    Park {
        round_id: RoundId,
        /// When the first of them expires.
        until: Option<Timestamp>,
    },
    /// The round has ended: release its permit, tasks, timers and seat.
    RoundOver {
        /// The round that ended.
        round_id: RoundId,
    },
}

/// When an effect is performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once, while the entries are appended.
    Now,
    /// When the entries of its decision, and all earlier ones, are durable.
    Stored,
}

impl Effect {
    /// When the effect is performed. Answers to callers promise durability, and a tool with side
    /// effects must not run unless the journal says that it started, so both wait for the commit.
    /// All other effects are performed at once.
    pub(crate) fn when(&self) -> When {
        match self {
            Self::Acknowledge { .. } | Self::Answer { .. } => When::Stored,
            Self::StartTool(start) => match start.spec.effect {
                EffectClass::Pure => When::Now,
                EffectClass::Idempotent | EffectClass::Once | EffectClass::Client => When::Stored,
            },
            Self::Refuse { .. }
            | Self::Reserve { .. }
            | Self::StartModel { .. }
            | Self::MeasureContext { .. }
            | Self::Summarise { .. }
            | Self::CompactionDropped
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
    /// The facts to append to the journal, in order.
    pub entries: Vec<EntryBody>,
    /// The effects to perform, in order.
    pub effects: Vec<Effect>,
}

impl Decision {
    /// Whether nothing follows.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.effects.is_empty()
    }
}
