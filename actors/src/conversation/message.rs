//! The messages that a conversation's mailbox takes, and the errors of their answers.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use crate::{
    chat::{ClientTools, Message, ModelParameters, RawJson},
    compactor::SummaryBill,
    conversation::{
        command::Command,
        round::{
            FailedAttempt, ModelOutcome, OnBusy, Receipt, Refusal, input::ContextOutcome,
            rules::CheckedAhead,
        },
        store_health::Probe,
        wait_status::ReadPlace,
    },
    ids::{PromptId, RoundId, Seq, WorkId},
    journal::{ApplyError, ClientKey, DecodeError, Durable, FoldError, Growth, Head, StoredEntry},
    metrics_collector::CallTimes,
    ports::{AppendError, StoreError},
    reads::ReadPermit,
    stream::Failure,
    tenant::{HeldMemory, LongAnswerPlace, NotAdmitted, Seat},
    tool_executor::{Again, RunResult},
};

/// Why a conversation did not serve a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversationError {
    /// The conversation refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A limit of the host or of the tenant is reached; retry later.
    #[error("overloaded: {what}")]
    Overloaded {
        /// The limit that is reached, in words.
        what: &'static str,
        /// The suggested delay before a retry, in milliseconds.
        retry_after_ms: u64,
    },
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// Another process, or another activation, writes this conversation now.
    #[error("session in use: another process writes this conversation")]
    InUse,
    /// Another host owns this conversation: ask that one.
    #[error("another host owns this conversation")]
    Elsewhere {
        /// The address under which the other hosts reach that one; empty if it has none.
        host: String,
    },
    /// The journal cannot be read.
    #[error("this conversation cannot be read: {reason}; see `sessions repair`")]
    Failed {
        /// What is wrong with the journal.
        reason: String,
    },
    /// A newer program wrote the journal. That program can read it.
    #[error("this conversation needs a newer version of callboard: {reason}")]
    NeedsNewerVersion {
        /// The entry that this program does not know.
        reason: String,
    },
    /// The operator paused the tenant; requests accepted earlier wait until it resumes.
    #[error("this tenant is paused")]
    TenantPaused,
    /// The tenant was removed from this host.
    #[error("this tenant is not served any longer")]
    TenantRemoved,
    /// The conversation was deleted before the request was handled.
    #[error("this conversation was deleted")]
    Deleted,
    /// The conversation ended before it could answer; the outcome, if there is one, is in its
    /// stream.
    #[error("the conversation ended before it could answer")]
    Gone,
}

/// Damage concerns one conversation, not the store, so it is the same failure as entries that do
/// not fold.
impl From<StoreError> for ConversationError {
    fn from(error: StoreError) -> Self {
        LoadFailure::from(error).into()
    }
}

impl From<NotAdmitted> for ConversationError {
    fn from(why: NotAdmitted) -> Self {
        match why.bound() {
            Some((what, retry_after_ms)) => Self::Overloaded {
                what,
                retry_after_ms,
            },
            None if why == NotAdmitted::Paused => Self::TenantPaused,
            None => Self::TenantRemoved,
        }
    }
}

impl ConversationError {
    /// The stable error code, as API clients see it.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Overloaded { .. } => "overloaded",
            Self::Store(error) => error.code(),
            Self::InUse => "session_in_use",
            Self::Elsewhere { .. } => "owned_elsewhere",
            Self::Failed { .. } => "conversation_failed",
            Self::NeedsNewerVersion { .. } => "needs_newer_version",
            Self::TenantPaused => "tenant_paused",
            Self::TenantRemoved => "tenant_removed",
            Self::Deleted => "deleted",
            Self::Gone => "gone",
        }
    }

    /// Whether the same request can succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(Refusal::Busy | Refusal::InboxFull | Refusal::Draining) | Self::Overloaded { .. } | Self::Elsewhere { .. } | Self::Gone => true,
            Self::Store(error) => error.is_retryable(),
            Self::Refused(
                Refusal::KeyReused
                | Refusal::NoSuch(_)
                | Refusal::AlreadyAnswered(_)
                | Refusal::NothingToAnswer
                | Refusal::RoundOpen
                | Refusal::InvalidMessage
                | Refusal::Arguments(_)
                | Refusal::PinnedFull
                | Refusal::CannotShrink(_)
                | Refusal::Skill(_)
                | Refusal::NotEmpty,
            )
            | Self::InUse
            | Self::TenantPaused // Until an operator resumes it, at an unknown time.
            | Self::TenantRemoved
            | Self::Deleted
            | Self::NeedsNewerVersion { .. }
            | Self::Failed { .. } => false,
        }
    }
}

/// The channel that carries one answer to a caller.
pub type Answer<T> = oneshot::Sender<Result<T, ConversationError>>;

/// A prompt on its way to the conversation.
#[derive(Debug)]
pub struct PromptMail {
    /// The id of the prompt, chosen by the sender.
    pub id: PromptId,
    /// The round it will open.
    pub round_id: RoundId,
    /// The client's idempotency key; `None` if the client sent none.
    pub client_key: Option<ClientKey>,
    /// The user's message; `None` to answer the history as it is.
    pub message: Option<Message>,
    /// The JSON Schema that the answer must fit; `None` for free text.
    pub output_schema: Option<RawJson>,
    /// How the model is asked to answer; `None` for the configuration's way.
    pub parameters: Option<Arc<ModelParameters>>,
    /// Tools that the caller brings and runs itself.
    pub client_tools: Option<Arc<ClientTools>>,
    /// What to do when a round is open.
    pub on_busy: OnBusy,
    /// When to cancel the round, or to withdraw the prompt if its round has not started.
    pub deadline: Option<Instant>,
    /// When to withdraw the prompt if its round has not started; `None` waits without a bound.
    pub wait_until: Option<Instant>,
    /// The admission of this prompt; dropped, and so freed, when its round is over.
    pub seat: Seat,
    /// Answered when the prompt is stored.
    pub reply: Answer<Receipt>,
}

/// The messages of a conversation. Each variant says who sends it. A `reply` is answered after the
/// entries that the message led to are stored.
#[allow(missing_docs, reason = "the field names say it")]
pub enum ConversationMsg {
    /// From a caller: a new prompt.
    Prompt(Box<PromptMail>),
    /// From a caller: a command.
    Ask {
        command: Command,
        /// The place of a large history among the reads of its tenant; freed when what the command
        /// led to is stored, whether its caller still waits or not.
        place: ReadPermit,
        reply: Answer<()>,
    },
    /// From a parent, a fan-out or a holder of a reply, none of which awaits an answer: cancel the
    /// open round.
    Cancel {
        /// The failure that the round ends with; `None` for a plain interrupt.
        failure: Option<Failure>,
    },
    /// From the task that measured the context.
    ContextMeasured {
        /// The work that the measurement answers; ignored if no longer open.
        work: WorkId,
        outcome: Box<ContextOutcome>,
    },
    /// From the compactor: a model call for a summary ended and has to be paid.
    SummaryBilled(SummaryBill),
    /// From a caller: return a copy of the state in memory.
    Peek {
        /// Answered at once, with entries that may not be stored yet.
        reply: Answer<Box<Durable>>,
    },
    /// From a reader: return a copy of the state that the store holds. Dropped, and so left to the
    /// store, by an activation that is loading, paused or over.
    Read {
        /// Answered when all entries of the state are stored.
        reply: Answer<Box<Durable>>,
        /// The place of this read among those of the conversation.
        place: ReadPlace,
    },
    /// From the directory: continue an interrupted conversation. Activating it is enough.
    Resume,
    /// From the task that loads the journal: its state, and what was read after the snapshot.
    Loaded(Result<(Box<Durable>, Growth), LoadFailure>),
    /// From the task of a model call.
    ModelEnded { work: WorkId, call: Box<EndedCall> },
    /// From the tool executor: an attempt of a call ended.
    ToolEnded {
        /// The attempt that ended.
        work: WorkId,
        result: Box<RunResult>,
        /// Milliseconds since the call first started, over all attempts.
        duration_ms: u64,
        /// Whether the executor tries again; `None` if the result is final.
        again: Option<Again>,
    },
    /// From a timer: retry a tool call.
    RetryDue {
        /// The seq of the assistant entry that holds the calls.
        batch: Seq,
        /// The index of the call in its batch.
        call: u32,
    },
    /// From a timer: the grace period of a cancellation is over.
    GraceOver {
        /// The canceled round.
        round_id: RoundId,
    },
    /// From a timer: the deadline of a prompt passed.
    DeadlineOver {
        /// Withdrawn if its round has not started.
        prompt_id: PromptId,
        /// Canceled if it is open.
        round_id: RoundId,
    },
    /// From a timer: a prompt has waited for its turn as long as its caller allows.
    WaitOver {
        /// Withdrawn if it still waits.
        prompt_id: PromptId,
    },
    /// From a timer: the round has used up the time that the conversation's budget leaves it.
    BudgetTimeOver {
        /// Ignored if this round is no longer open.
        round_id: RoundId,
    },
    /// From a timer: check for expired approvals.
    Tick,
    /// From the store: an append failed, or its outcome is unknown.
    AppendLost {
        /// A conflict means that another activation writes the journal.
        error: AppendError,
        /// The value of `Committer::sending` at the append. A pause raises it, so that the loss of
        /// an older append is ignored.
        sending: u32,
    },
    /// From the store: the append that a pause tried the store with is durable.
    StoreWritten {
        /// As in `AppendLost`.
        sending: u32,
    },
    /// From a timer: the pause has lasted too long.
    StorePauseOver,
    /// From the store: the first append of the activation is durable; send the batches held behind
    /// it.
    Claimed,
    /// From the pause: the head of the store now, and the entry after the last one known to be
    /// durable; or the error of the read.
    HeadRead {
        read: Result<(Head, Option<StoredEntry>), StoreError>,
        /// The permit to try the store; `None` if no outage is known.
        probe: Option<Probe>,
    },
    /// From the sweep: go to sleep if idle.
    Sweep,
    /// From the host: start no new round, and cancel the open one at the deadline.
    Drain {
        /// When to cancel the open round.
        deadline: Instant,
    },
    /// From a timer: the deadline of `Drain` passed.
    DrainDeadline,
    /// From the directory: the conversation is being deleted; stop all work and end the activation.
    Delete,
}

/// Why a conversation could not be loaded.
#[derive(Debug, Clone)]
pub enum LoadFailure {
    /// The store failed; another attempt may succeed.
    Store(StoreError),
    /// Another host owns the conversation; holds its address.
    Elsewhere(String),
    /// A newer program wrote the journal; holds the reason. The journal is sound.
    NeedsNewerVersion(String),
    /// The journal is damaged, does not decode or does not apply; holds the reason.
    Unreadable(String),
}

impl From<StoreError> for LoadFailure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Damaged { message, .. } => Self::Unreadable(message),
            StoreError::Elsewhere { host } => Self::Elsewhere(host),
            error => Self::Store(error),
        }
    }
}

impl From<LoadFailure> for ConversationError {
    fn from(failure: LoadFailure) -> Self {
        match failure {
            LoadFailure::Store(error) => Self::Store(error),
            LoadFailure::Elsewhere(host) => Self::Elsewhere { host },
            LoadFailure::NeedsNewerVersion(reason) => Self::NeedsNewerVersion { reason },
            LoadFailure::Unreadable(reason) => Self::Failed { reason },
        }
    }
}

impl From<DecodeError> for LoadFailure {
    fn from(error: DecodeError) -> Self {
        FoldError::from(error).into()
    }
}

impl From<ApplyError> for LoadFailure {
    fn from(error: ApplyError) -> Self {
        FoldError::from(error).into()
    }
}

impl From<FoldError> for LoadFailure {
    fn from(error: FoldError) -> Self {
        match error {
            FoldError::NeedsNewerVersion(reason) => Self::NeedsNewerVersion(reason),
            FoldError::Unreadable(reason) => Self::Unreadable(reason),
        }
    }
}

/// What became of a model call.
#[derive(Debug)]
pub struct EndedCall {
    pub(in crate::conversation) outcome: ModelOutcome,
    /// The model of the last attempt: the fallback's if the call fell back.
    pub(in crate::conversation) model: Arc<str>,
    /// The attempts that failed, as far as the provider reported their usage.
    pub(in crate::conversation) failed: Vec<FailedAttempt>,
    /// `None` if the call panicked outside of the provider's adapter.
    pub(in crate::conversation) times: Option<CallTimes>,
    /// The results of long checks of the answer.
    pub(in crate::conversation) checked: Vec<CheckedAhead>,
    /// The memory that the answer takes until the decision about it.
    pub(in crate::conversation) memory: Option<HeldMemory>,
    /// The place of a long answer, until it is stored.
    pub(in crate::conversation) place: Option<LongAnswerPlace>,
}
