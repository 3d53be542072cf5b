//! The JSON of the Chat Completions API. Pure. All answers carry the same id and model, so that
//! their chunks are rendered once.

use serde_json::{Value, json};

use super::call::{Call, Whole};

/// The start of every chunk of a stream.
const CHUNK: &str = r#"{"id":"chatcmpl-mock","object":"chat.completion.chunk","created":0,"model":"mock","choices":"#;

/// Renders the event of one chunk of text.
pub(super) fn chunk(text: &str) -> String {
    let text = json!(text);
    event(&format!(
        r#"{CHUNK}[{{"index":0,"delta":{{"content":{text}}},"finish_reason":null}}]}}"#
    ))
}

/// Renders the events from the start of the message to its first chunk.
pub(super) fn head() -> String {
    event(&format!(
        r#"{CHUNK}[{{"index":0,"delta":{{"role":"assistant","content":""}},"finish_reason":null}}]}}"#
    ))
}

/// Renders the events from the last chunk to the end.
pub(super) fn tail(call: &Call<'_>, usage: bool) -> String {
    let mut tail = String::new();
    if let Some((name, input)) = call.tool {
        let id = call_id(call);
        let name = json!(name);
        let input = json!(input);
        tail += &event(&format!(
            r#"{CHUNK}[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"{id}","type":"function","function":{{"name":{name},"arguments":{input}}}}}]}},"finish_reason":null}}]}}"#
        ));
    }
    tail += &event(&format!(
        r#"{CHUNK}[{{"index":0,"delta":{{}},"finish_reason":"{}"}}]}}"#,
        stop(call)
    ));
    if usage {
        tail += &event(&format!(r#"{CHUNK}[],"usage":{}}}"#, used(call)));
    }
    tail + "data: [DONE]\n\n"
}

/// Renders an error event, which ends the stream.
pub(super) fn error_event() -> String {
    event(&refusal("server_error", "fault injected by the mock model"))
}

/// Renders an event without its end.
pub(super) fn malformed() -> String {
    event(&format!(r#"{CHUNK}[{{"index":0,"delta":{{"cont"#))
}

/// Renders an answer without streaming.
pub(super) fn whole(call: &Call<'_>, whole: &Whole) -> String {
    let mut message = json!({ "role": "assistant", "content": whole.text });
    if let (Some((name, input)), Some(fields)) = (call.tool, message.as_object_mut()) {
        let calls = json!([{ "id": call_id(call), "type": "function", "function": { "name": name, "arguments": input } }]);
        fields.insert("tool_calls".to_owned(), calls);
    }
    json!({
        "id": "chatcmpl-mock", "object": "chat.completion", "created": 0, "model": call.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": stop(call) }], "usage": used(call),
    })
    .to_string()
}

/// Renders the body of a refusal.
pub(super) fn refusal(kind: &str, message: &str) -> String {
    json!({ "error": { "message": message, "type": kind, "param": null, "code": kind } })
        .to_string()
}

fn used(call: &Call<'_>) -> Value {
    let input = call.input_tokens;
    let output = call.output_tokens;
    json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output })
}

fn call_id(call: &Call<'_>) -> String {
    format!("call_{:016x}", call.nth)
}

fn stop(call: &Call<'_>) -> &'static str {
    if call.tool.is_some() {
        "tool_calls"
    } else {
        "stop"
    }
}

fn event(data: &str) -> String {
    format!("data: {data}\n\n")
}
