//! Streams a call as server-sent events in the form of one API.

use std::{collections::VecDeque, convert::Infallible};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use callboard_actors::chat::{ContentBlock, Message};
use futures_util::stream;
use serde::Serialize;

use super::{Call, Ended, Step, failed};
use crate::http::{
    auth::CallerKey,
    error::Problem,
    long_event::{EventWriter, Reader},
    quiet::{Quiet, QuietEnd},
    shared::Shared,
    sse,
};

/// Events to send, in order.
pub(in crate::http) type Out = VecDeque<Bytes>;

/// Writes the steps of a call in the form of one API.
pub(in crate::http) trait Encoder: Send + 'static {
    /// Writes what comes first.
    fn begin(&mut self, out: &mut Out);

    /// Writes a piece of text.
    fn text(&mut self, text: &str, out: &mut Out);

    /// Writes a piece of the model's thoughts.
    fn thinking(&mut self, text: &str, out: &mut Out) {
        let _ = (text, out);
    }

    /// Writes what is only known once a message is whole: its thoughts with their signatures.
    fn thoughts(&mut self, thoughts: &[ContentBlock], out: &mut Out) {
        let _ = (thoughts, out);
    }

    /// Takes a message whose text and thoughts are written.
    fn whole(&mut self, message: &Message) {
        let _ = message;
    }

    /// Bytes of what the first or the last events repeat.
    fn repeated_bytes(&self) -> usize {
        0
    }

    /// What shows proxies that a silent stream is alive.
    fn alive(&self) -> Bytes {
        Bytes::from_static(sse::COMMENT)
    }

    /// Writes the end.
    fn ended(&mut self, ended: &Ended, out: &mut Out);

    /// Writes the end of a call that failed.
    fn failed(&mut self, problem: Problem, out: &mut Out);
}

struct Chunks<E> {
    call: Call,
    encoder: E,
    has_begun: bool,
    ahead: Out,
    writer: EventWriter,
    quiet: Quiet,
    key: CallerKey,
}

/// The response that streams a call. It ends when `key` is removed, as if its client had left.
pub(in crate::http) fn respond<E: Encoder>(
    app: &Shared,
    call: Call,
    key: CallerKey,
    encoder: E,
) -> Response {
    let reader = if call.is_kept {
        Reader::Reconnects
    } else {
        Reader::Once
    };
    let chunks = Box::new(Chunks {
        call,
        encoder,
        has_begun: false,
        ahead: Out::new(),
        writer: EventWriter::new(app, reader),
        quiet: Quiet::new(app),
        key,
    });
    (
        sse::headers(),
        Body::from_stream(stream::unfold(chunks, Chunks::next)),
    )
        .into_response()
}

/// An event of a kind, with its data.
pub(in crate::http) fn event(kind: &str, value: &impl Serialize) -> Bytes {
    let mut out = format!("event: {kind}\n").into_bytes();
    out.extend_from_slice(&data(value));
    out.into()
}

/// A value as the data of an event.
pub(in crate::http) fn data(value: &impl Serialize) -> Bytes {
    let mut out = b"data: ".to_vec();
    let _ = serde_json::to_writer(&mut out, value); // Writing to memory cannot fail.
    // A schema is written as the client wrote it. Outside of texts, a line break is white space.
    for byte in &mut out {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    out.extend_from_slice(b"\n\n");
    out.into()
}

impl<E: Encoder> Chunks<E> {
    async fn next(mut self: Box<Self>) -> Option<(Result<Bytes, Infallible>, Box<Self>)> {
        loop {
            if let Some(piece) = self.writer.piece().await {
                return Some((Ok(piece.ok()?), self));
            }
            let written = self.writer.first_of(&self.key, &mut self.ahead).await;
            if let Some(piece) = written.ok()? {
                return Some((Ok(piece), self));
            }
            if !self.has_begun {
                self.has_begun = true;
                self.room_for(self.encoder.repeated_bytes()).await?;
                self.encoder.begin(&mut self.ahead);
                continue;
            }
            self.call.guard.as_ref()?;
            tokio::select! {
                biased;
                step = self.call.next() => match step {
                    Some(step) => self.take(step).await?,
                    None => return None,
                },
                end = self.quiet.wait() => match end {
                    QuietEnd::Closing => return None,
                    QuietEnd::Comment => self.ahead.push_back(self.encoder.alive()),
                },
                () = self.key.revoked() => return None,
            }
            self.quiet.sent();
        }
    }

    /// Writes what follows from a step. `None` if there is no room for it: the stream ends.
    async fn take(&mut self, step: Step) -> Option<()> {
        match step {
            Step::Text(text) => {
                self.encoder.text(&text, &mut self.ahead);
                return Some(());
            }
            Step::Thinking(text) => {
                self.encoder.thinking(&text, &mut self.ahead);
                return Some(());
            }
            Step::Message(whole) => {
                self.room_for(whole.message.wire().len()).await?;
                let thoughts = whole.thoughts();
                if !thoughts.is_empty() {
                    self.encoder.thoughts(&thoughts, &mut self.ahead);
                }
                if let Some(text) = whole.missing() {
                    self.encoder.text(&text, &mut self.ahead);
                }
                self.encoder.whole(&whole.message);
                return Some(());
            }
            Step::Ended(ended) => {
                let bytes = ended.call_bytes() + self.encoder.repeated_bytes();
                self.room_for(bytes).await?;
                self.encoder.ended(&ended, &mut self.ahead);
            }
            Step::Failed(failure) => {
                self.room_for(self.encoder.repeated_bytes()).await?;
                self.encoder.failed(failed(&failure), &mut self.ahead);
            }
        }
        self.call.stays().await;
        Some(())
    }

    /// Takes room for events that have these bytes up to four times, before they are written.
    async fn room_for(&mut self, bytes: usize) -> Option<()> {
        self.writer.reserve(&self.key, 4 * bytes).await
    }
}
