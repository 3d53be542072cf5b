//! Wire types of Anthropic's Messages. Unknown fields are ignored.

use callboard_actors::chat::{ContentBlock, RawJson, Temperature, ToolUseBlock, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::{api::Content, compat::Given};

/// A request for a message. Other fields of Anthropic's API are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct MessagesRequest {
    /// An id from `GET /anthropic/v1/models`.
    pub(super) model: String,
    /// Tokens of the longest answer.
    #[schema(minimum = 1)]
    pub(super) max_tokens: u32,
    /// The whole history; the last message is the user's, with a text or with results of tools.
    #[schema(value_type = Vec<Object>)]
    pub(super) messages: Vec<MessageTaken>,
    /// Instructions of the application: a text, or a list of text blocks.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) system: Option<Content>,
    /// Whether to answer with server-sent events; `false` if absent.
    #[serde(default)]
    pub(super) stream: Option<bool>,
    /// Tools that the client runs, at most 128, none with the name of a tool of the host.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<ToolTaken>>,
    /// `{"type"}` is `auto`, `any`, `tool` with a `name`, or `none`. All but `none` hold for the
    /// first model call.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) tool_choice: Option<ChoiceTaken>,
    /// Up to 4 texts that end the answer.
    #[serde(default)]
    pub(super) stop_sequences: Option<Vec<String>>,
    /// 0 to 2.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub(super) temperature: Option<Temperature>,
    /// `{"type"}` is `enabled` with `budget_tokens`, `adaptive` or `disabled`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) thinking: Option<ThinkingTaken>,
    /// `effort`, and `format` for an answer of a JSON Schema.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) output_config: Option<OutputConfig>,
    /// The older place of `output_config.format`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) output_format: Option<FormatTaken>,
    /// Refused with 400: tools of Anthropic's servers.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) mcp_servers: Given,
    /// Refused with 400: a container on Anthropic's servers.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) container: Given,
    /// Refused with 400: the beginning of the answer.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) prefill: Given,
}

/// A request to count tokens: the fields of a request for a message that are sent to the model.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct CountRequest {
    /// An id from `GET /anthropic/v1/models`.
    pub(super) model: String,
    /// The whole history.
    #[schema(value_type = Vec<Object>)]
    pub(super) messages: Vec<MessageTaken>,
    /// Instructions of the application.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) system: Option<Content>,
    /// Tools that the client runs.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<ToolTaken>>,
}

/// A message of the request.
#[derive(Debug, Deserialize)]
pub(super) struct MessageTaken {
    pub(super) role: String,
    pub(super) content: Content,
}

/// A tool that the client runs.
#[derive(Debug, Deserialize)]
pub(super) struct ToolTaken {
    /// `custom` if absent.
    #[serde(rename = "type", default)]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) description: Option<String>,
    #[serde(default)]
    pub(super) input_schema: Option<RawJson>,
}

/// Whether the model may or must call a tool.
#[derive(Debug, Deserialize)]
pub(super) struct ChoiceTaken {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) name: Option<String>,
}

/// Extended thinking.
#[derive(Debug, Deserialize)]
pub(super) struct ThinkingTaken {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) budget_tokens: Option<u32>,
}

/// How the model answers.
#[derive(Debug, Deserialize)]
pub(super) struct OutputConfig {
    #[serde(default)]
    pub(super) effort: Option<String>,
    #[serde(default)]
    pub(super) format: Option<FormatTaken>,
}

/// Form of the answer.
#[derive(Debug, Deserialize)]
pub(super) struct FormatTaken {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) schema: Option<RawJson>,
}

/// A message of the model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::http) struct MessageShown {
    /// `msg_` and the id of the round.
    pub(super) id: String,
    /// Always `message`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// Always `assistant`.
    pub(super) role: &'static str,
    /// The model that answers.
    pub(super) model: String,
    /// Thoughts, text, and calls of the client's tools.
    #[schema(value_type = Vec<Object>)]
    pub(super) content: Vec<Value>,
    /// `end_turn`, `tool_use`, `max_tokens`, `stop_sequence`, `refusal` or
    /// `model_context_window_exceeded`; `null` in `message_start`.
    pub(super) stop_reason: Option<&'static str>,
    /// The text that ended the answer, if the request had only one.
    pub(super) stop_sequence: Option<String>,
    /// Tokens of all model calls since the request.
    pub(super) usage: UsageShown,
}

/// Tokens of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(in crate::http) struct UsageShown {
    /// Input tokens that were neither read from nor written to a cache.
    pub(super) input_tokens: u64,
    /// Input tokens written to the provider's cache.
    pub(super) cache_creation_input_tokens: u64,
    /// Input tokens read from the provider's cache.
    pub(super) cache_read_input_tokens: u64,
    /// Tokens that the model wrote.
    pub(super) output_tokens: u64,
}

impl From<Usage> for UsageShown {
    fn from(usage: Usage) -> Self {
        Self {
            input_tokens: usage.input_uncached,
            cache_creation_input_tokens: usage.cache_write,
            cache_read_input_tokens: usage.cache_read,
            output_tokens: usage.output,
        }
    }
}

/// A count of tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct TokensCounted {
    /// Tokens of messages, system prompts and tools, those of the host included.
    pub(super) input_tokens: u64,
}

/// The models that the tenant can name.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ModelList {
    /// The configured model and its alias `default`.
    pub(super) data: Vec<ModelInfo>,
    /// Id of the first.
    pub(super) first_id: Option<String>,
    /// Id of the last.
    pub(super) last_id: Option<String>,
    /// Always `false`.
    pub(super) has_more: bool,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ModelInfo {
    /// The value of `model` in a request.
    pub(super) id: String,
    /// Always `model`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// The same as `id`.
    pub(super) display_name: String,
    /// Always the start of 1970: the date is unknown.
    pub(super) created_at: &'static str,
    /// Always `active`.
    pub(super) lifecycle: &'static str,
    /// The context window.
    pub(super) max_input_tokens: u64,
    /// The longest answer.
    pub(super) max_tokens: u32,
}

/// An error in Anthropic's form.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::http) struct ErrorShown {
    /// Always `error`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// Details of the error.
    pub(super) error: ErrorBody,
    /// The id of the request, as in the header `request-id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<String>,
}

/// Details of an error.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = MessagesErrorBody)]
pub(in crate::http) struct ErrorBody {
    /// `invalid_request_error`, `authentication_error`, `billing_error`, `permission_error`,
    /// `not_found_error`, `conflict_error`, `request_too_large`, `rate_limit_error`,
    /// `timeout_error`, `overloaded_error` or `api_error`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// What happened, for people; begins with the pointer of the invalid field.
    pub(super) message: String,
    /// `error_code` is the stable code, as in the problem documents of the other routes.
    pub(super) details: ErrorDetails,
}

/// For programs.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = MessagesErrorDetails)]
pub(in crate::http) struct ErrorDetails {
    /// Stable code of the error.
    pub(super) error_code: String,
    /// The invalid field of the request, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pointer: Option<String>,
}

/// A block as it is sent. A thought has a signature, if only an empty one.
pub(super) fn block(block: &ContentBlock) -> Value {
    let mut value = serde_json::to_value(block).unwrap_or_default();
    if let (ContentBlock::Thinking(_), Value::Object(fields)) = (block, &mut value) {
        fields.entry("signature").or_insert_with(|| "".into());
    }
    value
}

/// A call as a block.
pub(super) fn call(call: &ToolUseBlock) -> Value {
    block(&ContentBlock::ToolUse(call.clone()))
}
