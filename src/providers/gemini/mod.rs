//! Google's Gemini API (`streamGenerateContent`), and servers that speak it.

mod wire;
mod signed;
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

use self::convert::Target;
pub use self::stream::GeminiAssembler;
use super::{
    body::written,
    config::{ProviderConfigError, Timeouts, base_url, below, variable},
    errors::protocol,
    http::Http,
    network::Network,
    secret::Secret,
    shown::Shown,
};

const DEFAULT_BASE_URL: &str = "https://generativelanguage.googleapis.com/v1beta";

/// The version of the API where the base URL names none.
const API_VERSION: &str = "v1beta";

/// Most bytes of a request with its attachments.
const REQUEST_BYTES_MAX: u64 = 20_000_000;

/// An alias that the API keeps up to date: the newest model of a mid-priced family that uses tools
/// well.
const DEFAULT_MODEL: &str = "gemini-flash-latest";

/// A provider that speaks the Gemini API. The key goes in a header and in no URL.
///
/// ```
/// use callboard::providers::Gemini;
///
/// let provider = Gemini::builder("test-not-a-real-key").base_url("http://127.0.0.1:8080").build()?;
/// # Ok::<(), callboard::providers::ProviderConfigError>(())
/// ```
#[derive(Clone)]
pub struct Gemini {
    http: Http,
    base: Url,
    request_bytes_max: u64,
    context_window: Option<u32>,
}

impl Gemini {
    /// Creates a provider with the key in `GEMINI_API_KEY`, at `GOOGLE_GEMINI_BASE_URL` if that is
    /// set.
    ///
    /// # Errors
    /// [`ProviderConfigError::MissingVariable`] without a key, and the errors of
    /// [`GeminiBuilder::build`].
    pub fn from_env() -> Result<Self, ProviderConfigError> {
        let key = variable("GEMINI_API_KEY")
            .ok_or(ProviderConfigError::MissingVariable("GEMINI_API_KEY"))?;
        let builder = Self::builder(key);
        match variable("GOOGLE_GEMINI_BASE_URL") {
            Some(url) => builder.base_url(url).build(),
            None => builder.build(),
        }
    }

    /// Starts a builder with this API key.
    pub fn builder(api_key: impl Into<String>) -> GeminiBuilder {
        GeminiBuilder {
            key: Secret::new(api_key),
            base_url: DEFAULT_BASE_URL.to_owned(),
            timeouts: Timeouts::default(),
            network: Network::default(),
            request_bytes_max: REQUEST_BYTES_MAX,
            context_window: None,
        }
    }

    /// Returns the address of a method of a model.
    ///
    /// # Errors
    /// `InvalidRequest` for a name that would lead elsewhere on the server.
    fn method(&self, model: &str, method: &str) -> Result<Url, ProviderError> {
        let model = plain(model);
        let is_name = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte))
        };
        let parts: Vec<&str> = model.split('/').collect();
        let path = match parts.as_slice() {
            [name] if is_name(name) => format!("models/{name}:{method}"),
            ["tunedModels", name] if is_name(name) => format!("tunedModels/{name}:{method}"),
            _ => {
                return Err(ProviderError::InvalidRequest {
                    status: 404,
                    message: "the name of the model is none of this API".into(),
                });
            }
        };
        Ok(below(&self.base, &path))
    }
}

/// The name of a model without the folder that lists put in front of it.
fn plain(model: &str) -> &str {
    model.strip_prefix("models/").unwrap_or(model)
}

/// The first number in a model's name, its generation. An alias such as `gemini-flash-latest` has
/// none and is the newest.
fn generation(model: &str) -> u32 {
    plain(model)
        .strip_prefix("gemini-")
        .and_then(|rest| rest.split(['.', '-']).next()?.parse().ok())
        .unwrap_or(u32::MAX)
}

fn is_gemma(model: &str) -> bool {
    plain(model).starts_with("gemma")
}

fn target(model: &str) -> Target {
    Target {
        shown: Shown {
            images: true,
            documents: !is_gemma(model),
        },
        has_levels: !is_gemma(model) && generation(model) >= 3,
        always_thinks: model.contains("pro"),
    }
}

impl std::fmt::Debug for Gemini {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gemini")
            .field("host", &self.base.host_str())
            .finish_non_exhaustive()
    }
}

/// Builds a [`Gemini`].
#[derive(Debug, Clone)]
pub struct GeminiBuilder {
    key: Secret,
    base_url: String,
    timeouts: Timeouts,
    network: Network,
    request_bytes_max: u64,
    context_window: Option<u32>,
}

impl GeminiBuilder {
    /// Sets the address of the API. Without a path, `/v1beta` is added.
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

    /// Sets the bytes that the server accepts in a request, 20,000,000 by default. The oldest
    /// attachments of a larger request are left out.
    #[must_use]
    pub fn request_bytes_max(mut self, bytes: u64) -> Self {
        self.request_bytes_max = bytes;
        self
    }

    /// Sets the context window of all models, in tokens; by the model's name by default.
    #[must_use]
    pub fn context_window(mut self, tokens: u32) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// Builds the provider.
    ///
    /// # Errors
    /// [`ProviderConfigError`] if the key or the URL is not valid.
    pub fn build(self) -> Result<Gemini, ProviderConfigError> {
        let base = base_url(&self.base_url)?;
        let base = match base.path() {
            "" | "/" => below(&base, API_VERSION),
            _ => base,
        };
        let mut headers = HeaderMap::new();
        let mut key =
            HeaderValue::from_str(self.key.expose()).map_err(|_| ProviderConfigError::BadKey)?;
        key.set_sensitive(true);
        headers.insert("x-goog-api-key", key);
        let http = Http::new(&base, headers, self.key, self.timeouts, &self.network)?;
        Ok(Gemini {
            http,
            base,
            request_bytes_max: self.request_bytes_max,
            context_window: self.context_window,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Count {
    total_tokens: u64,
}

impl LlmProvider for Gemini {
    fn name(&self) -> &str {
        "gemini"
    }

    fn default_model(&self) -> &str {
        DEFAULT_MODEL
    }

    /// The windows of known model families. Before Gemini 3, a schema of the answer excludes tools,
    /// so such a model is asked in words.
    fn capabilities(&self, model: &str) -> Capabilities {
        let generation = generation(model);
        let (context_window, output_max) = match () {
            () if is_gemma(model) => (131_072, 8_192),
            () if generation < 2 || plain(model).starts_with("gemini-2.0") => (1_048_576, 8_192),
            () => (1_048_576, 65_536),
        };
        let context_window = self.context_window.unwrap_or(context_window);
        let Shown { images, documents } = target(model).shown;
        Capabilities {
            context_window,
            output_max: output_max.min(context_window),
            tools: true,
            output_schema: !is_gemma(model) && generation >= 3,
            counts_tokens: true,
            images,
            documents,
            request_bytes_max: Some(self.request_bytes_max),
            thinking: output_max == 65_536,
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
            let mut url = self.method(&request.model, "streamGenerateContent")?;
            url.set_query(Some("alt=sse"));
            let write =
                |(): &(), request: &ModelRequest| convert::request(request, target(&request.model));
            let (body, request) = written(&(), request, write).await?;
            let assembler = Box::new(GeminiAssembler::new(request.messages));
            self.http.stream(&url, body, assembler, cancel).await
        })
    }

    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        Box::pin(async move {
            let url = self.method(&request.model, "countTokens")?;
            let write = |(): &(), request: &ModelRequest| {
                convert::count(request, plain(&request.model), target(&request.model))
            };
            let (body, _) = written(&(), request, write).await?;
            let answer = self.http.ask(&url, body).await?;
            let count: Count = serde_json::from_slice(&answer)
                .map_err(|error| protocol(format_args!("a count is not valid: {error}")))?;
            Ok(count.total_tokens)
        })
    }

    fn request_body(&self, request: &ModelRequest) -> Result<bytes::Bytes, ProviderError> {
        Ok(convert::request(request, target(&request.model)).joined())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_name_decides_what_it_can() {
        let gemini = Gemini::builder("test-not-a-real-key").build().unwrap();
        let can = |model: &str| {
            let can = gemini.capabilities(model);
            (
                can.output_max,
                can.thinking,
                can.output_schema,
                can.documents,
            )
        };

        assert_eq!(can("gemini-flash-latest"), (65_536, true, true, true));
        assert_eq!(
            can("models/gemini-3.1-pro-preview"),
            (65_536, true, true, true)
        );
        assert_eq!(can("gemini-2.5-flash"), (65_536, true, false, true));
        assert_eq!(can("gemini-2.0-flash"), (8_192, false, false, true));
        assert_eq!(can("gemma-4-31b-it"), (8_192, false, false, false));
    }

    #[test]
    fn a_name_never_leads_to_another_address_and_a_version_is_added_where_there_is_none() {
        let gemini = |url: &str| {
            Gemini::builder("test-not-a-real-key")
                .base_url(url)
                .build()
                .unwrap()
        };
        let method = |url: &str, model: &str| {
            let url = gemini(url).method(model, "m");
            url.map(|url| url.to_string()).ok()
        };

        assert_eq!(
            method("http://127.0.0.1:1", "models/gemini-3-flash").as_deref(),
            Some("http://127.0.0.1:1/v1beta/models/gemini-3-flash:m")
        );
        assert_eq!(
            method("http://127.0.0.1:1/v1/", "tunedModels/a-1").as_deref(),
            Some("http://127.0.0.1:1/v1/tunedModels/a-1:m")
        );
        for model in [
            "../files", "a/b", "a?key=x", "a:b", "", "..", "models/", "a b", "ä",
        ] {
            assert_eq!(method("http://127.0.0.1:1", model), None, "{model}");
        }
    }
}
