//! Server-sent events of a round or of a conversation. A watcher that does not read is not waited for: it holds what it read ahead, what
//! its socket holds, and a cursor.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    host::{Events, Reply},
    stream::StreamEvent,
};
use futures_util::stream;
use tokio_util::sync::CancellationToken;

use super::shared::{Shared, Watching};

/// How long a client that lost its stream waits before it comes back, in milliseconds. Sent first, so that what is between sees a byte.
const RETRY: &str = "retry: 1000\n\n";

/// What is watched.
pub(super) enum Source {
    /// A round, until it ends.
    Round(Reply),
    /// A conversation, until the client leaves.
    Conversation(Events),
}

impl Source {
    /// The next event; cancel safe.
    async fn next(&mut self) -> Option<Arc<StreamEvent>> {
        match self {
            Self::Round(reply) => reply.next().await,
            Self::Conversation(events) => events.next().await,
        }
    }
}

struct Watcher {
    source: Source,
    ahead: Option<Bytes>,
    closing: CancellationToken,
    comment_every: Duration,
    _watching: Watching,
}

impl Watcher {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let bytes = match self.ahead.take() {
            Some(ahead) => ahead,
            None => tokio::select! {
                biased;
                event = self.source.next() => frame(&*event?),
                // What has happened is told first; who comes back goes on from there.
                () = self.closing.cancelled() => return None,
                () = tokio::time::sleep(self.comment_every) => Bytes::from_static(b":\n\n"),
            },
        };
        Some((Ok(bytes), self))
    }
}

/// Answers with the events of `source`. `first` is sent before them.
pub(super) fn respond(app: &Shared, source: Source, watching: Watching) -> Response {
    let watcher = Watcher {
        source,
        ahead: Some(Bytes::from_static(RETRY.as_bytes())),
        closing: app.closing.clone(),
        comment_every: app.config.bounds.comment_every,
        _watching: watching,
    };
    (headers(), Body::from_stream(stream::unfold(watcher, Watcher::next))).into_response()
}

/// The header fields of every event stream: not to be kept by a cache, nor held back by a proxy.
pub(super) fn headers() -> HeaderMap {
    HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ])
}

/// One event on the wire. JSON has no line break outside of its escapes, so that it is one line of data.
fn frame(event: &StreamEvent) -> Bytes {
    let data = event.to_json();
    // No id before it holds a quote, so that the first `"type"` is the event's own.
    let kind = data.split_once("\"type\":\"").and_then(|(_, rest)| rest.split('"').next()).unwrap_or("message");
    Bytes::from(format!("id: {}\nevent: {kind}\ndata: {data}\n\n", event.id))
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        ids::{ConversationId, EventId},
        stream::EventKind,
    };

    use super::*;

    #[test]
    fn an_event_is_one_line_of_data_under_its_id_and_type() {
        let kind = EventKind::TextDelta { text: "a\nb\r\"type\":\"x\"".into() };
        let event = StreamEvent { id: EventId::default(), conversation_id: ConversationId::new("type").unwrap(), round_id: None, kind };

        let text = String::from_utf8(frame(&event).to_vec()).unwrap();

        let expected = r#"{"id":"0.0.0","conversation_id":"type","type":"text_delta","text":"a\nb\r\"type\":\"x\""}"#;
        assert_eq!(text, format!("id: 0.0.0\nevent: text_delta\ndata: {expected}\n\n"));
    }
}
