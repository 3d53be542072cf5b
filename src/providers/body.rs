//! A request body as a list of slices: what a conversation already holds in bytes is sent as it lies there, never joined
//! (DESIGN §4.4).

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};
use http_body::{Frame, SizeHint};

/// Writes JSON between slices. New text gathers in one buffer; a slice is taken as it is.
pub(super) struct BodyWriter {
    slices: Vec<Bytes>,
    text: BytesMut,
}

impl BodyWriter {
    pub(super) fn new() -> Self {
        Self { slices: Vec::new(), text: BytesMut::with_capacity(1024) }
    }

    /// JSON as it stands.
    pub(super) fn raw(&mut self, json: &str) -> &mut Self {
        self.text.extend_from_slice(json.as_bytes());
        self
    }

    /// A value, a string for instance, written as JSON.
    pub(super) fn json<T: serde::Serialize + ?Sized>(&mut self, value: &T) -> &mut Self {
        // Writing plain types to memory cannot fail.
        let _ = serde_json::to_writer((&mut self.text).writer(), value);
        self
    }

    /// Bytes that somebody else holds too.
    pub(super) fn slice(&mut self, bytes: Bytes) -> &mut Self {
        self.seal();
        self.slices.push(bytes);
        self
    }

    fn seal(&mut self) {
        if *self.text == *b"," {
            // What stands between most slices is nobody's, so nobody counts its owners.
            self.text.clear();
            self.slices.push(Bytes::from_static(b","));
        } else if !self.text.is_empty() {
            self.slices.push(self.text.split().freeze());
        }
    }

    pub(super) fn finish(mut self) -> Body {
        self.seal();
        let left = self.slices.iter().map(|slice| slice.len() as u64).sum();
        Body { slices: self.slices.into_iter(), left }
    }
}

/// The slices on their way out, with an exact size and so a Content-Length.
pub(super) struct Body {
    slices: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl Body {
    /// The bytes in one piece, for people.
    pub(super) fn joined(self) -> Bytes {
        let mut whole = BytesMut::new();
        self.slices.for_each(|slice| whole.extend_from_slice(&slice));
        whole.freeze()
    }

    /// How many bytes are to come.
    pub(super) fn len(&self) -> u64 {
        self.left
    }

    /// The slices that are to come.
    pub(super) fn into_slices(self) -> std::vec::IntoIter<Bytes> {
        self.slices
    }

    #[cfg(test)]
    pub(super) fn slices(&self) -> &[Bytes] {
        self.slices.as_slice()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.slices.next();
        self.left -= next.as_ref().map_or(0, |slice| slice.len() as u64);
        Poll::Ready(next.map(|slice| Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_sent_as_it_lies_in_memory() {
        let message = Bytes::from(vec![b'x'; 100]);
        let mut body = BodyWriter::new();

        body.raw("{\"m\":").slice(message.clone()).raw(",").json("a\"b").raw("}");
        let body = body.finish();

        assert_eq!(http_body::Body::size_hint(&body).exact(), Some(5 + 100 + 1 + 6 + 1));
        assert_eq!(body.slices()[1].as_ptr(), message.as_ptr());
        assert!(body.joined().ends_with(b"x,\"a\\\"b\"}"));
    }
}
