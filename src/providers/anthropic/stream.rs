//! Assembles the events of a Messages stream. Pure: bytes in, events out.
//!
//! Promises: a tool call is emitted only after its block has ended. A call without arguments, or
//! with arguments that are not a JSON object, is held back until it is clear that `max_tokens` did
//! not cut it. Arguments that are not an object, or whose block never ended, are emitted as a JSON
//! string, so that the conversation answers the call with an error. An answer that is empty without
//! saying why is an error. Unknown blocks are kept word for word. Usage is cumulative: later
//! figures replace earlier ones.

use callboard_actors::{
    chat::{
        ContentBlock, MessageList, ProviderStop, RawJson, TextBlock, ThinkingBlock, ToolUseBlock,
        Usage,
    },
    limits::ANSWER_CALLS_MAX,
    ports::{AnswerSize, Completion, ModelEvent, ProviderError},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::wire::{BlockStart, Delta, Event, MessageDelta, MessageStart, Tag};
use crate::providers::{
    assembler::{self, Assemble, Piece, Pieces, TakesEvents},
    call_ids::CallIds,
    errors::{self, incomplete, protocol},
    json::{Few, RawObject, UsageReports, arguments, string, word_of, wrong_arguments},
    sse::{SseDecoder, SseEvent},
    template::DeltaTemplate,
};

/// Decodes the bytes of a Messages stream into events.
pub struct AnthropicAssembler {
    decoder: SseDecoder,
    reply: Reply,
}

impl AnthropicAssembler {
    /// Creates an assembler for the reply to a request with this history. Tool call ids in the
    /// history are not reused.
    pub fn new(history: MessageList) -> Self {
        Self {
            decoder: SseDecoder::new(),
            reply: Reply::new(history),
        }
    }

    #[cfg(test)]
    fn without_template(mut self) -> Self {
        self.reply.use_template = false;
        self
    }
}

impl Assemble for AnthropicAssembler {
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
            Err(incomplete("the stream ended before message_stop"))
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
            Building::ToolUse { json, .. } => json.len(),
            _ => 0,
        });
        open.sum()
    }
}

struct Reply {
    open: Vec<(u64, Building)>,
    /// A tool call without arguments, or with wrong ones. The stop reason decides whether the model
    /// wrote it so or the answer was cut.
    held: Option<ToolUseBlock>,
    pieces: Pieces,
    template: DeltaTemplate<(u64, Piece)>,
    use_template: bool,
    ids: CallIds,
    usage: UsageReports,
    stop: Option<String>,
    /// Whether `message_start` arrived.
    begun: bool,
    /// Whether text, a tool call or an unknown block began. Thinking alone is no answer.
    answered: bool,
    /// The size of the blocks that ended, and of what is counted as it arrives.
    size: AnswerSize,
    complete: bool,
}

/// A block that has not ended yet.
enum Building {
    Text {
        text: String,
        citations: Vec<Box<RawValue>>,
    },
    Thinking {
        text: String,
        signature: String,
    },
    ToolUse {
        id: String,
        name: String,
        /// The arguments, where the start of the block has them already.
        input: Option<String>,
        json: String,
    },
    Other {
        kind: String,
        block: RawObject,
        /// Texts of the block that deltas continued.
        grown: Vec<(String, String)>,
        json: String,
    },
}

impl Building {
    /// Bytes that deltas added, as far as they are not counted on arrival.
    fn bytes(&self) -> usize {
        match self {
            Self::Text { text, .. } => text.len(),
            Self::Thinking { text, signature } => text.len() + signature.len(),
            Self::ToolUse { json, .. } | Self::Other { json, .. } => json.len(),
        }
    }
}

impl TakesEvents for Reply {
    fn take_known<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<ModelEvent>) -> &'a [u8] {
        let Some((index, piece)) = self
            .template
            .known()
            .filter(|_| self.use_template && !self.complete)
        else {
            return bytes;
        };
        let whole = match (self.open.iter_mut().find(|(at, _)| *at == index), piece) {
            (Some((_, Building::Text { text, .. })), Piece::Text)
            | (Some((_, Building::Thinking { text, .. })), Piece::Thinking) => text,
            (Some(_) | None, _) => return bytes,
        };
        self.pieces
            .take_known(&self.template, piece, bytes, whole, out)
    }

    fn take(
        &mut self,
        event: SseEvent<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        let data = event.data;
        if self.complete || data.is_empty() {
            return Ok(());
        }
        if self.use_template
            && let Some(((index, piece), text)) = self.template.text(data)
        {
            return self.add_piece(index, piece, text, out);
        }
        if event.name == b"error" {
            return Err(errors::of_event(data));
        }
        let whole = event;
        let event: Event<'_> = parse(data)?;
        match event.kind.as_str() {
            "content_block_delta" => self.delta(whole, &event, out)?,
            "content_block_start" => self.start(&event, out)?,
            "content_block_stop" => self.close(event.index, out),
            "message_start" => {
                self.begun = true;
                let start: Option<MessageStart<'_>> = event.message.map(parse_raw).transpose()?;
                self.report(start.and_then(|start| start.usage), out);
            }
            "message_delta" => {
                self.report(event.usage, out);
                let delta: Option<MessageDelta<'_>> = event.delta.map(parse_raw).transpose()?;
                if let Some(delta) = delta.filter(|delta| !delta.stop_reason.as_str().is_empty()) {
                    self.stop = Some(word_of(&delta.stop_reason.0));
                }
            }
            "message_stop" => self.end(out)?,
            "error" => return Err(errors::of_event(data)),
            // `ping`, and event types that the API may add.
            _ => {}
        }
        Ok(())
    }
}

fn usage_of(usage: &RawObject) -> Usage {
    Usage {
        input_uncached: usage.count_at(&["input_tokens"]),
        cache_read: usage.count_at(&["cache_read_input_tokens"]),
        cache_write: usage.count_at(&["cache_creation_input_tokens"]),
        output: usage.count_at(&["output_tokens"]),
    }
}

impl Reply {
    fn new(history: MessageList) -> Self {
        Self {
            open: Vec::new(),
            held: None,
            pieces: Pieces::new(),
            template: DeltaTemplate::new(),
            use_template: true,
            ids: CallIds::new(history),
            usage: UsageReports::merging(),
            stop: None,
            begun: false,
            answered: false,
            size: AnswerSize::default(),
            complete: false,
        }
    }

    fn report(&mut self, usage: Option<&RawValue>, out: &mut Vec<ModelEvent>) {
        let reported = usage.and_then(|usage| self.usage.take(usage));
        let reported = reported.filter(|usage| !usage.is_empty());
        out.extend(reported.map(|usage| ModelEvent::Usage(usage_of(usage))));
    }

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

    fn start(&mut self, event: &Event<'_>, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        let Some(raw) = event.content_block else {
            return Ok(());
        };
        self.pieces.flush(out);
        // Another block follows, so a held call without arguments was complete.
        self.release_held(out);
        self.open.retain(|(index, _)| *index != event.index);
        let kind: Tag<'_> = parse_raw(raw)?;
        let kind = kind.kind;
        self.answered |= !matches!(kind.as_str(), "text" | "thinking" | "redacted_thinking");
        self.size.add_block(raw.get().len());
        self.size.calls += usize::from(kind.as_str() == "tool_use");
        self.size.check(0)?;
        let building = match kind.as_str() {
            "text" | "thinking" | "tool_use" => {
                let start: BlockStart<'_> = parse_raw(raw)?;
                match kind.as_str() {
                    "text" => {
                        self.answered |= !start.text.as_str().is_empty();
                        self.pieces.push(Piece::Text, start.text.as_str(), out);
                        Building::Text {
                            text: start.text.0.into_owned(),
                            citations: citations(raw),
                        }
                    }
                    "thinking" => {
                        self.pieces
                            .push(Piece::Thinking, start.thinking.as_str(), out);
                        Building::Thinking {
                            text: start.thinking.0.into_owned(),
                            signature: start.signature.0.into_owned(),
                        }
                    }
                    _ => Building::ToolUse {
                        id: start.id.0.into_owned(),
                        name: start.name.0.into_owned(),
                        input: start
                            .input
                            .map(RawValue::get)
                            .filter(|input| !is_empty_input(input))
                            .map(ToOwned::to_owned),
                        json: String::new(),
                    },
                }
            }
            kind => Building::Other {
                kind: kind.to_owned(),
                block: parse_raw(raw)?,
                grown: Vec::new(),
                json: String::new(),
            },
        };
        self.open(event.index, building)
    }

    fn open(&mut self, index: u64, building: Building) -> Result<(), ProviderError> {
        if self.open.len() > ANSWER_CALLS_MAX {
            return Err(protocol("too many blocks of the answer are open"));
        }
        self.open.push((index, building));
        Ok(())
    }

    fn delta(
        &mut self,
        whole: SseEvent<'_>,
        event: &Event<'_>,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        let Some(raw) = event.delta else {
            return Ok(());
        };
        let kind: Tag<'_> = parse_raw(raw)?;
        let known = matches!(
            kind.kind.as_str(),
            "text_delta"
                | "thinking_delta"
                | "input_json_delta"
                | "signature_delta"
                | "citations_delta"
        );
        if !known {
            self.size.bytes = self.size.bytes.saturating_add(raw.get().len());
            if let Some(Building::Other { block, grown, .. }) = self.building(event.index) {
                merge_unknown(block, grown, parse_raw(raw)?)?;
            }
            return Ok(());
        }
        let delta: Delta<'_> = parse_raw(raw)?;
        match (kind.kind.as_str(), self.building(event.index)) {
            ("text_delta", _) => {
                self.template
                    .learn(whole, delta.text.as_str(), (event.index, Piece::Text));
                self.add_piece(event.index, Piece::Text, delta.text.as_str(), out)?;
            }
            ("thinking_delta", _) => {
                self.template.learn(
                    whole,
                    delta.thinking.as_str(),
                    (event.index, Piece::Thinking),
                );
                self.add_piece(event.index, Piece::Thinking, delta.thinking.as_str(), out)?;
            }
            (
                "input_json_delta",
                Some(Building::ToolUse { json, .. } | Building::Other { json, .. }),
            ) => {
                json.push_str(delta.partial_json.as_str());
            }
            ("signature_delta", Some(Building::Thinking { signature, .. })) => {
                signature.push_str(delta.signature.as_str())
            }
            ("citations_delta", Some(Building::Text { citations, .. })) => {
                citations.extend(delta.citation.map(ToOwned::to_owned));
                self.size.add_block(raw.get().len());
            }
            // A delta of the wrong kind for its block is ignored.
            _ => {}
        }
        Ok(())
    }

    fn building(&mut self, index: u64) -> Option<&mut Building> {
        self.open
            .iter_mut()
            .find(|(at, _)| *at == index)
            .map(|(_, building)| building)
    }

    fn add_piece(
        &mut self,
        index: u64,
        piece: Piece,
        text: &str,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        match (self.building(index), piece) {
            (Some(Building::Text { text: whole, .. }), Piece::Text)
            | (Some(Building::Thinking { text: whole, .. }), Piece::Thinking) => {
                whole.push_str(text);
            }
            (None, _) => {
                // Some other servers of this API omit `content_block_start`.
                let text = text.to_owned();
                let building = match piece {
                    Piece::Text => Building::Text {
                        text,
                        citations: Vec::new(),
                    },
                    Piece::Thinking => Building::Thinking {
                        text,
                        signature: String::new(),
                    },
                };
                self.size.add_block(0);
                self.open(index, building)?;
            }
            (Some(_), _) => return Ok(()),
        }
        self.answered |= piece == Piece::Text && !text.is_empty();
        self.pieces.push(piece, text, out);
        Ok(())
    }

    fn close(&mut self, index: u64, out: &mut Vec<ModelEvent>) {
        let Some(at) = self.open.iter().position(|(open, _)| *open == index) else {
            return;
        };
        let (_, building) = self.open.remove(at);
        self.size.bytes = self.size.bytes.saturating_add(building.bytes());
        self.pieces.flush(out);
        match building {
            Building::Text { text, citations } => out.extend(text_block(text, &citations)),
            Building::Thinking { text, signature } => out.extend(thinking_block(text, signature)),
            Building::ToolUse {
                id,
                name,
                input,
                json,
            } => self.close_tool_use(&id, name, &whole_input(input, json), out),
            Building::Other {
                kind,
                mut block,
                grown,
                json,
            } => {
                for (name, text) in grown {
                    if let Ok(text) = serde_json::value::to_raw_value(&text) {
                        block.set(&name, text);
                    }
                }
                if let Ok(input) = RawJson::arguments(&json)
                    && !json.is_empty()
                {
                    block.set("input", input.as_raw().to_owned());
                }
                out.extend(
                    block
                        .to_raw()
                        .map(|raw| ModelEvent::Block(ContentBlock::from_raw(kind, raw))),
                );
            }
        }
    }

    fn close_tool_use(&mut self, id: &str, name: String, json: &str, out: &mut Vec<ModelEvent>) {
        let (input, is_object) = arguments(json);
        let block = self.tool_use(id, name, input);
        self.release_held(out);
        if json.trim().is_empty() || !is_object {
            self.held = Some(block);
        } else {
            out.push(ModelEvent::Block(ContentBlock::ToolUse(block)));
        }
    }

    fn tool_use(&mut self, id: &str, name: String, input: RawJson) -> ToolUseBlock {
        ToolUseBlock {
            id: self.ids.assign(id, &name, input.as_str()),
            name,
            input,
        }
    }

    fn release_held(&mut self, out: &mut Vec<ModelEvent>) {
        out.extend(
            self.held
                .take()
                .map(|block| ModelEvent::Block(ContentBlock::ToolUse(block))),
        );
    }

    fn end(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        let stop = self.stop.as_deref().map_or(ProviderStop::Other, stop_of);
        // A model may end its turn without a word, but then it says so.
        if !self.answered && (!self.begun || self.stop.is_none() || stop == ProviderStop::ToolUse) {
            return Err(incomplete("it has no content and does not say why"));
        }
        let cut = matches!(
            stop,
            ProviderStop::MaxTokens | ProviderStop::ContextWindowExceeded
        );
        if cut && self.held.take().is_some() {
            tracing::warn!("a tool call was cut and is dropped");
        }
        self.release_held(out);
        // Without `content_block_stop`, text is kept, but a tool call is not whole.
        let open = std::mem::take(&mut self.open);
        self.pieces.flush(out);
        for (_, building) in open {
            match building {
                Building::Text { text, citations } => out.extend(text_block(text, &citations)),
                Building::Thinking { text, signature } => {
                    out.extend(thinking_block(text, signature))
                }
                Building::ToolUse {
                    id,
                    name,
                    input,
                    json,
                } if !cut => {
                    let input = wrong_arguments(&whole_input(input, json));
                    let call = self.tool_use(&id, name, input);
                    out.push(ModelEvent::Block(ContentBlock::ToolUse(call)));
                }
                Building::ToolUse { .. } | Building::Other { .. } => {}
            }
        }
        let reported = self.usage.last().filter(|usage| !usage.is_empty());
        let usage = reported.map(usage_of);
        let raw_usage = reported.and_then(RawObject::to_raw);
        out.push(ModelEvent::Completed(Completion {
            stop,
            raw_stop: self.stop.take(),
            usage,
            raw_usage,
        }));
        self.complete = true;
        Ok(())
    }
}

/// Whether the start of a block leaves its arguments to the deltas.
fn is_empty_input(input: &str) -> bool {
    input == "null" || input.trim_matches(['{', '}', ' ']).is_empty()
}

/// The arguments of a call: the deltas, else those of the start.
fn whole_input(start: Option<String>, deltas: String) -> String {
    if deltas.is_empty() {
        start.unwrap_or_default()
    } else {
        deltas
    }
}

fn text_block(text: String, citations: &[Box<RawValue>]) -> Option<ModelEvent> {
    // The API refuses an empty text block when it is sent back.
    if text.is_empty() {
        return None;
    }
    let citations = if citations.is_empty() {
        None
    } else {
        RawJson::of(citations).ok()
    };
    Some(ModelEvent::Block(ContentBlock::Text(TextBlock {
        text,
        cache_control: None,
        citations,
    })))
}

fn thinking_block(thinking: String, signature: String) -> Option<ModelEvent> {
    let signature = Some(signature).filter(|signature| !signature.is_empty());
    // Signed thinking is sent back even when its text is withheld.
    (signature.is_some() || !thinking.is_empty()).then_some(ModelEvent::Block(
        ContentBlock::Thinking(ThinkingBlock {
            thinking,
            signature,
        }),
    ))
}

fn citations(raw: &RawValue) -> Vec<Box<RawValue>> {
    // Most blocks have none. The name may be written with escapes.
    if !raw.get().contains("citations") && !raw.get().contains('\\') {
        return Vec::new();
    }
    let list = RawObject::parse(raw).and_then(|block| {
        block
            .field("citations")
            .map(|list| serde_json::from_str::<Few<_>>(list.get()))
    });
    let list = list.and_then(Result::ok).unwrap_or_default();
    list.into_iter().collect()
}

/// Merges an unknown delta into its block: strings are appended, other values are replaced. Texts
/// grow in `grown`, so that each delta costs its own bytes only.
fn merge_unknown(
    block: &mut RawObject,
    grown: &mut Vec<(String, String)>,
    delta: RawObject,
) -> Result<(), ProviderError> {
    for (name, value) in delta.iter().filter(|(name, _)| *name != "type") {
        let more = string(value);
        let known = grown.iter_mut().find(|(known, _)| known == name);
        if let (Some((_, text)), Some(more)) = (known, &more) {
            text.push_str(more);
            continue;
        }
        match (block.field(name).map(string), more) {
            (Some(Some(text)), Some(more)) => {
                grown.push((name.to_owned(), format!("{text}{more}")));
            }
            (None, _) if block.is_full() => {
                return Err(protocol("a block of the answer has too many fields"));
            }
            (_, more) => {
                if more.is_none() {
                    grown.retain(|(known, _)| known != name);
                }
                block.set(name, value.to_owned());
            }
        }
    }
    Ok(())
}

fn stop_of(word: &str) -> ProviderStop {
    match word {
        "end_turn" => ProviderStop::EndTurn,
        "tool_use" => ProviderStop::ToolUse,
        "max_tokens" => ProviderStop::MaxTokens,
        "stop_sequence" => ProviderStop::StopSequence,
        "pause_turn" => ProviderStop::PauseTurn,
        "refusal" => ProviderStop::Refusal,
        "model_context_window_exceeded" => ProviderStop::ContextWindowExceeded,
        _ => ProviderStop::Other,
    }
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
