//! Asks a provider how many tokens a request has, where a model is configured so and its family has a client (REQUIREMENTS K-18, K-19).
//!
//! The answer is taken as it is, without a margin. Where nobody can be asked, or the answer fails, the host's own estimate stands. Such a
//! count is a call over the network: it is worth it near the limit of a window, not for every message (DESIGN §4.4).

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use tokio_util::sync::CancellationToken;

use super::ModelGatewayRef;
use crate::{
    chat::ModelRequest,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
    tokens::{ModelFamily, ModelInfo, TokenCounter},
};

/// The counter of a host, and whom it may ask.
pub struct ExactCounter {
    counter: Arc<TokenCounter>,
    clients: RwLock<BTreeMap<ModelFamily, Arc<dyn LlmProvider>>>,
}

/// Counts with whatever provider and credential a gateway has at the moment.
struct Counting(ModelGatewayRef);

impl LlmProvider for Counting {
    fn name(&self) -> &str {
        "gateway"
    }

    fn capabilities(&self, model: &str) -> Capabilities {
        self.0.capabilities(model)
    }

    fn stream(&self, _: ModelRequest, _: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        Box::pin(std::future::ready(Err(ProviderError::Unsupported("calls beside the gateway"))))
    }

    fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
        let provider = self.0.provider();
        Box::pin(async move { provider.count_tokens(request).await })
    }
}

impl ModelGatewayRef {
    /// A client that counts tokens with the provider that is behind this gateway at the time.
    pub fn counting(&self) -> Arc<dyn LlmProvider> {
        Arc::new(Counting(self.clone()))
    }
}

/// A number of tokens, and how it came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The provider said so.
    Exact(u64),
    /// Our own count, with the model's margin.
    Estimate(u64),
}

impl Counted {
    /// The number.
    pub fn tokens(self) -> u64 {
        match self {
            Self::Exact(tokens) | Self::Estimate(tokens) => tokens,
        }
    }
}

impl ExactCounter {
    /// One that may ask nobody yet.
    pub fn new(counter: Arc<TokenCounter>) -> Self {
        Self { counter, clients: RwLock::default() }
    }

    /// The estimate behind it.
    pub fn counter(&self) -> &Arc<TokenCounter> {
        &self.counter
    }

    /// Sets whom to ask for a family; the client knows its own key (REQUIREMENTS K-19).
    pub fn configure_api_client(&self, family: ModelFamily, client: Arc<dyn LlmProvider>) {
        self.clients.write().unwrap_or_else(PoisonError::into_inner).insert(family, client);
    }

    /// How a model is counted (REQUIREMENTS K-22).
    pub fn model_info(&self, model: &str) -> ModelInfo {
        let info = self.counter.model_info(model);
        let has_api_client = self.client(info.model_family).is_some();
        ModelInfo { has_api_client, ..info }
    }

    /// What the API of the model's family says; `None` if it is not to be asked, cannot be asked, or fails, which is logged.
    ///
    /// # Cancel safety
    /// Dropping the future ends the call; nothing is kept of it.
    pub async fn count_exact(&self, model: &str, request: ModelRequest) -> Option<u64> {
        let info = self.counter.model_info(model);
        let client = self.client(info.model_family).filter(|client| info.use_exact_counting && client.capabilities(model).counts_tokens)?;
        match client.count_tokens(ModelRequest { model: model.into(), ..request }).await {
            Ok(tokens) => Some(tokens),
            Err(error) => {
                tracing::warn!("Exact token counting failed: {error}");
                None
            }
        }
    }

    /// What the API says, else our own count of system prompt, tools and messages. The latter takes processor time.
    ///
    /// # Cancel safety
    /// As [`ExactCounter::count_exact`].
    pub async fn count(&self, model: &str, request: ModelRequest) -> Counted {
        match self.count_exact(model, request.clone()).await {
            Some(tokens) => Counted::Exact(tokens),
            None => Counted::Estimate(self.counter.count_request(model, &request)),
        }
    }

    fn client(&self, family: ModelFamily) -> Option<Arc<dyn LlmProvider>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).get(&family).cloned()
    }
}

impl fmt::Debug for ExactCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let families: Vec<_> = self.clients.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        f.debug_struct("ExactCounter").field("counter", &self.counter).field("clients", &families).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        testing::contract::example_request,
        tokens::{EncoderConfig, EncoderRegistry},
    };

    /// A provider that counts and does nothing else.
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
            }
        }

        fn stream(&self, _: ModelRequest, _: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
            Box::pin(std::future::ready(Err(ProviderError::Cancelled)))
        }

        fn count_tokens(&self, request: ModelRequest) -> BoxFuture<'_, Result<u64, ProviderError>> {
            assert_eq!(&*request.model, "house-7b");
            Box::pin(std::future::ready(self.answer.lock().unwrap().clone()))
        }
    }

    fn client(answer: Result<u64, ProviderError>, counts_tokens: bool) -> Arc<Counts> {
        Arc::new(Counts { answer: Mutex::new(answer), counts_tokens })
    }

    fn counter(use_exact_counting: bool) -> ExactCounter {
        let registry = EncoderRegistry::default();
        let config = EncoderConfig { use_exact_counting, ..EncoderConfig::new(ModelFamily::Llama, "cl100k_base", 2.0) };
        registry.register_encoder_config("house-*", config);
        ExactCounter::new(Arc::new(TokenCounter::new(registry)))
    }

    #[tokio::test]
    async fn the_provider_is_asked_if_wanted_and_its_number_has_no_margin() {
        let exact = counter(true);
        assert_eq!(exact.count_exact("house-7b", example_request()).await, None);

        exact.configure_api_client(ModelFamily::Llama, client(Ok(4711), true));

        assert_eq!(exact.count_exact("house-7b", example_request()).await, Some(4711));
        assert_eq!(exact.count("house-7b", example_request()).await, Counted::Exact(4711));
        assert!(exact.model_info("house-7b").has_api_client && !exact.model_info("claude-opus-4").has_api_client);
    }

    #[tokio::test]
    async fn the_estimate_stands_where_nobody_answers() {
        let estimate = counter(true).count("house-7b", example_request()).await;
        assert!(matches!(estimate, Counted::Estimate(tokens) if tokens > 0));

        for (wanted, family, client) in [
            (false, ModelFamily::Llama, client(Ok(1), true)),
            (true, ModelFamily::Claude, client(Ok(1), true)),
            (true, ModelFamily::Llama, client(Ok(1), false)),
            (true, ModelFamily::Llama, client(Err(ProviderError::Overloaded), true)),
        ] {
            let exact = counter(wanted);
            exact.configure_api_client(family, client);

            assert_eq!(exact.count("house-7b", example_request()).await, estimate);
        }
    }
}
