//! A conversation's mail.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use crate::{
    chat::{Message, RawJson},
    conversation::round::{ModelOutcome, OnBusy, Receipt, Refusal, input::ContextOutcome, rounds::Copied},
    ids::{PromptId, RoundId, Seq, WorkId},
    journal::{ClientKey, ConversationRound, Durable, Head, StoredEntry, WithdrawReason},
    ports::{AppendError, StoreError},
    skill::{SkillActivationResult, SkillName},
    stream::Failure,
    tenant::Seat,
    tool_executor::RunResult,
};

/// Why a conversation did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// It said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A bound of the host or tenant is reached; try later.
    #[error("overloaded: {what}")]
    Overloaded {
        /// Which bound.
        what: &'static str,
        /// When to try again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another process, or another life, took the conversation over.
    #[error("session in use: another process writes this conversation")]
    InUse,
    /// Its journal cannot be read.
    #[error("this conversation cannot be read: {reason}; see `sessions repair`")]
    Failed {
        /// Why.
        reason: String,
    },
    /// Its tenant is paused by the operator; what was accepted before waits.
    #[error("this tenant is paused")]
    TenantPaused,
    /// Its tenant is not served any longer.
    #[error("this tenant is not served any longer")]
    TenantRemoved,
    /// It was deleted while this was on its way.
    #[error("this conversation was deleted")]
    Deleted,
    /// It ended before it could answer; the outcome, if any, is in its stream.
    #[error("the conversation ended before it could answer")]
    Gone,
}

impl ConversationError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Overloaded { .. } => "overloaded",
            Self::Store(error) => error.code(),
            Self::InUse => "session_in_use",
            Self::Failed { .. } => "conversation_failed",
            Self::TenantPaused => "tenant_paused",
            Self::TenantRemoved => "tenant_removed",
            Self::Deleted => "deleted",
            Self::Gone => "gone",
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(Refusal::Busy | Refusal::InboxFull | Refusal::Draining) | Self::Overloaded { .. } | Self::Gone => true,
            Self::Store(error) => error.is_retryable(),
            Self::Refused(
                Refusal::KeyReused
                | Refusal::NoSuch(_)
                | Refusal::RoundOpen
                | Refusal::InvalidMessage
                | Refusal::PinnedFull
                | Refusal::CannotShrink(_)
                | Refusal::Skill(_)
                | Refusal::NotEmpty,
            )
            | Self::InUse
            | Self::TenantPaused // Nobody knows for how long: a program that tries again and again would only knock.
            | Self::TenantRemoved
            | Self::Deleted
            | Self::Failed { .. } => false,
        }
    }
}

/// Where an answer goes.
pub type Answer<T> = oneshot::Sender<Result<T, ConversationError>>;

/// A prompt on its way.
#[derive(Debug)]
pub struct PromptMail {
    /// Its id.
    pub id: PromptId,
    /// The round it will open.
    pub round_id: RoundId,
    /// The client's own name for it.
    pub client_key: Option<ClientKey>,
    /// What is said.
    pub message: Message,
    /// The JSON Schema that the answer must fit.
    pub output_schema: Option<RawJson>,
    /// What to do when a round is open.
    pub on_busy: OnBusy,
    /// When the round is to be over.
    pub deadline: Option<Instant>,
    /// Its place; freed when the round is over.
    pub seat: Seat,
    /// Told when the prompt is safe.
    pub reply: Answer<Receipt>,
}

/// What a conversation can be told.
pub enum ConversationMsg {
    /// From a caller: somebody says something.
    Prompt(Box<PromptMail>),
    /// From a caller: end the open round. Answered when the wish is taken, not when the round is over.
    Interrupt {
        /// Why, if somebody should read it.
        failure: Option<Failure>,
        /// Who asks.
        reply: Option<Answer<()>>,
    },
    /// From a caller: answer an approval.
    Approve {
        /// The call.
        tool_call_id: String,
        /// The answer.
        allow: bool,
        /// Whether it holds for calls of the same pattern too.
        always: bool,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: a message for the model to read when it can.
    Inject {
        /// Its id.
        id: Option<String>,
        /// The message.
        message: Message,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller or its deadline: take a waiting prompt back.
    Withdraw {
        /// Which.
        prompt_id: PromptId,
        /// Why.
        reason: WithdrawReason,
        /// Who asks.
        reply: Option<Answer<()>>,
    },
    /// From a measurement of the context.
    ContextMeasured {
        /// Which.
        work: WorkId,
        /// How it ended.
        outcome: Box<ContextOutcome>,
    },
    /// From a caller: make the context smaller now.
    Compact {
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: a line that stays through every compaction.
    Pin {
        /// The line.
        line: String,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: take this history.
    Import {
        /// The messages.
        messages: Vec<Message>,
        /// Records of its rounds, if it came with any.
        rounds: Vec<ConversationRound>,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: take that round and all later ones back.
    Rewind {
        /// Which.
        round_id: RoundId,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: begin as this copy.
    Fork {
        /// Of what.
        copied: Box<Copied>,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller, who loaded it: make a skill active.
    ActivateSkill {
        /// What was loaded.
        loaded: Box<SkillActivationResult>,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: a skill is to be active no longer.
    DeactivateSkill {
        /// Which.
        name: SkillName,
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: forget everything.
    Reset {
        /// Who asks.
        reply: Answer<()>,
    },
    /// From a caller: tell the state as it is in memory.
    Peek {
        /// Who asks.
        reply: Answer<Box<Durable>>,
    },
    /// From the directory: an interrupted conversation is to go on. Loading it is enough.
    Resume,
    /// From the loading task.
    Loaded(Result<Box<Durable>, LoadFailure>),
    /// From a model call.
    ModelEnded {
        /// Which.
        work: WorkId,
        /// How.
        outcome: Box<ModelOutcome>,
        /// The model that was asked last: a fallback's where one stood in.
        model: Arc<str>,
    },
    /// From the executor.
    ToolEnded {
        /// Which attempt.
        work: WorkId,
        /// How.
        result: Box<RunResult>,
        /// From the call's first start.
        duration_ms: u64,
    },
    /// From a timer: try a call again.
    RetryDue {
        /// The batch.
        batch: Seq,
        /// Its call.
        call: u32,
    },
    /// From a timer: the time for answers to a cancel is over.
    GraceOver {
        /// The round that was cancelled.
        round_id: RoundId,
    },
    /// From a timer: a prompt's time is over.
    DeadlineOver {
        /// Which prompt.
        prompt_id: PromptId,
        /// Its round.
        round_id: RoundId,
    },
    /// From a timer: the time that the conversation's budget leaves to a round is used up.
    BudgetTimeOver {
        /// The round.
        round_id: RoundId,
    },
    /// From a timer: approvals may have expired.
    Tick,
    /// From the store: an append was not stored, or may not be.
    AppendLost {
        /// What it said.
        error: AppendError,
        /// Which sending this was; a pause begins a new one.
        sending: u32,
    },
    /// From the store: the life's first append is safe; what was held behind it may go.
    Claimed,
    /// From the pause: the store's head now and the entry after what is known to be safe, or that a read failed.
    HeadRead(Result<(Head, Option<StoredEntry>), StoreError>),
    /// From the sweep: go to sleep if there is nothing to do.
    Sweep,
    /// From the host: start no new round; end the open one at the deadline.
    Drain {
        /// When.
        deadline: Instant,
    },
    /// From its own timer.
    DrainDeadline,
    /// From the directory: end what runs and this life; the conversation is being deleted.
    Delete,
}

/// Why a conversation could not be loaded.
#[derive(Debug, Clone)]
pub enum LoadFailure {
    /// The store failed; another try may work.
    Store(StoreError),
    /// The journal does not decode or apply.
    Unreadable(String),
}
