//! Counts the tokens of texts, messages and tools for any model.
//!
//! Pure.

use std::{borrow::Cow, sync::LazyLock};

use serde::Serialize;

use super::{EncoderRegistry, ModelFamily, media::media_tokens, registry::Resolved};
use crate::chat::{
    ContentBlock, Message, MessageList, ModelRequest, RawJson, Role, ToolDefinition,
    ToolResultContent,
};

/// Counts tokens locally, without a request to a provider. The result is an estimate, raised by the
/// model's safety margin. A host has one counter, in an `Arc`.
///
/// Counting takes processor time in proportion to the text (5 to 20 MB/s); count long texts on a blocking thread.
///
/// ```
/// use callboard_actors::{chat::Message, tokens::TokenCounter};
///
/// let counter = TokenCounter::default();
/// assert_eq!(counter.count_text("gpt-4", "hello world"), 2);
/// assert_eq!(counter.count_message("gpt-4", &Message::user("hello world")), 3);
/// ```
#[derive(Debug, Default)]
pub struct TokenCounter {
    registry: EncoderRegistry,
}

/// How the tokens of a model are counted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelInfo {
    /// The model's name, as the caller gave it.
    pub model: String,
    /// The family of the model; decides which provider's API counts exactly.
    pub model_family: ModelFamily,
    /// The name of the encoding in use.
    pub encoding_name: String,
    /// Factor applied to every count.
    pub safety_margin: f64,
    /// Whether the family's API should be asked for exact counts.
    pub use_exact_counting: bool,
    /// The only provider that is asked for them; `None` for every one that counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_counting_api: Option<String>,
    /// Whether a client for that API is configured. Always false here; see
    /// [`crate::model_gateway::exact::ExactCounter`].
    pub has_api_client: bool,
}

impl TokenCounter {
    /// A counter that uses this registry.
    pub fn new(registry: EncoderRegistry) -> Self {
        Self { registry }
    }

    /// The registry, to register configurations and encoders at run time.
    pub fn registry(&self) -> &EncoderRegistry {
        &self.registry
    }

    /// Tokens of a text: 0 for the empty text, else `floor(tokens x margin)`. Text that looks like
    /// a special token is counted as plain text.
    pub fn count_text(&self, model: &str, text: &str) -> u64 {
        if text.is_empty() {
            0
        } else {
            self.registry.resolve(model).count(text)
        }
    }

    /// Tokens of a text as the encoding counts them, without the model's margin.
    pub fn count_without_margin(&self, model: &str, text: &str) -> u64 {
        if text.is_empty() {
            0
        } else {
            self.registry
                .resolve(model)
                .encoder
                .encoder()
                .count_tokens(text)
        }
    }

    /// Tokens of a message: its role and all blocks. The message caches its count; only a model
    /// with another encoding or margin causes a new count.
    pub fn count_message(&self, model: &str, message: &Message) -> u64 {
        self.count_messages(model, std::iter::once(message))
    }

    /// Tokens of all messages.
    pub(crate) fn count_conversation(&self, model: &str, messages: &MessageList) -> u64 {
        self.count_messages(model, messages.iter())
    }

    /// Tokens of tool definitions: names, descriptions and schemas.
    pub(crate) fn count_tools(&self, model: &str, tools: &[ToolDefinition]) -> u64 {
        let way = self.registry.resolve(model);
        let cost = |tool: &ToolDefinition| {
            way.count(&tool.name)
                + way.count(&tool.description)
                + way.count(tool.input_schema.as_str())
        };
        tools.iter().map(cost).sum()
    }

    /// Tokens of a whole request: system prompt, tools and messages.
    pub(crate) fn count_request(&self, model: &str, request: &ModelRequest) -> u64 {
        let system = request
            .system
            .as_deref()
            .map_or(0, |system| self.count_text(model, system));
        system
            + self.count_tools(model, &request.tools)
            + self.count_conversation(model, &request.messages)
    }

    /// How the tokens of a model are counted.
    pub fn model_info(&self, model: &str) -> ModelInfo {
        let way = self.registry.resolve(model);
        ModelInfo {
            model: model.to_owned(),
            model_family: way.config.model_family,
            encoding_name: way.encoder.encoder().name().to_owned(),
            safety_margin: way.config.safety_margin,
            use_exact_counting: way.config.use_exact_counting,
            exact_counting_api: way.config.exact_counting_api.clone(),
            has_api_client: false,
        }
    }

    fn count_messages<'m>(&self, model: &str, messages: impl Iterator<Item = &'m Message>) -> u64 {
        let way = self.registry.resolve(model);
        let profile = self.registry.profile(&way);
        messages
            .map(
                |message| match profile.and_then(|profile| message.counted_tokens(profile)) {
                    Some(kept) => kept.into(),
                    None => {
                        let tokens = of_message(&way, message);
                        if let (Some(profile), Ok(tokens)) = (profile, u32::try_from(tokens)) {
                            message.keep_tokens(profile, tokens);
                        }
                        tokens
                    }
                },
            )
            .sum()
    }
}

/// As [`TokenCounter::count_text`], with the default registry.
pub fn count_text(model: &str, text: &str) -> u64 {
    DEFAULT.count_text(model, text)
}

/// As [`TokenCounter::count_message`], with the default registry.
pub fn count_message(model: &str, message: &Message) -> u64 {
    DEFAULT.count_message(model, message)
}

/// As `TokenCounter::count_conversation`, with the default registry.
pub fn count_conversation(model: &str, messages: &MessageList) -> u64 {
    DEFAULT.count_conversation(model, messages)
}

/// Private, so that no caller can register anything in it. It is a table, not shared state.
static DEFAULT: LazyLock<TokenCounter> = LazyLock::new(TokenCounter::default);

fn of_message(way: &Resolved, message: &Message) -> u64 {
    let role = match message.role() {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
    };
    way.count(role) + of_blocks(way, &message.blocks())
}

fn of_blocks(way: &Resolved, blocks: &[ContentBlock]) -> u64 {
    blocks.iter().map(|block| of_block(way, block)).sum()
}

fn of_block(way: &Resolved, block: &ContentBlock) -> u64 {
    match block {
        ContentBlock::Text(block) => way.count(&block.text),
        ContentBlock::Thinking(block) => way.count(&block.thinking),
        ContentBlock::ToolUse(block) => {
            way.count(&block.name) + way.count(&unescaped(&block.input))
        }
        ContentBlock::ToolResult(block) => match &block.content {
            ToolResultContent::Text(text) => way.count(text),
            // The nesting is bounded by the JSON depth limit (`JSON_DEPTH_MAX`).
            ToolResultContent::Blocks(raw) => match raw.parse::<Vec<ContentBlock>>() {
                Ok(blocks) => of_blocks(way, &blocks),
                Err(_) => way.count(raw.as_str()),
            },
        },
        ContentBlock::Image(media) | ContentBlock::Document(media) => {
            media_tokens(block.kind(), media.raw(), &|text| way.count(text))
                .unwrap_or_else(|| way.count(media.raw().as_str()))
        }
        ContentBlock::Other { kind, raw } => media_tokens(kind, raw, &|text| way.count(text))
            .unwrap_or_else(|| way.count(raw.as_str())),
    }
}

/// JSON text with `\u` escapes resolved: a model that wrote `\u6c49` produced one character, not
/// six.
fn unescaped(json: &RawJson) -> Cow<'_, str> {
    let text = json.as_str();
    if !text.contains("\\u") {
        return Cow::Borrowed(text);
    }
    match json.parse::<serde_json::Value>() {
        Ok(value) => Cow::Owned(value.to_string()),
        Err(_) => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests;
