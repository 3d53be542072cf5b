//! The JSON of the Messages API. Pure.

use serde_json::json;

use super::call::{Call, Whole};

/// Renders the event of one chunk of text.
pub(super) fn chunk(text: &str) -> String {
    let text = json!(text);
    let data = format!(
        r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{text}}}}}"#
    );
    event("content_block_delta", &data)
}

/// Renders the events from the start of the message to its first chunk.
pub(super) fn head(call: &Call<'_>, has_text: bool) -> String {
    let model = json!(call.model);
    let mut head = event(
        "message_start",
        &format!(
            r#"{{"type":"message_start","message":{{"id":"msg_{:016x}","type":"message","role":"assistant","model":{model},"content":[],"stop_reason":null,"stop_sequence":null,"usage":{{"input_tokens":{},"output_tokens":1}}}}}}"#,
            call.nth, call.input_tokens
        ),
    );
    if has_text {
        head += &event(
            "content_block_start",
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
        );
    }
    head
}

/// Renders the events from the last chunk to the end.
pub(super) fn tail(call: &Call<'_>, has_text: bool) -> String {
    let mut tail = String::new();
    if has_text {
        tail += &event(
            "content_block_stop",
            r#"{"type":"content_block_stop","index":0}"#,
        );
    }
    if let Some((name, input)) = call.tool {
        let name = json!(name);
        let input = json!(input);
        let index = u8::from(has_text);
        tail += &event(
            "content_block_start",
            &format!(
                r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"tool_use","id":"toolu_{:016x}","name":{name},"input":{{}}}}}}"#,
                call.nth
            ),
        );
        tail += &event(
            "content_block_delta",
            &format!(
                r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"input_json_delta","partial_json":{input}}}}}"#
            ),
        );
        tail += &event(
            "content_block_stop",
            &format!(r#"{{"type":"content_block_stop","index":{index}}}"#),
        );
    }
    let stop = stop(call);
    let tokens = call.output_tokens;
    let data = format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"{stop}","stop_sequence":null}},"usage":{{"output_tokens":{tokens}}}}}"#
    );
    tail + &event("message_delta", &data) + &event("message_stop", r#"{"type":"message_stop"}"#)
}

/// Renders an error event, which ends the stream.
pub(super) fn error_event() -> String {
    event(
        "error",
        &refusal("overloaded_error", "fault injected by the mock model"),
    )
}

/// Renders an event without its end.
pub(super) fn malformed() -> String {
    event(
        "content_block_delta",
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_del"#,
    )
}

/// Renders an answer without streaming.
pub(super) fn whole(call: &Call<'_>, whole: &Whole) -> String {
    let mut content = Vec::new();
    if !whole.text.is_empty() {
        content.push(json!({ "type": "text", "text": whole.text }));
    }
    if let Some((name, input)) = call.tool {
        let input: serde_json::Value = serde_json::from_str(input).unwrap_or_else(|_| json!({}));
        content.push(json!({ "type": "tool_use", "id": format!("toolu_{:016x}", call.nth), "name": name, "input": input }));
    }
    json!({
        "id": format!("msg_{:016x}", call.nth), "type": "message", "role": "assistant", "model": call.model, "content": content,
        "stop_reason": stop(call), "stop_sequence": null,
        "usage": { "input_tokens": call.input_tokens, "output_tokens": call.output_tokens },
    })
    .to_string()
}

/// Renders the body of a refusal.
pub(super) fn refusal(kind: &str, message: &str) -> String {
    json!({ "type": "error", "error": { "type": kind, "message": message } }).to_string()
}

fn stop(call: &Call<'_>) -> &'static str {
    if call.tool.is_some() {
        "tool_use"
    } else {
        "end_turn"
    }
}

fn event(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
