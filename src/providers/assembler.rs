//! What the two wires have in common: bytes go in, events come out.

use callboard_actors::ports::{ModelEvent, ProviderError};

use super::{
    sse::{SseDecoder, SseEvent, SseTooLong},
    template::DeltaTemplate,
};

/// Turns the bytes of one reply into events. Pure: no network, no clock; the result does not depend on how the bytes were
/// split, but for the joining of neighbouring text pieces.
pub trait Assemble: Send {
    /// Takes bytes. Events that came before an error are in `out`.
    ///
    /// # Errors
    /// `Protocol` for what is not understood, or the error that the provider sent.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<ModelEvent>) -> Result<(), ProviderError>;

    /// Ends the reply.
    ///
    /// # Errors
    /// `Protocol` when the reply is not complete.
    fn finish(&mut self, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError>;

    /// Whether [`ModelEvent::Completed`] was told; what follows is ignored.
    fn is_complete(&self) -> bool;
}

impl From<SseTooLong> for ProviderError {
    fn from(error: SseTooLong) -> Self {
        protocol(error)
    }
}

pub(super) fn protocol(what: impl std::fmt::Display) -> ProviderError {
    ProviderError::Protocol { message: what.to_string() }
}

/// The side of a reply that takes its events.
pub(super) trait TakesEvents {
    /// Takes the events that are written as the last one was, but for their text. Returns what follows them.
    fn take_known<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<ModelEvent>) -> &'a [u8];

    /// Takes one event apart.
    ///
    /// # Errors
    /// As [`Assemble::feed`].
    fn take(&mut self, event: SseEvent<'_>, out: &mut Vec<ModelEvent>) -> Result<(), ProviderError>;
}

/// Gives bytes to a reply: a run of known events at once, any other event by itself.
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

/// What a piece is a piece of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece {
    Text,
    Thinking,
}

/// Neighbouring pieces of one read, to be told as one event.
#[derive(Debug)]
pub(super) struct Pieces {
    kind: Piece,
    text: String,
    /// Room for the texts of events whose shape is known.
    known: Vec<u8>,
}

impl Pieces {
    pub(super) fn new() -> Self {
        Self { kind: Piece::Text, text: String::new(), known: Vec::new() }
    }

    pub(super) fn push(&mut self, kind: Piece, text: &str, out: &mut Vec<ModelEvent>) {
        if kind != self.kind {
            self.flush(out);
            self.kind = kind;
        }
        self.text.push_str(text);
    }

    /// Takes the events that `bytes` begin with, as far as their shape is known; their text is added to `whole` too. Returns what follows.
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
        // Each text of it is UTF-8.
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
