//! Why a host cannot be built, why it refuses a request, and why a round has no result.

use crate::{
    chat::AttachmentError,
    conversation::{ConversationError, LoadFailure, ToolsetError},
    ids::{FAN_OUT_PREFIX, InvalidId, SUBAGENT_PREFIX},
    limits::PROMPT_BYTES_MAX,
    ports::{DocumentTextError, SkillError, StoreError},
    stream::{Failure, RoundEnd},
    tenant::NotAdmitted,
};

/// Why a host could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No model.
    #[error("a host needs a provider: call .provider(…)")]
    NoProvider,
    /// The tools cannot be.
    #[error(transparent)]
    Tools(#[from] ToolsetError),
    /// A budget of money, and nothing to reckon it with.
    #[error("a budget of money needs a price for the model `{model}`{}", nearest.as_ref().map(|name| format!("; the nearest price is for `{name}`")).unwrap_or_default())]
    NoPrice {
        /// The model.
        model: String,
        /// The name with a price that is most like it.
        nearest: Option<String>,
    },
    /// The tools were not to be had.
    #[error("the tools could not be made: {0}")]
    NoTools(String),
    /// A tenant names a gateway that is not there.
    #[error("there is no gateway `{0}`; add it first")]
    NoSuchGateway(String),
    /// A gateway whose fallback comes back to it.
    #[error("the fallback of the gateway `{0}` leads back to it")]
    FallbackCycle(String),
    /// The skills were not to be had.
    #[error(transparent)]
    Skills(#[from] SkillError),
    /// The actors could not be started.
    #[error("the host's actors could not be started: {0}")]
    Start(String),
}

/// Why something could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// An id is malformed.
    #[error(transparent)]
    InvalidId(#[from] InvalidId),
    /// The prompt is empty or too large.
    #[error("a prompt must have between 1 and {PROMPT_BYTES_MAX} bytes, this one has {0}")]
    BadPrompt(usize),
    /// An image or a document cannot be sent (REQUIREMENTS W-03).
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// The model takes no documents, and the text of one cannot be had.
    #[error(transparent)]
    DocumentText(#[from] DocumentTextError),
    /// The host has no skills, or not this one.
    #[error("{0}")]
    Skill(String),
    /// A budget of money needs a price for the model.
    #[error("a budget of money needs a price for the model `{model}`")]
    NoPrice {
        /// The model.
        model: String,
    },
    /// The id is one of a subagent's conversation, or the name of a fan-out.
    #[error("a conversation whose id begins with `{SUBAGENT_PREFIX}` or `{FAN_OUT_PREFIX}` is told nothing but its task; use another id")]
    Reserved,
    /// A fan-out of this name is under way.
    #[error("a fan-out of the name `{name}` is running")]
    FanOutRuns {
        /// Its name.
        name: String,
    },
    /// The conversation, or the host, said no.
    #[error(transparent)]
    Conversation(#[from] ConversationError),
}

impl From<std::convert::Infallible> for SendError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl From<StoreError> for SendError {
    fn from(error: StoreError) -> Self {
        Self::Conversation(error.into())
    }
}

impl From<LoadFailure> for SendError {
    fn from(failure: LoadFailure) -> Self {
        match failure {
            LoadFailure::Store(error) => error.into(),
            LoadFailure::Unreadable(reason) => ConversationError::Failed { reason }.into(),
        }
    }
}

impl SendError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidId(_) => "invalid_id",
            Self::BadPrompt(_) => "invalid_prompt",
            Self::Attachment(error) => error.code(),
            Self::DocumentText(error) => error.code(),
            Self::Skill(_) => "skill_refused",
            Self::NoPrice { .. } => "no_price",
            Self::Reserved => "reserved_id",
            Self::FanOutRuns { .. } => "fan_out_running",
            Self::Conversation(error) => error.code(),
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InvalidId(_)
            | Self::BadPrompt(_)
            | Self::Attachment(_)
            | Self::Skill(_)
            | Self::NoPrice { .. }
            | Self::Reserved
            | Self::FanOutRuns { .. } => false,
            Self::DocumentText(error) => error.is_retryable(),
            Self::Conversation(error) => error.is_retryable(),
        }
    }
}

impl From<NotAdmitted> for SendError {
    fn from(why: NotAdmitted) -> Self {
        let error = match why.bound() {
            Some((what, retry_after_ms)) => ConversationError::Overloaded { what, retry_after_ms },
            None if why == NotAdmitted::Paused => ConversationError::TenantPaused,
            None => ConversationError::TenantRemoved,
        };
        Self::Conversation(error)
    }
}

/// Why there is no good outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutcomeError {
    /// The round failed; what was said until then is in it.
    #[error("{}", end.error.as_ref().map_or("the round failed", |failure| failure.message.as_str()))]
    Failed {
        /// The round's end.
        end: Box<RoundEnd>,
    },
    /// The round never began, or its conversation cannot go on here.
    #[error("{}", failure.message)]
    Ended {
        /// Why.
        failure: Failure,
    },
    /// The host stopped first. The round is not over: the next host on the store goes on with it.
    #[error("the host stopped before this round was over; the next one on its store goes on with it")]
    Stopped,
    /// The stream is gone before it was read to its end; the history has the answer.
    #[error("the events of this round are no longer kept; read the conversation's history")]
    Expired,
}

impl OutcomeError {
    /// Stable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Failed { end } => end.error.as_ref().map_or("error", |failure| failure.code.as_str()),
            Self::Ended { failure } => &failure.code,
            Self::Stopped => "draining",
            Self::Expired => "expired",
        }
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        let failure = match self {
            Self::Failed { end } => end.error.as_ref(),
            Self::Ended { failure } => Some(failure),
            Self::Stopped => return true,
            Self::Expired => None,
        };
        failure.is_some_and(|failure| failure.retry_after_ms.is_some())
    }
}
