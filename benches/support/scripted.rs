//! A model in this process that says the same again and again.
#![allow(dead_code, reason = "each bench needs some of it")]

use callboard::{
    chat::ModelRequest,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
};
use callboard_actors::scripted::Reply;
use tokio_util::sync::CancellationToken;

/// What a model without a wire can do; its window is so large that nothing is compacted.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        context_window: u32::MAX,
        output_max: 8192,
        tools: true,
        output_schema: false,
        counts_tokens: false,
        images: false,
        documents: false,
    }
}

/// The model.
pub(crate) struct Scripted(pub(crate) Reply);

impl Scripted {
    /// One that says 64 bytes in 16 pieces.
    pub(crate) fn brief() -> Self {
        Self(Reply::text("word".repeat(16)).chunks(16))
    }
}

impl LlmProvider for Scripted {
    fn name(&self) -> &str {
        "in-process"
    }

    fn capabilities(&self, _: &str) -> Capabilities {
        capabilities()
    }

    fn stream(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        self.0.clone().play(&request, cancel)
    }
}
