//! Streams a call as chunks of a chat completion.

use axum::body::Bytes;
use callboard_actors::chat::Usage;

use super::{
    finish_reason, in_their_form,
    wire::{CallDelta, Chunk, ChunkChoice, Delta, FunctionCall},
};
use crate::http::{
    compat::{Encoder, Ended, Out, data},
    error::Problem,
};

/// Last line of a successful stream.
const DONE: &str = "data: [DONE]\n\n";

/// Fields that all chunks of one stream repeat.
pub(super) struct Streamed {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) include_usage: bool,
}

impl Streamed {
    fn chunk(&self, delta: Delta<'_>, finish_reason: Option<&'static str>) -> Bytes {
        let choice = ChunkChoice {
            index: 0,
            delta,
            finish_reason,
            logprobs: None,
        };
        self.write(vec![choice], None)
    }

    fn write(&self, choices: Vec<ChunkChoice<'_>>, usage: Option<Usage>) -> Bytes {
        data(&Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices,
            usage: usage.map(Into::into),
        })
    }
}

impl Encoder for Streamed {
    fn begin(&mut self, out: &mut Out) {
        let delta = Delta {
            role: Some("assistant"),
            content: Some(""),
            ..Delta::default()
        };
        out.push_back(self.chunk(delta, None));
    }

    fn text(&mut self, text: &str, out: &mut Out) {
        let delta = Delta {
            content: Some(text),
            ..Delta::default()
        };
        out.push_back(self.chunk(delta, None));
    }

    fn ended(&mut self, ended: &Ended, out: &mut Out) {
        for (index, call) in ended.calls.iter().enumerate() {
            let call = CallDelta {
                index,
                id: &call.id,
                kind: "function",
                function: FunctionCall::of(call),
            };
            let delta = Delta {
                tool_calls: Some([call]),
                ..Delta::default()
            };
            out.push_back(self.chunk(delta, None));
        }
        out.push_back(self.chunk(Delta::default(), Some(finish_reason(ended))));
        if self.include_usage {
            out.push_back(self.write(Vec::new(), Some(ended.usage)));
        }
        out.push_back(Bytes::from_static(DONE.as_bytes()));
    }

    fn failed(&mut self, problem: Problem, out: &mut Out) {
        out.push_back(data(&in_their_form(problem)));
    }
}
