//! OpenAI's Chat Completions API and servers that speak it: Ollama, llama.cpp, vLLM and many hosts;
//! and its Responses API, at OpenAI and at other servers.

mod wire;
mod convert;
mod stream;
mod responses;

use callboard_actors::{
    chat::ModelRequest,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
};
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderValue},
};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use self::{convert::MaxTokens, responses::convert::Target};
pub use self::{responses::ResponsesAssembler, stream::OpenAiAssembler};
use super::{
    assembler::Assemble,
    body::{Body, written},
    config::{ProviderConfigError, Timeouts, base_url, below, variable},
    errors::protocol,
    http::Http,
    network::Network,
    secret::Secret,
    shown::Shown,
};

const DEFAULT_BASE_URL: &str = "https://api.openai.com/v1";

/// Most bytes of a request: a size that hosted servers of this API accept.
const REQUEST_BYTES_MAX: u64 = 20_000_000;

/// Parts of the names of non-OpenAI models that accept images.
const SEEING: &[&str] = &[
    "gpt-4-turbo",
    "claude",
    "gemini",
    "gemma-3",
    "gemma3",
    "llama-4",
    "llama4",
    "llava",
    "minicpm-v",
    "mistral-medium",
    "mistral-small-3",
    "moondream",
    "pixtral",
    "vision",
    "-vl",
    "vl-",
    "2vl",
    "2.5vl",
    "3vl",
];

const OPENAI_HOST: &str = "api.openai.com";

/// Beginnings of the names of OpenAI's models that do not reason: the API refuses to seal a
/// reasoning that they do not have.
const PLAIN: &[&str] = &["gpt-3", "gpt-4", "chatgpt", "davinci", "babbage"];

/// The API that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Chat,
    Responses,
}

/// A provider that speaks Chat Completions, or the Responses API.
///
/// ```
/// use callboard::providers::OpenAi;
///
/// // A local server without a key.
/// let provider = OpenAi::builder().base_url("http://127.0.0.1:11434/v1").build()?;
/// # Ok::<(), callboard::providers::ProviderConfigError>(())
/// ```
#[derive(Clone)]
pub struct OpenAi {
    http: Http,
    api: Api,
    call: Url,
    count: Url,
    /// Host and port, which seal the reasoning of the Responses API.
    host: String,
    is_openai: bool,
    context_window: Option<u32>,
    images: Option<bool>,
    documents: Option<bool>,
    request_bytes_max: u64,
}

impl OpenAi {
    /// Creates a provider with the key in `OPENAI_API_KEY`, at `OPENAI_BASE_URL` if that is set.
    /// With a base URL the key may be missing.
    ///
    /// # Errors
    /// [`ProviderConfigError::MissingVariable`] when neither is set, and the errors of
    /// [`OpenAiBuilder::build`].
    pub fn from_env() -> Result<Self, ProviderConfigError> {
        let builder = match (variable("OPENAI_API_KEY"), variable("OPENAI_BASE_URL")) {
            (None, None) => return Err(ProviderConfigError::MissingVariable("OPENAI_API_KEY")),
            (Some(key), None) => Self::builder().api_key(key),
            (None, Some(url)) => Self::builder().base_url(url),
            (Some(key), Some(url)) => Self::builder().api_key(key).base_url(url),
        };
        builder.build()
    }

    /// Starts a builder without a key, at OpenAI's own address.
    pub fn builder() -> OpenAiBuilder {
        OpenAiBuilder {
            api: Api::Chat,
            key: Secret::new(""),
            base_url: DEFAULT_BASE_URL.to_owned(),
            timeouts: Timeouts::default(),
            network: Network::default(),
            context_window: None,
            images: None,
            documents: None,
            request_bytes_max: REQUEST_BYTES_MAX,
        }
    }

    fn max_tokens(&self, model: &str) -> MaxTokens {
        let reasons = ["o1", "o3", "o4", "gpt-5"]
            .iter()
            .any(|family| model.starts_with(family));
        if self.is_openai && reasons {
            MaxTokens::Completion
        } else {
            MaxTokens::Plain
        }
    }

    fn counts(&self) -> bool {
        self.api == Api::Responses || !self.is_openai
    }

    fn target(&self, model: &str) -> Target<'_> {
        let name = model.rsplit('/').next().unwrap_or(model);
        Target {
            host: &self.host,
            shown: self.shown(model),
            reasons: !PLAIN.iter().any(|family| name.starts_with(family)),
        }
    }

    /// Returns the body of a call.
    ///
    /// # Errors
    /// `InvalidRequest` for what the API has no form for, where leaving it out would change the
    /// answer.
    fn body(&self, request: &ModelRequest) -> Result<Body, ProviderError> {
        match self.api {
            Api::Chat => Ok(convert::request(
                request,
                self.max_tokens(&request.model),
                self.shown(&request.model),
            )),
            Api::Responses if !request.stop.is_empty() => Err(ProviderError::InvalidRequest {
                status: 400,
                message:
                    "the Responses API has no stop texts; remove `stop`, or use the kind `openai`"
                        .into(),
            }),
            Api::Responses => Ok(responses::convert::request(
                request,
                self.target(&request.model),
            )),
        }
    }

    /// Which attachments a model accepts, by its name. A server that gets an image for a model
    /// without vision refuses the whole conversation from then on. So an unknown model gets none,
    /// unless its operator says otherwise.
    fn shown(&self, model: &str) -> Shown {
        let model = model.to_ascii_lowercase();
        let name = model.rsplit('/').next().unwrap_or(&model);
        let openai = ["gpt-5", "gpt-4.1", "gpt-4o", "o1", "o3", "o4"]
            .iter()
            .any(|family| name.starts_with(family));
        let text_only = name.starts_with("o1-mini") || name.starts_with("o3-mini");
        let sees = (openai && !text_only) || SEEING.iter().any(|part| name.contains(part));
        Shown {
            images: self.images.unwrap_or(sees),
            documents: self
                .documents
                .unwrap_or(self.is_openai && openai && !text_only),
        }
    }
}

impl std::fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAi")
            .field("host", &self.call.host_str())
            .finish_non_exhaustive()
    }
}

/// Builds an [`OpenAi`].
#[derive(Debug, Clone)]
pub struct OpenAiBuilder {
    api: Api,
    key: Secret,
    base_url: String,
    timeouts: Timeouts,
    network: Network,
    context_window: Option<u32>,
    images: Option<bool>,
    documents: Option<bool>,
    request_bytes_max: u64,
}

impl OpenAiBuilder {
    /// Sets the API key, sent as a bearer token. Without it no `authorization` header is sent.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.key = Secret::new(key);
        self
    }

    /// Speaks the Responses API instead of Chat Completions. Nothing is stored at the server: the
    /// reasoning of the model goes back to it, sealed, with the messages that it led to.
    #[must_use]
    pub fn responses(mut self) -> Self {
        self.api = Api::Responses;
        self
    }

    /// Sets the address of the API with `/v1`, as in the official SDKs.
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

    /// Sets the context window, in tokens, of a local server's models. The API does not report it.
    #[must_use]
    pub fn context_window(mut self, tokens: u32) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// Sets whether the models accept images. By default the model's name decides; an unknown model
    /// gets a note instead of an image.
    #[must_use]
    pub fn images(mut self, shown: bool) -> Self {
        self.images = Some(shown);
        self
    }

    /// Sets whether the models accept PDFs, as parts of type `file`. By default only OpenAI's own
    /// do.
    #[must_use]
    pub fn documents(mut self, shown: bool) -> Self {
        self.documents = Some(shown);
        self
    }

    /// Sets the bytes that the server accepts in a request, 20,000,000 by default. The oldest
    /// attachments of a larger request are left out.
    #[must_use]
    pub fn request_bytes_max(mut self, bytes: u64) -> Self {
        self.request_bytes_max = bytes;
        self
    }

    /// Builds the provider.
    ///
    /// # Errors
    /// [`ProviderConfigError`] if the key or the URL is not valid.
    pub fn build(self) -> Result<OpenAi, ProviderConfigError> {
        let base = base_url(&self.base_url)?;
        let mut headers = HeaderMap::new();
        if !self.key.is_empty() {
            let bearer = HeaderValue::from_str(&format!("Bearer {}", self.key.expose()));
            let mut bearer = bearer.map_err(|_| ProviderConfigError::BadKey)?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        let http = Http::new(&base, headers, self.key, self.timeouts, &self.network)?;
        let (call, count) = match self.api {
            Api::Chat => ("chat/completions", "messages/count_tokens"),
            Api::Responses => ("responses", "responses/input_tokens"),
        };
        let host = base.host_str().unwrap_or_default();
        let host = match base.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Ok(OpenAi {
            http,
            api: self.api,
            call: below(&base, call),
            count: below(&base, count),
            host,
            is_openai: base.host_str() == Some(OPENAI_HOST),
            context_window: self.context_window,
            images: self.images,
            documents: self.documents,
            request_bytes_max: self.request_bytes_max,
        })
    }
}

#[derive(Deserialize)]
struct Count {
    input_tokens: u64,
}

impl LlmProvider for OpenAi {
    fn name(&self) -> &str {
        match self.api {
            Api::Chat => "openai",
            Api::Responses => "openai-responses",
        }
    }

    /// OpenAI's default model. A local server that serves one model accepts any name.
    fn default_model(&self) -> &str {
        if self.is_openai {
            "gpt-5-mini"
        } else {
            "default"
        }
    }

    /// The windows of known model families. `counts_tokens` is true for the Responses API, and for
    /// Chat Completions of every server except OpenAI's: llama.cpp's server counts, and a server
    /// that does not says so on the first request.
    fn capabilities(&self, model: &str) -> Capabilities {
        let model = model.rsplit('/').next().unwrap_or(model);
        let is = |start: &str| model.starts_with(start);
        let (context_window, output_max) = match () {
            () if is("gpt-5") => (400_000, 128_000),
            () if is("gpt-4.1") => (1_047_576, 32_768),
            () if is("gpt-4o") => (128_000, 16_384),
            () if is("o1") || is("o3") || is("o4") => (200_000, 100_000),
            () if is("gpt-4-turbo") => (128_000, 4_096),
            () if is("gpt-4") => (8_192, 4_096),
            () if is("gpt-3.5") => (16_385, 4_096),
            () if is("deepseek") || is("mistral") || is("ministral") => (128_000, 8_192),
            // Probably a local server, whose operator chose a small window.
            () => (32_768, 8_192),
        };
        let context_window = self.context_window.unwrap_or(context_window);
        let output_max = output_max.min(context_window);
        let Shown { images, documents } = self.shown(model);
        Capabilities {
            context_window,
            output_max,
            tools: true,
            output_schema: true,
            counts_tokens: self.counts(),
            images,
            documents,
            request_bytes_max: Some(self.request_bytes_max),
            thinking: self.api == Api::Responses,
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
            let (body, request) = written(self, request, Self::body).await?;
            let body = body?;
            let assembler: Box<dyn Assemble> = match self.api {
                Api::Chat => Box::new(OpenAiAssembler::new(request.messages)),
                Api::Responses => {
                    Box::new(ResponsesAssembler::from_host(request.messages, &self.host))
                }
            };
            self.http.stream(&self.call, body, assembler, cancel).await
        })
    }

    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        Box::pin(async move {
            if !self.counts() {
                return Err(ProviderError::Unsupported("counting tokens"));
            }
            let write = |this: &Self, request: &ModelRequest| match this.api {
                Api::Chat => convert::count(request),
                Api::Responses => responses::convert::count(request, this.target(&request.model)),
            };
            let (body, _) = written(self, request, write).await?;
            match self.http.ask(&self.count, body).await {
                Ok(answer) => {
                    let count: Count = serde_json::from_slice(&answer)
                        .map_err(|error| protocol(format_args!("a count is not valid: {error}")))?;
                    Ok(count.input_tokens)
                }
                Err(
                    ProviderError::InvalidRequest {
                        status: 404 | 405 | 501,
                        ..
                    }
                    | ProviderError::Server { status: 501, .. },
                ) => Err(ProviderError::Unsupported("counting tokens")),
                Err(error) => Err(error),
            }
        })
    }

    fn request_body(&self, request: &ModelRequest) -> Result<bytes::Bytes, ProviderError> {
        Ok(self.body(request)?.joined())
    }
}
