//! Converts a request into a Responses request. Pure.
//!
//! A message becomes a run of input items once, and the result is cached with it
//! ([`Message::rendered_with`]). Reasoning goes back where it came from: to the host that sealed
//! it, and only in front of the item that it led to, because the API refuses it alone.

use bytes::{BufMut, Bytes, BytesMut};
use callboard_actors::chat::{
    ContentBlock, Message, ModelRequest, Role, Thinking, ThinkingBlock, ToolChoice,
    ToolResultBlock, attachment::as_shown,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::providers::{
    body::{Body, BodyWriter, expected_bytes},
    sealed::Sealer,
    shown::{Attached, Part, Shown, Source},
    strict::fits_strict,
};

/// What of a request depends on the server and the model.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Target<'a> {
    /// The host that is asked.
    pub(in super::super) host: &'a str,
    pub(in super::super) shown: Shown,
    /// Whether the model reasons, so that its sealed reasoning can be asked for.
    pub(in super::super) reasons: bool,
}

/// Reasoning as it is kept in the signature of a thinking block, whose text is the summary or the
/// reasoning itself.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sealed {
    pub(super) host: String,
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) encrypted_content: String,
    /// Whether the text is the reasoning and no summary of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) open: bool,
    /// The bytes of each part of the text, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<usize>,
}

/// Stands between the parts of a summary.
pub(super) const PART_END: &str = "\n\n";

/// The tokens of a budget of thinking from which on the effort is medium, and high. The API has no
/// budget.
const MEDIUM_FROM: u32 = 4096;
const HIGH_FROM: u32 = 16_384;

/// Returns the body of a streaming call.
pub(in super::super) fn request(request: &ModelRequest, target: Target<'_>) -> Body {
    let mut body = BodyWriter::new(expected_bytes(request));
    body.raw(r#"{"model":"#)
        .json(&*request.model)
        .raw(r#","max_output_tokens":"#)
        .json(&request.max_tokens);
    prompt(&mut body, request, target);
    if let Some(temperature) = request.temperature {
        body.raw(r#","temperature":"#).json(&temperature);
    }
    if target.reasons {
        body.raw(r#","include":["reasoning.encrypted_content"]"#);
    }
    body.raw(r#","store":false,"stream":true}"#);
    body.finish()
}

/// Returns the body of a token count.
pub(in super::super) fn count(request: &ModelRequest, target: Target<'_>) -> Body {
    let mut body = BodyWriter::new(expected_bytes(request));
    body.raw(r#"{"model":"#).json(&*request.model);
    prompt(&mut body, request, target);
    body.raw("}");
    body.finish()
}

/// Writes what the model reads and how it is to answer.
fn prompt(body: &mut BodyWriter, request: &ModelRequest, target: Target<'_>) {
    if let Some(system) = request
        .system
        .as_deref()
        .filter(|system| !system.is_empty())
    {
        body.raw(r#","instructions":"#).json(system);
    }
    tools(body, request);
    body.raw(r#","input":["#);
    let mut separator = "";
    for message in request.messages.iter() {
        let items = items(message, target);
        if !items.is_empty() {
            body.raw(separator).slice(&items);
            separator = ",";
        }
    }
    body.raw("]");
    reasoning(body, request);
    if let Some(schema) = &request.output_schema {
        body.raw(r#","text":{"format":{"type":"json_schema","name":"answer","strict":"#)
            .json(&fits_strict(schema))
            .raw(r#","schema":"#)
            .raw(schema.as_str())
            .raw("}}");
    }
}

fn tools(body: &mut BodyWriter, request: &ModelRequest) {
    if request.tools.is_empty() {
        return;
    }
    for (number, tool) in request.tools.iter().enumerate() {
        body.raw(if number == 0 { r#","tools":["# } else { "," });
        body.raw(r#"{"type":"function","name":"#)
            .json(&tool.name)
            .raw(r#","description":"#)
            .json(&tool.description)
            .raw(r#","parameters":"#)
            .raw(tool.input_schema.as_str())
            // Without this, the server rewrites the schema.
            .raw(r#","strict":false}"#);
    }
    body.raw("]");
    match &request.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::None => drop(body.raw(r#","tool_choice":"none""#)),
        ToolChoice::Any => drop(body.raw(r#","tool_choice":"required""#)),
        ToolChoice::Named(name) => drop(
            body.raw(r#","tool_choice":{"type":"function","name":"#)
                .json(name)
                .raw("}"),
        ),
    }
}

/// Writes the effort, and asks for a summary of the thoughts where thinking is asked for.
fn reasoning(body: &mut BodyWriter, request: &ModelRequest) {
    let of_budget = match request.thinking {
        Some(Thinking::Budget(tokens)) if tokens >= HIGH_FROM => Some("high"),
        Some(Thinking::Budget(tokens)) if tokens >= MEDIUM_FROM => Some("medium"),
        Some(Thinking::Budget(_)) => Some("low"),
        Some(Thinking::Off | Thinking::Adaptive) | None => None,
    };
    let effort = request.effort.map(|effort| effort.as_str()).or(of_budget);
    let summary = matches!(
        request.thinking,
        Some(Thinking::Adaptive | Thinking::Budget(_))
    );
    if effort.is_none() && !summary {
        return;
    }
    body.raw(r#","reasoning":{"#);
    if let Some(effort) = effort {
        body.raw(r#""effort":"#)
            .json(effort)
            .raw(if summary { "," } else { "" });
    }
    body.raw(if summary { r#""summary":"auto"}"# } else { "}" });
}

/// Bytes before the cached items: a tag with the kinds of attachments sent, and a hash of the host.
/// No tag is a brace or one of the other adapters', so this form is never taken for theirs.
const TAG: u8 = 0x10;
const HEADER_BYTES: usize = 5;

fn items(message: &Message, target: Target<'_>) -> Bytes {
    let mut header = [TAG | target.shown.tag(); HEADER_BYTES];
    if let Some(hash) = header.last_chunk_mut() {
        *hash = host_hash(target.host).to_le_bytes();
    }
    let render = || {
        let mut out = BytesMut::from(header.as_slice());
        render(message, target, &mut out);
        out.freeze()
    };
    let kept = message.rendered_with(|_| Some(render()));
    if kept.starts_with(&header) {
        kept.slice(HEADER_BYTES..)
    } else {
        // Cached for another API, host, or model that is shown other attachments.
        render().slice(HEADER_BYTES..)
    }
}

fn host_hash(host: &str) -> u32 {
    host.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Writes items, separated by commas.
struct Items<'a> {
    out: &'a mut BytesMut,
    any: bool,
}

impl Items<'_> {
    fn push(&mut self, item: &Value) {
        if self.any {
            self.out.put_u8(b',');
        }
        self.any = true;
        // Serializing a value to memory cannot fail.
        let _ = serde_json::to_writer((&mut *self.out).writer(), item);
    }
}

fn render(message: &Message, target: Target<'_>, out: &mut BytesMut) {
    let mut items = Items { out, any: false };
    match message.role() {
        Role::Assistant => assistant(message.blocks(), target, &mut items),
        Role::User | Role::System => user(message.blocks(), target.shown, &mut items),
    }
}

fn assistant(blocks: Vec<ContentBlock>, target: Target<'_>, items: &mut Items<'_>) {
    let mut thoughts = Vec::new();
    for block in blocks {
        let item = match block {
            ContentBlock::Thinking(block) => {
                thoughts.extend(thought(&block, target.host));
                continue;
            }
            ContentBlock::Text(block) if !block.text.is_empty() => json!({
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": block.text}],
            }),
            ContentBlock::ToolUse(call) => json!({
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.input.as_str(),
            }),
            _ => continue,
        };
        for thought in thoughts.drain(..) {
            items.push(&thought);
        }
        items.push(&item);
    }
}

/// Returns the reasoning item of a thinking block that this host sealed.
fn thought(block: &ThinkingBlock, host: &str) -> Option<Value> {
    let sealed = Sealer::Responses.open(block.signature.as_deref()?)?;
    let sealed: Sealed = serde_json::from_str(sealed).ok()?;
    if sealed.host != host {
        return None;
    }
    let kind = if sealed.open {
        "reasoning_text"
    } else {
        "summary_text"
    };
    let texts: Vec<Value> = split(&block.thinking, &sealed.parts)
        .into_iter()
        .map(|text| json!({"type": kind, "text": text}))
        .collect();
    let (summary, content) = if sealed.open {
        (Vec::new(), Some(texts))
    } else {
        (texts, None)
    };
    let encrypted = Some(sealed.encrypted_content).filter(|sealed| !sealed.is_empty());
    let fields = [
        Some(("type", "reasoning".into())),
        Some(("id", sealed.id.into())),
        Some(("summary", summary.into())),
        content.map(|content| ("content", content.into())),
        encrypted.map(|encrypted| ("encrypted_content", encrypted.into())),
    ];
    let fields = fields.into_iter().flatten();
    Some(Value::Object(
        fields
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
    ))
}

/// Splits a text into parts with [`PART_END`] between them; the whole if it does not fit.
fn split<'a>(text: &'a str, parts: &[usize]) -> Vec<&'a str> {
    let split = || {
        let mut texts = Vec::with_capacity(parts.len());
        let mut rest = text;
        for (number, bytes) in parts.iter().enumerate() {
            if number > 0 {
                rest = rest.strip_prefix(PART_END)?;
            }
            let (part, after) = rest.split_at_checked(*bytes)?;
            texts.push(part);
            rest = after;
        }
        Some(texts).filter(|_| rest.is_empty())
    };
    match text {
        "" => Vec::new(),
        text => split().unwrap_or_else(|| vec![text]),
    }
}

fn user(blocks: Vec<ContentBlock>, shown: Shown, items: &mut Items<'_>) {
    let mut content = Vec::new();
    for block in as_shown(blocks, shown.documents) {
        match block {
            ContentBlock::ToolResult(result) => items.push(&output(&result, shown)),
            block => content.extend(shown.part(block, media).map(value_of)),
        }
    }
    if !content.is_empty() {
        items.push(&json!({"type": "message", "role": "user", "content": content}));
    }
}

/// Returns the output of a call: a text, or a list of parts where it has an attachment.
fn output(result: &ToolResultBlock, shown: Shown) -> Value {
    let (text, others) = shown.result(&result.content);
    let parts: Vec<Value> = others
        .into_iter()
        .filter_map(|block| shown.part(block, media).map(value_of))
        .collect();
    let output = if parts.is_empty() {
        Value::from(text)
    } else {
        let text = (!text.is_empty()).then(|| value_of(Part::Text(text)));
        text.into_iter().chain(parts).collect()
    };
    json!({"type": "function_call_output", "call_id": result.tool_use_id, "output": output})
}

fn value_of(part: Part) -> Value {
    match part {
        Part::Text(text) => json!({"type": "input_text", "text": text}),
        Part::Media(value) => value,
    }
}

/// Converts an image or a document to this API's form.
fn media(kind: &str, attached: Attached) -> Option<Value> {
    match (kind, attached.source) {
        ("image", source) => Some(json!({"type": "input_image", "image_url": source.into_url()})),
        ("document", Source::Url { url }) => Some(json!({"type": "input_file", "file_url": url})),
        ("document", source @ Source::Base64 { .. }) => {
            let filename = attached.title.unwrap_or_else(|| "document.pdf".to_owned());
            Some(
                json!({"type": "input_file", "filename": filename, "file_data": source.into_url()}),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
