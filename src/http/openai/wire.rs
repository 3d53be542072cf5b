//! Wire types of OpenAI's Chat Completions. Unknown fields are ignored.

use std::sync::Arc;

use callboard_actors::chat::{Effort, ModelParameters, RawJson, Temperature, ToolUseBlock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::compat::{Given, Loose, LooseText, Skipped};

/// A chat completion request. Other fields of OpenAI's API are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct ChatRequest {
    /// An id from `GET /openai/v1/models`.
    pub(super) model: String,
    /// The conversation so far; the last message must be the user's, or the result of a tool.
    #[schema(value_type = Vec<Object>)]
    pub(super) messages: Vec<RequestMessage>,
    /// Whether to answer with chunks as server-sent events; `false` if absent.
    #[serde(default)]
    pub(super) stream: Option<bool>,
    /// Options of a streamed answer.
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    /// `conversation_id` binds the request to a conversation, as the header `X-Conversation-Id`
    /// does.
    #[serde(default)]
    pub(super) metadata: Option<Metadata>,
    /// Form of the answer: text, or JSON that matches a schema.
    #[serde(default)]
    pub(super) response_format: Option<ResponseFormat>,
    /// Functions that the client runs, at most 128, none with the name of a tool of the host.
    #[serde(default, deserialize_with = "or_default")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Vec<ChatTool>,
    /// `auto`, `none`, `required` or a function. All but `none` hold for the first model call.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) tool_choice: ChoiceTaken,
    /// Only `["text"]` is supported.
    #[serde(default)]
    pub(super) modalities: Option<Vec<String>>,
    /// Refused with 422.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) web_search_options: Given,
    /// Refused with 422: the older form of `tools`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) functions: Given,
    /// Tokens of the longest answer.
    #[serde(default)]
    pub(super) max_completion_tokens: Option<u32>,
    /// The older name of `max_completion_tokens`, which wins.
    #[serde(default)]
    pub(super) max_tokens: Option<u32>,
    /// 0 to 2.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub(super) temperature: Option<Temperature>,
    /// One text, or up to 4 texts, that end the answer.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) stop: Option<Stop>,
    /// `low`, `medium` or `high`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(super) reasoning_effort: Option<Effort>,
    /// Number of choices; only 1 is supported.
    #[serde(default)]
    pub(super) n: Option<u32>,
    /// Only `false` is supported.
    #[serde(default)]
    pub(super) logprobs: Option<bool>,
}

impl ChatRequest {
    /// How the model is asked to answer.
    pub(super) fn parameters(&self) -> ModelParameters {
        ModelParameters {
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            effort: self.reasoning_effort,
            thinking: None,
            temperature: self.temperature,
            stop: self.stop.as_ref().map(|stop| match stop {
                Stop::One(text) => Arc::from([text.clone()]),
                Stop::List(texts) => texts.as_slice().into(),
            }),
        }
    }
}

/// `null` as the default value.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A tool that the client runs.
#[derive(Debug, Deserialize)]
pub(super) struct ChatTool {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) function: Option<Function>,
}

/// A function; `strict` is ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Function {
    pub(super) name: String,
    #[serde(default)]
    pub(super) description: Option<String>,
    #[serde(default)]
    pub(super) parameters: Option<RawJson>,
}

/// Whether the model may or must call a tool, in the forms of Chat Completions and of Responses.
pub(super) type ChoiceTaken = Loose<Skipped, NamedChoice>;

/// A function that the model must call.
#[derive(Debug, Deserialize)]
pub(super) struct NamedChoice {
    #[serde(rename = "type", default)]
    pub(super) kind: LooseText,
    /// Of Responses.
    #[serde(default)]
    pub(super) name: LooseText,
    /// Of Chat Completions.
    #[serde(default)]
    pub(super) function: Loose<Skipped, NamedFunction>,
}

/// The function of a choice.
#[derive(Debug, Deserialize)]
pub(super) struct NamedFunction {
    #[serde(default)]
    pub(super) name: LooseText,
}

/// A call that the model made, as the client sends it back.
#[derive(Debug, Deserialize)]
pub(super) struct CallTaken {
    pub(super) id: String,
    pub(super) function: FunctionTaken,
}

/// The function of such a call.
#[derive(Debug, Deserialize)]
pub(super) struct FunctionTaken {
    pub(super) name: String,
    #[serde(default)]
    pub(super) arguments: String,
}

/// Texts that end an answer.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
pub(super) enum Stop {
    One(String),
    List(Vec<String>),
}

/// Options of a streamed answer.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(in crate::http) struct StreamOptions {
    /// Whether the last chunk contains the token usage.
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// Metadata of a request; only `conversation_id` is read.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(in crate::http) struct Metadata {
    /// The conversation that the request belongs to; absent for a temporary one.
    #[serde(default)]
    pub(super) conversation_id: Option<String>,
}

/// Form of the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct ResponseFormat {
    /// `text` or `json_schema`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Required with `type: json_schema`.
    #[serde(default)]
    pub(super) json_schema: Option<JsonSchema>,
}

/// A JSON Schema; OpenAI's `name` and `strict` are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct JsonSchema {
    /// The JSON Schema that the answer must match.
    #[schema(value_type = Object)]
    pub(super) schema: Option<RawJson>,
}

/// A message of the request.
#[derive(Debug, Deserialize)]
pub(super) struct RequestMessage {
    pub(super) role: String,
    #[serde(default)]
    pub(super) content: Option<MessageContent>,
    #[serde(default)]
    pub(super) tool_calls: Option<Vec<CallTaken>>,
    #[serde(default)]
    pub(super) tool_call_id: Option<String>,
}

/// Content of a message.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum MessageContent {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a message's content.
#[derive(Debug, Deserialize)]
pub(super) struct Part {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default)]
    pub(super) text: Option<String>,
    #[serde(default)]
    pub(super) image_url: Option<ImageUrl>,
}

/// URL of an image: `https:`, or `data:` with base64.
#[derive(Debug, Deserialize)]
pub(super) struct ImageUrl {
    pub(super) url: String,
}

/// Token usage of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(in crate::http) struct ChatUsage {
    /// Input tokens, those read from or written to the cache included.
    pub(super) prompt_tokens: u64,
    /// Tokens that the model wrote in this completion.
    pub(super) completion_tokens: u64,
    /// Sum of input and output tokens.
    pub(super) total_tokens: u64,
}

impl From<callboard_actors::chat::Usage> for ChatUsage {
    fn from(usage: callboard_actors::chat::Usage) -> Self {
        let prompt_tokens = usage.input();
        let completion_tokens = usage.output;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
        }
    }
}

/// A chat completion.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ChatCompletion {
    /// `chatcmpl-` and the id of the round.
    pub(super) id: String,
    /// Always `chat.completion`.
    pub(super) object: &'static str,
    /// Start of the answer, in seconds since 1970.
    pub(super) created: u64,
    /// The model that answered.
    pub(super) model: String,
    /// Exactly one choice.
    pub(super) choices: Vec<Choice>,
    /// Tokens of all model calls of the round, tool iterations included.
    pub(super) usage: ChatUsage,
}

/// A choice of a completion.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Choice {
    /// Index of the choice; always 0.
    pub(super) index: u32,
    /// The model's message.
    pub(super) message: Answered,
    /// `stop`, `tool_calls`, `length` or `content_filter`.
    pub(super) finish_reason: &'static str,
    /// Always `null`; part of OpenAI's form.
    #[schema(value_type = Option<Object>)]
    pub(super) logprobs: Option<Value>,
}

/// The model's message.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Answered {
    /// Always `assistant`; part of OpenAI's form.
    pub(super) role: &'static str,
    /// Text of the last message; `null` for calls without any.
    pub(super) content: Option<String>,
    /// Always `null`; part of OpenAI's form.
    pub(super) refusal: Option<String>,
    /// Calls that the client has to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_calls: Option<Vec<CallShown>>,
}

/// A call that the client has to run.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct CallShown {
    /// Id of the call, for the message with its result.
    pub(super) id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// Name and arguments.
    pub(super) function: FunctionCall,
}

impl CallShown {
    pub(super) fn of(call: &ToolUseBlock) -> Self {
        Self {
            id: call.id.clone(),
            kind: "function",
            function: FunctionCall::of(call),
        }
    }
}

/// The function of a call.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct FunctionCall {
    /// Name of the function.
    pub(super) name: String,
    /// The arguments as JSON text.
    pub(super) arguments: String,
}

impl FunctionCall {
    pub(super) fn of(call: &ToolUseBlock) -> Self {
        Self {
            name: call.name.clone(),
            arguments: call.input.as_str().to_owned(),
        }
    }
}

/// The models that the tenant can name.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Models {
    /// Always `list`; part of OpenAI's form.
    pub(super) object: &'static str,
    /// The configured model and its alias `default`.
    pub(super) data: Vec<ModelShown>,
}

/// A model of the list.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ModelShown {
    /// The value of `model` in a request.
    pub(super) id: String,
    /// Always `model`; part of OpenAI's form.
    pub(super) object: &'static str,
    /// Always 0: the date is unknown.
    pub(super) created: u64,
    /// Always `callboard`; part of OpenAI's form.
    pub(super) owned_by: &'static str,
    /// The context window, in tokens, by each of the names that clients read.
    pub(super) context_window: u64,
    /// The same.
    pub(super) context_length: u64,
    /// The same.
    pub(super) max_model_len: u64,
    /// The longest answer, in tokens.
    pub(super) max_output_tokens: u32,
    /// `n_ctx` is the window too.
    pub(super) meta: ModelMeta,
}

/// What llama.cpp's servers say of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ModelMeta {
    /// The context window, in tokens.
    pub(super) n_ctx: u64,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_calls: Option<[CallDelta<'a>; 1]>,
}

/// A whole call, as one delta.
#[derive(Debug, Serialize)]
pub(super) struct CallDelta<'a> {
    pub(super) index: usize,
    pub(super) id: &'a str,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) function: FunctionCall,
}

/// An error in OpenAI's form.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ChatError {
    /// Details of the error.
    pub(super) error: ErrorBody,
}

/// Details of an error.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ErrorBody {
    /// What happened, for people.
    pub(super) message: String,
    /// `invalid_request_error`, `authentication_error`, `rate_limit_error` or `server_error`.
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// The invalid field of the request, dot-separated; `null` if the error concerns none.
    pub(super) param: Option<String>,
    /// Stable code of the error, as in the problem documents of the other routes.
    pub(super) code: String,
}
