//! Assembles the chunks of a Chat Completions stream. Pure: bytes in, events out.
//!
//! Promises: a tool call is emitted only at the end of the reply. Arguments that are not a JSON
//! object are emitted as a JSON string, so that the conversation answers the call with an error. If
//! the answer was cut at its length limit, a last call without arguments or with such ones is
//! dropped. The reply ends at `[DONE]`, or at the end of the bytes after a finish reason, because
//! some servers omit `[DONE]`. An answer that is empty without saying why is an error.

use std::borrow::Cow;

use callboard_actors::{
    chat::{ContentBlock, MessageList, ProviderStop, ThinkingBlock, ToolUseBlock, Usage},
    ports::{AnswerSize, Completion, ModelEvent, ProviderError},
};
use serde_json::value::RawValue;

use super::wire::{Call, Choice, Chunk, Delta, Part};
use crate::providers::{
    assembler::{self, Assemble, Piece, Pieces, TakesEvents},
    call_ids::CallIds,
    errors::{self, incomplete, protocol},
    json::{Few, OUTER_LIST_MAX, RawObject, UsageReports, arguments, string, word_of},
    sse::{SseDecoder, SseEvent},
    template::DeltaTemplate,
};

/// Decodes the bytes of a Chat Completions stream into events.
pub struct OpenAiAssembler {
    decoder: SseDecoder,
    reply: Reply,
}

impl OpenAiAssembler {
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

impl Assemble for OpenAiAssembler {
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
        } else if reply.finish.is_some() {
            reply.end(out)
        } else {
            Err(incomplete("the stream ended before a finish reason"))
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
        self.reply.calls.iter().map(|call| call.json.len()).sum()
    }
}

struct Reply {
    /// The block of text or thinking that has not ended yet.
    open: Option<(Piece, String)>,
    calls: Vec<Building>,
    pieces: Pieces,
    template: DeltaTemplate<Piece>,
    use_template: bool,
    ids: CallIds,
    usage: UsageReports,
    refused: bool,
    /// Whether text arrived. Thinking alone is no answer.
    has_text: bool,
    /// The size of the blocks that ended, and the number of calls.
    size: AnswerSize,
    finish: Option<String>,
    complete: bool,
}

/// A tool call that is being assembled.
struct Building {
    index: Option<u64>,
    id: String,
    name: String,
    json: String,
    brackets: Brackets,
}

/// Watches for the end of an object that arrives in pieces, in time linear in its bytes.
#[derive(Debug, Default)]
struct Brackets {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Whether the first bracket was closed.
    closed: bool,
}

impl Brackets {
    fn push(&mut self, piece: &str) {
        for byte in piece.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'[' | b'{' if !self.in_string => self.depth += 1,
                b']' | b'}' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    self.closed |= self.depth == 0;
                }
                _ => {}
            }
        }
    }
}

impl TakesEvents for Reply {
    fn take_known<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<ModelEvent>) -> &'a [u8] {
        let Some(piece) = self
            .template
            .known()
            .filter(|_| self.use_template && !self.complete)
        else {
            return bytes;
        };
        match &mut self.open {
            Some((open, whole)) if *open == piece => {
                self.pieces
                    .take_known(&self.template, piece, bytes, whole, out)
            }
            Some(_) | None => bytes,
        }
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
            && let Some((piece, text)) = self.template.text(data)
        {
            self.add_piece(piece, text, out);
            return Ok(());
        }
        if event.name == b"error" {
            return Err(errors::of_event(data));
        }
        if data.trim_ascii() == b"[DONE]" {
            return self.end(out);
        }
        let chunk: Chunk<'_> = serde_json::from_slice(data)
            .map_err(|error| protocol(format_args!("a chunk is not valid: {error}")))?;
        let is_error = chunk
            .object
            .is_some_and(|object| object.get() == "\"error\"");
        if chunk.error.is_some() || is_error {
            return Err(errors::of_event(data));
        }
        let has_usage = chunk.usage.is_some();
        if let Some(usage) = chunk.usage.and_then(|usage| self.usage.take(usage)) {
            out.push(ModelEvent::Usage(usage_of(usage)));
        }
        let choices = chunk.choices.unwrap_or_default();
        let alone = choices.len() == 1 && !has_usage;
        let is_first = |choice: &Choice<'_>| choice.index.unwrap_or(0) == 0;
        for choice in choices.into_iter().filter(is_first) {
            self.choice(event, choice, alone, out)?;
        }
        Ok(())
    }
}

impl Reply {
    fn new(history: MessageList) -> Self {
        Self {
            open: None,
            calls: Vec::new(),
            pieces: Pieces::new(),
            template: DeltaTemplate::new(),
            use_template: true,
            ids: CallIds::new(history),
            usage: UsageReports::default(),
            refused: false,
            has_text: false,
            size: AnswerSize::default(),
            finish: None,
            complete: false,
        }
    }

    fn check_size(&self) -> Result<(), ProviderError> {
        if self.complete {
            return Ok(());
        }
        self.size.check(self.open_bytes())
    }

    /// Bytes of what has not ended yet.
    fn open_bytes(&self) -> usize {
        self.open.as_ref().map_or(0, |(_, text)| text.len())
    }

    fn choice(
        &mut self,
        event: SseEvent<'_>,
        choice: Choice<'_>,
        alone: bool,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        let alone = alone && choice.finish_reason.as_str().is_empty();
        self.delta(event, choice.delta.unwrap_or_default(), alone, out)?;
        match choice.finish_reason.as_str() {
            "" => Ok(()),
            "error" => Err(ProviderError::Server {
                status: 0,
                retry_after: None,
                message: "the server gave up on the answer".into(),
            }),
            word => {
                self.finish = Some(word_of(word));
                Ok(())
            }
        }
    }

    /// Handles a delta. `alone`: nothing else in the chunk carries meaning, so the chunk may become
    /// the template.
    fn delta(
        &mut self,
        event: SseEvent<'_>,
        delta: Delta<'_>,
        alone: bool,
        out: &mut Vec<ModelEvent>,
    ) -> Result<(), ProviderError> {
        // Some servers send the reasoning under both the old and the new name.
        let reasoning = delta
            .reasoning_content
            .and_then(string)
            .filter(|text| !text.is_empty());
        let reasoning = reasoning
            .or_else(|| delta.reasoning.and_then(string))
            .filter(|text| !text.is_empty());
        let content = delta
            .content
            .and_then(string)
            .filter(|text| !text.is_empty());
        let calls = delta.tool_calls.unwrap_or_default();
        let refusal = delta
            .refusal
            .and_then(string)
            .filter(|text| !text.is_empty());
        let plain = alone && calls.is_empty() && delta.function_call.is_none() && refusal.is_none();

        match (&reasoning, &content) {
            (Some(text), None) | (None, Some(text)) if plain => {
                if let Cow::Borrowed(text) = text {
                    self.template.learn(
                        event,
                        text,
                        if content.is_some() {
                            Piece::Text
                        } else {
                            Piece::Thinking
                        },
                    );
                }
            }
            _ => {}
        }
        if let Some(text) = reasoning {
            self.add_piece(Piece::Thinking, &text, out);
        }
        if let Some(text) = content {
            self.add_piece(Piece::Text, &text, out);
        } else if let Some(parts) = delta.content.filter(|raw| raw.get().starts_with('[')) {
            self.parts(parts, out);
        }
        if let Some(text) = refusal {
            self.refused = true;
            self.add_piece(Piece::Text, &text, out);
        }
        for call in calls {
            self.fragment(call, out)?;
        }
        if let Some(function) = delta.function_call {
            self.fragment(
                Call {
                    index: None,
                    id: crate::providers::json::Str::default(),
                    function: Some(function),
                },
                out,
            )?;
        }
        Ok(())
    }

    fn parts(&mut self, raw: &RawValue, out: &mut Vec<ModelEvent>) {
        let parts: Few<Part<'_>, OUTER_LIST_MAX> =
            serde_json::from_str(raw.get()).unwrap_or_default();
        for part in parts {
            match part.kind.as_str() {
                "text" => self.add_piece(Piece::Text, part.text.as_str(), out),
                "thinking" => {
                    let inner: Few<Part<'_>> = part
                        .thinking
                        .and_then(|raw| serde_json::from_str(raw.get()).ok())
                        .unwrap_or_default();
                    inner
                        .iter()
                        .for_each(|part| self.add_piece(Piece::Thinking, part.text.as_str(), out));
                }
                _ => {}
            }
        }
    }

    fn add_piece(&mut self, piece: Piece, text: &str, out: &mut Vec<ModelEvent>) {
        // An empty piece must not split a block.
        if text.is_empty() {
            return;
        }
        self.has_text |= piece == Piece::Text;
        match &mut self.open {
            Some((open, whole)) if *open == piece => whole.push_str(text),
            _ => {
                self.close(out);
                self.open = Some((piece, text.to_owned()));
            }
        }
        self.pieces.push(piece, text, out);
    }

    fn close(&mut self, out: &mut Vec<ModelEvent>) {
        self.pieces.flush(out);
        if let Some((_, text)) = &self.open {
            self.size.add_block(text.len());
        }
        let block = match self.open.take() {
            Some((_, text)) if text.is_empty() => None,
            Some((Piece::Text, text)) => Some(ContentBlock::text(text)),
            Some((Piece::Thinking, thinking)) => Some(ContentBlock::Thinking(ThinkingBlock {
                thinking,
                signature: None,
            })),
            None => None,
        };
        out.extend(block.map(ModelEvent::Block));
    }

    fn fragment(&mut self, call: Call<'_>, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        self.close(out);
        let (name, arguments) = match &call.function {
            Some(function) => (
                function.name.as_str(),
                function.arguments.map_or(Cow::Borrowed(""), arguments_text),
            ),
            None => ("", Cow::Borrowed("")),
        };
        let id = call.id.as_str();
        self.size.bytes = self.size.bytes.saturating_add(arguments.len());
        match self.belongs_to(call.index, id, name) {
            Some(at) => {
                let Some(building) = self.calls.get_mut(at) else {
                    return Ok(());
                };
                building.brackets.push(&arguments);
                building.json.push_str(&arguments);
                if building.id.is_empty() {
                    id.clone_into(&mut building.id);
                }
                if building.name.is_empty() {
                    name.clone_into(&mut building.name);
                }
            }
            None => {
                let mut brackets = Brackets::default();
                brackets.push(&arguments);
                self.calls.push(Building {
                    index: call.index,
                    id: id.into(),
                    name: name.into(),
                    json: arguments.into_owned(),
                    brackets,
                });
                self.size.add_block(id.len() + name.len());
                self.size.calls += 1;
            }
        }
        self.size.check(0)
    }

    /// Finds the call that a fragment continues; `None` when it begins another one. Servers omit
    /// the index or the id, repeat both on every fragment, invent a new id for every fragment, or
    /// give every call the index 0.
    fn belongs_to(&self, index: Option<u64>, id: &str, name: &str) -> Option<usize> {
        let at = match index {
            Some(_) => self
                .calls
                .iter()
                .rposition(|building| building.index == index),
            None if !id.is_empty() => self.calls.iter().rposition(|building| building.id == id),
            None => self.calls.len().checked_sub(1),
        };
        // A fragment with an id but without index and name continues the last call.
        let at = at.or_else(|| {
            self.calls
                .len()
                .checked_sub(1)
                .filter(|_| index.is_none() && name.is_empty())
        })?;
        let known = self.calls.get(at)?;
        let begins = !name.is_empty()
            && if id.is_empty() || known.id.is_empty() {
                !known.name.is_empty() && (known.brackets.closed || index.is_none())
            } else {
                known.id != id
            };
        (!begins).then_some(at)
    }

    fn end(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        self.close(out);
        let stop = self
            .finish
            .as_deref()
            .map_or(ProviderStop::EndTurn, stop_of);
        // A model may end its turn without a word, but then it says so.
        let is_silent = self.calls.is_empty() && !self.has_text;
        if is_silent && (self.finish.is_none() || stop == ProviderStop::ToolUse) {
            return Err(incomplete("it has no content and does not say why"));
        }
        let cut = matches!(
            stop,
            ProviderStop::MaxTokens | ProviderStop::ContextWindowExceeded | ProviderStop::Refusal
        );
        let calls = std::mem::take(&mut self.calls);
        let last = calls.len().saturating_sub(1);
        let mut emitted = 0_usize;
        for (number, building) in calls.into_iter().enumerate() {
            // An empty text parses as an empty object, so arguments that were cut before their first
            // character look complete. Only the last call can be cut.
            let (input, is_object) = arguments(&building.json);
            let is_whole = is_object && !building.json.trim().is_empty();
            if cut && number == last && !is_whole {
                tracing::warn!(
                    bytes = building.json.len(),
                    "a tool call was cut and is dropped"
                );
                continue;
            }
            let id = self
                .ids
                .assign(&building.id, &building.name, input.as_str());
            out.push(ModelEvent::Block(ContentBlock::ToolUse(ToolUseBlock {
                id,
                name: building.name,
                input,
            })));
            emitted += 1;
        }
        let stop = match stop {
            ProviderStop::EndTurn | ProviderStop::Other if emitted > 0 => ProviderStop::ToolUse,
            ProviderStop::EndTurn if self.refused => ProviderStop::Refusal,
            stop => stop,
        };
        let reported = self.usage.last();
        let usage = reported.map(usage_of);
        let raw_usage = reported.and_then(RawObject::to_raw);
        out.push(ModelEvent::Completed(Completion {
            stop,
            raw_stop: self.finish.take(),
            usage,
            raw_usage,
        }));
        self.complete = true;
        Ok(())
    }
}

/// Converts usage. `prompt_tokens` includes tokens read from and written to the cache; the fields
/// of `Usage` do not overlap.
fn usage_of(usage: &RawObject) -> Usage {
    let prompt = usage.count_at(&["prompt_tokens"]);
    let details = usage.count_at(&["prompt_tokens_details", "cached_tokens"]);
    let cache_read = if details > 0 {
        details
    } else {
        usage.count_at(&["prompt_cache_hit_tokens"])
    }
    .min(prompt);
    let cache_write = usage
        .count_at(&["prompt_tokens_details", "cache_write_tokens"])
        .min(prompt - cache_read);
    Usage {
        input_uncached: prompt - cache_read - cache_write,
        cache_read,
        cache_write,
        output: usage.count_at(&["completion_tokens"]),
    }
}

/// Returns the text of arguments that arrive as a string or as the object itself.
fn arguments_text(raw: &RawValue) -> Cow<'_, str> {
    match string(raw) {
        Some(text) => text,
        None if raw.get() == "null" => Cow::Borrowed(""),
        None => Cow::Borrowed(raw.get()),
    }
}

fn stop_of(word: &str) -> ProviderStop {
    match word {
        "stop" | "eos" | "end_turn" => ProviderStop::EndTurn,
        "tool_calls" | "function_call" | "tool_use" => ProviderStop::ToolUse,
        "length" | "max_tokens" => ProviderStop::MaxTokens,
        "model_length" => ProviderStop::ContextWindowExceeded,
        "content_filter" | "refusal" => ProviderStop::Refusal,
        _ => ProviderStop::Other,
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
