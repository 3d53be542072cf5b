//! Wire types of OpenAI's Responses. Unknown fields are ignored.

use callboard_actors::chat::{Effort, ModelParameters, RawJson, Temperature, ToolUseBlock, Usage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::super::wire::ChoiceTaken;
use crate::http::compat::{Given, Loose, LooseText, Skipped};

/// A request for a response. Other fields of OpenAI's API are ignored.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct ResponseRequest {
    /// An id from `GET /openai/v1/models`.
    pub(super) model: String,
    /// A text, or a list of items: messages, calls of functions and their results.
    #[schema(value_type = Object)]
    pub(super) input: Input,
    /// Instructions of the application for this response.
    #[serde(default)]
    pub(super) instructions: Option<String>,
    /// A stored response that this one follows: `input` has only what is new.
    #[serde(default)]
    pub(super) previous_response_id: Option<String>,
    /// Whether the response is stored, so that others can follow it; `true` if absent.
    #[serde(default)]
    pub(super) store: Option<bool>,
    /// Whether to answer with server-sent events; `false` if absent.
    #[serde(default)]
    pub(super) stream: Option<bool>,
    /// Whether to answer at once, while the model works; `false` if absent. Needs `store`.
    #[serde(default)]
    pub(super) background: Option<bool>,
    /// Refused with 422: conversations of OpenAI's servers.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) conversation: Given,
    /// Refused with 422: prompts that are stored on OpenAI's servers.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) prompt: Given,
    /// Only 0 is supported.
    #[serde(default)]
    pub(super) top_logprobs: Option<u32>,
    /// Functions that the client runs, at most 128, none with the name of a tool of the host.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub(super) tools: Option<Vec<ToolTaken>>,
    /// `auto`, `none`, `required` or a function.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) tool_choice: ChoiceTaken,
    /// Form of the answer: `format` is text, or JSON that matches a schema.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) text: Option<TextTaken>,
    /// `effort`: `low`, `medium` or `high`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) reasoning: Option<ReasoningTaken>,
    /// Tokens of the longest answer.
    #[serde(default)]
    pub(super) max_output_tokens: Option<u32>,
    /// 0 to 2.
    #[serde(default)]
    #[schema(value_type = Option<f64>)]
    pub(super) temperature: Option<Temperature>,
    /// An object of at most 16 KiB, returned as it is.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub(super) metadata: Option<RawJson>,
}

impl ResponseRequest {
    /// How the model is asked to answer. An effort that this host does not know is left to the
    /// model.
    pub(super) fn parameters(&self) -> ModelParameters {
        let wish = self.reasoning.as_ref();
        let effort = wish.and_then(|wish| wish.effort.as_str());
        ModelParameters {
            max_tokens: self.max_output_tokens,
            effort: effort.and_then(|effort| serde_json::from_value::<Effort>(effort.into()).ok()),
            thinking: None,
            temperature: self.temperature,
            stop: None,
        }
    }
}

/// What a request asks: a text, or items.
pub(super) type Input = Loose<ItemTaken, Skipped>;

/// A message, a call of a function, or a result. A field of another form counts as absent.
#[derive(Debug, Deserialize)]
pub(super) struct ItemTaken {
    #[serde(rename = "type", default)]
    pub(super) kind: LooseText,
    #[serde(default)]
    pub(super) role: LooseText,
    #[serde(default)]
    pub(super) content: Parts,
    #[serde(default)]
    pub(super) call_id: LooseText,
    #[serde(default)]
    pub(super) name: LooseText,
    #[serde(default)]
    pub(super) arguments: LooseText,
    #[serde(default)]
    pub(super) output: Parts,
}

/// The content of a message, or the output of a call: a text, or parts.
pub(super) type Parts = Loose<PartTaken, Skipped>;

/// A part of a message.
#[derive(Debug, Deserialize)]
pub(super) struct PartTaken {
    #[serde(rename = "type", default)]
    pub(super) kind: LooseText,
    #[serde(default)]
    pub(super) text: LooseText,
    #[serde(default)]
    pub(super) refusal: LooseText,
    #[serde(default)]
    pub(super) image_url: LooseText,
}

/// A tool of the request; only a `function` is offered to the model.
#[derive(Debug, Deserialize)]
pub(super) struct ToolTaken {
    #[serde(rename = "type", default)]
    pub(super) kind: LooseText,
    #[serde(default)]
    pub(super) name: LooseText,
    #[serde(default)]
    pub(super) description: LooseText,
    #[serde(default)]
    pub(super) parameters: Option<RawJson>,
    #[serde(default)]
    pub(super) strict: Option<bool>,
}

/// Form of the answer.
#[derive(Debug, Default, Deserialize)]
pub(super) struct TextTaken {
    #[serde(default)]
    pub(super) format: Option<FormatTaken>,
    #[serde(default)]
    pub(super) verbosity: LooseText,
}

/// `text`, `json_object`, or `json_schema` with a schema.
#[derive(Debug, Deserialize)]
pub(super) struct FormatTaken {
    #[serde(rename = "type", default)]
    pub(super) kind: LooseText,
    #[serde(default)]
    pub(super) name: LooseText,
    #[serde(default)]
    pub(super) schema: Option<RawJson>,
    #[serde(default)]
    pub(super) description: LooseText,
    #[serde(default)]
    pub(super) strict: Option<bool>,
}

/// How much the model thinks.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ReasoningTaken {
    #[serde(default)]
    pub(super) effort: LooseText,
    #[serde(default)]
    pub(super) summary: LooseText,
}

/// A function of the request, with all the fields of OpenAI's form.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ToolShown {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) parameters: Option<RawJson>,
    pub(super) strict: Option<bool>,
}

/// Form of the answer, as in the request.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TextShown {
    pub(super) format: FormatShown,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) verbosity: Option<String>,
}

/// The format of an answer.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum FormatShown {
    Text,
    JsonObject,
    JsonSchema {
        name: Option<String>,
        schema: RawJson,
        description: Option<String>,
        strict: bool,
    },
}

/// How much the model thinks, as in the request.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct ReasoningShown {
    pub(super) effort: Option<String>,
    pub(super) summary: Option<String>,
}

/// A response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::http) struct ResponseShown {
    /// Id of the response; a stored one can be followed.
    pub(super) id: String,
    /// Always `response`; part of OpenAI's form.
    pub(super) object: &'static str,
    /// Start of the response, in seconds since 1970.
    pub(super) created_at: u64,
    /// When it was complete, in seconds since 1970; `null` for one that is not.
    pub(super) completed_at: Option<u64>,
    /// When it ended, where that is known before its events are read.
    #[serde(skip)]
    pub(super) ended_at: Option<u64>,
    /// `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    pub(super) status: &'static str,
    /// Whether the client did not wait for the response; `false` when it is read again, since it is not
    /// stored.
    pub(super) background: bool,
    /// Why the response failed.
    pub(super) error: Option<ResponseError>,
    /// Why the response is cut.
    pub(super) incomplete_details: Option<Incomplete>,
    /// As in the request.
    pub(super) instructions: Option<String>,
    /// As in the request.
    pub(super) max_output_tokens: Option<u32>,
    /// The model that answers.
    pub(super) model: String,
    /// Messages, and calls that the client has to run.
    #[schema(value_type = Vec<Object>)]
    pub(super) output: Vec<Item>,
    /// Always `true`.
    pub(super) parallel_tool_calls: bool,
    /// As in the request.
    pub(super) previous_response_id: Option<String>,
    /// As in the request.
    #[schema(value_type = Object)]
    pub(super) reasoning: ReasoningShown,
    /// Whether the response is stored.
    pub(super) store: bool,
    /// As in the request; 1 stands for the model's own.
    pub(super) temperature: f64,
    /// As in the request.
    #[schema(value_type = Object)]
    pub(super) text: TextShown,
    /// As in the request.
    #[schema(value_type = Value)]
    pub(super) tool_choice: Value,
    /// As in the request.
    #[schema(value_type = Vec<Object>)]
    pub(super) tools: Vec<ToolShown>,
    /// What this API has no setting for.
    #[serde(flatten)]
    pub(super) fixed: Fixed,
    /// Always `auto`: the host compacts what does not fit.
    pub(super) truncation: &'static str,
    /// Tokens of all model calls of the response; `null` before its end.
    pub(super) usage: Option<ResponseUsage>,
    /// As in the request.
    #[schema(value_type = Object)]
    pub(super) metadata: RawJson,
}

impl ResponseShown {
    /// Bytes of what its request brought.
    pub(super) fn bytes(&self) -> usize {
        let instructions = self.instructions.as_ref().map_or(0, String::len);
        let tools = self.tools.iter().map(ToolShown::bytes);
        let schema = match &self.text.format {
            FormatShown::JsonSchema { schema, .. } => schema.as_str().len(),
            FormatShown::Text | FormatShown::JsonObject => 0,
        };
        instructions + tools.sum::<usize>() + schema + self.metadata.as_str().len()
    }
}

impl ToolShown {
    fn bytes(&self) -> usize {
        let description = self.description.as_ref().map_or(0, String::len);
        let parameters = self.parameters.as_ref();
        self.name.len() + description + parameters.map_or(0, |json| json.as_str().len())
    }
}

/// Fields of OpenAI's form that are the same in every response.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::http) struct Fixed {
    /// Always 1: the model's own setting holds.
    top_p: f64,
    /// Always 0.
    presence_penalty: f64,
    /// Always 0.
    frequency_penalty: f64,
    /// Always 0.
    top_logprobs: u32,
    /// Always `null`: the host's bounds hold.
    max_tool_calls: Option<u32>,
    /// Always `default`.
    service_tier: &'static str,
    /// Always `null`.
    safety_identifier: Option<String>,
    /// Always `null`: the host keeps the start of requests the same by itself.
    prompt_cache_key: Option<String>,
}

impl Default for Fixed {
    fn default() -> Self {
        Self {
            top_p: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            top_logprobs: 0,
            max_tool_calls: None,
            service_tier: "default",
            safety_identifier: None,
            prompt_cache_key: None,
        }
    }
}

/// Why a response failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::http) struct ResponseError {
    /// Stable code.
    pub(super) code: String,
    /// What happened, for people.
    pub(super) message: String,
}

/// Why a response is cut.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(in crate::http) struct Incomplete {
    /// `max_output_tokens` or `content_filter`.
    pub(super) reason: &'static str,
}

/// A page of the items that a request brought.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ItemList {
    /// Always `list`; part of OpenAI's form.
    pub(super) object: &'static str,
    /// Messages, calls, and outputs of calls.
    #[schema(value_type = Vec<Object>)]
    pub(super) data: Vec<Value>,
    /// Id of the first item of the page.
    pub(super) first_id: Option<String>,
    /// Id of the last one, for `after`.
    pub(super) last_id: Option<String>,
    /// Whether more follow.
    pub(super) has_more: bool,
}

/// Tokens of a response.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(in crate::http) struct ResponseUsage {
    /// Input tokens, those read from or written to the cache included.
    pub(super) input_tokens: u64,
    /// Those that were read from the provider's cache.
    pub(super) input_tokens_details: CachedTokens,
    /// Tokens that the model wrote.
    pub(super) output_tokens: u64,
    /// Those of the model's reasoning, as far as they are known.
    pub(super) output_tokens_details: ReasoningTokens,
    /// Sum of input and output tokens.
    pub(super) total_tokens: u64,
}

/// Input tokens by origin.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(in crate::http) struct CachedTokens {
    /// Tokens that were read from the provider's cache.
    pub(super) cached_tokens: u64,
}

/// Output tokens by kind.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(in crate::http) struct ReasoningTokens {
    /// Always 0: providers report them within the output.
    pub(super) reasoning_tokens: u64,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        let input_tokens = usage.input();
        Self {
            input_tokens,
            input_tokens_details: CachedTokens {
                cached_tokens: usage.cache_read,
            },
            output_tokens: usage.output,
            output_tokens_details: ReasoningTokens {
                reasoning_tokens: 0,
            },
            total_tokens: input_tokens.saturating_add(usage.output),
        }
    }
}

/// An item of the output.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Item {
    Message {
        id: String,
        status: &'static str,
        role: &'static str,
        content: Vec<TextPart>,
    },
    FunctionCall {
        id: String,
        status: &'static str,
        call_id: String,
        name: String,
        arguments: String,
    },
}

impl Item {
    /// A message of the model, with whether it is cut; without text, one that begins.
    pub(super) fn message(id: &str, text: Option<(&str, bool)>) -> Self {
        Self::Message {
            id: id.to_owned(),
            status: match text {
                None => "in_progress",
                Some((_, true)) => "incomplete",
                Some((_, false)) => "completed",
            },
            role: "assistant",
            content: text
                .map(|(text, _)| TextPart::new(text))
                .into_iter()
                .collect(),
        }
    }

    /// A call that the client has to run; without its arguments, one that begins.
    pub(super) fn call(id: &str, call: &ToolUseBlock, is_whole: bool) -> Self {
        let arguments = if is_whole { call.input.as_str() } else { "" };
        Self::FunctionCall {
            id: id.to_owned(),
            status: if is_whole { "completed" } else { "in_progress" },
            call_id: call.id.clone(),
            name: call.name.clone(),
            arguments: arguments.to_owned(),
        }
    }
}

/// The text of a message.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TextPart {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
    annotations: [(); 0],
    logprobs: [(); 0],
}

impl TextPart {
    pub(super) fn new(text: &str) -> Self {
        Self {
            kind: "output_text",
            text: text.to_owned(),
            annotations: [],
            logprobs: [],
        }
    }
}
