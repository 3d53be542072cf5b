//! A model in this process that always gives the same reply.
#![allow(dead_code, reason = "each bench needs some of it")]

use callboard::{
    chat::ModelRequest,
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
};
use callboard_actors::scripted::Reply;
use tokio_util::sync::CancellationToken;

/// The model's capabilities. The window is so large that nothing is compacted.
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

/// Gives the same reply to every call.
pub(crate) struct Scripted(pub(crate) Reply);

impl Scripted {
    /// A model that streams 64 bytes in 16 pieces.
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
