//! An answer that takes long begins before it is known: proxies and clients take a connection on
//! which nothing comes for dead.

use std::{convert::Infallible, future::Future, pin::Pin, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::header,
    response::{IntoResponse as _, Response},
};
use futures_util::{StreamExt as _, stream};
use tokio::time::sleep;

use crate::http::{
    shared::Shared,
    sse::{self, COMMENT},
};

/// How long an answer may take before its stream begins.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Bytes of an answer that is not a stream.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The answer; if it takes longer than a moment, an event stream that ends with it. Dropping it drops
/// `answering`.
pub(super) async fn in_time(
    app: &Shared,
    answering: impl Future<Output = Response> + Send + 'static,
) -> Response {
    let mut answering = Box::pin(answering);
    tokio::select! {
        biased;
        response = &mut answering => response,
        () = sleep(AT_ONCE) => begun(answering, app.config.bounds.comment_every),
    }
}

/// A stream that has begun without its answer.
fn begun(answering: Pin<Box<dyn Future<Output = Response> + Send>>, every: Duration) -> Response {
    let long = Long::Waits { answering, every };
    let chunks = stream::unfold(long, Long::next);
    (sse::headers(), Body::from_stream(chunks)).into_response()
}

/// A chunk of an answer.
type Chunk = Result<Bytes, Infallible>;

enum Long {
    Waits {
        answering: Pin<Box<dyn Future<Output = Response> + Send>>,
        every: Duration,
    },
    Comes(BodyDataStream),
    Ended,
}

impl Long {
    async fn next(self) -> Option<(Chunk, Self)> {
        match self {
            Self::Waits {
                mut answering,
                every,
            } => tokio::select! {
                biased;
                response = &mut answering => Self::of(response).await,
                () = sleep(every) => {
                    let chunk = Bytes::from_static(COMMENT);
                    Some((Ok(chunk), Self::Waits { answering, every }))
                }
            },
            Self::Comes(mut chunks) => match chunks.next().await {
                Some(Ok(chunk)) => Some((Ok(chunk), Self::Comes(chunks))),
                _ => None,
            },
            Self::Ended => None,
        }
    }

    /// Goes on with the answer: its events, or its document as the only event.
    async fn of(response: Response) -> Option<(Chunk, Self)> {
        let media = response.headers().get(header::CONTENT_TYPE);
        let is_json = media.is_some_and(|media| media.as_bytes().starts_with(b"application/json"));
        if !is_json {
            let chunks = response.into_body().into_data_stream();
            // An empty line between what was sent and the first event changes nothing.
            return Some((Ok(Bytes::from_static(b"\n")), Self::Comes(chunks)));
        }
        let body = axum::body::to_bytes(response.into_body(), ANSWER_BYTES_MAX).await;
        let mut event = b"event: message\ndata: ".to_vec();
        event.extend_from_slice(&body.ok()?); // JSON on the wire has no line breaks.
        event.extend_from_slice(b"\n\n");
        Some((Ok(event.into()), Self::Ended))
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_answer_is_a_stream_with_comments_and_ends_with_its_document() {
        let (answer, answered) = oneshot::channel::<Response>();
        let answering = Box::pin(async { answered.await.unwrap() });
        let mut chunks = begun(answering, Duration::from_secs(15))
            .into_body()
            .into_data_stream();

        let first = chunks.next().await.unwrap().unwrap();
        let second = chunks.next().await.unwrap().unwrap();
        let json = [(header::CONTENT_TYPE, "application/json")];
        answer.send((json, "{\"id\":1}").into_response()).unwrap();
        let last = chunks.next().await.unwrap().unwrap();

        assert_eq!((&*first, &*second), (COMMENT, COMMENT));
        assert_eq!(last, "event: message\ndata: {\"id\":1}\n\n");
        assert!(chunks.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_answer_that_is_a_stream_itself_is_passed_on() {
        let (answer, answered) = oneshot::channel::<Response>();
        let answering = Box::pin(async { answered.await.unwrap() });
        let mut chunks = begun(answering, Duration::from_secs(15))
            .into_body()
            .into_data_stream();
        let events = [(header::CONTENT_TYPE, "text/event-stream")];
        answer
            .send((events, "data: 1\n\n").into_response())
            .unwrap();

        let mut all = Vec::new();
        while let Some(chunk) = chunks.next().await {
            all.extend_from_slice(&chunk.unwrap());
        }

        assert_eq!(String::from_utf8(all).unwrap(), "\ndata: 1\n\n");
    }
}
