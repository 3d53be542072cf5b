//! A request body as a list of slices. Messages that the conversation already holds as bytes are
//! sent from where they lie and never joined into one buffer.

use bytes::{BufMut, Bytes, BytesMut};

/// Writes JSON between slices. New text gathers in one buffer; slices are taken without copying.
pub(super) struct BodyWriter {
    slices: Vec<Bytes>,
    text: BytesMut,
}

impl BodyWriter {
    pub(super) fn new() -> Self {
        Self {
            slices: Vec::new(),
            text: BytesMut::with_capacity(1024),
        }
    }

    /// Writes text that is already JSON.
    pub(super) fn raw(&mut self, json: &str) -> &mut Self {
        self.text.extend_from_slice(json.as_bytes());
        self
    }

    /// Serializes a value, for example a string, as JSON.
    pub(super) fn json<T: serde::Serialize + ?Sized>(&mut self, value: &T) -> &mut Self {
        // Serializing plain types to memory cannot fail.
        let _ = serde_json::to_writer((&mut self.text).writer(), value);
        self
    }

    /// Appends shared bytes without copying them.
    pub(super) fn slice(&mut self, bytes: Bytes) -> &mut Self {
        self.seal();
        self.slices.push(bytes);
        self
    }

    fn seal(&mut self) {
        if *self.text == *b"," {
            // The common separators are `'static`: they need no reference count.
            self.text.clear();
            self.slices.push(Bytes::from_static(b","));
        } else if !self.text.is_empty() {
            self.slices.push(self.text.split().freeze());
        }
    }

    pub(super) fn finish(mut self) -> Body {
        self.seal();
        let left = self.slices.iter().map(|slice| slice.len() as u64).sum();
        Body {
            slices: self.slices.into_iter(),
            left,
        }
    }
}

/// The slices of a finished body. The exact size is known, so requests carry a Content-Length.
#[derive(Clone)]
pub(super) struct Body {
    slices: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl Body {
    /// Joins the slices, for tests and errors.
    pub(super) fn joined(self) -> Bytes {
        let mut whole = BytesMut::new();
        self.slices
            .for_each(|slice| whole.extend_from_slice(&slice));
        whole.freeze()
    }

    /// Bytes that remain to be sent.
    pub(super) fn len(&self) -> u64 {
        self.left
    }

    /// Returns the remaining slices.
    pub(super) fn into_slices(self) -> std::vec::IntoIter<Bytes> {
        self.slices
    }

    #[cfg(test)]
    pub(super) fn slices(&self) -> &[Bytes] {
        self.slices.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_sent_as_it_lies_in_memory() {
        let message = Bytes::from(vec![b'x'; 100]);
        let mut body = BodyWriter::new();

        body.raw("{\"m\":")
            .slice(message.clone())
            .raw(",")
            .json("a\"b")
            .raw("}");
        let body = body.finish();

        assert_eq!(body.len(), 5 + 100 + 1 + 6 + 1);
        assert_eq!(body.slices()[1].as_ptr(), message.as_ptr());
        assert!(body.joined().ends_with(b"x,\"a\\\"b\"}"));
    }
}
