//! A request body in a few pieces. Short texts, such as the messages of a conversation, are joined:
//! sending many small slices costs more than copying them. Long ones are sent from where they lie.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock},
    thread::available_parallelism,
};

use bytes::{BufMut, Bytes, BytesMut};
use callboard_actors::{chat::ModelRequest, ports::ProviderError};
use tokio::sync::Semaphore;

/// Bytes of a piece, and of the shortest slice that is not copied. An HTTP/2 frame carries as many:
/// it is the smallest limit that a server can announce.
pub(super) const PIECE_BYTES: usize = 16 * 1024;

/// Bytes of a body around its system prompt and its messages, roughly.
const FRAME_BYTES: usize = 1024;

/// The length of a request's body, roughly.
pub(super) fn expected_bytes(request: &ModelRequest) -> usize {
    request.system.as_deref().map_or(0, str::len) + request.messages.wire_bytes() + FRAME_BYTES
}

/// Bytes of a request up to which its body is written on a thread of the runtime: less than a
/// millisecond.
const WRITTEN_IN_PLACE: usize = 256 * 1024;

/// Large bodies that are written at the same time. More would only take processor time from the threads
/// that serve requests.
static LARGE_WRITES: LazyLock<Arc<Semaphore>> = LazyLock::new(|| {
    let processors = available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new(processors))
});

/// Writes the body of a request: of a short conversation here, of a long one on a blocking thread. A
/// thread of the runtime that converts a long conversation serves no other tenant meanwhile.
///
/// # Errors
/// `NotStarted` when writing it panics.
///
/// # Cancel safety
/// Dropping the future sends nothing; a body that is being written is written and dropped.
pub(super) async fn written<P: Clone + Send + 'static, T: Send + 'static>(
    provider: &P,
    request: ModelRequest,
    write: fn(&P, &ModelRequest) -> T,
) -> Result<(T, ModelRequest), ProviderError> {
    if expected_bytes(&request) <= WRITTEN_IN_PLACE {
        return Ok((write(provider, &request), request));
    }
    let provider = provider.clone();
    // Boxed, so that a call of a short conversation needs no room for it.
    Box::pin(async move {
        let place = LARGE_WRITES.clone().acquire_owned().await.ok();
        let writing = tokio::task::spawn_blocking(move || {
            let _held = place;
            (write(&provider, &request), request)
        });
        writing.await.map_err(|error| {
            tracing::error!(%error, "the body of a request was not written");
            ProviderError::NotStarted {
                message: "the request could not be written".into(),
            }
        })
    })
    .await
}

/// Writes JSON and slices into pieces.
pub(super) struct BodyWriter {
    pieces: VecDeque<Bytes>,
    text: BytesMut,
}

impl BodyWriter {
    /// `bytes` is the expected length of the body.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            text: BytesMut::with_capacity(bytes.min(PIECE_BYTES)),
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

    /// Appends shared bytes. Long ones are not copied.
    pub(super) fn slice(&mut self, bytes: &Bytes) -> &mut Self {
        if bytes.len() < PIECE_BYTES {
            if self.text.len() + bytes.len() > PIECE_BYTES {
                self.seal();
                self.text = BytesMut::with_capacity(PIECE_BYTES);
            }
            self.text.extend_from_slice(bytes);
        } else {
            self.seal();
            self.pieces.push_back(bytes.clone());
        }
        self
    }

    fn seal(&mut self) {
        if !self.text.is_empty() {
            self.pieces.push_back(self.text.split().freeze());
        }
    }

    pub(super) fn finish(mut self) -> Body {
        self.seal();
        let len = self.pieces.iter().map(|piece| piece.len() as u64).sum();
        Body {
            pieces: self.pieces,
            len,
        }
    }
}

/// The pieces of a finished body. The exact size is known, so requests carry a Content-Length.
#[derive(Clone)]
pub(super) struct Body {
    pieces: VecDeque<Bytes>,
    len: u64,
}

impl Body {
    /// Joins the pieces, for tests and errors.
    pub(super) fn joined(self) -> Bytes {
        let mut whole = BytesMut::new();
        self.pieces
            .iter()
            .for_each(|piece| whole.extend_from_slice(piece));
        whole.freeze()
    }

    /// Bytes of the body.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the pieces, none of them empty.
    pub(super) fn into_pieces(self) -> VecDeque<Bytes> {
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use callboard_actors::chat::{Message, MessageList, ToolChoice};

    use super::*;

    #[tokio::test]
    async fn a_long_conversation_is_written_off_the_threads_of_the_runtime() {
        let request = |length| ModelRequest {
            model: "m".into(),
            system: None,
            messages: MessageList::from_iter([Message::user("x".repeat(length))]),
            tools: [].into(),
            tool_choice: ToolChoice::Auto,
            max_tokens: 100,
            stop: [].into(),
            effort: None,
            thinking: None,
            temperature: None,
            output_schema: None,
            cache: false,
        };
        let write = |(): &(), _: &ModelRequest| std::thread::current().id();
        let here = std::thread::current().id();

        let short = written(&(), request(1000), write).await.unwrap().0;
        let long = written(&(), request(WRITTEN_IN_PLACE), write)
            .await
            .unwrap()
            .0;

        assert_eq!(short, here);
        assert_ne!(long, here);
    }

    #[test]
    fn short_slices_are_joined_and_a_long_one_is_sent_as_it_lies_in_memory() {
        let long = Bytes::from(vec![b'x'; PIECE_BYTES]);
        let short = Bytes::from(vec![b'y'; PIECE_BYTES / 2 - 10]);
        let mut body = BodyWriter::new(0);

        body.raw("{\"m\":")
            .slice(&short)
            .slice(&short)
            .slice(&short)
            .slice(&long)
            .raw(",")
            .json("a\"b")
            .raw("}");
        let body = body.finish();

        let pieces = body.clone().into_pieces();
        let sizes: Vec<usize> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(
            sizes,
            [5 + 2 * short.len(), short.len(), long.len(), 1 + 6 + 1]
        );
        assert_eq!(pieces[2].as_ptr(), long.as_ptr());
        assert_eq!(body.len(), sizes.iter().sum::<usize>() as u64);
        assert!(body.joined().ends_with(b"x,\"a\\\"b\"}"));
    }
}
