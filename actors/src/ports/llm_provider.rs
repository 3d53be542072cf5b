//! A model behind an API. Adapters translate one wire; they never retry and keep no state between calls.

use std::{pin::Pin, time::Duration};

use futures_util::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, RateLimits};
use crate::chat::{ContentBlock, ModelRequest, ProviderStop, RawJson, Usage};

/// The end of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Why it stopped.
    pub stop: ProviderStop,
    /// The reason in the provider's words.
    pub raw_stop: Option<String>,
    /// What it cost; `None` when the server did not say.
    pub usage: Option<Usage>,
    /// The usage object as it came.
    pub raw_usage: Option<RawJson>,
}

/// What a model's stream tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelEvent {
    /// More text of the answer. Neighbouring pieces of one read may come joined.
    Text(String),
    /// More reasoning.
    Thinking(String),
    /// A block is complete. Also sent for text and thinking whose pieces went before. A tool call comes only so: whole.
    Block(ContentBlock),
    /// The end; nothing follows.
    Completed(Completion),
    /// What the credential has left, where the provider tells: alone in the first batch. For the gateway, which keeps it; no content.
    Limits(RateLimits),
}

/// Batches of events; ends in exactly one of [`ModelEvent::Completed`] or an error. Dropping it closes the connection.
pub type ModelStream = Pin<Box<dyn Stream<Item = Result<Vec<ModelEvent>, ProviderError>> + Send>>;

/// A whole answer (REQUIREMENTS P-03).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalMessage {
    /// All blocks, complete.
    pub blocks: Vec<ContentBlock>,
    /// Why it stopped and what it cost.
    pub completion: Completion,
}

/// What a model can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Window in tokens, input and output together.
    pub context_window: u32,
    /// Longest answer in tokens.
    pub output_max: u32,
    /// Whether it calls tools.
    pub tools: bool,
    /// Whether it accepts an output schema.
    pub output_schema: bool,
    /// Whether its API counts tokens.
    pub counts_tokens: bool,
    /// Whether it is shown images; a note stands in their place otherwise.
    pub images: bool,
    /// Whether it is shown PDFs; their text is read for it otherwise ([`super::DocumentText`]).
    pub documents: bool,
}

/// What can go wrong with a model call (REQUIREMENTS P-07).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// 401, 403: the key is missing or wrong.
    #[error("the provider refused the credentials: {message}")]
    Auth {
        /// The provider's words, masked.
        message: String,
    },
    /// 400, 404, 413, 422: the request is wrong and will stay so.
    #[error("the provider refused the request ({status}): {message}")]
    InvalidRequest {
        /// HTTP status.
        status: u16,
        /// The provider's words, masked.
        message: String,
    },
    /// 429.
    #[error("the provider's rate limit is reached: {message}")]
    RateLimited {
        /// What Retry-After asked for.
        retry_after: Option<Duration>,
        /// The provider's words, masked.
        message: String,
    },
    /// 402, and 429 `insufficient_quota`: waiting does not help.
    #[error("the provider account has no quota left: {message}")]
    QuotaExhausted {
        /// The provider's words, masked.
        message: String,
    },
    /// 408, 409, 5xx, 529.
    #[error("the provider failed ({status}): {message}")]
    Server {
        /// HTTP status; 0 for an error event inside a stream.
        status: u16,
        /// What Retry-After asked for.
        retry_after: Option<Duration>,
        /// The provider's words, masked.
        message: String,
    },
    /// No connection, or it broke.
    #[error("the connection to the provider failed: {message}")]
    Connection {
        /// What happened.
        message: String,
    },
    /// No answer in time, or a stream that stalled.
    #[error("the provider did not answer in time: {message}")]
    Timeout {
        /// Which limit.
        message: String,
    },
    /// Bytes that are not the protocol: HTML, a cut stream, broken JSON, too much of it.
    #[error("the provider's answer is not understood: {message}")]
    Protocol {
        /// What was wrong.
        message: String,
    },
    /// The call was cancelled by us.
    #[error("the model call was cancelled")]
    Cancelled,
    /// This adapter cannot do that.
    #[error("not supported by this provider: {0}")]
    Unsupported(&'static str),
    /// Our own bound: too many calls wait.
    #[error("too many model calls are waiting")]
    Overloaded,
    /// Our own breaker is open after repeated failures.
    #[error("the provider failed repeatedly; next try in {} s", retry_after.as_secs())]
    BreakerOpen {
        /// When a probe is due.
        retry_after: Duration,
    },
}

impl ProviderError {
    /// The same error with the provider's words replaced, for example by masked ones. Errors without such words stay as they are.
    #[must_use]
    pub fn map_message(mut self, replace: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::Auth { message }
            | Self::InvalidRequest { message, .. }
            | Self::RateLimited { message, .. }
            | Self::QuotaExhausted { message }
            | Self::Server { message, .. }
            | Self::Connection { message }
            | Self::Timeout { message }
            | Self::Protocol { message } => *message = replace(message),
            Self::Cancelled | Self::Unsupported(_) | Self::Overloaded | Self::BreakerOpen { .. } => {}
        }
        self
    }

    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Auth { .. } => "provider_auth",
            Self::InvalidRequest { .. } => "provider_invalid_request",
            Self::RateLimited { .. } => "provider_rate_limited",
            Self::QuotaExhausted { .. } => "provider_quota_exhausted",
            Self::Server { .. } => "provider_server_error",
            Self::Connection { .. } => "provider_connection",
            Self::Timeout { .. } => "provider_timeout",
            Self::Protocol { .. } => "provider_protocol",
            Self::Cancelled => "cancelled",
            Self::Unsupported(_) => "unsupported",
            Self::Overloaded => "overloaded",
            Self::BreakerOpen { .. } => "provider_breaker_open",
        }
    }

    /// Whether the gateway may try again, before any content came (DESIGN §4.5, REQUIREMENTS P-09).
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::RateLimited { .. } | Self::Server { .. } | Self::Connection { .. } | Self::Timeout { .. } => true,
            Self::Auth { .. }
            | Self::InvalidRequest { .. }
            | Self::QuotaExhausted { .. }
            | Self::Protocol { .. }
            | Self::Cancelled
            | Self::Unsupported(_)
            | Self::Overloaded
            | Self::BreakerOpen { .. } => false,
        }
    }

    /// How long the provider asked us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::Server { retry_after, .. } => *retry_after,
            Self::BreakerOpen { retry_after } => Some(*retry_after),
            Self::Auth { .. }
            | Self::InvalidRequest { .. }
            | Self::QuotaExhausted { .. }
            | Self::Connection { .. }
            | Self::Timeout { .. }
            | Self::Protocol { .. }
            | Self::Cancelled
            | Self::Unsupported(_)
            | Self::Overloaded => None,
        }
    }
}

/// A model provider. Its contract: `testing::contract::llm_provider`.
pub trait LlmProvider: Send + Sync + 'static {
    /// Short stable name: `anthropic`, `openai`, `offline`.
    fn name(&self) -> &str;

    /// The model used when none is named.
    fn default_model(&self) -> &str {
        "default"
    }

    /// What `model` can do; a guess for models it does not know.
    fn capabilities(&self, model: &str) -> Capabilities;

    /// Starts a call. The future ends when the answer's head came; the stream brings the rest.
    ///
    /// # Errors
    /// [`ProviderError`]; also as the last item of the stream.
    ///
    /// # Cancel safety
    /// Dropping the future or the stream, or cancelling the token, closes the connection.
    fn stream(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>>;

    /// Makes a call and waits for its whole answer (P-01).
    ///
    /// # Errors
    /// [`ProviderError`], also when the stream breaks; what came before is lost.
    ///
    /// # Cancel safety
    /// As [`LlmProvider::stream`].
    fn create(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<FinalMessage, ProviderError>> {
        Box::pin(async move {
            let mut stream = self.stream(request, cancel).await?;
            let mut blocks = Vec::new();
            while let Some(batch) = stream.next().await {
                for event in batch? {
                    match event {
                        ModelEvent::Text(_) | ModelEvent::Thinking(_) | ModelEvent::Limits(_) => {} // The block follows, whole.
                        ModelEvent::Block(block) => blocks.push(block),
                        ModelEvent::Completed(completion) => return Ok(FinalMessage { blocks, completion }),
                    }
                }
            }
            Err(ProviderError::Protocol { message: "the stream ended without its end".into() })
        })
    }

    /// Asks the provider how many input tokens a request has.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] where the API has no such call.
    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        drop(request);
        Box::pin(std::future::ready(Err(ProviderError::Unsupported("counting tokens"))))
    }

    /// The exact body that [`LlmProvider::stream`] would send, for `sessions request`.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] for a provider without a wire.
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
        let model = ScriptedModel::replies([Reply::text("whole").chunks(3), Reply::text("cut").then_cut()]);

        let answer = model.create(example_request(), Default::default()).await.unwrap();
        let cut = model.create(example_request(), Default::default()).await.unwrap_err();

        assert_eq!((answer.blocks, answer.completion.stop), (vec![ContentBlock::text("whole")], ProviderStop::EndTurn));
        assert_eq!(cut.code(), "provider_protocol");
    }
}
