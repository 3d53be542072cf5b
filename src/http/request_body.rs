//! The body of a request, as its connection sees it taken.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};

use crate::frames::Pace;

/// A body that says to the pace of its connection how much of it was taken.
pub(super) struct RequestBody<B> {
    body: B,
    pace: Pace,
}

impl<B> RequestBody<B> {
    pub(super) fn new(body: B, pace: Pace) -> Self {
        Self { body, pace }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.pace.took(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
