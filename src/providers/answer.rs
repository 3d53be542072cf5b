//! An answer whose body is being read, from either HTTP client.

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

use super::{errors::transport_error, http1};

/// How long the unread rest of an answer may take to arrive before its connection is closed instead
/// of reused.
const REST_WAIT: Duration = Duration::from_millis(500);

/// Bytes of the rest that are read and discarded before the connection is closed instead.
const REST_BYTES_MAX: usize = 64 * 1024;

/// An answer. Dropping it closes its connection.
pub(super) enum Answer {
    /// From the HTTP/1.1 client in `http1`.
    Http1(http1::Answer),
    /// From reqwest, for servers that `http1` does not reach.
    Reqwest(ReqwestAnswer),
}

/// An answer of reqwest, which covers TLS, HTTP/2 and proxies.
pub(super) struct ReqwestAnswer {
    status: u16,
    headers: HeaderMap,
    body: reqwest::Body,
    /// The bytes of the last read, lent to the caller until the next one.
    bytes: Bytes,
}

impl Answer {
    pub(super) fn from_reqwest(response: reqwest::Response) -> Self {
        let (head, body) = http::Response::from(response).into_parts();
        Self::Reqwest(ReqwestAnswer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            bytes: Bytes::new(),
        })
    }

    pub(super) fn status(&self) -> u16 {
        match self {
            Self::Http1(answer) => answer.status,
            Self::Reqwest(answer) => answer.status,
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        match self {
            Self::Http1(answer) => &answer.headers,
            Self::Reqwest(answer) => &answer.headers,
        }
    }

    /// Reads once and returns the bytes of the body that arrived; `None` at its end.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<&[u8]>, ProviderError>> {
        match self {
            Self::Http1(answer) => answer.poll_body(cx),
            Self::Reqwest(answer) => {
                let more = ready!(answer.poll_more(cx))?;
                Poll::Ready(Ok(more.then_some(&*answer.bytes)))
            }
        }
    }

    /// Reads at most `most` bytes. If the body is longer, the rest is dropped with the connection.
    pub(super) async fn read(mut self, most: usize) -> Result<Vec<u8>, ProviderError> {
        let mut whole = Vec::new();
        loop {
            let ended = poll_fn(|cx| {
                Poll::Ready(Ok::<_, ProviderError>(match ready!(self.poll_body(cx))? {
                    Some(bytes) => {
                        let room = most.saturating_sub(whole.len());
                        whole.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
                        if bytes.len() >= room {
                            Some(false)
                        } else {
                            None
                        }
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

    /// Discards the rest of the body. The connection serves another call once the rest has arrived.
    pub(super) fn release(self) {
        match self {
            Self::Http1(answer) => answer.release(),
            Self::Reqwest(answer) => answer.release(),
        }
    }
}

impl ReqwestAnswer {
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ProviderError>> {
        loop {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(frame) => {
                    if let Ok(bytes) = frame.map_err(transport_error)?.into_data() {
                        self.bytes = bytes;
                        return Poll::Ready(Ok(true));
                    }
                }
                None => return Poll::Ready(Ok(false)),
            }
        }
    }

    /// Reads the rest in a separate task. If the rest is too long or too slow, the connection
    /// closes.
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
