//! The baseline's JSON of both wires: messages as values, events as structs.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{MODEL, TOOL, Wire};

/// A tool call that the model requested.
pub(crate) struct ToolRequest {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) input: String,
}

/// The part of a reply that has arrived.
#[derive(Default)]
pub(crate) struct ParsedReply {
    pub(crate) text: String,
    pub(crate) tool: Option<ToolRequest>,
}

/// The JSON schema of the tool's arguments.
pub(crate) fn schema() -> Value {
    json!({ "type": "object", "properties": { "argument": { "type": "string" } }, "required": ["argument"], "additionalProperties": false })
}

impl Wire {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Anthropic => "v1/messages",
            Self::OpenAi => "chat/completions",
        }
    }

    /// The tool definition in the form of this wire.
    pub(crate) fn tools(self) -> Value {
        let description = "Does nothing.";
        match self {
            Self::Anthropic => {
                json!([{ "name": TOOL, "description": description, "input_schema": schema() }])
            }
            Self::OpenAi => {
                json!([{ "type": "function", "function": { "name": TOOL, "description": description, "parameters": schema() } }])
            }
        }
    }

    pub(crate) fn body(self, messages: &[Value], tools: Option<&Value>) -> Vec<u8> {
        let mut body =
            json!({ "model": MODEL, "max_tokens": 8192, "stream": true, "messages": messages });
        if let Some(tools) = tools {
            body["tools"] = tools.clone();
        }
        if self == Self::OpenAi {
            body["stream_options"] = json!({ "include_usage": true });
        }
        serde_json::to_vec(&body).unwrap()
    }

    pub(crate) fn user(self, text: &str) -> Value {
        match self {
            Self::Anthropic => {
                json!({ "role": "user", "content": [{ "type": "text", "text": text }] })
            }
            Self::OpenAi => json!({ "role": "user", "content": text }),
        }
    }

    pub(crate) fn assistant(self, text: &str, asked: Option<&ToolRequest>) -> Value {
        match (self, asked) {
            (Self::Anthropic, None) => {
                json!({ "role": "assistant", "content": [{ "type": "text", "text": text }] })
            }
            (Self::Anthropic, Some(ToolRequest { id, name, input })) => {
                let input: Value = serde_json::from_str(input).unwrap();
                json!({ "role": "assistant", "content": [{ "type": "text", "text": text }, { "type": "tool_use", "id": id, "name": name, "input": input }] })
            }
            (Self::OpenAi, None) => json!({ "role": "assistant", "content": text }),
            (Self::OpenAi, Some(ToolRequest { id, name, input })) => {
                json!({ "role": "assistant", "content": text, "tool_calls": [{ "id": id, "type": "function", "function": { "name": name, "arguments": input } }] })
            }
        }
    }

    pub(crate) fn result(self, id: &str, result: &str) -> Value {
        match self {
            Self::Anthropic => {
                json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": result }] })
            }
            Self::OpenAi => json!({ "role": "tool", "tool_call_id": id, "content": result }),
        }
    }

    /// Parses the data of one event. Returns a piece of text if the event is one.
    pub(crate) fn event(self, data: &[u8], reply: &mut ParsedReply) -> Option<String> {
        match self {
            Self::Anthropic => anthropic(data, reply),
            Self::OpenAi => openai(data, reply),
        }
    }
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    content_block: Option<Block>,
}

#[derive(Deserialize, Default)]
struct Delta {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    partial_json: Option<String>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
}

fn anthropic(data: &[u8], reply: &mut ParsedReply) -> Option<String> {
    let event: Event = serde_json::from_slice(data).unwrap();
    match event.kind.as_str() {
        "content_block_start" => {
            if let Some(Block { kind, id, name }) = event.content_block
                && kind == "tool_use"
            {
                reply.tool = Some(ToolRequest {
                    id,
                    name,
                    input: String::new(),
                });
            }
            None
        }
        "content_block_delta" => {
            let delta = event.delta.unwrap_or_default();
            if let (Some(piece), Some(tool)) = (delta.partial_json, &mut reply.tool) {
                tool.input.push_str(&piece);
            }
            let piece = delta.text?;
            reply.text.push_str(&piece);
            Some(piece)
        }
        _ => None,
    }
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    delta: ChoiceDelta,
}

#[derive(Deserialize)]
struct ChoiceDelta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<ToolCall>,
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default)]
    id: Option<String>,
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: String,
}

fn openai(data: &[u8], reply: &mut ParsedReply) -> Option<String> {
    if data.trim_ascii() == b"[DONE]" {
        return None;
    }
    let chunk: Chunk = serde_json::from_slice(data).unwrap();
    let delta = chunk.choices.into_iter().next()?.delta;
    for call in delta.tool_calls {
        let tool = reply.tool.get_or_insert_with(|| ToolRequest {
            id: String::new(),
            name: String::new(),
            input: String::new(),
        });
        tool.id.push_str(&call.id.unwrap_or_default());
        tool.name.push_str(&call.function.name.unwrap_or_default());
        tool.input.push_str(&call.function.arguments);
    }
    let piece = delta.content.filter(|piece| !piece.is_empty())?;
    reply.text.push_str(&piece);
    Some(piece)
}
