//! Server-sent events of a round or a conversation. A slow client does not block the conversation:
//! it costs one frame, the socket's buffer and a cursor.

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

/// Reconnection delay for clients, in milliseconds. Sent first, so that proxies see a byte at once.
const RETRY: &str = "retry: 1000\n\n";

/// What a stream follows.
pub(super) enum Source {
    /// A round, until it ends.
    Round(Reply),
    /// A conversation, until the client disconnects.
    Conversation(Events),
}

impl Source {
    /// The next event. Cancel safe.
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
                // `biased`: pending events are sent before the stream closes. A client that
                // reconnects continues after them.
                () = self.closing.cancelled() => return None,
                () = tokio::time::sleep(self.comment_every) => Bytes::from_static(b":\n\n"),
            },
        };
        Some((Ok(bytes), self))
    }
}

/// The streaming response with the events of `source`. `watching` keeps the tenant's stream count
/// until the stream ends.
pub(super) fn respond(app: &Shared, source: Source, watching: Watching) -> Response {
    let watcher = Watcher {
        source,
        ahead: Some(Bytes::from_static(RETRY.as_bytes())),
        closing: app.closing.clone(),
        comment_every: app.config.bounds.comment_every,
        _watching: watching,
    };
    (
        headers(),
        Body::from_stream(stream::unfold(watcher, Watcher::next)),
    )
        .into_response()
}

/// Headers of every event stream: no caching, and no buffering by nginx-like proxies.
pub(super) fn headers() -> HeaderMap {
    HeaderMap::from_iter([
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/event-stream"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        ),
    ])
}

/// One event on the wire. JSON escapes line breaks, so an event is always one `data` line.
fn frame(event: &StreamEvent) -> Bytes {
    let data = event.to_json();
    // The ids before the type contain no quotes, so the first `"type"` is the event's.
    let kind = data
        .split_once("\"type\":\"")
        .and_then(|(_, rest)| rest.split('"').next())
        .unwrap_or("message");
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
    fn an_event_is_one_line_of_data_after_its_id_and_type() {
        let kind = EventKind::TextDelta {
            text: "a\nb\r\"type\":\"x\"".into(),
        };
        let event = StreamEvent {
            id: EventId::default(),
            conversation_id: ConversationId::new("type").unwrap(),
            round_id: None,
            kind,
        };

        let text = String::from_utf8(frame(&event).to_vec()).unwrap();

        let expected = r#"{"id":"0.0.0","conversation_id":"type","type":"text_delta","text":"a\nb\r\"type\":\"x\""}"#;
        assert_eq!(
            text,
            format!("id: 0.0.0\nevent: text_delta\ndata: {expected}\n\n")
        );
    }
}
