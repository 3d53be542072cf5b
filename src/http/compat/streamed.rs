//! Streams a call as server-sent events in the form of one API.

use std::{collections::VecDeque, convert::Infallible};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use callboard_actors::chat::ContentBlock;
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
    mut encoder: E,
) -> Response {
    let mut ahead = Out::new();
    encoder.begin(&mut ahead);
    let reader = if call.is_kept {
        Reader::Reconnects
    } else {
        Reader::Once
    };
    let chunks = Box::new(Chunks {
        call,
        encoder,
        ahead,
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
            self.call.guard.as_ref()?;
            tokio::select! {
                biased;
                step = self.call.next() => match step {
                    Some(step) => self.take(step).await,
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

    async fn take(&mut self, step: Step) {
        match step {
            Step::Text(text) => return self.encoder.text(&text, &mut self.ahead),
            Step::Thinking(text) => return self.encoder.thinking(&text, &mut self.ahead),
            Step::Thoughts(all) => return self.encoder.thoughts(&all, &mut self.ahead),
            Step::Ended(ended) => self.encoder.ended(&ended, &mut self.ahead),
            Step::Failed(failure) => self.encoder.failed(failed(&failure), &mut self.ahead),
        }
        self.call.stays().await;
    }
}
