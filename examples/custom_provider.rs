//! A custom provider: one `impl LlmProvider`. `cargo run --example custom_provider -- "hello
//! there"`

use callboard::{
    Host,
    chat::{ContentBlock, ModelRequest, ProviderStop, Usage},
    ports::{
        BoxFuture, Capabilities, Completion, LlmProvider, ModelEvent, ModelStream, ProviderError,
    },
};
use futures_util::{StreamExt, stream};
use tokio_util::sync::CancellationToken;

/// Repeats the prompt word by word, in capitals.
struct Shout;

impl LlmProvider for Shout {
    fn name(&self) -> &str {
        "shout"
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
            request_bytes_max: None,
            thinking: false,
        }
    }

    // An adapter never retries and keeps nothing between calls; the host does both. Dropping the
    // stream cancels the call.
    fn stream(
        &self,
        request: ModelRequest,
        _cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let said = request
            .messages
            .last()
            .map(|message| message.text())
            .unwrap_or_default()
            .to_uppercase();
        let usage = Usage {
            input_uncached: said.len() as u64 / 4,
            output: said.len() as u64 / 4,
            ..Usage::default()
        };

        // Pieces as they arrive, then the block that they form, then exactly one end.
        let pieces: Vec<_> = said
            .split_inclusive(' ')
            .map(|word| Ok(vec![ModelEvent::Text(word.to_owned())]))
            .collect();
        let end = Completion {
            stop: ProviderStop::EndTurn,
            raw_stop: Some("done".into()),
            usage: Some(usage),
            raw_usage: None,
        };
        let last = Ok(vec![
            ModelEvent::Block(ContentBlock::text(said)),
            ModelEvent::Completed(end),
        ]);
        Box::pin(async { Ok(stream::iter(pieces.into_iter().chain([last])).boxed()) })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::builder().provider(Shout).build().await?;
    let prompt = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "is anybody there?".into());
    let mut reply = host
        .tenant("acme")
        .conversation("hall")
        .send(prompt)
        .await?;
    println!("{}", reply.outcome().await?.text);
    Ok(())
}
