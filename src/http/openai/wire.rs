//! The JSON of OpenAI's Chat Completions, as far as it is spoken here. Fields that are not named are passed over.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What a client asks for. What is not listed here is passed over: sampling is the host's to configure.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct ChatRequest {
    /// One of `GET /openai/v1/models`.
    pub(super) model: String,
    /// The conversation so far; the last is what the user says now.
    #[schema(value_type = Vec<Object>)]
    pub(super) messages: Vec<Said>,
    /// Whether to answer with chunks as server-sent events.
    #[serde(default)]
    pub(super) stream: Option<bool>,
    /// `include_usage` adds a last chunk with the usage.
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    /// `conversation_id` binds the call to a conversation, as the header `X-Conversation-Id` does.
    #[serde(default)]
    pub(super) metadata: Option<Metadata>,
    /// `json_schema` or `text`.
    #[serde(default)]
    pub(super) response_format: Option<ResponseFormat>,
    /// Refused: the host has its own tools.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) tools: Option<Value>,
    /// Refused, as `tools`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) functions: Option<Value>,
    /// Only 1.
    #[serde(default)]
    pub(super) n: Option<u32>,
    /// Only `false`.
    #[serde(default)]
    pub(super) logprobs: Option<bool>,
}

/// How to stream.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(in crate::http) struct StreamOptions {
    /// Whether a last chunk tells the usage.
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// What a client notes.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(in crate::http) struct Metadata {
    /// The conversation that the call belongs to.
    #[serde(default)]
    pub(super) conversation_id: Option<String>,
}

/// What the answer must be.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct ResponseFormat {
    /// `text` or `json_schema`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// The schema.
    #[serde(default)]
    pub(super) json_schema: Option<JsonSchema>,
}

/// A JSON Schema with a name.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct JsonSchema {
    /// The schema.
    #[schema(value_type = Object)]
    pub(super) schema: Option<Value>,
}

/// One message.
#[derive(Debug, Deserialize)]
pub(super) struct Said {
    pub(super) role: String,
    #[serde(default)]
    pub(super) content: Option<Spoken>,
    #[serde(default)]
    pub(super) tool_calls: Option<Value>,
}

/// What it says.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Spoken {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of what it says.
#[derive(Debug, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) image_url: Option<ImageUrl>,
}

/// Where an image is.
#[derive(Debug, Deserialize)]
pub(super) struct ImageUrl {
    pub(super) url: String,
}

/// Tokens of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(in crate::http) struct ChatUsage {
    /// Tokens in.
    pub(super) prompt_tokens: u64,
    /// Tokens out.
    pub(super) completion_tokens: u64,
    /// Both.
    pub(super) total_tokens: u64,
}

impl From<callboard_actors::chat::Usage> for ChatUsage {
    fn from(usage: callboard_actors::chat::Usage) -> Self {
        let (prompt_tokens, completion_tokens) = (usage.input(), usage.output);
        Self { prompt_tokens, completion_tokens, total_tokens: prompt_tokens.saturating_add(completion_tokens) }
    }
}

/// The whole answer.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ChatCompletion {
    /// `chatcmpl-` and the id of the round.
    pub(super) id: String,
    /// `chat.completion`
    pub(super) object: &'static str,
    /// When, in seconds since 1970.
    pub(super) created: u64,
    /// The model.
    pub(super) model: String,
    /// One.
    pub(super) choices: Vec<Choice>,
    /// Tokens of all model calls of the round.
    pub(super) usage: ChatUsage,
}

/// The answer.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Choice {
    /// 0
    pub(super) index: u32,
    /// What the model said.
    pub(super) message: Answered,
    /// `stop`, `length` or `content_filter`.
    pub(super) finish_reason: &'static str,
    /// Never there.
    #[schema(value_type = Option<Object>)]
    pub(super) logprobs: Option<Value>,
}

/// What the model said.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Answered {
    /// `assistant`
    pub(super) role: &'static str,
    /// Its text.
    pub(super) content: String,
    /// Never there.
    pub(super) refusal: Option<String>,
}

/// The models.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Models {
    /// `list`
    pub(super) object: &'static str,
    /// The models.
    pub(super) data: Vec<ModelShown>,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ModelShown {
    /// Its name.
    pub(super) id: String,
    /// `model`
    pub(super) object: &'static str,
    /// 0: nobody knows.
    pub(super) created: u64,
    /// `callboard`
    pub(super) owned_by: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Chunk<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: &'a str,
    pub(super) choices: Vec<ChunkChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<ChatUsage>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChunkChoice<'a> {
    pub(super) index: u32,
    pub(super) delta: Delta<'a>,
    pub(super) finish_reason: Option<&'static str>,
    pub(super) logprobs: Option<Value>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
}

/// An error in the form of OpenAI.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ChatError {
    /// The error.
    pub(super) error: ErrorBody,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ErrorBody {
    /// What happened, for people.
    pub(super) message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// The wrong field.
    pub(super) param: Option<String>,
    /// The code of the problem.
    pub(super) code: String,
}
