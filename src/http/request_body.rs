//! The body of a request, as its connection sees it taken. What no route reads of it is read and
//! dropped.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Bytes, HttpBody},
    http::{HeaderMap, header},
};
use futures_util::future::poll_fn;
use http_body::{Frame, SizeHint};
use tokio::{runtime::Handle, time::timeout};

use crate::frames::Pace;

/// Bytes of a body that are read and dropped once its request is answered; beyond them the
/// connection closes.
const DRAINED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The longest time for that.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// A body that says to the pace of its connection how much of it was taken.
///
/// A request can be answered before its body has come, for instance if its key is unknown. A
/// connection that closes while its client writes is reset, and the client may lose the answer; and
/// a client that is not asked to close sends its next request into a closed connection. So what is
/// left when the body is dropped is read for a while.
pub(super) struct RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
{
    /// Until its end.
    body: Option<B>,
    pace: Pace,
    /// Whether the client sends it without being asked.
    is_sent: bool,
}

impl<B> RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
{
    /// `headers` are those of its request.
    pub(super) fn new(body: B, pace: Pace, headers: &HeaderMap) -> Self {
        Self {
            body: (!body.is_end_stream()).then_some(body),
            pace,
            // A client that waits for `100 Continue` has sent nothing and must not be asked for more.
            is_sent: !headers.contains_key(header::EXPECT),
        }
    }
}

impl<B> HttpBody for RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => took(&self.pace, frame),
            Some(Err(_)) | None => self.body = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.as_ref().map(B::size_hint);
        hint.unwrap_or_else(|| SizeHint::with_exact(0))
    }
}

impl<B> Drop for RequestBody<B>
where
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
{
    fn drop(&mut self) {
        let rest = self.body.take().filter(|body| !body.is_end_stream());
        if let Some(body) = rest.filter(|_| self.is_sent)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(timeout(DRAIN_WITHIN, drain(body, self.pace.clone())));
        }
    }
}

/// Reads and drops a body.
async fn drain<B: HttpBody<Data = Bytes> + Unpin>(mut body: B, pace: Pace) {
    let mut left = DRAINED_BYTES_MAX;
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        took(&pace, &frame);
        let Some(after) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
            return;
        };
        left = after;
    }
}

fn took(pace: &Pace, frame: &Frame<Bytes>) {
    if let Some(data) = frame.data_ref() {
        pace.took(data.len());
    }
}
