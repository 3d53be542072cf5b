//! The errors of the public API: building a host ([`BuildError`]), sending a request
//! ([`SendError`]), and awaiting a round ([`OutcomeError`]).

use crate::{
    chat::{AttachmentError, ClientToolFault, HistoryFault, ParameterFault},
    conversation::{ConversationError, LoadFailure, ToolsetError},
    ids::{FAN_OUT_PREFIX, InvalidId, SUBAGENT_PREFIX},
    limits::{CLIENT_RESULT_BYTES_MAX, PROMPT_BYTES_MAX},
    ports::{DocumentTextError, SkillError, StoreError},
    stream::{Failure, RoundEnd},
    tenant::NotAdmitted,
};

/// Why a host could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No model provider was set.
    #[error("a host needs a provider: call .provider(…)")]
    NoProvider,
    /// The tools do not form a valid toolset.
    #[error(transparent)]
    Tools(#[from] ToolsetError),
    /// There is a budget in money, but the model has no price.
    #[error("a budget of money needs a price for the model `{model}`{}", nearest.as_ref().map(|name| format!("; the nearest price is for `{name}`")).unwrap_or_default())]
    NoPrice {
        /// The model without a price.
        model: String,
        /// The most similar model name that has a price; `None` when no name is similar.
        nearest: Option<String>,
    },
    /// A model parameter has a value that no model accepts.
    #[error("model parameter {0}")]
    Parameter(#[from] ParameterFault),
    /// The provider of this model has no extended thinking.
    #[error("the provider of the model `{0}` has no `thinking`; set `effort` in its place")]
    NoThinking(String),
    /// The source of tools failed.
    #[error("the tools could not be made: {0}")]
    NoTools(String),
    /// A tenant or a fallback names a gateway that does not exist.
    #[error("there is no gateway `{0}`; add it first")]
    NoSuchGateway(String),
    /// The chain of fallbacks of this gateway leads back to it.
    #[error("the fallback of the gateway `{0}` leads back to it")]
    FallbackCycle(String),
    /// The source of skills failed.
    #[error(transparent)]
    Skills(#[from] SkillError),
    /// The actors could not be started.
    #[error("the host's actors could not be started: {0}")]
    Start(String),
}

/// Why a request was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// An id is malformed.
    #[error(transparent)]
    InvalidId(#[from] InvalidId),
    /// The prompt is empty or too large.
    #[error("a prompt must have between 1 and {PROMPT_BYTES_MAX} bytes, this one has {0}")]
    BadPrompt(usize),
    /// An image or a document is malformed, too large or of an unsupported type.
    #[error(transparent)]
    Attachment(#[from] AttachmentError),
    /// A history from outside holds something that providers refuse.
    #[error(transparent)]
    InvalidHistory(#[from] HistoryFault),
    /// The model takes no documents, and the text of one could not be extracted.
    #[error(transparent)]
    DocumentText(#[from] DocumentTextError),
    /// The host has no skills, or this skill does not exist or cannot be used.
    #[error("{0}")]
    Skill(String),
    /// A budget in money needs a price for the model.
    #[error("a budget of money needs a price for the model `{model}`")]
    NoPrice {
        /// The model without a price.
        model: String,
    },
    /// A model parameter has a value that no model accepts.
    #[error("model parameter {0}")]
    Parameter(#[from] ParameterFault),
    /// The provider of this model has no extended thinking.
    #[error("the provider of the model `{0}` has no `thinking`; set `effort` in its place")]
    NoThinking(String),
    /// A tool that the caller brings is declared in a way that no model accepts, or has the name of
    /// a tool of the host.
    #[error(transparent)]
    ClientTool(#[from] ClientToolFault),
    /// The result of a call at the caller is too large.
    #[error(
        "the result of a tool call may have {CLIENT_RESULT_BYTES_MAX} bytes, this one has {bytes}"
    )]
    ClientResult {
        /// The bytes of the result.
        bytes: usize,
    },
    /// The id is reserved: it names a subagent's conversation or a fan-out.
    #[error(
        "a conversation whose id begins with `{SUBAGENT_PREFIX}` or `{FAN_OUT_PREFIX}` accepts only its task; use another id"
    )]
    Reserved,
    /// A fan-out of this name is running on this host.
    #[error("a fan-out of the name `{name}` is running")]
    FanOutRuns {
        /// The name of the fan-out.
        name: String,
    },
    /// An earlier fan-out of this name had other tasks.
    #[error(
        "the fan-out `{name}` was begun with other tasks; use another name, or the same tasks again"
    )]
    FanOutDiffers {
        /// The name of the fan-out.
        name: String,
    },
    /// The conversation or the host refused the request, or the store failed.
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
        ConversationError::from(failure).into()
    }
}

impl SendError {
    /// A stable, machine-readable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidId(_) => "invalid_id",
            Self::BadPrompt(_) => "invalid_prompt",
            Self::Attachment(error) => error.code(),
            Self::InvalidHistory(_) => "invalid_message",
            Self::DocumentText(error) => error.code(),
            Self::Skill(_) => "skill_refused",
            Self::NoPrice { .. } => "no_price",
            Self::Parameter(_) | Self::NoThinking(_) => "invalid_parameter",
            Self::ClientTool(_) => "invalid_tool",
            Self::ClientResult { .. } => "invalid_prompt",
            Self::Reserved => "reserved_id",
            Self::FanOutRuns { .. } => "fan_out_running",
            Self::FanOutDiffers { .. } => "fan_out_differs",
            Self::Conversation(error) => error.code(),
        }
    }

    /// Whether a retry of the same request can succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InvalidId(_)
            | Self::BadPrompt(_)
            | Self::Attachment(_)
            | Self::InvalidHistory(_)
            | Self::Skill(_)
            | Self::NoPrice { .. }
            | Self::Parameter(_)
            | Self::NoThinking(_)
            | Self::ClientTool(_)
            | Self::ClientResult { .. }
            | Self::Reserved
            | Self::FanOutRuns { .. }
            | Self::FanOutDiffers { .. } => false,
            Self::DocumentText(error) => error.is_retryable(),
            Self::Conversation(error) => error.is_retryable(),
        }
    }
}

impl From<NotAdmitted> for SendError {
    fn from(why: NotAdmitted) -> Self {
        Self::Conversation(why.into())
    }
}

/// Why a round has no successful outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutcomeError {
    /// The round failed.
    #[error("{}", end.error.as_ref().map_or("the round failed", |failure| failure.message.as_str()))]
    Failed {
        /// The round's end, with the text that was generated until the failure.
        end: Box<RoundEnd>,
    },
    /// The round never began, or its conversation cannot continue on this host.
    #[error("{}", failure.message)]
    Ended {
        /// Why the round never began or cannot continue.
        failure: Failure,
    },
    /// The host stopped before the round was over. The next host on the store continues the round.
    #[error(
        "the host stopped before this round was over; the next one on its store goes on with it"
    )]
    Stopped,
    /// The events were dropped before they were read to the end. The history has the answer.
    #[error("the events of this round are no longer kept; read the conversation's history")]
    Expired,
}

impl OutcomeError {
    /// A stable, machine-readable code.
    pub fn code(&self) -> &str {
        match self {
            Self::Failed { end } => end
                .error
                .as_ref()
                .map_or("error", |failure| failure.code.as_str()),
            Self::Ended { failure } => &failure.code,
            Self::Stopped => "draining",
            Self::Expired => "expired",
        }
    }

    /// Whether a retry of the same request can succeed.
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
