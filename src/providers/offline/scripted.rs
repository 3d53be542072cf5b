//! A model with scripted latency, chunks, tool calls and faults, for load tests and demonstrations.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use callboard_actors::{
    chat::{ModelRequest, RawJson, Role},
    ports::{BoxFuture, Capabilities, LlmProvider, ModelStream, ProviderError},
    scripted::{Reply, splitmix64},
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// Configures a [`Scripted`] model. Every field has a default. Without delays a call costs
/// microseconds.
///
/// A round consists of `tool_rounds` replies with `tools_per_reply` calls each (taken from `tools`
/// in order), followed by the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptedConfig {
    /// Time to the head of an answer, in milliseconds.
    pub latency_ms: u64,
    /// Text deltas in an answer.
    pub chunks: usize,
    /// Bytes in a delta.
    pub chunk_bytes: usize,
    /// Time between deltas, in milliseconds.
    pub chunk_delay_ms: u64,
    /// Replies in a round that call tools before the text.
    pub tool_rounds: usize,
    /// Tool calls in such a reply.
    pub tools_per_reply: usize,
    /// The tool calls, used in order and cyclically. A tool that the request does not offer is
    /// skipped.
    pub tools: Vec<ScriptedCall>,
    /// Share of calls, 0 to 1, that fail before their first content (529, 500, 429 or a broken connection).
    pub fault_rate: f64,
    /// Share of calls, 0 to 1, whose connection breaks in the middle of the text.
    pub cut_rate: f64,
    /// Seed of the faults: the same seed gives the same faults to the same sequence of calls.
    pub seed: u64,
}

/// A tool call of the script.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// Name of the tool.
    pub name: String,
    /// Its arguments, an object.
    #[serde(default = "RawJson::empty_object")]
    pub input: RawJson,
}

impl Default for ScriptedConfig {
    fn default() -> Self {
        Self {
            latency_ms: 0,
            chunks: 16,
            chunk_bytes: 32,
            chunk_delay_ms: 0,
            tool_rounds: 0,
            tools_per_reply: 1,
            tools: Vec::new(),
            fault_rate: 0.0,
            cut_rate: 0.0,
            seed: 0,
        }
    }
}

/// A model that follows a [`ScriptedConfig`].
///
/// ```
/// use callboard::providers::offline::{Scripted, ScriptedConfig};
///
/// let model = Scripted::new(ScriptedConfig { latency_ms: 200, chunks: 50, fault_rate: 0.01, ..ScriptedConfig::default() });
/// ```
#[derive(Debug)]
pub struct Scripted {
    config: ScriptedConfig,
    text: Arc<str>,
    calls: AtomicU64,
}

const WORDS: &str = "The quick brown fox jumps over the lazy dog while forty actors keep their boards in order. ";

impl Scripted {
    /// Creates a model with this configuration.
    pub fn new(config: ScriptedConfig) -> Self {
        let bytes = config.chunks.saturating_mul(config.chunk_bytes).min(callboard_actors::limits::STREAM_BYTES_MAX);
        let text: String = WORDS.chars().cycle().take(bytes).collect();
        Self { config, text: text.into(), calls: AtomicU64::new(0) }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ScriptedConfig {
        &self.config
    }

    fn reply(&self, request: &ModelRequest, call: u64) -> Reply {
        let reply = self.content(request);
        let reply = match self.fault(call) {
            Fault::None => reply,
            Fault::Early(error) => Reply::error(error),
            Fault::Middle(error) => reply.fail_after(self.config.chunks / 2, error),
        };
        reply
            .after(Duration::from_millis(self.config.latency_ms))
            .chunk_bytes(self.config.chunk_bytes)
            .chunk_delay(Duration::from_millis(self.config.chunk_delay_ms))
    }

    /// Decided from the history alone, so that a round continues where it was after a restart.
    fn content(&self, request: &ModelRequest) -> Reply {
        let exchanges =
            request.messages.iter().rev().filter(|message| message.role() == Role::User).take_while(|m| !m.tool_result_ids().is_empty());
        let rounds_done = exchanges.count();
        let offered: Vec<&ScriptedCall> =
            self.config.tools.iter().filter(|call| request.tools.iter().any(|tool| tool.name == call.name)).collect();
        if offered.is_empty() || rounds_done >= self.config.tool_rounds {
            return Reply::text(self.text.clone());
        }
        let first = rounds_done * self.config.tools_per_reply;
        let calls = offered.into_iter().cycle().skip(first % self.config.tools.len().max(1)).take(self.config.tools_per_reply);
        calls.fold(Reply::empty(), |reply, call| reply.and_tool(call.name.as_str(), &call.input))
    }

    fn fault(&self, call: u64) -> Fault {
        let chance = |salt: u64| splitmix64(self.config.seed ^ splitmix64(call.wrapping_mul(4).wrapping_add(salt)));
        let fraction = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64;
        let message = || "a fault of the script".to_owned();
        if fraction(chance(0)) < self.config.fault_rate {
            return Fault::Early(match chance(1) % 4 {
                0 => ProviderError::Server { status: 529, retry_after: None, message: message() },
                1 => ProviderError::Server { status: 500, retry_after: None, message: message() },
                2 => ProviderError::RateLimited { retry_after: None, message: message() },
                _ => ProviderError::Connection { message: message() },
            });
        }
        if fraction(chance(2)) < self.config.cut_rate {
            return Fault::Middle(ProviderError::Connection { message: message() });
        }
        Fault::None
    }
}

enum Fault {
    None,
    Early(ProviderError),
    Middle(ProviderError),
}

impl LlmProvider for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn capabilities(&self, _model: &str) -> Capabilities {
        Capabilities {
            context_window: 1_000_000,
            output_max: 128_000,
            tools: true,
            output_schema: false,
            counts_tokens: false,
            images: true,
            documents: true,
        }
    }

    fn stream(&self, request: ModelRequest, cancel: CancellationToken) -> BoxFuture<'_, Result<ModelStream, ProviderError>> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        self.reply(&request, call).play(&request, cancel)
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        chat::{ContentBlock, Message, MessageList, ToolChoice, ToolDefinition, ToolResultBlock, ToolUseBlock},
        ports::ModelEvent,
    };
    use futures_util::StreamExt;

    use super::*;

    fn request(messages: &[Message]) -> ModelRequest {
        let tool = ToolDefinition { name: "think".into(), description: String::new(), input_schema: RawJson::empty_object() };
        ModelRequest {
            model: "scripted".into(),
            system: None,
            messages: MessageList::from_iter(messages.iter().cloned()),
            tools: Arc::new([tool]),
            tool_choice: ToolChoice::Auto,
            max_tokens: 100,
            stop: Arc::new([]),
            effort: None,
            output_schema: None,
            cache: false,
        }
    }

    async fn events(model: &Scripted, messages: &[Message]) -> Result<Vec<ModelEvent>, ProviderError> {
        let batches: Vec<_> = model.stream(request(messages), CancellationToken::new()).await?.collect().await;
        batches.into_iter().collect::<Result<Vec<_>, _>>().map(|batches| batches.into_iter().flatten().collect())
    }

    #[tokio::test]
    async fn a_turn_calls_its_tools_then_speaks() {
        let call = |name: &str| ScriptedCall { name: name.into(), input: RawJson::from_text(r#"{"thought":"x"}"#).unwrap() };
        let config =
            ScriptedConfig { tool_rounds: 1, tools_per_reply: 2, tools: vec![call("think"), call("absent")], ..ScriptedConfig::default() };
        let model = Scripted::new(config);

        let first = events(&model, &[Message::user("go")]).await.unwrap();
        let calls: Vec<ContentBlock> =
            first.into_iter().filter_map(|event| if let ModelEvent::Block(block) = event { Some(block) } else { None }).collect();
        let expected = |id: &str| ContentBlock::ToolUse(ToolUseBlock { id: id.into(), name: "think".into(), input: call("think").input });
        assert_eq!(calls, [expected("call_1_0"), expected("call_1_1")]);

        let results = ["call_1_0", "call_1_1"].map(|id| ToolResultBlock {
            tool_use_id: id.into(),
            content: callboard_actors::chat::ToolResultContent::Text("ok".into()),
            is_error: false,
        });
        let history = [Message::user("go"), Message::new(Role::Assistant, &calls).unwrap(), Message::tool_results(results, [])];
        let second = events(&model, &history).await.unwrap();
        let said: usize = second.iter().map(|event| if let ModelEvent::Text(text) = event { text.len() } else { 0 }).sum();
        assert_eq!(said, 16 * 32, "the deltas of its default");
    }

    #[tokio::test]
    async fn faults_come_at_their_rate_and_a_seed_replays_them() {
        let run = async |seed| {
            let model = Scripted::new(ScriptedConfig { fault_rate: 0.2, cut_rate: 0.1, chunks: 4, seed, ..ScriptedConfig::default() });
            let mut codes = Vec::new();
            for _ in 0..2000 {
                codes.push(events(&model, &[Message::user("go")]).await.err().map(|error| error.code()));
            }
            codes
        };

        let (first, again, other) = (run(1).await, run(1).await, run(2).await);

        assert_eq!(first, again);
        assert_ne!(first, other);
        let failed = first.iter().filter(|code| code.is_some()).count();
        assert!((500..=620).contains(&failed), "0.2 + 0.8 * 0.1 of 2000 calls should fail, not {failed}");
    }

    #[test]
    fn a_configuration_with_an_unknown_figure_is_refused() {
        assert_eq!(serde_json::from_str::<ScriptedConfig>("{}").unwrap(), ScriptedConfig::default());
        assert!(serde_json::from_str::<ScriptedConfig>(r#"{"latency":1}"#).is_err());
    }
}
