//! An answer on its way, from either client.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use callboard_actors::ports::ProviderError;
use futures_util::FutureExt;
use http_body::Body as _;
use reqwest::header::HeaderMap;
use tokio::time::timeout;

use super::{http::broken, plain};

/// How long the rest of a complete answer is read away, so that the connection can serve the next call.
const REST_WAIT: Duration = Duration::from_millis(500);

/// Bytes of that rest.
const REST_BYTES_MAX: usize = 64 * 1024;

/// An answer. Dropping it closes its connection.
pub(super) enum Answer {
    /// Of the lean client.
    Plain(plain::Answer),
    /// Of the client that can all.
    Full(Full),
}

/// An answer with TLS, HTTP/2 or a proxy behind it.
pub(super) struct Full {
    status: u16,
    headers: HeaderMap,
    body: reqwest::Body,
    /// What came with the last read.
    bytes: Bytes,
}

impl Answer {
    pub(super) fn full(response: reqwest::Response) -> Self {
        let (head, body) = http::Response::from(response).into_parts();
        Self::Full(Full { status: head.status.as_u16(), headers: head.headers, body, bytes: Bytes::new() })
    }

    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Plain(answer) => answer.status,
            Self::Full(answer) => answer.status,
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        match self {
            Self::Plain(answer) => &answer.headers,
            Self::Full(answer) => &answer.headers,
        }
    }

    /// What of the body came with one read; `None` at its end.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<&[u8]>, ProviderError>> {
        match self {
            Self::Plain(answer) => answer.poll_body(cx),
            Self::Full(answer) => {
                let more = ready!(answer.poll_more(cx))?;
                Poll::Ready(Ok(more.then_some(&*answer.bytes)))
            }
        }
    }

    /// Reads at most `most` bytes; more are cut off with the connection.
    pub(super) async fn read(mut self, most: usize) -> Result<Vec<u8>, ProviderError> {
        let mut whole = Vec::new();
        loop {
            let ended = poll_fn(|cx| {
                Poll::Ready(Ok::<_, ProviderError>(match ready!(self.poll_body(cx))? {
                    Some(bytes) => {
                        let room = most.saturating_sub(whole.len());
                        whole.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
                        if bytes.len() >= room { Some(false) } else { None }
                    }
                    None => Some(true),
                }))
            });
            match ended.await? {
                None => {}
                Some(whole_read) => {
                    if whole_read {
                        self.release();
                    }
                    return Ok(whole);
                }
            }
        }
    }

    /// Nobody wants the rest: the connection may serve another call once it has come.
    pub(super) fn release(self) {
        match self {
            Self::Plain(answer) => answer.release(),
            Self::Full(answer) => answer.release(),
        }
    }
}

impl Full {
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ProviderError>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(frame) => {
                    if let Ok(bytes) = frame.map_err(broken)?.into_data() {
                        self.bytes = bytes;
                        return Poll::Ready(Ok(true));
                    }
                }
                None => return Poll::Ready(Ok(false)),
            }
        }
    }

    /// Reads the end of a complete answer away, beside the caller; a connection that is dropped before is not used again.
    fn release(mut self) {
        match poll_fn(|cx| self.poll_more(cx)).now_or_never() {
            Some(Ok(false) | Err(_)) => {}
            Some(Ok(true)) | None => {
                tokio::spawn(timeout(REST_WAIT, async move {
                    let mut bytes = 0;
                    while let Ok(true) = poll_fn(|cx| self.poll_more(cx)).await {
                        bytes += self.bytes.len();
                        if bytes > REST_BYTES_MAX {
                            break;
                        }
                    }
                }));
            }
        }
    }
}
