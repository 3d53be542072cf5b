//! Assembles the events of a Gemini stream. Pure: bytes in, events out.
//!
//! Promises: a part with a signature is never joined with one without, and the signature stands in
//! a thinking block in front of its part ([`Signed`]). Calls arrive whole, and get an id where the
//! API sent none. The reply ends with the bytes after a finish reason or a refused prompt. A call
//! that the server itself could not read is an error that another attempt may mend.

use callboard_actors::{
    chat::{ContentBlock, MessageList, ProviderStop, ThinkingBlock, ToolUseBlock, Usage},
    ports::{AnswerSize, Completion, ModelEvent, ProviderError},
};
use serde_json::value::RawValue;

use super::{
    signed::Signed,
    wire::{Call, Chunk, Part},
};
use crate::providers::{
    assembler::{self, Assemble, Piece, Pieces, TakesEvents},
    call_ids::CallIds,
    errors::{self, incomplete, protocol},
    json::{RawObject, UsageReports, arguments, word_of},
    sse::{SseDecoder, SseEvent},
};

/// Decodes the bytes of a Gemini stream into events.
pub struct GeminiAssembler {
    decoder: SseDecoder,
    reply: Reply,
}

impl GeminiAssembler {
    /// Creates an assembler for the reply to a request with this history. Tool call ids in the
    /// history are not reused.
    pub fn new(history: MessageList) -> Self {
        Self {
            decoder: SseDecoder::new(),
            reply: Reply {
                open: None,
                pieces: Pieces::new(),
                ids: CallIds::new(history),
                usage: UsageReports::default(),
                size: AnswerSize::default(),
                finish: None,
                is_empty: true,
                complete: false,
            },
        }
    }
}

impl Assemble for GeminiAssembler {
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
        reply.end(out)
    }

    fn is_complete(&self) -> bool {
        self.reply.complete
    }

    fn kept_bytes(&self) -> usize {
        let reply = &self.reply;
        reply.size.bytes + reply.open_bytes() + self.decoder.kept_bytes()
    }
}

struct Reply {
    /// The block of text or thinking that has not ended yet.
    open: Option<(Piece, String)>,
    pieces: Pieces,
    ids: CallIds,
    usage: UsageReports,
    /// The size of the blocks that ended, and the number of calls.
    size: AnswerSize,
    finish: Option<String>,
    /// Whether no text, thought or call arrived.
    is_empty: bool,
    complete: bool,
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
        let chunk: Chunk<'_> = serde_json::from_slice(data)
            .map_err(|error| protocol(format_args!("a chunk is not valid: {error}")))?;
        if chunk.error.is_some() {
            return Err(errors::of_event(data));
        }
        let usage = chunk
            .usage_metadata
            .and_then(|usage| self.usage.take(usage));
        out.extend(usage.map(|usage| ModelEvent::Usage(usage_of(usage))));
        let candidates = chunk.candidates.unwrap_or_default().into_iter();
        for candidate in candidates.filter(|candidate| candidate.index.unwrap_or(0) == 0) {
            let parts = candidate.content.and_then(|content| content.parts);
            for part in parts.unwrap_or_default() {
                self.part(part, out)?;
            }
            if !candidate.finish_reason.as_str().is_empty() {
                self.finish = Some(word_of(&candidate.finish_reason.0));
            }
        }
        let blocked = chunk.prompt_feedback.map(|feedback| feedback.block_reason);
        if let Some(reason) = blocked.filter(|reason| !reason.as_str().is_empty()) {
            self.finish = Some(format!("{BLOCKED}{}", word_of(reason.as_str())));
        }
        Ok(())
    }
}

/// Stands before the reason of a refused prompt.
const BLOCKED: &str = "prompt blocked: ";

impl Reply {
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

    fn part(&mut self, part: Part<'_>, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        let signature = part.thought_signature.as_str();
        if let Some(call) = part.function_call {
            self.close(None, out);
            self.sign(Signed::Next(signature), out);
            self.call(call, out);
            return self.size.check(0);
        }
        let Some(text) = part.text else {
            return Ok(());
        };
        let text = text.as_str();
        self.is_empty &= text.is_empty();
        match (part.thought.unwrap_or(false), signature, text) {
            (true, "", _) => self.add_piece(Piece::Thinking, text, out),
            (true, _, _) => {
                self.add_piece(Piece::Thinking, text, out);
                if !matches!(self.open, Some((Piece::Thinking, _))) {
                    self.close(None, out);
                    self.open = Some((Piece::Thinking, String::new()));
                }
                self.close(Some(Signed::Thought(signature).seal()), out);
            }
            (false, "", _) => self.add_piece(Piece::Text, text, out),
            // The end of a text that was streamed without it.
            (false, _, _) if text.trim().is_empty() => {
                self.add_piece(Piece::Text, text, out);
                if matches!(self.open, Some((Piece::Text, _))) {
                    self.sign(Signed::After(signature), out);
                    self.close(None, out);
                }
            }
            (false, _, _) => {
                self.close(None, out);
                self.sign(Signed::Next(signature), out);
                self.add_piece(Piece::Text, text, out);
                self.close(None, out);
            }
        }
        self.size.check(0)
    }

    fn add_piece(&mut self, piece: Piece, text: &str, out: &mut Vec<ModelEvent>) {
        // An empty piece must not split a block.
        if text.is_empty() {
            return;
        }
        match &mut self.open {
            Some((open, whole)) if *open == piece => whole.push_str(text),
            _ => {
                self.close(None, out);
                self.open = Some((piece, text.to_owned()));
            }
        }
        self.pieces.push(piece, text, out);
    }

    /// Ends the open block; a thinking block gets the signature.
    fn close(&mut self, signature: Option<String>, out: &mut Vec<ModelEvent>) {
        self.pieces.flush(out);
        let Some((piece, text)) = self.open.take() else {
            return;
        };
        self.size
            .add_block(text.len() + signature.as_ref().map_or(0, String::len));
        out.push(ModelEvent::Block(match piece {
            Piece::Text => ContentBlock::text(text),
            Piece::Thinking => ContentBlock::Thinking(ThinkingBlock {
                thinking: text,
                signature,
            }),
        }));
    }

    fn sign(&mut self, signed: Signed<'_>, out: &mut Vec<ModelEvent>) {
        if let Signed::Next("") = signed {
            return;
        }
        self.pieces.flush(out);
        let signature = signed.seal();
        self.size.add_block(signature.len());
        out.push(ModelEvent::Block(ContentBlock::Thinking(ThinkingBlock {
            thinking: String::new(),
            signature: Some(signature),
        })));
    }

    fn call(&mut self, call: Call<'_>, out: &mut Vec<ModelEvent>) {
        let args = call.args.map_or("{}", RawValue::get);
        let args = if args == "null" { "{}" } else { args };
        let (input, _) = arguments(args);
        let name = call.name.0.into_owned();
        self.is_empty = false;
        self.size.add_block(name.len() + args.len());
        self.size.calls += 1;
        out.push(ModelEvent::Block(ContentBlock::ToolUse(ToolUseBlock {
            id: self.ids.assign(call.id.as_str(), &name, input.as_str()),
            name,
            input,
        })));
    }

    fn end(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError> {
        let Some(finish) = self.finish.take() else {
            return Err(incomplete("the stream ended before a finish reason"));
        };
        if self.is_empty
            && matches!(
                finish.as_str(),
                "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL"
            )
        {
            return Err(incomplete(
                "the model wrote a call that its server could not read",
            ));
        }
        self.close(None, out);
        let stop = match stop_of(&finish) {
            ProviderStop::EndTurn if self.size.calls > 0 => ProviderStop::ToolUse,
            stop => stop,
        };
        let reported = self.usage.last();
        out.push(ModelEvent::Completed(Completion {
            stop,
            raw_stop: Some(finish),
            usage: reported.map(usage_of),
            raw_usage: reported.and_then(RawObject::to_raw),
        }));
        self.complete = true;
        Ok(())
    }
}

fn stop_of(word: &str) -> ProviderStop {
    match word {
        "STOP" => ProviderStop::EndTurn,
        "MAX_TOKENS" => ProviderStop::MaxTokens,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" => {
            ProviderStop::Refusal
        }
        word if word.starts_with(BLOCKED) || word.starts_with("IMAGE_") => ProviderStop::Refusal,
        _ => ProviderStop::Other,
    }
}

/// Converts usage. `promptTokenCount` includes the tokens read from a cache; the tokens of thoughts
/// are apart from those of the answer.
fn usage_of(usage: &RawObject) -> Usage {
    let count = |name| usage.count_at(&[name]);
    let prompt = count("promptTokenCount").saturating_add(count("toolUsePromptTokenCount"));
    let cache_read = count("cachedContentTokenCount").min(prompt);
    Usage {
        input_uncached: prompt - cache_read,
        cache_read,
        cache_write: 0,
        output: count("candidatesTokenCount").saturating_add(count("thoughtsTokenCount")),
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
