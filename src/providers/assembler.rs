//! What the assemblers of both wires share: bytes in, events out.

use callboard_actors::ports::{ModelEvent, ProviderError};

#[cfg(any(feature = "anthropic", feature = "openai"))]
use super::template::DeltaTemplate;
use super::{
    errors::{incomplete, protocol},
    sse::{SseDecoder, SseEvent, SseTooLong},
};

/// Decodes the bytes of one reply into events. Pure: no network, no clock. The result does not
/// depend on how the bytes were split, except that adjacent text pieces of one read are joined.
pub trait Assemble: Send {
    /// Takes bytes. Events that came before an error are in `out`.
    ///
    /// # Errors
    /// `Protocol` for bytes that do not follow the protocol, or the error that the provider sent.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ProviderError>;

    /// Ends the reply.
    ///
    /// # Errors
    /// `Protocol` when the reply is not complete.
    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError>;

    /// Whether [`ModelEvent::Completed`] was emitted. Bytes after it are ignored.
    fn is_complete(&self) -> bool;

    /// Bytes of the answer that are kept so far, with those of an event whose end has not arrived.
    fn kept_bytes(&self) -> usize;

    /// Bytes of the arguments of calls that have not been emitted yet. By default none are: the wire
    /// sends arguments whole.
    fn argument_bytes(&self) -> usize {
        0
    }
}

impl From<SseTooLong> for ProviderError {
    fn from(error: SseTooLong) -> Self {
        protocol(error)
    }
}

/// The wire-specific half of an assembler.
pub(super) trait TakesEvents {
    /// Takes leading events that differ from the last parsed one only in their text. Returns the
    /// bytes after them. By default none is known: every event of the wire has figures of its own.
    fn take_known<'a>(&mut self, bytes: &'a [u8], _: &mut Vec<ModelEvent>) -> &'a [u8] {
        bytes
    }

    /// Parses one event.
    ///
    /// # Errors
    /// As [`Assemble::feed`].
    fn take(&mut self, event: SseEvent<'_>, out: &mut Vec<ModelEvent>)
    -> Result<(), ProviderError>;
}

/// The error of a last event without its line end: it was cut if it is not valid.
pub(super) fn cut_event(error: ProviderError) -> ProviderError {
    match error {
        ProviderError::Protocol { .. } => incomplete("the stream ended within an event"),
        error => error,
    }
}

/// Feeds bytes to a reply: known events as a run, every other event one at a time.
///
/// # Errors
/// As [`Assemble::feed`].
pub(super) fn feed(
    reply: &mut impl TakesEvents,
    decoder: &mut SseDecoder,
    bytes: &[u8],
    out: &mut Vec<ModelEvent>,
) -> Result<(), ProviderError> {
    let mut rest = bytes;
    loop {
        if decoder.is_between_events() {
            rest = reply.take_known(rest, out);
        }
        if rest.is_empty() {
            return Ok(());
        }
        rest = decoder.feed_event(rest, &mut |event| reply.take(event, out))?;
    }
}

/// The kind of a text piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Text,
    Thinking,
}

/// Adjacent pieces of one read that are emitted as one event.
#[derive(Debug)]
pub(super) struct Pieces {
    kind: Piece,
    text: String,
    /// A reused buffer for the texts of events that match the template.
    #[cfg(any(feature = "anthropic", feature = "openai"))]
    known: Vec<u8>,
}

impl Pieces {
    pub(super) fn new() -> Self {
        Self {
            kind: Piece::Text,
            text: String::new(),
            #[cfg(any(feature = "anthropic", feature = "openai"))]
            known: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, kind: Piece, text: &str, out: &mut Vec<ModelEvent>) {
        if kind != self.kind {
            self.flush(out);
            self.kind = kind;
        }
        self.text.push_str(text);
    }

    /// Takes the leading events of `bytes` that match the template. Their text is appended to
    /// `whole` too. Returns the bytes after them.
    #[cfg(any(feature = "anthropic", feature = "openai"))]
    pub(super) fn take_known<'a, K: Copy>(
        &mut self,
        template: &DeltaTemplate<K>,
        kind: Piece,
        bytes: &'a [u8],
        whole: &mut String,
        out: &mut Vec<ModelEvent>,
    ) -> &'a [u8] {
        self.known.clear();
        let rest = template.texts(bytes, &mut self.known);
        if rest.len() == bytes.len() {
            return bytes;
        }
        // Every text that the template returns is UTF-8.
        let known = std::mem::take(&mut self.known);
        let text = std::str::from_utf8(&known).unwrap_or_default();
        whole.push_str(text);
        self.push(kind, text, out);
        self.known = known;
        rest
    }

    pub(super) fn flush(&mut self, out: &mut Vec<ModelEvent>) {
        if self.text.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.text);
        out.push(match self.kind {
            Piece::Text => ModelEvent::Text(text),
            Piece::Thinking => ModelEvent::Thinking(text),
        });
    }
}
