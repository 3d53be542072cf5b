//! The server-sent events of a round, read from a body.

use axum::body::{Body, BodyDataStream};
use bytes::BytesMut;
use futures_util::StreamExt as _;
use memchr::memmem;
use serde_json::Value;

/// Bytes of one event: the end of a round repeats its texts.
const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The events of a body.
pub(super) struct Events {
    chunks: BodyDataStream,
    read: BytesMut,
}

impl Events {
    pub(super) fn new(body: Body) -> Self {
        Self {
            chunks: body.into_data_stream(),
            read: BytesMut::new(),
        }
    }

    /// The next event; `None` at the end of the body. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(end) = memmem::find(&self.read, b"\n\n") {
                let frame = self.read.split_to(end + 2);
                if let Some(event) = data(&frame) {
                    return Some(event);
                }
            }
            match self.chunks.next().await {
                Some(Ok(chunk)) if self.read.len() + chunk.len() <= EVENT_BYTES_MAX => {
                    self.read.extend_from_slice(&chunk);
                }
                _ => return None,
            }
        }
    }
}

/// The data of a frame; `None` of a comment. This host writes an event's data in one line.
fn data(frame: &[u8]) -> Option<Value> {
    frame
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"data: "))
        .and_then(|data| serde_json::from_slice(data).ok())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn events_are_read_however_they_are_cut() {
        let text = "retry: 1000\n\nid: 1.2.0\nevent: a\ndata: {\"n\":1}\n\n:\n\nevent: b\ndata: {\"n\":2}\n\n";
        for size in [1, 7, text.len()] {
            let chunks: Vec<_> = text
                .as_bytes()
                .chunks(size)
                .map(|chunk| Ok::<_, Infallible>(Bytes::copy_from_slice(chunk)))
                .collect();
            let mut events = Events::new(Body::from_stream(futures_util::stream::iter(chunks)));

            assert_eq!(events.next().await, Some(json!({"n": 1})), "{size}");
            assert_eq!(events.next().await, Some(json!({"n": 2})), "{size}");
            assert_eq!(events.next().await, None, "{size}");
        }
    }
}
