//! A model provider's API. An adapter translates to one wire format; it never retries and keeps no
//! state between calls.

use std::{pin::Pin, time::Duration};

use futures_util::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, RateLimits};
use crate::{
    chat::{ContentBlock, ModelRequest, ProviderStop, RawJson, Usage},
    limits::{ANSWER_BLOCK_BYTES, ANSWER_BYTES_MAX, ANSWER_CALLS_MAX},
};

/// The last event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Normalized stop reason.
    pub stop: ProviderStop,
    /// The provider's own word for the stop reason.
    pub raw_stop: Option<String>,
    /// Tokens of the call. `None` when the provider reported none.
    pub usage: Option<Usage>,
    /// The provider's usage object, as received.
    pub raw_usage: Option<RawJson>,
}

/// An event of a model's stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelEvent {
    /// More text of the answer. Pieces that arrive together may be joined.
    Text(String),
    /// More reasoning text.
    Thinking(String),
    /// A complete block. Text and reasoning arrive in pieces first; a tool call arrives only as a
    /// complete block. Arguments that are not JSON, or nest too deep, arrive as a JSON string with
    /// the text that the model wrote. A call whose arguments are not an object, or that has no
    /// name, never runs: its result is an error that the model can correct.
    Block(ContentBlock),
    /// What the provider reports of the call's usage before the answer is complete; replaces earlier
    /// reports. It counts if the call fails, since the provider bills it. It is no content.
    Usage(Usage),
    /// Bytes of arguments that the model has written so far of calls whose block has not arrived.
    /// Sent now and then: a call that is cut is billed for them. It is no content.
    Arguments(usize),
    /// The answer is complete; no event follows.
    Completed(Completion),
    /// What the provider reports of the credential's rate limits, alone in the first batch. The
    /// gateway consumes this event; it is no content.
    Limits(RateLimits),
}

/// The size of an answer so far, against the bounds of every answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnswerSize {
    /// Bytes of its content, with 256 for each block.
    pub bytes: usize,
    /// Number of its tool calls.
    pub calls: usize,
}

impl AnswerSize {
    /// Counts a block with `content` bytes.
    pub fn add_block(&mut self, content: usize) {
        self.bytes = self.bytes.saturating_add(content + ANSWER_BLOCK_BYTES);
    }

    /// Checks the size, with `more` bytes that are not counted yet.
    ///
    /// # Errors
    /// `Protocol` for an answer beyond a bound.
    pub fn check(&self, more: usize) -> Result<(), ProviderError> {
        let message = if self.bytes.saturating_add(more) > ANSWER_BYTES_MAX {
            format!("the answer says more than {ANSWER_BYTES_MAX} bytes")
        } else if self.calls > ANSWER_CALLS_MAX {
            format!("the answer has more than {ANSWER_CALLS_MAX} tool calls")
        } else {
            return Ok(());
        };
        Err(ProviderError::Protocol { message })
    }
}

/// Batches of events, which end with exactly one [`ModelEvent::Completed`] or one error. Dropping
/// the stream closes the connection.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<Vec<ModelEvent>, ProviderError>> + Send>>;

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalMessage {
    /// All complete blocks.
    pub blocks: Vec<ContentBlock>,
    /// Stop reason and usage.
    pub completion: Completion,
}

/// Capabilities of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Size of the window in tokens, input and output together.
    pub context_window: u32,
    /// Longest answer in tokens.
    pub output_max: u32,
    /// Whether the model calls tools.
    pub tools: bool,
    /// Whether the API accepts a schema for the answer.
    pub output_schema: bool,
    /// Whether the API counts tokens.
    pub counts_tokens: bool,
    /// Whether the model reads images. If not, a note replaces each image.
    pub images: bool,
    /// Whether the model reads PDFs. If not, the model gets their text ([`super::DocumentText`]).
    pub documents: bool,
    /// Most bytes of a request's body; `None` if not known. The oldest attachments of a larger
    /// request are left out.
    pub request_bytes_max: Option<u64>,
    /// Whether the API takes [`crate::chat::Thinking`].
    pub thinking: bool,
}

impl Capabilities {
    /// The longest answer that the model is asked for as a fallback. A window that is smaller than
    /// that of the model it stands in for keeps half of its room for the request.
    pub(crate) fn fallback_answer_max(&self) -> u32 {
        let half = match self.context_window {
            0 => u32::MAX,
            window => window / 2,
        };
        self.output_max.min(half).max(1)
    }
}

/// Why a model call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// HTTP 401 or 403: the key is missing or wrong.
    #[error("the provider refused the credentials: {message}")]
    Auth {
        /// The provider's message, masked.
        message: String,
    },
    /// HTTP 400, 404, 413 or 422: the request is wrong, and a retry does not help.
    #[error("the provider refused the request ({status}): {message}")]
    InvalidRequest {
        /// The status of the HTTP response.
        status: u16,
        /// The provider's message, masked.
        message: String,
    },
    /// The provider refused the call because of its rate limits (HTTP 429).
    #[error("the provider's rate limit is reached: {message}")]
    RateLimited {
        /// The wait that Retry-After asks for.
        retry_after: Option<Duration>,
        /// The provider's message, masked.
        message: String,
    },
    /// HTTP 402, or 429 with `insufficient_quota`: a retry does not help.
    #[error("the provider account has no quota left: {message}")]
    QuotaExhausted {
        /// The provider's message, masked.
        message: String,
    },
    /// HTTP 408, 409, 5xx or 529.
    #[error("the provider failed{}: {message}", in_parentheses(*status))]
    Server {
        /// HTTP status; 0 for an error event inside a stream.
        status: u16,
        /// The wait that Retry-After asks for.
        retry_after: Option<Duration>,
        /// The provider's message, masked.
        message: String,
    },
    /// The connection failed or broke.
    #[error("the connection to the provider failed: {message}")]
    Connection {
        /// A description without keys.
        message: String,
    },
    /// The connection broke, and other calls shared it. One of those calls reports the loss as
    /// [`ProviderError::Connection`], so that it counts as one failure.
    #[error("the connection to the provider failed: {message}")]
    SharedConnection {
        /// A description without keys.
        message: String,
    },
    /// The server's certificate is refused: nothing was sent, and a retry does not help.
    #[error("the provider's certificate is refused: {message}")]
    Untrusted {
        /// What is wrong with the certificate.
        message: String,
    },
    /// The server certainly did not begin with the call, so it may be made again at once.
    #[error("the provider did not begin with the call: {message}")]
    NotStarted {
        /// A description without keys.
        message: String,
    },
    /// No answer in time, or a stalled stream.
    #[error("the provider did not answer in time: {message}")]
    Timeout {
        /// The time limit that was exceeded.
        message: String,
    },
    /// The bytes do not follow the protocol: HTML, invalid JSON, or too many bytes.
    #[error("the provider's answer is not understood: {message}")]
    Protocol {
        /// What was wrong.
        message: String,
    },
    /// The answer ended cleanly, but too early: an empty stream, or one without its end. A protocol
    /// error that another attempt may mend.
    #[error("the provider's answer is incomplete: {message}")]
    Incomplete {
        /// What is missing.
        message: String,
    },
    /// The caller cancelled the call.
    #[error("the model call was cancelled")]
    Cancelled,
    /// The adapter does not support the operation.
    #[error("not supported by this provider: {0}")]
    Unsupported(&'static str),
    /// Too many calls wait for a permit of the gateway.
    #[error("too many model calls are waiting")]
    Overloaded,
    /// The gateway's circuit breaker is open after repeated failures.
    #[error("the provider failed repeatedly; next try in {} s", retry_after.as_secs())]
    BreakerOpen {
        /// Time until the breaker allows a probe.
        retry_after: Duration,
    },
}

/// ` (500)` of a status; nothing for 0, the status of an error event.
fn in_parentheses(status: u16) -> String {
    if status == 0 {
        String::new()
    } else {
        format!(" ({status})")
    }
}

impl ProviderError {
    /// The error of a stream that ended without [`ModelEvent::Completed`] and without an error.
    pub(crate) fn without_end() -> Self {
        Self::Incomplete {
            message: "the stream ended without its end".into(),
        }
    }

    /// Replaces the provider's message, for example by a masked one. Errors without such a message
    /// stay unchanged.
    #[must_use]
    pub fn map_message(mut self, replace: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::Auth { message }
            | Self::InvalidRequest { message, .. }
            | Self::RateLimited { message, .. }
            | Self::QuotaExhausted { message }
            | Self::Server { message, .. }
            | Self::Connection { message }
            | Self::SharedConnection { message }
            | Self::Untrusted { message }
            | Self::NotStarted { message }
            | Self::Timeout { message }
            | Self::Protocol { message }
            | Self::Incomplete { message } => *message = replace(message),
            Self::Cancelled
            | Self::Unsupported(_)
            | Self::Overloaded
            | Self::BreakerOpen { .. } => {}
        }
        self
    }

    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Auth { .. } => "provider_auth",
            Self::InvalidRequest { .. } => "provider_invalid_request",
            Self::RateLimited { .. } => "provider_rate_limited",
            Self::QuotaExhausted { .. } => "provider_quota_exhausted",
            Self::Server { .. } => "provider_server_error",
            Self::Connection { .. } | Self::SharedConnection { .. } | Self::NotStarted { .. } => {
                "provider_connection"
            }
            Self::Untrusted { .. } => "provider_untrusted",
            Self::Timeout { .. } => "provider_timeout",
            Self::Protocol { .. } | Self::Incomplete { .. } => "provider_protocol",
            Self::Cancelled => "cancelled",
            Self::Unsupported(_) => "unsupported",
            Self::Overloaded => "overloaded",
            Self::BreakerOpen { .. } => "provider_breaker_open",
        }
    }

    /// Whether the provider refused the call because its request has too many bytes (HTTP 413). A
    /// smaller request may succeed.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, Self::InvalidRequest { status: 413, .. })
    }

    /// Whether the gateway may retry the call, provided that no content has arrived.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::RateLimited { .. }
            | Self::Server { .. }
            | Self::Connection { .. }
            | Self::SharedConnection { .. }
            | Self::NotStarted { .. }
            | Self::Timeout { .. }
            | Self::Incomplete { .. } => true,
            Self::Auth { .. }
            | Self::InvalidRequest { .. }
            | Self::QuotaExhausted { .. }
            | Self::Untrusted { .. }
            | Self::Protocol { .. }
            | Self::Cancelled
            | Self::Unsupported(_)
            | Self::Overloaded
            | Self::BreakerOpen { .. } => false,
        }
    }

    /// Returns the wait that the provider asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Server { retry_after, .. } => {
                *retry_after
            }
            Self::BreakerOpen { retry_after } => Some(*retry_after),
            Self::Auth { .. }
            | Self::InvalidRequest { .. }
            | Self::QuotaExhausted { .. }
            | Self::Connection { .. }
            | Self::SharedConnection { .. }
            | Self::Untrusted { .. }
            | Self::NotStarted { .. }
            | Self::Timeout { .. }
            | Self::Protocol { .. }
            | Self::Incomplete { .. }
            | Self::Cancelled
            | Self::Unsupported(_)
            | Self::Overloaded => None,
        }
    }
}

/// A model provider. Its contract: `testing::contract::llm_provider`.
pub trait LlmProvider: Send + Sync + 'static {
    /// Returns a short stable name: `anthropic`, `openai`, `offline`.
    fn name(&self) -> &str;

    /// Returns the model that is used when none is named.
    fn default_model(&self) -> &str {
        "default"
    }

    /// Returns the capabilities of `model`; a guess for unknown models.
    fn capabilities(&self, model: &str) -> Capabilities;

    /// Returns how many calls the provider's connections carry at the same time, as far as that is
    /// known now. The gateway queues calls beyond it, so that no call waits inside the provider
    /// for another one to end. Called for every call: must be cheap.
    fn calls_max(&self) -> usize {
        usize::MAX
    }

    /// Starts a call. The future completes when the head of the answer has arrived; the stream
    /// yields the rest.
    ///
    /// # Errors
    /// [`ProviderError`], from the future or as the last item of the stream.
    ///
    /// # Cancel safety
    /// Dropping the future or the stream, or cancelling the token, closes the connection.
    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>>;

    /// Makes a call and returns the whole answer.
    ///
    /// # Errors
    /// [`ProviderError`], also when the stream breaks; the content before the break is dropped.
    ///
    /// # Cancel safety
    /// As [`LlmProvider::stream`].
    fn create(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<FinalMessage, ProviderError>> {
        Box::pin(async move {
            let mut stream = self.stream(request, cancel).await?;
            let mut blocks = Vec::new();
            while let Some(batch) = stream.next().await {
                for event in batch? {
                    match event {
                        // The complete block and the final usage follow.
                        ModelEvent::Text(_)
                        | ModelEvent::Thinking(_)
                        | ModelEvent::Usage(_)
                        | ModelEvent::Arguments(_)
                        | ModelEvent::Limits(_) => {}
                        ModelEvent::Block(block) => blocks.push(block),
                        ModelEvent::Completed(completion) => {
                            return Ok(FinalMessage { blocks, completion });
                        }
                    }
                }
            }
            Err(ProviderError::without_end())
        })
    }

    /// Asks the provider for the number of input tokens of a request.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] if the API does not count tokens.
    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        drop(request);
        Box::pin(std::future::ready(Err(ProviderError::Unsupported(
            "counting tokens",
        ))))
    }

    /// Returns the exact body that [`LlmProvider::stream`] would send, for `sessions request`.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] for a provider without a wire format.
    fn request_body(&self, request: &ModelRequest) -> Result<bytes::Bytes, ProviderError> {
        let _ = request;
        Err(ProviderError::Unsupported("a request body"))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::LlmProvider) {}
        let _ = takes;
    }

    #[tokio::test]
    async fn a_whole_answer_is_the_blocks_of_its_stream() {
        use super::{LlmProvider, ProviderStop};
        use crate::{
            chat::ContentBlock,
            testing::{Reply, ScriptedModel, contract::example_request},
        };
        let model = ScriptedModel::replies([
            Reply::text("whole").chunks(3),
            Reply::text("cut").then_cut(),
        ]);

        let answer = model
            .create(example_request(), Default::default())
            .await
            .unwrap();
        let cut = model
            .create(example_request(), Default::default())
            .await
            .unwrap_err();

        assert_eq!(
            (answer.blocks, answer.completion.stop),
            (vec![ContentBlock::text("whole")], ProviderStop::EndTurn)
        );
        assert_eq!(cut.code(), "provider_protocol");
    }
}
