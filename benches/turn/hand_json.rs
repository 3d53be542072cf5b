//! The baseline's JSON of both wires: typed, borrowed where possible, each message written once.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use super::{MODEL, TOOL, Wire};

/// A tool call that the model requested.
#[derive(Default)]
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

/// The part of a request before its messages. The messages and `]}` follow.
pub(crate) fn before_messages(wire: Wire) -> Vec<u8> {
    let description = "Does nothing.";
    let mut request = json!({ "model": MODEL, "max_tokens": 8192, "stream": true });
    match wire {
        Wire::Anthropic => {
            request["tools"] =
                json!([{ "name": TOOL, "description": description, "input_schema": schema() }]);
        }
        Wire::OpenAi => {
            request["tools"] = json!([{ "type": "function", "function": { "name": TOOL, "description": description, "parameters": schema() } }]);
            request["stream_options"] = json!({ "include_usage": true });
        }
    }
    let mut text = serde_json::to_vec(&request).unwrap();
    text.pop();
    text.extend_from_slice(b",\"messages\":[");
    text
}

/// The messages of a conversation as JSON, with commas between them. Each is serialized once.
#[derive(Clone, Default)]
pub(crate) struct History(Vec<u8>);

impl History {
    /// The body of a request with these messages.
    pub(crate) fn body(&self, before: &[u8]) -> Vec<u8> {
        let mut body = Vec::with_capacity(before.len() + self.0.len() + 2);
        body.extend_from_slice(before);
        body.extend_from_slice(&self.0);
        body.extend_from_slice(b"]}");
        body
    }

    /// Appends a message and returns its JSON.
    pub(crate) fn push(&mut self, message: &impl Serialize) -> &[u8] {
        if !self.0.is_empty() {
            self.0.push(b',');
        }
        let from = self.0.len();
        serde_json::to_writer(&mut self.0, message).unwrap();
        &self.0[from..]
    }

    pub(crate) fn user(&mut self, wire: Wire, text: &str) -> &[u8] {
        match wire {
            Wire::Anthropic => self.push(&blocks("user", &[Block::Text { text }])),
            Wire::OpenAi => self.push(&OpenAiMessage::new("user", text)),
        }
    }

    pub(crate) fn assistant(
        &mut self,
        wire: Wire,
        text: &str,
        asked: Option<&ToolRequest>,
    ) -> &[u8] {
        match (wire, asked) {
            (Wire::Anthropic, None) => self.push(&blocks("assistant", &[Block::Text { text }])),
            (Wire::Anthropic, Some(ToolRequest { id, name, input })) => {
                let input = serde_json::from_str(input).unwrap();
                let asked = Block::ToolUse { id, name, input };
                self.push(&blocks("assistant", &[Block::Text { text }, asked]))
            }
            (Wire::OpenAi, None) => self.push(&OpenAiMessage::new("assistant", text)),
            (Wire::OpenAi, Some(ToolRequest { id, name, input })) => {
                let function = AskedFunction {
                    name,
                    arguments: input,
                };
                let asked = AskedTool {
                    id,
                    kind: "function",
                    function,
                };
                self.push(&OpenAiMessage {
                    tool_calls: Some([asked]),
                    ..OpenAiMessage::new("assistant", text)
                })
            }
        }
    }

    pub(crate) fn result(&mut self, wire: Wire, id: &str, result: &str) -> &[u8] {
        match wire {
            Wire::Anthropic => {
                let result = Block::ToolResult {
                    tool_use_id: id,
                    content: result,
                };
                self.push(&blocks("user", &[result]))
            }
            Wire::OpenAi => self.push(&OpenAiMessage {
                tool_call_id: Some(id),
                ..OpenAiMessage::new("tool", result)
            }),
        }
    }
}

#[derive(Serialize)]
struct AnthropicMessage<'a> {
    role: &'a str,
    content: &'a [Block<'a>],
}

fn blocks<'a>(role: &'a str, content: &'a [Block<'a>]) -> AnthropicMessage<'a> {
    AnthropicMessage { role, content }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: &'a RawValue,
    },
    ToolResult {
        tool_use_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct OpenAiMessage<'a> {
    role: &'a str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[AskedTool<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

impl<'a> OpenAiMessage<'a> {
    fn new(role: &'a str, content: &'a str) -> Self {
        Self {
            role,
            content,
            tool_calls: None,
            tool_call_id: None,
        }
    }
}

#[derive(Serialize)]
struct AskedTool<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    function: AskedFunction<'a>,
}

#[derive(Serialize)]
struct AskedFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

/// Reads the lines of an event stream from pieces of any length.
#[derive(Default)]
pub(crate) struct EventReader {
    /// The start of a line that has not ended.
    rest: Vec<u8>,
}

impl EventReader {
    /// Reads the events of one piece. Returns the text that it brought, if any.
    pub(crate) fn read<'a>(
        &mut self,
        wire: Wire,
        mut bytes: &[u8],
        reply: &'a mut ParsedReply,
    ) -> Option<&'a str> {
        let before = reply.text.len();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, after) = (&bytes[..end], &bytes[end + 1..]);
            if self.rest.is_empty() {
                read_line(wire, line, reply);
            } else {
                self.rest.extend_from_slice(line);
                read_line(wire, &self.rest, reply);
                self.rest.clear();
            }
            bytes = after;
        }
        self.rest.extend_from_slice(bytes);
        let text = &reply.text[before..];
        (!text.is_empty()).then_some(text)
    }
}

fn read_line(wire: Wire, line: &[u8], reply: &mut ParsedReply) {
    if let Some(data) = line.strip_prefix(b"data: ") {
        match wire {
            Wire::Anthropic => anthropic(data, reply),
            Wire::OpenAi => openai(data, reply),
        }
    }
}

/// A text that is borrowed unless it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    content_block: Option<StartedBlock<'a>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    partial_json: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct StartedBlock<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
}

fn owned(text: Option<Text<'_>>) -> String {
    text.map_or_else(String::new, |text| text.0.into_owned())
}

fn anthropic(data: &[u8], reply: &mut ParsedReply) {
    let event: Event<'_> = serde_json::from_slice(data).unwrap();
    match event.kind {
        "content_block_start" => {
            if let Some(StartedBlock { kind, id, name }) = event.content_block
                && kind == "tool_use"
            {
                reply.tool = Some(ToolRequest {
                    id: owned(id),
                    name: owned(name),
                    input: String::new(),
                });
            }
        }
        "content_block_delta" => {
            let Some(delta) = event.delta else { return };
            if let (Some(piece), Some(tool)) = (delta.partial_json, &mut reply.tool) {
                tool.input.push_str(&piece.0);
            }
            if let Some(piece) = delta.text {
                reply.text.push_str(&piece.0);
            }
        }
        _ => {}
    }
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: ChoiceDelta<'a>,
}

#[derive(Deserialize)]
struct ChoiceDelta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    #[serde(borrow, default)]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    id: Option<Text<'a>>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    arguments: Option<Text<'a>>,
}

fn openai(data: &[u8], reply: &mut ParsedReply) {
    if data.trim_ascii() == b"[DONE]" {
        return;
    }
    let chunk: Chunk<'_> = serde_json::from_slice(data).unwrap();
    let Some(choice) = chunk.choices.into_iter().next() else {
        return;
    };
    for call in choice.delta.tool_calls {
        let tool = reply.tool.get_or_insert_default();
        for (all, piece) in [
            (&mut tool.id, call.id),
            (&mut tool.name, call.function.name),
            (&mut tool.input, call.function.arguments),
        ] {
            if let Some(piece) = piece {
                all.push_str(&piece.0);
            }
        }
    }
    if let Some(piece) = choice.delta.content {
        reply.text.push_str(&piece.0);
    }
}
