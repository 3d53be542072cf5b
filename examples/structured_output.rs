//! An answer as a typed value: the schema is derived from a type, and an answer that does not match
//! is sent back to the model. `cargo run --example structured_output`

use callboard::{
    Host,
    chat::{ContentBlock, ModelRequest, ProviderStop},
    ports::{BoxFuture, Capabilities, Completion, LlmProvider, ModelEvent, ModelStream, ProviderError},
};
use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

/// The answer that the model must give.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Recipe {
    /// Name of the dish.
    name: String,
    /// Total time in minutes.
    minutes: u32,
}

/// Replaces the model, so that this runs without one: wrong at first, then right.
struct Cook;

impl LlmProvider for Cook {
    fn name(&self) -> &str {
        "cook"
    }

    fn capabilities(&self, _model: &str) -> Capabilities {
        Capabilities {
            context_window: 8192,
            output_max: 1024,
            tools: false,
            output_schema: false,
            counts_tokens: false,
            images: false,
            documents: false,
        }
    }

    fn stream(&self, request: ModelRequest, _cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let answer = match request.messages.len() {
            1 => r#"{"name": "Potato soup", "minutes": "forty"}"#,
            _ => r#"{"name": "Potato soup", "minutes": 40}"#,
        };
        let end = Completion { stop: ProviderStop::EndTurn, raw_stop: None, usage: None, raw_usage: None };
        let events = vec![ModelEvent::Block(ContentBlock::text(answer)), ModelEvent::Completed(end)];
        Box::pin(async { Ok(stream::iter([Ok(events)]).boxed()) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::builder().provider(Cook).build().await?;

    let recipe: Recipe = host.tenant("acme").conversation("kitchen").send_as("A soup for a cold evening, please.").await?;

    println!("{}: {} minutes", recipe.name, recipe.minutes);
    Ok(())
}
