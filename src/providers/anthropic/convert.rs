//! Converts a request into a Messages request. Pure.
//!
//! Promises: keys always come in the same order. Messages are the bytes that the conversation holds,
//! not serialized again. With `cache`, at most four cache marks (system, tools, the last two user
//! messages) are spliced in between those slices.

use std::{borrow::Cow, sync::LazyLock};

use bytes::Bytes;
use callboard_actors::chat::{
    ContentBlock, Message, ModelRequest, Role, Thinking, ToolChoice,
    attachment::{TEXT_CONTEXT, as_shown},
};
use memchr::memmem::Finder;

use crate::providers::{
    body::{Body, BodyWriter, expected_bytes},
    json::RawObject,
    sealed::is_sealed,
};

const MARK: &str = r#","cache_control":{"type":"ephemeral"}"#;

/// User messages that carry a cache mark: the newest, so that the next call can read the prefix,
/// and the one before it, which this call reads.
const MARKED_MESSAGES: usize = 2;

/// Returns the body of a streaming call.
pub(super) fn request(request: &ModelRequest) -> Body {
    let mut body = BodyWriter::new(expected_bytes(request));
    body.raw(r#"{"model":"#)
        .json(&*request.model)
        .raw(r#","max_tokens":"#)
        .json(&request.max_tokens);
    prompt(&mut body, request);
    if !request.stop.is_empty() {
        body.raw(r#","stop_sequences":"#).json(&*request.stop);
    }
    thinking(&mut body, request);
    output_config(&mut body, request);
    body.raw(r#","stream":true}"#);
    body.finish()
}

/// Returns the body of a token count. Cache marks do not change a count, so there are none.
pub(super) fn count(request: &ModelRequest) -> Body {
    let request = ModelRequest {
        cache: false,
        ..request.clone()
    };
    let mut body = BodyWriter::new(expected_bytes(&request));
    body.raw(r#"{"model":"#).json(&*request.model);
    prompt(&mut body, &request);
    body.raw("}");
    body.finish()
}

/// Writes the part that the model reads: system, tools, messages and the tool choice.
fn prompt(body: &mut BodyWriter, request: &ModelRequest) {
    let mark = if request.cache { MARK } else { "" };
    if let Some(system) = request
        .system
        .as_deref()
        .filter(|system| !system.is_empty())
    {
        body.raw(r#","system":[{"type":"text","text":"#)
            .json(system)
            .raw(mark)
            .raw("}]");
    }
    if let Some((last, before)) = request.tools.split_last() {
        body.raw(r#","tools":["#);
        for tool in before {
            tool_definition(body, tool);
            body.raw("},");
        }
        tool_definition(body, last);
        body.raw(mark).raw("}]");
    }
    messages(body, request);
    if !request.tools.is_empty() {
        match &request.tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::None => drop(body.raw(r#","tool_choice":{"type":"none"}"#)),
            ToolChoice::Any => drop(body.raw(r#","tool_choice":{"type":"any"}"#)),
            ToolChoice::Named(name) => drop(
                body.raw(r#","tool_choice":{"type":"tool","name":"#)
                    .json(name)
                    .raw("}"),
            ),
        }
    }
}

/// Writes a tool without its closing brace, so that the caller can add a cache mark.
fn tool_definition(body: &mut BodyWriter, tool: &callboard_actors::chat::ToolDefinition) {
    body.raw(r#"{"name":"#).json(&tool.name);
    if !tool.description.is_empty() {
        body.raw(r#","description":"#).json(&tool.description);
    }
    body.raw(r#","input_schema":"#)
        .raw(tool.input_schema.as_str());
}

fn messages(body: &mut BodyWriter, request: &ModelRequest) {
    let users = request
        .messages
        .iter()
        .rev()
        .enumerate()
        .filter(|(_, message)| message.role() == Role::User);
    let first_marked = users
        .take(if request.cache { MARKED_MESSAGES } else { 0 })
        .last()
        .map(|(from_end, _)| from_end);
    let first_marked =
        first_marked.map_or(usize::MAX, |from_end| request.messages.len() - 1 - from_end);

    body.raw(r#","messages":["#);
    let mut separator = "";
    for (number, message) in request.messages.iter().enumerate() {
        let wire = sendable(message);
        if wire.is_empty() {
            continue;
        }
        body.raw(separator);
        separator = ",";
        // A message is `{…,"content":[…{…}]}`: the mark goes before the last block's brace.
        let end = wire.len().saturating_sub(3);
        if number >= first_marked && message.role() == Role::User && wire.ends_with(b"}]}") {
            body.slice(&wire.slice(..end))
                .raw(MARK)
                .slice(&wire.slice(end..));
        } else {
            body.slice(&wire);
        }
    }
    body.raw("]");
}

/// Returns the message's own bytes, or a cleaned copy if they hold something that this API refuses.
/// The message caches the result.
fn sendable(message: &Message) -> Cow<'_, Bytes> {
    let rendered = message.rendered_with(clean);
    // Another adapter may have cached its form with the message; that form never begins with a
    // brace.
    if rendered.first().is_none_or(|first| *first == b'{') {
        return Cow::Borrowed(rendered);
    }
    match clean(message) {
        Some(cleaned) => Cow::Owned(cleaned),
        None => Cow::Borrowed(message.wire()),
    }
}

/// Markers of content that this API may refuse. A message without them is sent as it is. The
/// finders are built once, because building one costs more than searching a message.
static SUSPICIOUS: LazyLock<[Finder<'static>; 4]> = LazyLock::new(|| {
    [
        r#""type":"thinking""#,
        r#""text":"""#,
        r#""cache_control""#,
        TEXT_CONTEXT,
    ]
    .map(Finder::new)
});

/// Removes what this API refuses in a message that came from elsewhere: reasoning without a
/// signature or with another API's, empty texts, foreign cache marks, and the text that was extracted from a document
/// which is itself sent. Returns no bytes if nothing remains, and `None` if nothing was removed.
fn clean(message: &Message) -> Option<Bytes> {
    let wire = message.wire();
    if !SUSPICIOUS.iter().any(|text| text.find(wire).is_some()) {
        return None;
    }
    let before = message.blocks();
    let after: Vec<_> = as_shown(before.clone(), true)
        .into_iter()
        .filter_map(clean_block)
        .collect();
    if after == before {
        return None;
    }
    Some(
        Message::new(message.role(), &after)
            .map_or_else(|_| Bytes::new(), |message| message.wire().clone()),
    )
}

fn clean_block(block: ContentBlock) -> Option<ContentBlock> {
    match block {
        ContentBlock::Text(block) if block.text.is_empty() => None,
        ContentBlock::Text(mut block) => {
            block.cache_control = None;
            Some(ContentBlock::Text(block))
        }
        ContentBlock::Thinking(block) => block
            .signature
            .as_deref()
            .is_some_and(|signature| !is_sealed(signature))
            .then_some(ContentBlock::Thinking(block)),
        ContentBlock::Image(_) | ContentBlock::Document(_) | ContentBlock::Other { .. } => {
            let marked = block
                .raw()
                .and_then(|raw| RawObject::parse(raw.as_raw()))
                .filter(|object| object.field("cache_control").is_some());
            let unmarked = marked.and_then(|mut object| {
                object.remove("cache_control");
                object.to_raw()
            });
            match unmarked {
                Some(raw) => Some(ContentBlock::from_raw(block.kind().to_owned(), raw)),
                None => Some(block),
            }
        }
        block @ (ContentBlock::ToolUse(_) | ContentBlock::ToolResult(_)) => Some(block),
    }
}

/// Writes what only a caller that asked for it sends: newer models refuse a temperature.
fn thinking(body: &mut BodyWriter, request: &ModelRequest) {
    if let Some(temperature) = request.temperature {
        body.raw(r#","temperature":"#).json(&temperature);
    }
    match request.thinking {
        None => {}
        Some(Thinking::Off) => {
            body.raw(r#","thinking":{"type":"disabled"}"#);
        }
        Some(Thinking::Adaptive) => {
            body.raw(r#","thinking":{"type":"adaptive"}"#);
        }
        Some(Thinking::Budget(tokens)) => {
            body.raw(r#","thinking":{"type":"enabled","budget_tokens":"#)
                .json(&tokens)
                .raw("}");
        }
    }
}

fn output_config(body: &mut BodyWriter, request: &ModelRequest) {
    if request.effort.is_none() && request.output_schema.is_none() {
        return;
    }
    body.raw(r#","output_config":{"#);
    if let Some(effort) = request.effort {
        body.raw(r#""effort":"#).json(effort.as_str());
    }
    if let Some(schema) = &request.output_schema {
        body.raw(if request.effort.is_some() { "," } else { "" });
        body.raw(r#""format":{"type":"json_schema","schema":"#)
            .raw(schema.as_str())
            .raw("}");
    }
    body.raw("}");
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
