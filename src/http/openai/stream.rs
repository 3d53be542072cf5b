//! Streams a round as chunks of a chat completion.

use std::{collections::VecDeque, convert::Infallible};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    host::Reply,
    stream::{EventKind, StreamEvent},
};
use futures_util::stream;
use serde::Serialize;

use super::{
    DisconnectGuard, failed, failure_of, finish_reason, in_their_form,
    wire::{Chunk, ChunkChoice, Delta},
};
use crate::http::{
    quiet::{Quiet, QuietEnd},
    shared::{Shared, Watching},
    sse,
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

struct Chunks {
    streamed: Streamed,
    reply: Reply,
    /// `None` once the end of the round was sent.
    guard: Option<DisconnectGuard>,
    ahead: VecDeque<Bytes>,
    /// Text already sent of the message that the model is writing.
    sent: String,
    /// Whether an earlier message of the round was sent; a newline separates the two.
    has_more: bool,
    quiet: Quiet,
    _watching: Watching,
}

impl Streamed {
    /// The response that streams the round's chunks.
    pub(super) fn respond(
        self,
        app: &Shared,
        reply: Reply,
        guard: DisconnectGuard,
        watching: Watching,
    ) -> Response {
        let first = self.chunk(
            Delta {
                role: Some("assistant"),
                content: Some(""),
            },
            None,
        );
        let chunks = Box::new(Chunks {
            streamed: self,
            reply,
            guard: Some(guard),
            ahead: VecDeque::from([first]),
            sent: String::new(),
            has_more: false,
            quiet: Quiet::new(app),
            _watching: watching,
        });
        (
            sse::headers(),
            Body::from_stream(stream::unfold(chunks, Chunks::next)),
        )
            .into_response()
    }

    fn chunk(&self, delta: Delta<'_>, finish_reason: Option<&'static str>) -> Bytes {
        self.write(
            vec![ChunkChoice {
                index: 0,
                delta,
                finish_reason,
                logprobs: None,
            }],
            None,
        )
    }

    fn write(
        &self,
        choices: Vec<ChunkChoice<'_>>,
        usage: Option<callboard_actors::chat::Usage>,
    ) -> Bytes {
        let id = self.id.as_str();
        let created = self.created;
        let model = self.model.as_str();
        let chunk = Chunk {
            id,
            object: "chat.completion.chunk",
            created,
            model,
            choices,
            usage: usage.map(Into::into),
        };
        data(&chunk)
    }
}

fn data(value: &impl Serialize) -> Bytes {
    let mut out = b"data: ".to_vec();
    let _ = serde_json::to_writer(&mut out, value); // Writing to memory cannot fail.
    out.extend_from_slice(b"\n\n");
    out.into()
}

impl Chunks {
    async fn next(mut self: Box<Self>) -> Option<(Result<Bytes, Infallible>, Box<Self>)> {
        loop {
            if let Some(bytes) = self.ahead.pop_front() {
                return Some((Ok(bytes), self));
            }
            self.guard.as_ref()?;
            tokio::select! {
                biased;
                event = self.reply.next() => match event {
                    Some(event) => self.take(&event).await,
                    None => return None,
                },
                end = self.quiet.wait() => match end {
                    QuietEnd::Closing => return None,
                    QuietEnd::Comment => self.ahead.push_back(Bytes::from_static(sse::COMMENT)),
                },
            }
            self.quiet.sent();
        }
    }

    async fn take(&mut self, event: &StreamEvent) {
        match &event.kind {
            EventKind::TextDelta { text } => self.send_text(text),
            // Deltas are dropped for a client that reads slowly, messages are not: send what this
            // one lacks.
            EventKind::Message { message, .. } => {
                let text = message.text();
                if let Some(missing) = text
                    .strip_prefix(self.sent.as_str())
                    .filter(|missing| !missing.is_empty())
                {
                    self.send_text(missing);
                }
                self.has_more |= !self.sent.is_empty();
                self.sent.clear();
            }
            EventKind::RoundFinished { end } => {
                match failure_of(end) {
                    Some(failure) => self.fail(failure),
                    None => {
                        self.ahead.push_back(
                            self.streamed
                                .chunk(Delta::default(), Some(finish_reason(end.stop_reason))),
                        );
                        if self.streamed.include_usage {
                            self.ahead
                                .push_back(self.streamed.write(Vec::new(), Some(end.usage)));
                        }
                        self.ahead.push_back(Bytes::from_static(DONE.as_bytes()));
                    }
                }
                self.over().await;
            }
            EventKind::Error { failure } => {
                self.fail(failure);
                self.over().await;
            }
            _ => {}
        }
    }

    fn send_text(&mut self, text: &str) {
        if self.sent.is_empty() && self.has_more {
            self.ahead.push_back(self.streamed.chunk(
                Delta {
                    role: None,
                    content: Some("\n"),
                },
                None,
            ));
        }
        self.sent.push_str(text);
        self.ahead.push_back(self.streamed.chunk(
            Delta {
                role: None,
                content: Some(text),
            },
            None,
        ));
    }

    fn fail(&mut self, failure: &callboard_actors::stream::Failure) {
        self.ahead.push_back(data(&in_their_form(failed(failure))));
    }

    async fn over(&mut self) {
        if let Some(guard) = self.guard.take() {
            guard.stays().await;
        }
    }
}
