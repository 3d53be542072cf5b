//! Server-sent events of a round or a conversation. A slow client does not block the conversation:
//! it costs one frame, the socket's buffer and a cursor.

use std::{convert::Infallible, io::Write as _, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::FromRequestParts,
    http::{HeaderMap, HeaderValue, header, request::Parts},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    host::{Events, Reply},
    stream::{EventKind, StreamEvent},
};
use futures_util::stream;

use super::{
    auth::CallerKey,
    error::Problem,
    long_event::{EventWriter, Reader},
    quiet::{Quiet, QuietEnd},
    shared::{App, Shared, Watching},
};

/// Reconnection delay for clients, in milliseconds. Sent first, so that proxies see a byte at once.
const RETRY: &str = "retry: 1000\n\n";

/// A line that clients ignore. It shows proxies that a silent stream is alive.
pub(super) const COMMENT: &[u8] = b":\n\n";

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

    /// The next event that a viewer sees. Cancel safe.
    async fn shown(&mut self, skips_text: bool) -> Option<Arc<StreamEvent>> {
        loop {
            let event = self.next().await?;
            match event.kind {
                EventKind::TextDelta { .. } | EventKind::ThinkingDelta { .. } if skips_text => {}
                _ => return Some(event),
            }
        }
    }
}

/// Marks a request of this host's own that reads no text while it is being written: a round's last
/// event has all of it.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(feature = "mcp-server"),
    allow(dead_code, reason = "made for MCP clients")
)]
pub(super) struct WithoutText;

/// Marks a request that this host makes to itself, and whose answer it reads.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(
    not(feature = "mcp-server"),
    allow(dead_code, reason = "made for MCP clients")
)]
pub(super) struct ReadHere;

/// Who reads a stream, and what of it.
pub(super) struct Viewer {
    key: CallerKey,
    skips_text: bool,
    is_here: bool,
}

impl From<CallerKey> for Viewer {
    fn from(key: CallerKey) -> Self {
        Self {
            key,
            skips_text: false,
            is_here: false,
        }
    }
}

impl FromRequestParts<App> for Viewer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        Ok(Self {
            key: CallerKey::from_request_parts(parts, app).await?,
            skips_text: parts.extensions.get::<WithoutText>().is_some(),
            is_here: parts.extensions.get::<ReadHere>().is_some(),
        })
    }
}

struct Watcher {
    source: Source,
    ahead: Option<Bytes>,
    writer: EventWriter,
    quiet: Quiet,
    viewer: Viewer,
    _watching: Watching,
}

impl Watcher {
    /// The next piece of the body. The watcher is boxed because the stream moves it with each.
    async fn next(mut self: Box<Self>) -> Option<(Result<Bytes, Infallible>, Box<Self>)> {
        let bytes = match self.writer.piece().await {
            Some(piece) => piece.ok()?,
            None => self.begin().await?,
        };
        // A key that leaked is replaced; whoever has it must not read on.
        if !self.viewer.key.is_valid() {
            return None;
        }
        self.quiet.sent();
        Some((Ok(bytes), self))
    }

    /// The next event, or its first piece.
    async fn begin(&mut self) -> Option<Bytes> {
        if let Some(ahead) = self.ahead.take() {
            return Some(ahead);
        }
        let event = tokio::select! {
            biased;
            event = self.source.shown(self.viewer.skips_text) => event?,
            // `biased`: pending events are sent before the stream closes. A client that reconnects
            // continues after them.
            end = self.quiet.wait() => match end {
                QuietEnd::Closing => return None,
                QuietEnd::Comment => return Some(Bytes::from_static(COMMENT)),
            },
            () = self.viewer.key.revoked() => return None,
        };
        let size = FRAME_BYTES + event.kind.size();
        let key = &self.viewer.key;
        self.writer.write(key, size, || frame(&event)).await
    }
}

/// The streaming response with the events of `source`. `watching` keeps the tenant's stream count
/// until the stream ends. The stream ends when the viewer's key is removed.
pub(super) fn respond(
    app: &Shared,
    source: Source,
    watching: Watching,
    viewer: Viewer,
) -> Response {
    let reader = match source {
        _ if viewer.is_here => Reader::Here,
        Source::Round(_) => Reader::Once,
        Source::Conversation(_) => Reader::Reconnects,
    };
    let watcher = Box::new(Watcher {
        source,
        writer: EventWriter::new(app, reader),
        ahead: Some(Bytes::from_static(RETRY.as_bytes())),
        quiet: Quiet::new(app),
        viewer,
        _watching: watching,
    });
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

/// Bytes of a frame around the content of its event, so that a text needs one allocation.
const FRAME_BYTES: usize = 192;

/// One event on the wire. JSON escapes line breaks, so an event is always one `data` line.
fn frame(event: &StreamEvent) -> Bytes {
    let mut out = Vec::with_capacity(FRAME_BYTES + event.kind.size());
    let name = event.kind.name();
    // Writing to memory cannot fail.
    let _ = write!(out, "id: {}\nevent: {name}\ndata: ", event.id);
    event.write_json(&mut out);
    out.extend_from_slice(b"\n\n");
    out.into()
}

#[cfg(test)]
mod tests {
    use callboard_actors::{
        ids::{ConversationId, EventId, TenantId},
        testing::{Reply as Said, ScriptedModel},
    };

    use super::*;
    use crate::{
        Host,
        http::{HttpConfig, Keys, answer_room::ConnectionRoom, keys::KeyHash},
    };

    /// The names of the events of a round, for a viewer.
    async fn names(skips_text: bool) -> Vec<String> {
        let acme = TenantId::new("acme").unwrap();
        let host = Host::builder()
            .shared_provider(Arc::new(ScriptedModel::always(Said::text("yes, and so"))))
            .build()
            .await
            .unwrap();
        let (keys, key) = (Keys::new(), KeyHash::from_key("fake"));
        keys.put(acme.clone(), key);
        let app = Arc::new(Shared::new(host, HttpConfig::new(keys), Bytes::new()));
        let reply = app.host.tenant(&acme).conversation("c").send("hello");
        let source = Source::Round(reply.await.unwrap());
        let viewer = Viewer {
            key: CallerKey::new(
                &app.config.keys,
                &acme,
                KeyHash::from_key("fake"),
                ConnectionRoom::new(&app.config.bounds),
            ),
            skips_text,
            is_here: false,
        };

        let answer = respond(&app, source, app.watch(&acme).unwrap(), viewer);
        let body = axum::body::to_bytes(answer.into_body(), 100_000).await;
        let body = String::from_utf8(body.unwrap().to_vec()).unwrap();
        let names = body.lines().filter_map(|line| line.strip_prefix("event: "));
        names.map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn a_viewer_without_text_reads_all_events_but_those_of_text_that_is_being_written() {
        let mut all = names(false).await;
        let without = names(true).await;

        assert!(all.contains(&"text_delta".to_owned()), "{all:?}");
        all.retain(|name| name != "text_delta");
        assert_eq!(without, all);
    }

    #[test]
    fn the_name_of_each_event_is_its_type_in_json() {
        let id = ConversationId::new("c").unwrap();
        let kinds = [
            EventKind::RoundStarted {},
            EventKind::TextDelta {
                text: String::new(),
            },
            EventKind::ThinkingDelta {
                text: String::new(),
            },
            EventKind::ToolProgress {
                tool_call_id: String::new(),
                text: String::new(),
            },
            EventKind::Queued { position: 1 },
            EventKind::SkillActivated {
                name: String::new(),
                level: 1,
            },
            EventKind::TurnRestarted {
                epoch: Default::default(),
            },
            EventKind::Context {
                tokens: 0,
                window: 0,
                fraction: 0.0,
            },
            EventKind::Compaction {
                mode: String::new(),
                before_tokens: 0,
                after_tokens: 0,
            },
        ];
        for kind in kinds {
            let name = kind.name();
            let event = StreamEvent {
                id: EventId::default(),
                conversation_id: id.clone(),
                round_id: None,
                kind,
            };
            assert!(
                event.to_json().contains(&format!("\"type\":\"{name}\"")),
                "{name}"
            );
        }
    }

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
