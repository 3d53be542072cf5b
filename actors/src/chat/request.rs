//! One request to a model, in the form that all providers share; adapters translate it to their wire.
//!
//! Pure.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{MessageList, RawJson};

/// One model call.
#[derive(Debug, Clone)]
pub struct ModelRequest {
    /// The model's name as its API knows it.
    pub model: Arc<str>,
    /// The system prompt, never a history message (REQUIREMENTS M-19).
    pub system: Option<Arc<str>>,
    /// The history; valid by construction.
    pub messages: MessageList,
    /// What the model may call, in a fixed order.
    pub tools: Arc<[ToolDefinition]>,
    /// Whether it may or must.
    pub tool_choice: ToolChoice,
    /// Longest answer, in tokens.
    pub max_tokens: u32,
    /// Texts that end the answer.
    pub stop: Arc<[String]>,
    /// How hard to think, where the model knows that.
    pub effort: Option<Effort>,
    /// JSON Schema that the answer must fit, where the model can.
    pub output_schema: Option<RawJson>,
    /// Whether the prefix should be cached (P-06).
    pub cache: bool,
}

/// Whether tools may be called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool.
    None,
    /// Some tool.
    Any,
    /// This tool.
    Named(String),
}

/// How hard to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the words of the APIs")]
pub enum Effort {
    Low,
    Medium,
    High,
}

/// What a model is told of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Name: 1-64 of `[A-Za-z0-9_-]`.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// JSON Schema of the arguments; an object.
    pub input_schema: RawJson,
}
