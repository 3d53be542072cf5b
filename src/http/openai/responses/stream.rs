//! Streams a call as the events of a response.

use axum::body::Bytes;
use callboard_actors::chat::ToolUseBlock;
use serde_json::{Value, json};

use super::{
    ended_as, failed_as,
    wire::{Item, ResponseShown, TextPart},
};
use crate::http::{
    compat::{Encoder, Ended, Out},
    error::Problem,
};

/// Writes the events of one response.
pub(super) struct Events {
    response: ResponseShown,
    /// The number of the next event.
    number: u64,
    /// The text of the message so far; `None` before it begins.
    text: Option<String>,
}

impl Events {
    pub(super) fn new(response: ResponseShown) -> Self {
        Self {
            response,
            number: 0,
            text: None,
        }
    }

    fn send(&mut self, kind: &str, mut event: Value, out: &mut Out) {
        if let Value::Object(fields) = &mut event {
            fields.insert("type".into(), json!(kind));
            fields.insert("sequence_number".into(), json!(self.number));
        }
        self.number += 1;
        out.push_back(Bytes::from(format!("event: {kind}\ndata: {event}\n\n")));
    }

    /// The id of the message item.
    fn message_id(&self) -> String {
        item_id("msg", &self.response, 0)
    }

    fn begin_message(&mut self, out: &mut Out) {
        let id = self.message_id();
        let item = Item::message(&id, None);
        let added = json!({ "output_index": 0, "item": item });
        self.send("response.output_item.added", added, out);
        let part = json!({ "item_id": id, "output_index": 0, "content_index": 0, "part": TextPart::new("") });
        self.send("response.content_part.added", part, out);
        self.text = Some(String::new());
    }

    fn end_message(&mut self, out: &mut Out) {
        let Some(text) = self.text.take() else { return };
        let id = self.message_id();
        let done = json!({
            "item_id": id, "output_index": 0, "content_index": 0, "text": text, "logprobs": [],
        });
        self.send("response.output_text.done", done, out);
        let part = json!({
            "item_id": id, "output_index": 0, "content_index": 0, "part": TextPart::new(&text),
        });
        self.send("response.content_part.done", part, out);
        let item = Item::message(&id, Some(&text));
        let done = json!({ "output_index": 0, "item": item });
        self.send("response.output_item.done", done, out);
        self.response.output.push(item);
    }

    fn call(&mut self, call: &ToolUseBlock, out: &mut Out) {
        let index = self.response.output.len();
        let id = item_id("fc", &self.response, index);
        let added = json!({ "output_index": index, "item": Item::call(&id, call, false) });
        self.send("response.output_item.added", added, out);
        let arguments = call.input.as_str();
        let delta = json!({ "item_id": id, "output_index": index, "delta": arguments });
        self.send("response.function_call_arguments.delta", delta, out);
        let done = json!({
            "item_id": id, "output_index": index, "name": call.name, "arguments": arguments,
        });
        self.send("response.function_call_arguments.done", done, out);
        let item = Item::call(&id, call, true);
        let done = json!({ "output_index": index, "item": item });
        self.send("response.output_item.done", done, out);
        self.response.output.push(item);
    }

    fn end(&mut self, out: &mut Out) {
        let kind = format!("response.{}", self.response.status);
        self.send(&kind, json!({ "response": self.response }), out);
    }
}

impl Encoder for Events {
    fn begin(&mut self, out: &mut Out) {
        let response = json!({ "response": self.response });
        self.send("response.created", response.clone(), out);
        self.send("response.in_progress", response, out);
    }

    fn text(&mut self, text: &str, out: &mut Out) {
        if self.text.is_none() {
            self.begin_message(out);
        }
        if let Some(all) = &mut self.text {
            all.push_str(text);
        }
        let delta = json!({
            "item_id": self.message_id(), "output_index": 0, "content_index": 0, "delta": text, "logprobs": []
        });
        self.send("response.output_text.delta", delta, out);
    }

    fn ended(&mut self, ended: &Ended, out: &mut Out) {
        self.end_message(out);
        for call in &ended.calls {
            self.call(call, out);
        }
        ended_as(&mut self.response, ended);
        self.end(out);
    }

    fn failed(&mut self, problem: Problem, out: &mut Out) {
        self.end_message(out);
        failed_as(&mut self.response, problem);
        self.end(out);
    }
}

/// The id of an item: that of its response, and its place.
pub(super) fn item_id(kind: &str, response: &ResponseShown, index: usize) -> String {
    let round = response.id.trim_start_matches("resp_");
    format!("{kind}_{round}_{index}")
}
