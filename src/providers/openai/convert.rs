//! Converts a request into a Chat Completions request. Pure.
//!
//! A message is converted once, and the result is cached with it ([`Message::rendered_with`]):
//! `lead` holds whole objects (an assistant message, tool results), `user` the inside of the user
//! message that follows them. Adjacent user messages become one, because strict chat templates
//! require alternating roles.

use bytes::{BufMut, Bytes, BytesMut};
use callboard_actors::chat::{
    ContentBlock, Message, ModelRequest, Role, ToolChoice, ToolResultBlock, ToolUseBlock,
    attachment::as_shown,
};
use serde_json::{Value, json};

use crate::providers::{
    body::{Body, BodyWriter, expected_bytes},
    shown::{Attached, Part, Shown, Source},
    strict::fits_strict,
};

/// Which field name bounds the length of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MaxTokens {
    /// `max_tokens`, which every server knows.
    Plain,
    /// `max_completion_tokens`, which OpenAI's reasoning models require.
    Completion,
}

/// Returns the body of a streaming call.
pub(super) fn request(request: &ModelRequest, max_tokens: MaxTokens, shown: Shown) -> Body {
    let mut body = BodyWriter::new(expected_bytes(request));
    body.raw(r#"{"model":"#).json(&*request.model);
    body.raw(match max_tokens {
        MaxTokens::Plain => r#","max_tokens":"#,
        MaxTokens::Completion => r#","max_completion_tokens":"#,
    });
    body.json(&request.max_tokens);
    tools(&mut body, request);
    messages(&mut body, request, shown);
    if !request.stop.is_empty() {
        body.raw(r#","stop":"#).json(&*request.stop);
    }
    if let Some(effort) = request.effort {
        body.raw(r#","reasoning_effort":"#).json(effort.as_str());
    }
    if let Some(temperature) = request.temperature {
        body.raw(r#","temperature":"#).json(&temperature);
    }
    if let Some(schema) = &request.output_schema {
        body.raw(
            r#","response_format":{"type":"json_schema","json_schema":{"name":"answer","strict":"#,
        );
        body.json(&fits_strict(schema))
            .raw(r#","schema":"#)
            .raw(schema.as_str())
            .raw("}}");
    }
    body.raw(r#","stream":true,"stream_options":{"include_usage":true}}"#);
    body.finish()
}

/// Returns the body of a token count, in the form of Anthropic's endpoint. llama.cpp's server
/// offers that endpoint beside this API.
pub(super) fn count(request: &ModelRequest) -> Body {
    let mut body = BodyWriter::new(expected_bytes(request));
    body.raw(r#"{"model":"#).json(&*request.model);
    if let Some(system) = request
        .system
        .as_deref()
        .filter(|system| !system.is_empty())
    {
        body.raw(r#","system":"#).json(system);
    }
    for (number, tool) in request.tools.iter().enumerate() {
        body.raw(if number == 0 { r#","tools":["# } else { "," });
        body.raw(r#"{"name":"#)
            .json(&tool.name)
            .raw(r#","description":"#)
            .json(&tool.description);
        body.raw(r#","input_schema":"#)
            .raw(tool.input_schema.as_str())
            .raw("}");
    }
    body.raw(if request.tools.is_empty() { "" } else { "]" })
        .raw(r#","messages":["#);
    for (number, message) in request.messages.iter().enumerate() {
        body.raw(if number == 0 { "" } else { "," })
            .slice(message.wire());
    }
    body.raw("]}");
    body.finish()
}

fn tools(body: &mut BodyWriter, request: &ModelRequest) {
    if request.tools.is_empty() {
        return;
    }
    for (number, tool) in request.tools.iter().enumerate() {
        body.raw(if number == 0 { r#","tools":["# } else { "," });
        body.raw(r#"{"type":"function","function":{"name":"#)
            .json(&tool.name)
            .raw(r#","description":"#)
            .json(&tool.description);
        body.raw(r#","parameters":"#)
            .raw(tool.input_schema.as_str())
            .raw("}}");
    }
    body.raw("]");
    match &request.tool_choice {
        ToolChoice::Auto => {}
        ToolChoice::None => drop(body.raw(r#","tool_choice":"none""#)),
        ToolChoice::Any => drop(body.raw(r#","tool_choice":"required""#)),
        ToolChoice::Named(name) => {
            body.raw(r#","tool_choice":{"type":"function","function":{"name":"#)
                .json(name)
                .raw("}}");
        }
    }
}

fn messages(body: &mut BodyWriter, request: &ModelRequest, shown: Shown) {
    body.raw(r#","messages":["#);
    let mut separator = "";
    if let Some(system) = request
        .system
        .as_deref()
        .filter(|system| !system.is_empty())
    {
        body.raw(r#"{"role":"system","content":"#)
            .json(system)
            .raw("}");
        separator = ",";
    }
    let mut users: Vec<(Inside, Bytes)> = Vec::new();
    for message in request.messages.iter() {
        let rendered = Rendered::from_message(message, shown);
        if !rendered.lead.is_empty() {
            user_message(body, &mut users, &mut separator);
            body.raw(separator).slice(&rendered.lead);
            separator = ",";
        }
        users.extend(rendered.user);
    }
    user_message(body, &mut users, &mut separator);
    body.raw("]");
}

/// Writes adjacent user messages as one: a string if all are texts, else a list of parts.
fn user_message(
    body: &mut BodyWriter,
    users: &mut Vec<(Inside, Bytes)>,
    separator: &mut &'static str,
) {
    if users.is_empty() {
        return;
    }
    let texts = users.iter().all(|(inside, _)| *inside == Inside::Text);
    body.raw(separator)
        .raw(r#"{"role":"user","content":"#)
        .raw(if texts { "\"" } else { "[" });
    for (number, (inside, bytes)) in users.drain(..).enumerate() {
        match (texts, inside) {
            (true, _) => body
                .raw(if number == 0 { "" } else { r"\n\n" })
                .slice(&bytes),
            (false, Inside::Parts) => body.raw(if number == 0 { "" } else { "," }).slice(&bytes),
            (false, Inside::Text) => body
                .raw(if number == 0 { "" } else { "," })
                .raw(r#"{"type":"text","text":""#)
                .slice(&bytes)
                .raw("\"}"),
        };
    }
    body.raw(if texts { "\"}" } else { "]}" });
    *separator = ",";
}

/// The form of a user message's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// The inside of a JSON string, without its quotes.
    Text,
    /// Objects, separated by commas.
    Parts,
}

/// A converted message.
struct Rendered {
    lead: Bytes,
    user: Option<(Inside, Bytes)>,
}

/// Bytes before the converted message: one tag for the form of `user` and the kinds of attachments
/// sent, then the length of `lead` in four bytes. No tag is a brace, so this form is never taken
/// for another adapter's.
const HEADER_BYTES: usize = 5;
const TAG_NONE: u8 = 1;
const TAG_TEXT: u8 = 2;
const TAG_PARTS: u8 = 3;
const TAG_INSIDE: u8 = 3;
/// The bits of [`Shown::tag`] stand above those of `user`.
const SHOWN_SHIFT: u32 = 2;

impl Rendered {
    fn from_message(message: &Message, shown: Shown) -> Self {
        let kept = message.rendered_with(|message| Some(render(message, shown)));
        Self::read(kept, shown)
            .or_else(|| Self::read(&render(message, shown), shown))
            .unwrap_or(Self {
                lead: Bytes::new(),
                user: None,
            })
    }

    fn read(kept: &Bytes, shown: Shown) -> Option<Self> {
        let (tag, rest) = kept.split_first()?;
        let lead_bytes = usize::try_from(u32::from_le_bytes(*rest.first_chunk()?)).ok()?;
        if tag >> SHOWN_SHIFT != shown.tag() {
            return None; // cached for a model that accepts other attachments
        }
        let inside = match tag & TAG_INSIDE {
            TAG_NONE => None,
            TAG_TEXT => Some(Inside::Text),
            TAG_PARTS => Some(Inside::Parts),
            _ => return None,
        };
        let user_from = HEADER_BYTES
            .checked_add(lead_bytes)
            .filter(|from| *from <= kept.len())?;
        Some(Self {
            lead: kept.slice(HEADER_BYTES..user_from),
            user: inside.map(|inside| (inside, kept.slice(user_from..))),
        })
    }
}

fn render(message: &Message, shown: Shown) -> Bytes {
    let mut lead = BytesMut::new();
    let mut user = UserContent {
        parts: Vec::new(),
        shown,
    };
    match message.role() {
        Role::Assistant => assistant(&message.blocks(), &mut lead),
        Role::User | Role::System => {
            for block in as_shown(message.blocks(), shown.documents) {
                match block {
                    ContentBlock::ToolResult(result) => tool_message(&result, &mut lead, &mut user),
                    block => user.add(block),
                }
            }
        }
    }
    let (tag, user) = user.finish();
    let mut kept = BytesMut::with_capacity(HEADER_BYTES + lead.len() + user.len());
    kept.put_u8(tag | (shown.tag() << SHOWN_SHIFT));
    kept.put_u32_le(u32::try_from(lead.len()).unwrap_or(u32::MAX));
    kept.extend_from_slice(&lead);
    kept.extend_from_slice(user.as_bytes());
    kept.freeze()
}

fn write<T: serde::Serialize + ?Sized>(out: &mut BytesMut, value: &T) {
    // Serializing plain types to memory cannot fail.
    let _ = serde_json::to_writer(out.writer(), value);
}

/// Writes an assistant message. Reasoning is left out, because these servers do not accept it. Tool
/// calls keep the model's own text of their arguments.
fn assistant(blocks: &[ContentBlock], out: &mut BytesMut) {
    let text: String = blocks.iter().filter_map(ContentBlock::as_text).collect();
    let calls: Vec<&ToolUseBlock> = blocks
        .iter()
        .filter_map(|block| {
            if let ContentBlock::ToolUse(call) = block {
                Some(call)
            } else {
                None
            }
        })
        .collect();
    if text.is_empty() && calls.is_empty() {
        return;
    }
    out.extend_from_slice(br#"{"role":"assistant","content":"#);
    write(out, &Some(&text).filter(|text| !text.is_empty()));
    for (number, call) in calls.iter().enumerate() {
        out.extend_from_slice(if number == 0 {
            br#","tool_calls":["#
        } else {
            b","
        });
        out.extend_from_slice(br#"{"id":"#);
        write(out, &call.id);
        out.extend_from_slice(br#","type":"function","function":{"name":"#);
        write(out, &call.name);
        out.extend_from_slice(br#","arguments":"#);
        write(out, call.input.as_str());
        out.extend_from_slice(b"}}");
    }
    out.extend_from_slice(if calls.is_empty() { b"}" } else { b"]}" });
}

/// Writes a tool message, which holds text only. Images of a result go into the user message after
/// it; notes of images that are not sent stay.
fn tool_message(result: &ToolResultBlock, out: &mut BytesMut, user: &mut UserContent) {
    out.extend_from_slice(if out.is_empty() {
        br#"{"role":"tool","tool_call_id":"#
    } else {
        br#",{"role":"tool","tool_call_id":"#
    });
    write(out, &result.tool_use_id);
    out.extend_from_slice(br#","content":"#);
    let (text, others) = user.shown.result(&result.content);
    write(out, &text);
    others.into_iter().for_each(|block| user.add(block));
    out.extend_from_slice(b"}");
}

/// The content of a user message while it is built.
struct UserContent {
    parts: Vec<Part>,
    shown: Shown,
}

fn value_of(part: Part) -> Value {
    match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Media(value) => value,
    }
}

impl UserContent {
    fn add(&mut self, block: ContentBlock) {
        self.parts.extend(self.shown.part(block, media));
    }

    fn finish(self) -> (u8, String) {
        if self.parts.is_empty() {
            return (TAG_NONE, String::new());
        }
        let text = |part: &Part| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Media(_) => None,
        };
        let Some(texts) = self.parts.iter().map(text).collect::<Option<Vec<String>>>() else {
            let parts: Vec<String> = self
                .parts
                .into_iter()
                .map(|part| value_of(part).to_string())
                .collect();
            return (TAG_PARTS, parts.join(","));
        };
        let quoted = Value::from(texts.join("\n\n")).to_string();
        (
            TAG_TEXT,
            quoted
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"'))
                .unwrap_or_default()
                .to_owned(),
        )
    }
}

/// Converts an image or a document to this API's form.
fn media(kind: &str, attached: Attached) -> Option<Value> {
    match (kind, attached.source) {
        ("image", source) => {
            Some(json!({"type": "image_url", "image_url": {"url": source.into_url()}}))
        }
        ("document", source @ Source::Base64 { .. }) => {
            let filename = attached.title.unwrap_or_else(|| "document.pdf".to_owned());
            Some(
                json!({"type": "file", "file": {"filename": filename, "file_data": source.into_url()}}),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
