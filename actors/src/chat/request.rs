//! One request to a model, in a form that all providers share. Adapters translate it to their wire.
//!
//! Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    MessageList, RawJson,
    parameters::{Effort, Temperature, Thinking},
};

/// One model call.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// The model's name in the provider's API.
    pub model: Arc<str>,
    /// The system prompt. It is not part of the messages.
    pub system: Option<Arc<str>>,
    /// The messages, which hold the pairing rule of [`super::History`].
    pub messages: MessageList,
    /// The tools that the model may call. Their order is fixed, so that the cached prefix stays
    /// valid.
    pub tools: Arc<[ToolDefinition]>,
    /// Whether the model may or must call a tool.
    pub tool_choice: ToolChoice,
    /// Longest answer, in tokens.
    pub max_tokens: u32,
    /// Texts that end the answer.
    pub stop: Arc<[String]>,
    /// Reasoning effort, for models that support it.
    pub effort: Option<Effort>,
    /// Extended thinking, for models that support it. `None` leaves it to the provider.
    pub thinking: Option<Thinking>,
    /// How freely the model chooses its words. `None` leaves it to the provider.
    pub temperature: Option<Temperature>,
    /// JSON Schema of the answer, for models that support it.
    pub output_schema: Option<RawJson>,
    /// Whether the provider should cache the prefix.
    pub cache: bool,
}

/// Whether the model calls tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool call.
    None,
    /// At least one tool call.
    Any,
    /// A call of the tool with this name.
    Named(String),
}

impl ToolChoice {
    /// Whether the model decides.
    pub(crate) fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// A tool as the model sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Name: 1-64 of `[A-Za-z0-9_-]`.
    pub name: String,
    /// What the tool does and when to use it.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub input_schema: RawJson,
}
