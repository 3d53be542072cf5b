//! Streams a call as the events of a response.

use callboard_actors::chat::{Message, ToolUseBlock};
use serde::Serialize;
use serde_json::json;

use super::{
    CANCELLED, ended_as, failed_as, is_cut,
    wire::{Item, ResponseShown, TextPart},
};
use crate::http::{
    compat::{Encoder, Ended, Out, event as framed},
    error::Problem,
};

/// Writes the events of one response.
///
/// A piece of text is numbered by its last character: each character counts as one event. So the
/// same place of a response has the same number however its text was cut into pieces, and a client
/// continues where it was, also when only the whole message is left.
pub(super) struct Events {
    response: ResponseShown,
    /// The id of the message item.
    message_id: String,
    /// The number of the next event.
    number: u64,
    /// The last event that the client has.
    after: Option<u64>,
    /// Whether the message has begun.
    is_open: bool,
    /// The messages of the model whose texts it has. They share their bytes.
    messages: Vec<Message>,
}

/// A piece of text. There are many of them, so they take no tree of values.
#[derive(Serialize)]
struct TextDelta<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: u32,
    content_index: u32,
    delta: &'a str,
    logprobs: [(); 0],
}

/// An event with its name and number.
#[derive(Serialize)]
struct Numbered<'a, T> {
    #[serde(rename = "type")]
    kind: &'a str,
    sequence_number: u64,
    #[serde(flatten)]
    event: T,
}

/// An event with the whole response, whose schemas may be large: they take no tree of values.
#[derive(Serialize)]
struct WithResponse<'a> {
    response: &'a ResponseShown,
}

impl Events {
    pub(super) fn new(response: ResponseShown) -> Self {
        Self {
            message_id: item_id("msg", &response, 0),
            response,
            number: 0,
            after: None,
            is_open: false,
            messages: Vec::new(),
        }
    }

    /// The events of a response again, from the one after `after` on.
    pub(super) fn after(self, after: Option<u64>) -> Self {
        Self { after, ..self }
    }

    /// Writes an event unless the client has it.
    fn send(&mut self, kind: &str, event: impl Serialize, out: &mut Out) {
        if let Some(number) = self.next_number() {
            write(kind, number, event, out);
        }
    }

    /// Writes an event with the whole response, unless the client has it.
    fn send_response(&mut self, kind: &str, out: &mut Out) {
        if let Some(number) = self.next_number() {
            let response = &self.response;
            write(kind, number, WithResponse { response }, out);
        }
    }

    /// The number of the next event; `None` if the client has it.
    fn next_number(&mut self) -> Option<u64> {
        let number = self.number;
        self.number += 1;
        self.after
            .is_none_or(|after| number > after)
            .then_some(number)
    }

    fn begin_message(&mut self, out: &mut Out) {
        let id = self.message_id.clone();
        let item = Item::message(&id, None);
        let added = json!({ "output_index": 0, "item": item });
        self.send("response.output_item.added", added, out);
        let part = json!({ "item_id": id, "output_index": 0, "content_index": 0, "part": TextPart::new("") });
        self.send("response.content_part.added", part, out);
        self.is_open = true;
    }

    /// The whole text of the message.
    fn whole_text(&self) -> String {
        let texts = self.messages.iter().map(Message::text);
        let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        texts.join("\n")
    }

    fn end_message(&mut self, is_cut: bool, out: &mut Out) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let text = self.whole_text();
        self.messages.clear();
        let id = self.message_id.clone();
        let done = json!({
            "item_id": id, "output_index": 0, "content_index": 0, "text": text, "logprobs": [],
        });
        self.send("response.output_text.done", done, out);
        let part = json!({
            "item_id": id, "output_index": 0, "content_index": 0, "part": TextPart::new(&text),
        });
        self.send("response.content_part.done", part, out);
        let item = Item::message(&id, Some((&text, is_cut)));
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
        let kind = match self.response.status {
            // Their clients know no event of this name, and wait for one of three.
            CANCELLED => "response.incomplete".to_owned(),
            status => format!("response.{status}"),
        };
        self.send_response(&kind, out);
    }
}

impl Encoder for Events {
    fn begin(&mut self, out: &mut Out) {
        self.send_response("response.created", out);
        self.send_response("response.in_progress", out);
    }

    fn text(&mut self, text: &str, out: &mut Out) {
        if !self.is_open {
            self.begin_message(out);
        }
        let first = self.number;
        self.number += text.chars().count() as u64;
        let Some(number) = self.number.checked_sub(1).filter(|last| *last >= first) else {
            return; // an empty piece
        };
        // The client may have the beginning of this piece.
        let known = self
            .after
            .map_or(0, |after| after.saturating_add(1).saturating_sub(first));
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        if self.after.is_some_and(|after| number <= after) {
            return;
        }
        let from = text.char_indices().nth(known).map_or(0, |(at, _)| at);
        let kind = "response.output_text.delta";
        let delta = TextDelta {
            kind,
            sequence_number: number,
            item_id: &self.message_id,
            output_index: 0,
            content_index: 0,
            delta: text.get(from..).unwrap_or_default(),
            logprobs: [],
        };
        out.push_back(framed(kind, &delta));
    }

    fn whole(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }

    fn repeated_bytes(&self) -> usize {
        let messages = self.messages.iter();
        let texts: usize = messages.map(|message| message.wire().len()).sum();
        self.response.bytes() + texts
    }

    fn ended(&mut self, ended: &Ended, out: &mut Out) {
        self.end_message(is_cut(ended), out);
        for call in &ended.calls {
            self.call(call, out);
        }
        ended_as(&mut self.response, ended);
        self.end(out);
    }

    fn failed(&mut self, problem: Problem, out: &mut Out) {
        self.end_message(true, out);
        failed_as(&mut self.response, problem);
        self.end(out);
    }
}

fn write(kind: &str, sequence_number: u64, event: impl Serialize, out: &mut Out) {
    let numbered = Numbered {
        kind,
        sequence_number,
        event,
    };
    out.push_back(framed(kind, &numbered));
}

/// The id of an item: that of its response, and its place.
pub(super) fn item_id(kind: &str, response: &ResponseShown, index: usize) -> String {
    let round = response.id.trim_start_matches("resp_");
    format!("{kind}_{round}_{index}")
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        chat::{ContentBlock, Role, Usage},
        stream::StopReason,
    };
    use serde_json::Value;

    use super::{super::wire::ResponseRequest, *};

    fn events() -> Events {
        let request = json!({ "model": "m", "input": "go" });
        let request: ResponseRequest = serde_json::from_value(request).unwrap();
        let mut response = super::super::begun("m".into(), true, request, None).unwrap();
        response.id = "resp_1".to_owned();
        Events::new(response)
    }

    /// The numbers and deltas of a response whose text comes in these pieces.
    fn sent(mut events: Events, pieces: &[&str]) -> Vec<(u64, String)> {
        let mut out = Out::new();
        events.begin(&mut out);
        pieces.iter().for_each(|piece| events.text(piece, &mut out));
        let blocks = [ContentBlock::text(pieces.concat())];
        let message = Message::new(Role::Assistant, &blocks).unwrap();
        events.whole(&message);
        let ended = Ended {
            message: Some(message),
            calls: Vec::new(),
            stop: StopReason::EndTurn,
            usage: Usage::default(),
            seq: callboard_actors::ids::Seq(1),
        };
        events.ended(&ended, &mut out);
        let read = |bytes: &axum::body::Bytes| {
            let text = std::str::from_utf8(bytes).unwrap();
            let (_, data) = text.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            let delta = data["delta"].as_str().unwrap_or_default().to_owned();
            (data["sequence_number"].as_u64().unwrap(), delta)
        };
        out.iter().map(read).collect()
    }

    #[test]
    fn a_client_continues_anywhere_however_the_text_is_cut_now() {
        let whole = sent(events(), &["hé", "llo", " you"]);
        let (last, _) = *whole.last().unwrap();

        for (after, _) in &whole {
            let seen = whole.iter().filter(|(number, _)| number <= after);
            let rest = sent(events().after(Some(*after)), &["héllo you"]);

            assert!(rest.iter().all(|(number, _)| number > after));
            let text: String = seen.chain(&rest).map(|(_, delta)| &**delta).collect();
            assert_eq!(text, "héllo you", "after {after}");
        }
        assert_eq!(sent(events().after(Some(last)), &["héllo you"]), []);
        assert_eq!(sent(events().after(Some(u64::MAX)), &["héllo you"]), []);
    }
}
