//! Exact token counts by a provider's API, for models that are configured for it and whose family
//! has a client.
//!
//! The provider's count is used without a margin. Without a client, or when the request fails, the
//! host's own estimate is used. An exact count is a network request: it pays off near the limit of
//! a window, not for every message.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use super::ModelGatewayRef;
use crate::{
    chat::ModelRequest,
    metrics_collector::{Figure, MetricsCollectorRef},
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
    tokens::{ModelFamily, ModelInfo, TokenCounter},
};

/// The longest wait for a provider's count: its callers wait for it before they can go on.
const EXACT_MAX: Duration = Duration::from_secs(2);

fn late() -> ProviderError {
    ProviderError::Timeout {
        message: "no count within two seconds".into(),
    }
}

/// The token counter of a host and the provider clients that it may ask.
pub struct ExactCounter {
    counter: Arc<TokenCounter>,
    clients: RwLock<BTreeMap<ModelFamily, Arc<dyn LlmProvider>>>,
    collector: MetricsCollectorRef,
}

/// Counts with the provider and credential that a gateway has at the time of the request.
struct Counting {
    gateway: ModelGatewayRef,
    name: String,
}

impl LlmProvider for Counting {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        self.gateway.capabilities(model)
    }

    fn stream(
        &self,
        _: ModelRequest,
        _: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        Box::pin(std::future::ready(Err(ProviderError::Unsupported(
            "calls beside the gateway",
        ))))
    }

    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        let provider = self.gateway.provider();
        Box::pin(async move { provider.count_tokens(request).await })
    }
}

impl ModelGatewayRef {
    /// Returns a client that counts tokens with this gateway's current provider.
    pub(crate) fn counting(&self) -> Arc<dyn LlmProvider> {
        Arc::new(Counting {
            gateway: self.clone(),
            name: self.provider().name().to_owned(),
        })
    }

    /// A counter that asks this gateway's provider about `model`, and counts its questions in the
    /// figures of the host.
    pub(crate) fn exact_counter(&self, counter: &Arc<TokenCounter>, model: &str) -> ExactCounter {
        let exact = ExactCounter {
            collector: self.0.collector.clone(),
            ..ExactCounter::new(counter.clone())
        };
        exact.configure_api_client(counter.model_info(model).model_family, self.counting());
        exact
    }
}

impl ExactCounter {
    /// Creates a counter without provider clients.
    pub(crate) fn new(counter: Arc<TokenCounter>) -> Self {
        Self {
            counter,
            clients: RwLock::default(),
            collector: MetricsCollectorRef::default(),
        }
    }

    /// Returns the counter that makes the estimates.
    pub(crate) fn counter(&self) -> &Arc<TokenCounter> {
        &self.counter
    }

    /// Sets the client for a model family. The client holds its API key.
    pub(crate) fn configure_api_client(&self, family: ModelFamily, client: Arc<dyn LlmProvider>) {
        self.clients.write().insert(family, client);
    }

    /// Returns how a model's tokens are counted.
    pub fn model_info(&self, model: &str) -> ModelInfo {
        let info = self.counter.model_info(model);
        let has_api_client = self.client(info.model_family).is_some();
        ModelInfo {
            has_api_client,
            ..info
        }
    }

    /// Asks the API of the model's family. `None` if the model is not configured for it, has no
    /// client, or one of another provider than the configuration names, or if the request fails or
    /// takes longer than two seconds, which is logged.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the request and leaves no state behind.
    pub async fn count_exact(&self, model: &str, request: ModelRequest) -> Option<u64> {
        let info = self.model_info(model);
        let client = self.client(info.model_family).filter(|client| {
            let api = info.exact_counting_api.as_deref();
            info.use_exact_counting
                && api.is_none_or(|api| api == client.name())
                && client.capabilities(model).counts_tokens
        })?;
        let ask = client.count_tokens(ModelRequest {
            model: model.into(),
            ..request
        });
        let answer = tokio::time::timeout(EXACT_MAX, ask).await;
        let answer = answer.unwrap_or_else(|_| Err(late()));
        let answered = answer.is_ok();
        self.collector.count(None, Figure::CountAsked { answered });
        match answer {
            Ok(tokens) => Some(tokens),
            Err(error) => {
                tracing::warn!("Exact token counting failed: {error}");
                None
            }
        }
    }

    /// Returns the host's own count of system prompt, tools and messages, with the model's margin. It
    /// takes processor time in proportion to the text.
    pub fn estimate(&self, model: &str, request: &ModelRequest) -> u64 {
        self.counter.count_request(model, request)
    }

    fn client(&self, family: ModelFamily) -> Option<Arc<dyn LlmProvider>> {
        self.clients.read().get(&family).cloned()
    }
}

impl fmt::Debug for ExactCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let families: Vec<_> = self.clients.read().keys().copied().collect();
        f.debug_struct("ExactCounter")
            .field("counter", &self.counter)
            .field("clients", &families)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::{
        testing::contract::example_request,
        tokens::{EncoderConfig, EncoderRegistry},
    };

    /// A provider that only counts tokens; with `Cancelled` it never answers.
    struct Counts {
        answer: Mutex<Result<u64, ProviderError>>,
        counts_tokens: bool,
    }

    impl LlmProvider for Counts {
        fn name(&self) -> &str {
            "counts"
        }

        fn capabilities(&self, _: &str) -> Capabilities {
            let counts_tokens = self.counts_tokens;
            Capabilities {
                context_window: 1,
                output_max: 1,
                tools: false,
                output_schema: false,
                counts_tokens,
                images: false,
                documents: false,
                request_bytes_max: None,
                thinking: false,
            }
        }

        fn stream(
            &self,
            _: ModelRequest,
            _: CancellationToken,
        ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
            Box::pin(std::future::ready(Err(ProviderError::Cancelled)))
        }

        fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
            assert_eq!(&*request.model, "house-7b");
            if *self.answer.lock() == Err(ProviderError::Cancelled) {
                return Box::pin(std::future::pending());
            }
            Box::pin(std::future::ready(self.answer.lock().clone()))
        }
    }

    fn client(answer: Result<u64, ProviderError>, counts_tokens: bool) -> Arc<Counts> {
        Arc::new(Counts {
            answer: Mutex::new(answer),
            counts_tokens,
        })
    }

    fn counter(use_exact_counting: bool) -> ExactCounter {
        counter_of(use_exact_counting, None)
    }

    fn counter_of(use_exact_counting: bool, api: Option<&str>) -> ExactCounter {
        let registry = EncoderRegistry::default();
        let config = EncoderConfig {
            use_exact_counting,
            exact_counting_api: api.map(str::to_owned),
            ..EncoderConfig::new(ModelFamily::Llama, "cl100k_base", 2.0)
        };
        registry.register_encoder_config("house-*", config);
        ExactCounter::new(Arc::new(TokenCounter::new(registry)))
    }

    #[tokio::test]
    async fn the_provider_is_asked_if_wanted_and_its_number_has_no_margin() {
        let exact = counter(true);
        assert_eq!(exact.count_exact("house-7b", example_request()).await, None);

        exact.configure_api_client(ModelFamily::Llama, client(Ok(4711), true));

        assert_eq!(
            exact.count_exact("house-7b", example_request()).await,
            Some(4711)
        );
        assert!(
            exact.model_info("house-7b").has_api_client
                && !exact.model_info("claude-opus-4").has_api_client
        );
    }

    #[tokio::test]
    async fn only_the_provider_that_the_configuration_names_is_asked() {
        for (api, asked) in [("counts", Some(4711)), ("anthropic", None)] {
            let exact = counter_of(true, Some(api));
            exact.configure_api_client(ModelFamily::Llama, client(Ok(4711), true));

            let counted = exact.count_exact("house-7b", example_request()).await;

            assert_eq!(counted, asked, "{api}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_does_not_answer_is_waited_for_two_seconds() {
        let exact = counter(true);
        let silent = client(Err(ProviderError::Cancelled), true);
        exact.configure_api_client(ModelFamily::Llama, silent);
        let begun = tokio::time::Instant::now();

        assert_eq!(exact.count_exact("house-7b", example_request()).await, None);
        assert_eq!(begun.elapsed().as_secs(), 2);
    }

    #[tokio::test]
    async fn the_estimate_stands_without_an_answer() {
        for (wanted, family, client) in [
            (false, ModelFamily::Llama, client(Ok(1), true)),
            (true, ModelFamily::Claude, client(Ok(1), true)),
            (true, ModelFamily::Llama, client(Ok(1), false)),
            (
                true,
                ModelFamily::Llama,
                client(Err(ProviderError::Overloaded), true),
            ),
        ] {
            let exact = counter(wanted);
            exact.configure_api_client(family, client);

            assert_eq!(exact.count_exact("house-7b", example_request()).await, None);
            assert!(exact.estimate("house-7b", &example_request()) > 0);
        }
    }
}
