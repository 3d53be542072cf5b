//! The Anthropic Messages API, and servers that speak it.

mod wire;
mod convert;
mod stream;

use callboard_actors::{
    chat::ModelRequest,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
};
use reqwest::{
    Url,
    header::{HeaderMap, HeaderValue},
};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

pub use self::stream::AnthropicAssembler;
use super::{
    body::written,
    config::{ProviderConfigError, Timeouts, base_url, below, variable},
    errors::protocol,
    http::Http,
    network::Network,
    secret::Secret,
};

const DEFAULT_BASE_URL: &str = "https://api.anthropic.com";
const API_VERSION: &str = "2023-06-01";

/// Most bytes of a request: the API answers 413 to a larger one.
const REQUEST_BYTES_MAX: u64 = 32_000_000;

/// A provider that speaks the Messages API.
///
/// ```
/// use callboard::providers::Anthropic;
///
/// let provider = Anthropic::builder("sk-test-not-a-real-key").base_url("http://127.0.0.1:8080").build()?;
/// # Ok::<(), callboard::providers::ProviderConfigError>(())
/// ```
#[derive(Clone)]
pub struct Anthropic {
    http: Http,
    messages: Url,
    count: Url,
    request_bytes_max: u64,
    context_window: u32,
}

impl Anthropic {
    /// Creates a provider with the key in `ANTHROPIC_API_KEY`, at `ANTHROPIC_BASE_URL` if that is
    /// set.
    ///
    /// # Errors
    /// [`ProviderConfigError::MissingVariable`] without a key, and the errors of
    /// [`AnthropicBuilder::build`].
    pub fn from_env() -> Result<Self, ProviderConfigError> {
        let key = variable("ANTHROPIC_API_KEY")
            .ok_or(ProviderConfigError::MissingVariable("ANTHROPIC_API_KEY"))?;
        let builder = Self::builder(key);
        match variable("ANTHROPIC_BASE_URL") {
            Some(url) => builder.base_url(url).build(),
            None => builder.build(),
        }
    }

    /// Starts a builder with this API key.
    pub fn builder(api_key: impl Into<String>) -> AnthropicBuilder {
        AnthropicBuilder {
            key: Secret::new(api_key),
            base_url: DEFAULT_BASE_URL.to_owned(),
            timeouts: Timeouts::default(),
            network: Network::default(),
            request_bytes_max: REQUEST_BYTES_MAX,
            context_window: CONTEXT_WINDOW,
        }
    }
}

impl std::fmt::Debug for Anthropic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Anthropic")
            .field("host", &self.messages.host_str())
            .finish_non_exhaustive()
    }
}

/// Builds an [`Anthropic`].
#[derive(Debug, Clone)]
pub struct AnthropicBuilder {
    key: Secret,
    base_url: String,
    timeouts: Timeouts,
    network: Network,
    request_bytes_max: u64,
    context_window: u32,
}

impl AnthropicBuilder {
    /// Sets the address of the API without `/v1`, as in the official SDKs.
    #[must_use]
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.base_url = url.into();
        self
    }

    /// Sets the deadlines of a call; see [`Timeouts`] for the defaults.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets how the server is reached: certificates, HTTP/2, the bound of connections.
    #[must_use]
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Sets the bytes that the server accepts in a request, 32,000,000 by default. The oldest
    /// attachments of a larger request are left out.
    #[must_use]
    pub fn request_bytes_max(mut self, bytes: u64) -> Self {
        self.request_bytes_max = bytes;
        self
    }

    /// Sets the context window of all models, in tokens; 200,000 by default.
    #[must_use]
    pub fn context_window(mut self, tokens: u32) -> Self {
        self.context_window = tokens;
        self
    }

    /// Builds the provider.
    ///
    /// # Errors
    /// [`ProviderConfigError`] if the key or the URL is not valid.
    pub fn build(self) -> Result<Anthropic, ProviderConfigError> {
        let base = base_url(
            self.base_url
                .trim()
                .trim_end_matches('/')
                .trim_end_matches("/v1"),
        )?;
        let mut headers = HeaderMap::new();
        let mut key =
            HeaderValue::from_str(self.key.expose()).map_err(|_| ProviderConfigError::BadKey)?;
        key.set_sensitive(true);
        headers.insert("x-api-key", key);
        headers.insert("anthropic-version", HeaderValue::from_static(API_VERSION));
        let http = Http::new(&base, headers, self.key, self.timeouts, &self.network)?;
        Ok(Anthropic {
            http,
            messages: below(&base, "v1/messages"),
            count: below(&base, "v1/messages/count_tokens"),
            request_bytes_max: self.request_bytes_max,
            context_window: self.context_window,
        })
    }
}

#[derive(Deserialize)]
struct Count {
    input_tokens: u64,
}

/// The window of the current models, in tokens.
const CONTEXT_WINDOW: u32 = 200_000;

/// An alias that the API keeps up to date: the newest model of a mid-priced family that uses tools
/// well.
const DEFAULT_MODEL: &str = "claude-sonnet-4-5";

impl LlmProvider for Anthropic {
    fn name(&self) -> &str {
        "anthropic"
    }

    fn default_model(&self) -> &str {
        DEFAULT_MODEL
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        let is = |part: &str| model.contains(part);
        let old = is("claude-3-") || is("claude-2") || is("claude-instant");
        let output_max = match () {
            () if is("claude-3-7") => 64_000,
            () if is("claude-3-5") => 8_192,
            () if old => 4_096,
            () if is("opus-4-0") || is("opus-4-1") || is("opus-4-2025") => 32_000,
            // An unknown model is probably newer than this list.
            () => 64_000,
        };
        let output_schema = !old
            && !is("sonnet-4-2025")
            && !is("sonnet-4-0")
            && !is("opus-4-0")
            && !is("opus-4-2025");
        Capabilities {
            context_window: self.context_window,
            output_max,
            tools: true,
            output_schema,
            counts_tokens: true,
            images: true,
            documents: true,
            request_bytes_max: Some(self.request_bytes_max),
            thinking: !old || is("claude-3-7"),
        }
    }

    fn calls_max(&self) -> usize {
        self.http.calls_max()
    }

    fn stream(
        &self,
        request: ModelRequest,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        Box::pin(async move {
            let write = |(): &(), request: &ModelRequest| convert::request(request);
            let (body, request) = written(&(), request, write).await?;
            let assembler = Box::new(AnthropicAssembler::new(request.messages));
            self.http
                .stream(&self.messages, body, assembler, cancel)
                .await
        })
    }

    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        Box::pin(async move {
            let write = |(): &(), request: &ModelRequest| convert::count(request);
            let (body, _) = written(&(), request, write).await?;
            let answer = self.http.ask(&self.count, body).await?;
            let count: Count = serde_json::from_slice(&answer)
                .map_err(|error| protocol(format_args!("a count is not valid: {error}")))?;
            Ok(count.input_tokens)
        })
    }

    fn request_body(&self, request: &ModelRequest) -> Result<bytes::Bytes, ProviderError> {
        Ok(convert::request(request).joined())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_two_hundred_thousand_tokens_unless_it_is_set() {
        let built = || Anthropic::builder("sk-test-not-a-real-key");
        let usual = built().build().unwrap();
        let set = built().context_window(6000).build().unwrap();

        let window = |provider: &Anthropic| provider.capabilities("unknown").context_window;
        assert_eq!((window(&usual), window(&set)), (200_000, 6000));
    }
}
