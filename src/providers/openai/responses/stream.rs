//! Assembles the events of a Responses stream. Pure: bytes in, events out.
//!
//! Promises: a block is emitted when its item has ended. A tool call that the length limit cut is
//! dropped; one whose arguments are not a JSON object is emitted with a JSON string, so that the
//! conversation answers it with an error. The reply ends with `response.completed` or
//! `response.incomplete` and with nothing else. What the last event's response holds and no event
//! before it announced is emitted too, because some servers send only that. Unknown events and
//! items are ignored.

use std::{borrow::Cow, collections::BTreeSet};

use callboard_actors::{
    chat::{ContentBlock, MessageList, ProviderStop, ThinkingBlock, ToolUseBlock, Usage},
    limits::ANSWER_CALLS_MAX,
    ports::{AnswerSize, Completion, ModelEvent, ProviderError},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    convert::{PART_END, Sealed},
    wire::{Event, Item, Part, Response},
};
use crate::providers::{
    assembler::{self, Assemble, Piece, Pieces, TakesEvents},
    call_ids::CallIds,
    errors::{self, incomplete, protocol},
    json::{RawObject, arguments, string},
    sealed::Sealer,
    sse::{SseDecoder, SseEvent},
};

/// Decodes the bytes of a Responses stream into events.
pub struct ResponsesAssembler {
    decoder: SseDecoder,
    reply: Reply,
}

impl ResponsesAssembler {
    /// Creates an assembler for the reply to a request with this history. Tool call ids in the
    /// history are not reused.
    pub fn new(history: MessageList) -> Self {
        Self::from_host(history, "")
    }

    /// Creates an assembler for the reply of a host, which alone gets its reasoning back.
    pub(in super::super) fn from_host(history: MessageList, host: &str) -> Self {
        Self {
            decoder: SseDecoder::new(),
            reply: Reply {
                host: host.to_owned(),
                open: Vec::new(),
                ended: BTreeSet::new(),
                pieces: Pieces::new(),
                ids: CallIds::new(history),
                size: AnswerSize::default(),
                called: false,
                has_dropped: false,
                refused: false,
                complete: false,
            },
        }
    }
}

impl Assemble for ResponsesAssembler {
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        let Self { decoder, reply } = self;
        let fed = assembler::feed(reply, decoder, bytes, out);
        reply.pieces.flush(out);
        fed.and_then(|()| reply.check_size())
    }

    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        let Self { decoder, reply } = self;
        let fed = decoder.finish(&mut |event| reply.take(event, out));
        reply.pieces.flush(out);
        fed.map_err(assembler::cut_event)?;
        if reply.complete {
            Ok(())
        } else {
            Err(incomplete("the stream ended before response.completed"))
        }
    }

    fn is_complete(&self) -> bool {
        self.reply.complete
    }

    fn kept_bytes(&self) -> usize {
        let reply = &self.reply;
        reply.size.bytes + reply.open_bytes() + self.decoder.kept_bytes()
    }

    fn argument_bytes(&self) -> usize {
        let open = self.reply.open.iter().map(|(_, building)| match building {
            Building::Call { json, .. } => json.len(),
            _ => 0,
        });
        open.sum()
    }
}

struct Reply {
    host: String,
    open: Vec<(u64, Building)>,
    /// The indices of the items that ended.
    ended: BTreeSet<u64>,
    pieces: Pieces,
    ids: CallIds,
    /// The size of the items that ended.
    size: AnswerSize,
    called: bool,
    /// Whether a call was cut.
    has_dropped: bool,
    refused: bool,
    complete: bool,
}

/// An item that has not ended yet.
enum Building {
    Message(String),
    Reasoning {
        text: String,
        /// The part that the last delta belongs to.
        part: Option<u64>,
    },
    Call {
        call_id: String,
        name: String,
        json: String,
    },
    Other,
}

impl Building {
    fn of_kind(kind: &str) -> Self {
        match kind {
            "message" => Self::Message(String::new()),
            "reasoning" => Self::Reasoning {
                text: String::new(),
                part: None,
            },
            "function_call" => Self::Call {
                call_id: String::new(),
                name: String::new(),
                json: String::new(),
            },
            _ => Self::Other,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Message(text) | Self::Reasoning { text, .. } => text.len(),
            Self::Call {
                call_id,
                name,
                json,
            } => call_id.len() + name.len() + json.len(),
            Self::Other => 0,
        }
    }
}

impl TakesEvents for Reply {
    fn take(
        &mut self,
        event: SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        let data = event.data;
        if self.complete || data.is_empty() || data.trim_ascii() == b"[DONE]" {
            return Ok(());
        }
        if event.name == b"error" {
            return Err(errors::of_event(data));
        }
        let event: Event<'_> = parse(data)?;
        let index = event.output_index.unwrap_or_default();
        match event.kind.as_str() {
            "response.output_text.delta" => self.text(index, &delta(&event), out)?,
            "response.refusal.delta" => {
                self.refused = true;
                self.text(index, &delta(&event), out)?;
            }
            "response.reasoning_summary_text.delta" => {
                let part = event.summary_index.unwrap_or_default();
                self.thought(index, part, &delta(&event), out)?;
            }
            "response.reasoning_text.delta" => {
                let part = event.content_index.unwrap_or_default();
                self.thought(index, part, &delta(&event), out)?;
            }
            "response.function_call_arguments.delta" => {
                if let Building::Call { json, .. } = self.building(index, "function_call")? {
                    json.push_str(&delta(&event));
                }
            }
            "response.output_item.added" => {
                if let Some(raw) = event.item {
                    self.begin(index, &parse_raw(raw)?, out)?;
                }
            }
            "response.output_item.done" => {
                if let Some(raw) = event.item {
                    self.end_item(index, &parse_raw(raw)?, out)?;
                }
            }
            "response.completed" => self.end(event.response, false, out)?,
            "response.incomplete" => self.end(event.response, true, out)?,
            "response.failed" => return Err(failed(event.response, out)),
            "error" => return Err(errors::of_event(data)),
            "" => {
                let body = serde_json::from_slice::<RawObject>(data);
                if body.is_ok_and(|body| body.field("error").is_some()) {
                    return Err(errors::of_event(data));
                }
            }
            // Events that repeat others, that concern the server's own tools, or that are new.
            _ => {}
        }
        Ok(())
    }
}

impl Reply {
    fn check_size(&self) -> Result<(), ProviderError> {
        if self.complete {
            return Ok(());
        }
        self.size.check(self.open_bytes())
    }

    /// Bytes of what has not ended yet.
    fn open_bytes(&self) -> usize {
        let open = self.open.iter().map(|(_, building)| building.bytes());
        open.sum()
    }

    /// Returns the open item at an index. Some servers do not announce their items.
    fn building(&mut self, index: u64, kind: &str) -> Result<&mut Building, ProviderError> {
        let at = match self.open.iter().position(|(open, _)| *open == index) {
            Some(at) => at,
            None => {
                if self.open.len() > ANSWER_CALLS_MAX {
                    return Err(protocol("too many items of the answer are open"));
                }
                self.open.push((index, Building::of_kind(kind)));
                self.open.len() - 1
            }
        };
        match self.open.get_mut(at) {
            Some((_, building)) => Ok(building),
            None => Err(protocol("an item of the answer is lost")),
        }
    }

    fn begin(
        &mut self,
        index: u64,
        item: &Item<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        self.pieces.flush(out);
        if let Building::Call { call_id, name, .. } = self.building(index, item.kind.as_str())? {
            item.call_id.as_str().clone_into(call_id);
            item.name.as_str().clone_into(name);
        }
        Ok(())
    }

    fn text(
        &mut self,
        index: u64,
        piece: &str,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        if let Building::Message(text) = self.building(index, "message")? {
            text.push_str(piece);
            self.pieces.push(Piece::Text, piece, out);
        }
        Ok(())
    }

    fn thought(
        &mut self,
        index: u64,
        number: u64,
        piece: &str,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        if let Building::Reasoning { text, part } = self.building(index, "reasoning")? {
            let is_next = part.is_some_and(|part| part != number);
            *part = Some(number);
            for piece in [if is_next { PART_END } else { "" }, piece] {
                text.push_str(piece);
            }
            if is_next {
                self.pieces.push(Piece::Thinking, PART_END, out);
            }
            self.pieces.push(Piece::Thinking, piece, out);
        }
        Ok(())
    }

    /// Ends an item with what its last event says about it.
    fn end_item(
        &mut self,
        index: u64,
        item: &Item<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        if !self.ended.insert(index) {
            return Ok(());
        }
        let open = self.open.iter().position(|(open, _)| *open == index);
        let building = open.map(|at| self.open.remove(at).1);
        let building = building.unwrap_or_else(|| Building::of_kind(item.kind.as_str()));
        let parts = item.content.as_deref().unwrap_or_default();
        match (item.kind.as_str(), building) {
            ("message", Building::Message(streamed)) => {
                self.refused |= parts.iter().any(|part| part.kind.as_str() == "refusal");
                let whole: String = parts
                    .iter()
                    .map(|part| match part.kind.as_str() {
                        "refusal" => part.refusal.as_str(),
                        _ => part.text.as_str(),
                    })
                    .collect();
                let text = self.rest(Piece::Text, streamed, whole, out);
                self.message(text, out);
            }
            ("reasoning", Building::Reasoning { text, .. }) => {
                let summary = item.summary.as_deref().unwrap_or_default();
                self.reasoning(item, summary, parts, text, out);
            }
            ("function_call", Building::Call { json, .. }) => {
                let arguments = match item.arguments.as_str() {
                    "" => json.as_str(),
                    arguments => arguments,
                };
                if item.status.as_str() == "incomplete" {
                    self.drop_call();
                } else {
                    let id = match item.call_id.as_str() {
                        "" => item.id.as_str(),
                        id => id,
                    };
                    self.call(id, item.name.as_str(), arguments, out);
                }
            }
            // An item that ends as another kind than it began.
            (_, building) => self.close(building, true, out),
        }
        self.size.check(0)
    }

    /// Emits what of the whole text has not been streamed yet, and returns the text of the block.
    fn rest(
        &mut self,
        piece: Piece,
        streamed: String,
        whole: String,
        out: &mut Vec<ModelEvent>,
    ) -> String {
        match whole.strip_prefix(streamed.as_str()) {
            Some(rest) => {
                self.pieces.push(piece, rest, out);
                whole
            }
            // Pieces and block are the same text, whatever the server says last.
            None => streamed,
        }
    }

    /// Emits what was streamed of an item whose last event does not come.
    fn close(&mut self, building: Building, is_cut: bool, out: &mut Vec<ModelEvent>) {
        match building {
            Building::Message(text) => self.message(text, out),
            Building::Reasoning { text, .. } => {
                self.pieces.flush(out);
                self.size.add_block(text.len());
                thinking_block(text, None, out);
            }
            Building::Call {
                call_id,
                name,
                json,
            } if !is_cut => self.call(&call_id, &name, &json, out),
            Building::Call { .. } => self.drop_call(),
            Building::Other => {}
        }
    }

    /// Notes a call that was cut. The log has a line for the first one of an answer.
    fn drop_call(&mut self) {
        if !self.has_dropped {
            tracing::warn!("a tool call was cut and is dropped");
        }
        self.has_dropped = true;
    }

    fn message(&mut self, text: String, out: &mut Vec<ModelEvent>) {
        self.pieces.flush(out);
        self.size.add_block(text.len());
        if !text.is_empty() {
            out.push(ModelEvent::Block(ContentBlock::text(text)));
        }
    }

    fn reasoning(
        &mut self,
        item: &Item<'_>,
        summary: &[Part<'_>],
        content: &[Part<'_>],
        streamed: String,
        out: &mut Vec<ModelEvent>,
    ) {
        let open = summary.is_empty() && !content.is_empty();
        let parts = if open { content } else { summary };
        let texts: Vec<&str> = parts.iter().map(|part| part.text.as_str()).collect();
        let whole = texts.join(PART_END);
        let is_same = whole.starts_with(streamed.as_str());
        let thinking = self.rest(Piece::Thinking, streamed, whole, out);
        self.pieces.flush(out);
        let encrypted = item.encrypted_content.as_str();
        self.size
            .add_block(thinking.len() + encrypted.len() + item.id.as_str().len());
        let sealed = Sealed {
            host: self.host.clone(),
            id: item.id.as_str().to_owned(),
            encrypted_content: encrypted.to_owned(),
            open,
            parts: if texts.len() > 1 && is_same {
                texts.iter().map(|text| text.len()).collect()
            } else {
                Vec::new()
            },
        };
        // Without either, the API has nothing to read it from.
        let can_return = !encrypted.is_empty() || (open && !thinking.is_empty());
        let signature = serde_json::to_string(&sealed)
            .ok()
            .filter(|_| can_return)
            .map(|sealed| Sealer::Responses.seal(&sealed));
        thinking_block(thinking, signature, out);
    }

    fn call(&mut self, id: &str, name: &str, json: &str, out: &mut Vec<ModelEvent>) {
        self.pieces.flush(out);
        let (input, _) = arguments(json);
        self.size.add_block(name.len() + json.len());
        self.size.calls += 1;
        self.called = true;
        out.push(ModelEvent::Block(ContentBlock::ToolUse(ToolUseBlock {
            id: self.ids.assign(id, name, input.as_str()),
            name: name.to_owned(),
            input,
        })));
    }

    fn end(
        &mut self,
        raw: Option<&RawValue>,
        is_cut: bool,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        let response: Option<Response<'_>> = raw.map(parse_raw).transpose()?;
        let output = response
            .as_ref()
            .and_then(|response| response.output.as_deref());
        for (index, raw) in (0..).zip(output.unwrap_or_default()) {
            if !self.ended.contains(&index) {
                self.end_item(index, &parse_raw(raw)?, out)?;
            }
        }
        for (_, building) in std::mem::take(&mut self.open) {
            self.close(building, is_cut, out);
        }
        self.size.check(0)?;
        let details = response
            .as_ref()
            .and_then(|response| response.incomplete_details.as_ref())
            .map_or("", |details| details.reason.as_str());
        let (stop, raw_stop) = match (is_cut, details) {
            (false, _) if self.called => (ProviderStop::ToolUse, "response.completed"),
            (false, _) if self.refused => (ProviderStop::Refusal, "response.completed"),
            (false, _) => (ProviderStop::EndTurn, "response.completed"),
            (true, "max_output_tokens") => (ProviderStop::MaxTokens, details),
            (true, "content_filter") => (ProviderStop::Refusal, details),
            (true, "") => (ProviderStop::Other, "response.incomplete"),
            (true, _) => (ProviderStop::Other, details),
        };
        let usage = response
            .as_ref()
            .and_then(|response| response.usage)
            .and_then(RawObject::parse);
        out.push(ModelEvent::Completed(Completion {
            stop,
            raw_stop: Some(raw_stop.to_owned()),
            usage: usage.as_ref().map(usage_of),
            raw_usage: usage.as_ref().and_then(RawObject::to_raw),
        }));
        self.complete = true;
        Ok(())
    }
}

fn thinking_block(thinking: String, signature: Option<String>, out: &mut Vec<ModelEvent>) {
    if !thinking.is_empty() || signature.is_some() {
        out.push(ModelEvent::Block(ContentBlock::Thinking(ThinkingBlock {
            thinking,
            signature,
        })));
    }
}

/// The error of a response that failed. What it used is emitted, since it is billed.
fn failed(response: Option<&RawValue>, out: &mut Vec<ModelEvent>) -> ProviderError {
    let response = response.and_then(|raw| serde_json::from_str::<Response<'_>>(raw.get()).ok());
    let usage = response.as_ref().and_then(|response| response.usage);
    let usage = usage.and_then(RawObject::parse_usage);
    out.extend(usage.map(|usage| ModelEvent::Usage(usage_of(&usage))));
    match response.and_then(|response| response.error) {
        Some(error) => errors::of_event(error.get().as_bytes()),
        None => ProviderError::Server {
            status: 0,
            retry_after: None,
            message: "the server gave up on the answer".into(),
        },
    }
}

/// Converts usage. `input_tokens` includes tokens read from and written to the cache, and
/// `output_tokens` those of the reasoning.
fn usage_of(usage: &RawObject) -> Usage {
    let input = usage.count_at(&["input_tokens"]);
    let cache_read = usage
        .count_at(&["input_tokens_details", "cached_tokens"])
        .min(input);
    let cache_write = usage
        .count_at(&["input_tokens_details", "cache_write_tokens"])
        .min(input - cache_read);
    Usage {
        input_uncached: input - cache_read - cache_write,
        cache_read,
        cache_write,
        output: usage.count_at(&["output_tokens"]),
    }
}

fn delta<'a>(event: &Event<'a>) -> Cow<'a, str> {
    event.delta.and_then(string).unwrap_or_default()
}

fn parse<'a, T: Deserialize<'a>>(data: &'a [u8]) -> Result<T, ProviderError> {
    serde_json::from_slice(data)
        .map_err(|error| protocol(format_args!("an event is not valid: {error}")))
}

fn parse_raw<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, ProviderError> {
    parse(raw.get().as_bytes())
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
