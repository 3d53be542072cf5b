//! Converts a request into a `generateContent` request. Pure.
//!
//! A message is converted once, and the result is cached with it ([`Message::rendered_with`]). A
//! tool result names its function, which only the message before it knows. Signatures of thoughts
//! go back with the parts that they came with.

use bytes::{BufMut, Bytes, BytesMut};
use callboard_actors::chat::{
    ContentBlock, Effort, Message, ModelRequest, Role, Thinking, ToolChoice, ToolResultBlock,
    attachment::as_shown,
};
use serde_json::{Value, json};

use super::signed::Signed;
use crate::providers::{
    body::{Body, BodyWriter, expected_bytes},
    shown::{Attached, Part, Shown, Source},
};

/// What of a request depends on the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) shown: Shown,
    /// Whether the model has levels of thinking and refuses calls without a signature: Gemini 3 and
    /// later.
    pub(super) has_levels: bool,
    /// Whether thinking can only be reduced, not turned off.
    pub(super) always_thinks: bool,
}

/// Stands in for the signature of a call that another model made; documented for that.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// Tokens of thinking of each effort, for models without levels.
const fn budget(effort: Effort) -> u32 {
    match effort {
        Effort::Low => 1024,
        Effort::Medium => 8192,
        Effort::High => 24_576,
    }
}

/// Returns the body of a streaming call.
pub(super) fn request(request: &ModelRequest, target: Target) -> Body {
    let mut body = BodyWriter::new(expected_bytes(request));
    body.raw("{");
    prompt(&mut body, request, target);
    generation_config(&mut body, request, target);
    body.raw("}");
    body.finish()
}

/// Returns the body of a token count.
pub(super) fn count(request: &ModelRequest, model: &str, target: Target) -> Body {
    let mut body = BodyWriter::new(expected_bytes(request));
    body.raw(r#"{"generateContentRequest":{"model":"#)
        .json(&format!("models/{model}"))
        .raw(",");
    prompt(&mut body, request, target);
    body.raw("}}");
    body.finish()
}

/// Writes the part that the model reads: contents, system, tools and the tool choice.
fn prompt(body: &mut BodyWriter, request: &ModelRequest, target: Target) {
    body.raw(r#""contents":["#);
    let mut separator = "";
    let mut before = None;
    for message in request.messages.iter() {
        let content = content(message, before, target);
        if !content.is_empty() {
            body.raw(separator).slice(&content);
            separator = ",";
        }
        before = Some(message);
    }
    body.raw("]");
    if let Some(system) = request
        .system
        .as_deref()
        .filter(|system| !system.is_empty())
    {
        body.raw(r#","systemInstruction":{"parts":[{"text":"#)
            .json(system)
            .raw("}]}");
    }
    tools(body, request);
}

fn tools(body: &mut BodyWriter, request: &ModelRequest) {
    if request.tools.is_empty() {
        return;
    }
    body.raw(r#","tools":[{"functionDeclarations":["#);
    for (number, tool) in request.tools.iter().enumerate() {
        body.raw(if number == 0 { "" } else { "," });
        body.raw(r#"{"name":"#)
            .json(&tool.name)
            .raw(r#","description":"#)
            .json(&tool.description)
            .raw(r#","parametersJsonSchema":"#)
            .raw(tool.input_schema.as_str())
            .raw("}");
    }
    body.raw("]}]");
    let (mode, name) = match &request.tool_choice {
        ToolChoice::Auto => return,
        ToolChoice::None => ("NONE", None),
        ToolChoice::Any => ("ANY", None),
        ToolChoice::Named(name) => ("ANY", Some(name)),
    };
    body.raw(r#","toolConfig":{"functionCallingConfig":{"mode":"#)
        .json(mode);
    if let Some(name) = name {
        body.raw(r#","allowedFunctionNames":["#).json(name).raw("]");
    }
    body.raw("}}");
}

fn generation_config(body: &mut BodyWriter, request: &ModelRequest, target: Target) {
    body.raw(r#","generationConfig":{"maxOutputTokens":"#)
        .json(&request.max_tokens);
    if !request.stop.is_empty() {
        body.raw(r#","stopSequences":"#).json(&*request.stop);
    }
    if let Some(temperature) = request.temperature {
        body.raw(r#","temperature":"#).json(&temperature);
    }
    if let Some(thinking) = thinking(request, target) {
        body.raw(r#","thinkingConfig":"#).json(&thinking);
    }
    if let Some(schema) = &request.output_schema {
        body.raw(r#","responseMimeType":"application/json","responseJsonSchema":"#)
            .raw(schema.as_str());
    }
    body.raw("}");
}

/// Returns how the model is to think; `None` leaves it to the model. A budget and a level exclude
/// each other, so a budget wins over an effort.
fn thinking(request: &ModelRequest, target: Target) -> Option<Value> {
    let effort = request.effort.map(|effort| {
        if target.has_levels {
            ("thinkingLevel", Value::from(effort.as_str()))
        } else {
            ("thinkingBudget", Value::from(budget(effort)))
        }
    });
    let shown = ("includeThoughts", Value::from(true));
    let fields = match request.thinking {
        None => vec![effort?],
        Some(Thinking::Off) if !target.has_levels => vec![("thinkingBudget", 0.into())],
        Some(Thinking::Off) if target.always_thinks => vec![("thinkingLevel", "low".into())],
        Some(Thinking::Off) => vec![("thinkingLevel", "minimal".into())],
        Some(Thinking::Budget(tokens)) => vec![shown, ("thinkingBudget", tokens.into())],
        Some(Thinking::Adaptive) => [shown].into_iter().chain(effort).collect(),
    };
    let fields = fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    Some(Value::Object(fields.collect()))
}

/// The byte before the cached content: the kinds of attachments sent, and whether calls need a
/// signature. No value is a brace or one of the other adapters', so this form is never taken for
/// theirs.
const TAG: u8 = 0x20;
const TAG_LEVELS: u8 = 4;

fn content(message: &Message, before: Option<&Message>, target: Target) -> Bytes {
    let levels = if target.has_levels { TAG_LEVELS } else { 0 };
    let tag = TAG | target.shown.tag() | levels;
    let render = || {
        let mut out = BytesMut::new();
        out.put_u8(tag);
        render(message, before, target, &mut out);
        out.freeze()
    };
    let kept = message.rendered_with(|_| Some(render()));
    if kept.first() == Some(&tag) {
        kept.slice(1..)
    } else {
        // Cached for another API, or for a model of another kind.
        render().slice(1..)
    }
}

fn render(message: &Message, before: Option<&Message>, target: Target, out: &mut BytesMut) {
    let is_model = message.role() == Role::Assistant;
    let mut parts = Parts {
        out,
        role: if is_model { "model" } else { "user" },
        any: false,
    };
    if is_model {
        model(message.blocks(), target, &mut parts);
    } else {
        user(message.blocks(), before, target.shown, &mut parts);
    }
    if parts.any {
        out.extend_from_slice(b"]}");
    }
}

/// Writes a content with its parts; nothing without a part.
struct Parts<'a> {
    out: &'a mut BytesMut,
    role: &'static str,
    any: bool,
}

impl Parts<'_> {
    /// Starts a part. The caller writes the part.
    fn next(&mut self) -> &mut BytesMut {
        let start = format!(r#"{{"role":"{}","parts":["#, self.role);
        self.out
            .extend_from_slice(if self.any { b"," } else { start.as_bytes() });
        self.any = true;
        self.out
    }

    fn push(&mut self, part: &Value) {
        write(self.next(), part);
    }
}

fn write<T: serde::Serialize + ?Sized>(out: &mut BytesMut, value: &T) {
    // Serializing plain types to memory cannot fail.
    let _ = serde_json::to_writer(out.writer(), value);
}

fn model(blocks: Vec<ContentBlock>, target: Target, parts: &mut Parts<'_>) {
    let mut pending: Option<String> = None;
    let mut after: Option<String> = None;
    let mut has_call = false;
    for block in blocks {
        match block {
            ContentBlock::Thinking(block) => {
                match block.signature.as_deref().and_then(Signed::open) {
                    Some(Signed::Next(signature)) => pending = Some(signature.to_owned()),
                    Some(Signed::After(signature)) => after = Some(signature.to_owned()),
                    Some(Signed::Thought(signature)) => parts.push(
                        &json!({"text": block.thinking, "thought": true, "thoughtSignature": signature}),
                    ),
                    // A thought without a signature means nothing to the API.
                    None => {}
                }
            }
            ContentBlock::Text(block) if !block.text.is_empty() => {
                parts.push(&match pending.take() {
                    Some(signature) => {
                        json!({"text": block.text, "thoughtSignature": signature})
                    }
                    None => json!({"text": block.text}),
                });
                if let Some(signature) = after.take() {
                    parts.push(&json!({"text": "", "thoughtSignature": signature}));
                }
            }
            ContentBlock::ToolUse(call) => {
                // Of calls that were made at once, only the first is signed.
                let stand_in = || (target.has_levels && !has_call).then(|| NO_SIGNATURE.to_owned());
                let signature = pending.take().or_else(stand_in);
                has_call = true;
                let out = parts.next();
                out.extend_from_slice(br#"{"functionCall":{"id":"#);
                write(out, &call.id);
                out.extend_from_slice(br#","name":"#);
                write(out, &call.name);
                // The model's own text of its arguments.
                out.extend_from_slice(br#","args":"#);
                out.extend_from_slice(call.input.as_str().as_bytes());
                out.extend_from_slice(b"}");
                if let Some(signature) = signature {
                    out.extend_from_slice(br#","thoughtSignature":"#);
                    write(out, &signature);
                }
                out.extend_from_slice(b"}");
            }
            _ => {}
        }
    }
}

fn user(blocks: Vec<ContentBlock>, before: Option<&Message>, shown: Shown, parts: &mut Parts<'_>) {
    let calls = before.map(Message::tool_uses).unwrap_or_default();
    let mut others = Vec::new();
    for block in as_shown(blocks, shown.documents) {
        match block {
            ContentBlock::ToolResult(result) => {
                let call = calls.iter().find(|call| call.id == result.tool_use_id);
                let name = call.map_or("", |call| call.name.as_str());
                others.extend(response(&result, name, shown, parts));
            }
            block => others.push(block),
        }
    }
    for part in others
        .into_iter()
        .filter_map(|block| shown.part(block, media))
    {
        parts.push(&match part {
            Part::Text(text) => json!({"text": text}),
            Part::Media(value) => value,
        });
    }
}

/// Writes the result of a call, and returns its attachments, which follow the results.
fn response(
    result: &ToolResultBlock,
    name: &str,
    shown: Shown,
    parts: &mut Parts<'_>,
) -> Vec<ContentBlock> {
    let (text, others) = shown.result(&result.content);
    let field = if result.is_error { "error" } else { "output" };
    parts.push(&json!({"functionResponse": {
        "id": result.tool_use_id,
        "name": name,
        "response": {field: text},
    }}));
    others
}

/// Converts an image or a document to this API's form.
fn media(_: &str, attached: Attached) -> Option<Value> {
    match attached.source {
        Source::Base64 { media_type, data } => {
            Some(json!({"inlineData": {"mimeType": media_type, "data": data}}))
        }
        Source::Url { .. } => None,
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
