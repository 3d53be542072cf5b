//! Streams a call as the events of a message.
//!
//! Blocks come in the order of the message, one after the other, with one exception: the signature
//! of a thought is known when its message is whole, so the block of a thought stays open until then,
//! and text is written behind it meanwhile. Its index says where it belongs.

use axum::body::Bytes;
use callboard_actors::chat::ContentBlock;
use serde_json::{Value, json};

use super::{
    errors::in_their_form,
    stop_reason,
    wire::{MessageShown, UsageShown, block},
};
use crate::http::{
    compat::{Encoder, Ended, Out, Prefix, event},
    error::Problem,
};

/// Writes the events of one message.
pub(super) struct Events {
    message: MessageShown,
    /// The text that ends an answer, if the request has only one.
    stop: Option<String>,
    /// The index of the next block.
    next: usize,
    /// The open block of thoughts, with what was written.
    thought: Option<(usize, Prefix)>,
    /// The open block of text.
    text: Option<usize>,
}

impl Events {
    pub(super) fn new(message: MessageShown, stop: Option<String>) -> Self {
        Self {
            message,
            stop,
            next: 0,
            thought: None,
            text: None,
        }
    }

    /// Begins a block, and returns its index.
    fn start(&mut self, block: &Value, out: &mut Out) -> usize {
        let index = self.next;
        self.next += 1;
        let start =
            json!({ "type": "content_block_start", "index": index, "content_block": block });
        out.push_back(event("content_block_start", &start));
        index
    }

    fn delta(index: usize, delta: &Value, out: &mut Out) {
        let delta = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        out.push_back(event("content_block_delta", &delta));
    }

    fn stop(index: usize, out: &mut Out) {
        let stop = json!({ "type": "content_block_stop", "index": index });
        out.push_back(event("content_block_stop", &stop));
    }

    fn end_text(&mut self, out: &mut Out) {
        if let Some(index) = self.text.take() {
            Self::stop(index, out);
        }
    }

    fn end_thought(&mut self, out: &mut Out) {
        if let Some((index, _)) = self.thought.take() {
            Self::stop(index, out);
        }
    }

    /// Ends what is open, in order.
    fn end_blocks(&mut self, out: &mut Out) {
        self.end_thought(out);
        self.end_text(out);
    }

    /// Writes what a thought lacks, and ends its block.
    fn whole_thought(&mut self, whole: &ContentBlock, out: &mut Out) {
        let ContentBlock::Thinking(thought) = whole else {
            let index = self.start(&block(whole), out);
            return Self::stop(index, out);
        };
        let (index, written) = match self.thought.take() {
            Some(open) => open,
            None => (self.start(&thinking(), out), Prefix::default()),
        };
        if let Some(missing) = written.rest(&thought.thinking) {
            let delta = json!({ "type": "thinking_delta", "thinking": missing });
            Self::delta(index, &delta, out);
        }
        if let Some(signature) = &thought.signature {
            let delta = json!({ "type": "signature_delta", "signature": signature });
            Self::delta(index, &delta, out);
        }
        Self::stop(index, out);
    }
}

/// A thought that begins.
fn thinking() -> Value {
    json!({ "type": "thinking", "thinking": "", "signature": "" })
}

impl Encoder for Events {
    fn begin(&mut self, out: &mut Out) {
        let start = json!({ "type": "message_start", "message": self.message });
        out.push_back(event("message_start", &start));
        out.push_back(self.alive());
    }

    fn text(&mut self, text: &str, out: &mut Out) {
        let index = match self.text {
            Some(index) => index,
            // A line break separates the messages of the model; here they are blocks.
            None if text == "\n" => return,
            None => {
                let index = self.start(&json!({ "type": "text", "text": "" }), out);
                self.text = Some(index);
                index
            }
        };
        Self::delta(index, &json!({ "type": "text_delta", "text": text }), out);
    }

    fn thinking(&mut self, text: &str, out: &mut Out) {
        if self.thought.is_none() {
            self.end_text(out);
            let index = self.start(&thinking(), out);
            self.thought = Some((index, Prefix::default()));
        }
        if let Some((index, written)) = &mut self.thought {
            written.push(text);
            let delta = json!({ "type": "thinking_delta", "thinking": text });
            Self::delta(*index, &delta, out);
        }
    }

    fn thoughts(&mut self, thoughts: &[ContentBlock], out: &mut Out) {
        for thought in thoughts {
            self.whole_thought(thought, out);
        }
    }

    fn alive(&self) -> Bytes {
        event("ping", &json!({ "type": "ping" }))
    }

    fn ended(&mut self, ended: &Ended, out: &mut Out) {
        self.end_blocks(out);
        for call in &ended.calls {
            let start =
                json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": {} });
            let index = self.start(&start, out);
            let delta = json!({ "type": "input_json_delta", "partial_json": call.input.as_str() });
            Self::delta(index, &delta, out);
            Self::stop(index, out);
        }
        let (reason, sequence) = stop_reason(ended, self.stop.take());
        let delta = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": UsageShown::from(ended.usage),
        });
        out.push_back(event("message_delta", &delta));
        out.push_back(event("message_stop", &json!({ "type": "message_stop" })));
    }

    fn failed(&mut self, problem: Problem, out: &mut Out) {
        self.end_blocks(out);
        out.push_back(event("error", &in_their_form(problem, None).1));
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        chat::{RawJson, ThinkingBlock, ToolUseBlock, Usage},
        stream::StopReason,
    };

    use super::*;

    /// The kinds of the events with the index of their block, `ping` left out.
    fn kinds(out: &Out) -> Vec<String> {
        let data = |bytes: &Bytes| -> Value {
            let text = std::str::from_utf8(bytes).unwrap();
            let (kind, data) = text.split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data.trim_end()).unwrap();
            assert_eq!(kind, format!("event: {}", data["type"].as_str().unwrap()));
            data
        };
        out.iter()
            .map(data)
            .filter(|data| data["type"] != "ping")
            .map(|data| {
                let kind = data["delta"]["type"].as_str().or(data["type"].as_str());
                match data["index"].as_u64() {
                    Some(index) => format!("{} {index}", kind.unwrap()),
                    None => kind.unwrap().to_owned(),
                }
            })
            .collect()
    }

    #[test]
    fn a_thought_ends_with_its_signature_and_calls_come_last() {
        let mut events = Events::new(super::super::begun("m".into(), "msg_1".into()), None);
        let mut out = Out::new();
        let thought = ContentBlock::Thinking(ThinkingBlock {
            thinking: "Hm, yes.".into(),
            signature: Some("sig".into()),
        });
        let call = ToolUseBlock {
            id: "t1".into(),
            name: "f".into(),
            input: RawJson::empty_object(),
        };

        events.begin(&mut out);
        events.thinking("Hm, ", &mut out);
        events.text("Let me see.", &mut out);
        events.thoughts(&[thought], &mut out);
        events.ended(
            &Ended {
                message: None,
                calls: vec![call],
                stop: StopReason::EndTurn,
                usage: Usage::default(),
                seq: callboard_actors::ids::Seq(1),
            },
            &mut out,
        );

        assert_eq!(
            kinds(&out),
            [
                "message_start",
                "content_block_start 0",
                "thinking_delta 0",
                "content_block_start 1",
                "text_delta 1",
                "thinking_delta 0",
                "signature_delta 0",
                "content_block_stop 0",
                "content_block_stop 1",
                "content_block_start 2",
                "input_json_delta 2",
                "content_block_stop 2",
                "message_delta",
                "message_stop",
            ]
        );
    }
}
