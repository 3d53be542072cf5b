//! A body that is written while its client reads it. One that its client does not read for too long
//! is dropped: over HTTP/2 nothing else notices, because a client without window stops no
//! connection.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    BoxError, Extension,
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use callboard_actors::{chat::Message, ids::TenantId};
use futures_util::{
    Stream, StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use http_body::Body as _;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use super::{
    answer_room::{AnswerRoom, AnswerRooms, ConnectionRoom},
    body::{WORKED_IN_PLACE_MAX, worked},
    error::Problem,
    shared::App,
};
use crate::fair::{FairPlaces, Owner};

/// Builds the body of the pieces of `source`. It holds `held`, which counts it, until it is sent, or
/// until its client has taken no piece for `pause_max`. Time in which `source` has no piece counts
/// too.
pub(super) fn answer_body<E: Into<BoxError> + 'static, H: Send + 'static>(
    source: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    held: H,
    pause_max: Duration,
) -> Body {
    let slot = Arc::new(Slot {
        held: Mutex::new(Some((source.map_err(Into::into).boxed(), held))),
        taken_at: Mutex::new(Instant::now()),
    });
    let watch = tokio::spawn({
        let slot = slot.clone();
        async move {
            loop {
                let until = *slot.taken_at.lock() + pause_max;
                if until <= Instant::now() {
                    break;
                }
                sleep_until(until).await;
            }
            drop(slot.held.lock().take());
        }
    });
    Body::from_stream(Pieces {
        slot,
        watch: watch.abort_handle(),
    })
}

/// Bytes of a piece of a body that is in memory as a whole. A client that takes one reads.
const PIECE_BYTES: usize = 64 * 1024;

/// Cuts bytes into pieces, so that a connection takes no more than one that its client does not read.
pub(super) fn pieces(bytes: Bytes) -> impl Iterator<Item = Bytes> + Send {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some(piece)
    })
}

/// Answers with a body that is in memory as a whole and counts in `room` until it is sent, or until
/// its client has taken no piece of it for `pause_max`.
///
/// # Errors
/// 429 when it is larger than the room and there is no more.
pub(super) async fn whole_answer(
    media: &'static str,
    bytes: impl Into<Bytes>,
    mut room: AnswerRoom,
    pause_max: Duration,
) -> Result<Response, Problem> {
    let bytes = bytes.into();
    room.resize(bytes.len()).await?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media)),
        (header::CONTENT_LENGTH, HeaderValue::from(bytes.len())),
    ];
    Ok((headers, whole_body(bytes, room, pause_max)).into_response())
}

/// The body of [`whole_answer`], of bytes that `room` counts already.
pub(super) fn whole_body(bytes: Bytes, room: AnswerRoom, pause_max: Duration) -> Body {
    let pieces = pieces(bytes).map(Ok::<_, Infallible>);
    answer_body(stream::iter(pieces), room, pause_max)
}

/// As [`whole_answer`], of a value as JSON. A long one is encoded on a blocking thread, with a place.
///
/// # Errors
/// Those of [`whole_answer`]; 429 when too many answers of the tenant wait to be built.
pub(super) async fn json_answer(
    app: &App,
    tenant: &TenantId,
    value: impl Serialize + Send + 'static,
    room: AnswerRoom,
) -> Result<Response, Problem> {
    let place = (&app.views, Some(tenant.clone()));
    let (bytes, room) = encoded(place, value, room).await?;
    let pause_max = app.config.bounds.write_pause_max;
    whole_answer("application/json", bytes, room, pause_max).await
}

/// Bytes of an answer that take no room: more than most have.
const FREE_BYTES: usize = 64 * 1024;

/// Bytes of an answer that may wait for its client for ever: less than a connection takes at once.
const UNWATCHED_BYTES: usize = 4 * 1024;

/// How long an answer that is in memory waits for room.
const HELD_WAIT_MAX: Duration = Duration::from_millis(500);

/// The answer of a round to the client that asked for it. `bytes` are those of its texts: a long one
/// takes room until it is read.
///
/// # Errors
/// As [`json_answer`]; 429 without room. The answer of a conversation that is kept can be read again.
pub(super) async fn round_answer(
    app: &App,
    tenant: &TenantId,
    connection: Option<Extension<ConnectionRoom>>,
    bytes: usize,
    value: impl Serialize + Send + 'static,
) -> Result<Response, Problem> {
    if bytes <= FREE_BYTES {
        return Ok(axum::Json(value).into_response());
    }
    let own = || ConnectionRoom::new(&app.config.bounds);
    let connection = connection.map_or_else(own, |Extension(room)| room);
    let taken = app
        .answers
        .take_within(HELD_WAIT_MAX, tenant, &connection, bytes);
    json_answer(app, tenant, value, taken.await?).await
}

/// An answer of any route, counted until it is sent, or until its client has taken nothing of it for
/// the longest pause. One that is written while its client reads it counts by itself.
///
/// # Errors
/// 429 for more than [`FREE_BYTES`] without room.
pub(super) async fn counted(
    (answers, tenant, connection): (&AnswerRooms, &TenantId, &ConnectionRoom),
    pause_max: Duration,
    response: Response,
) -> Result<Response, Problem> {
    let bytes = response.body().size_hint().exact();
    let bytes = bytes.map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if bytes <= UNWATCHED_BYTES {
        return Ok(response);
    }
    let room = if bytes > FREE_BYTES {
        let taken = answers.take_within(HELD_WAIT_MAX, tenant, connection, bytes);
        Some(taken.await?)
    } else {
        None
    };
    let (mut parts, body) = response.into_parts();
    parts
        .headers
        .entry(header::CONTENT_LENGTH)
        .or_insert_with(|| HeaderValue::from(bytes));
    let body = answer_body(in_pieces(body), room, pause_max);
    Ok(Response::from_parts(parts, body))
}

/// The chunks of a body, cut into pieces.
pub(super) fn in_pieces(body: Body) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send {
    body.into_data_stream().flat_map(|chunk| match chunk {
        Ok(chunk) => stream::iter(pieces(chunk).map(Ok)).left_stream(),
        Err(error) => stream::iter([Err(error)]).right_stream(),
    })
}

/// Encodes a value: here, until it has more bytes than a worker thread encodes; then from the start, on
/// a blocking thread that holds `held`. So no size of any value has to be estimated.
async fn encoded<H: Send + 'static>(
    place: (&Arc<FairPlaces>, Owner),
    value: impl Serialize + Send + 'static,
    held: H,
) -> Result<(Vec<u8>, H), Problem> {
    let mut short = Short(Vec::new());
    if serde_json::to_writer(&mut short, &value).is_ok() {
        return Ok((short.0, held));
    }
    // Serializing plain types to memory cannot fail.
    let encode = move || (serde_json::to_vec(&value).unwrap_or_default(), held);
    worked(place, true, encode).await
}

/// Bytes that are refused beyond [`WORKED_IN_PLACE_MAX`].
struct Short(Vec<u8>);

impl io::Write for Short {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > WORKED_IN_PLACE_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Builds an answer, or a part of one, from bytes of messages: of few here, of many on a blocking
/// thread, with a place. `room` counts the answer until the thread ends.
///
/// # Errors
/// 429 when too many answers of the tenant wait to be built.
pub(super) async fn built<T: Send + 'static>(
    app: &App,
    tenant: &TenantId,
    bytes: usize,
    room: AnswerRoom,
    build: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, AnswerRoom), Problem> {
    let place = (&app.views, Some(tenant.clone()));
    worked(place, bytes > WORKED_IN_PLACE_MAX, move || (build(), room)).await
}

/// The bytes of messages.
pub(super) fn bytes_of<'a>(messages: impl IntoIterator<Item = &'a Message>) -> usize {
    let messages = messages.into_iter();
    messages.map(|message| message.wire().len()).sum()
}

/// The pieces of a body.
type Source = BoxStream<'static, Result<Bytes, BoxError>>;

struct Slot<H> {
    /// The pieces that are not sent; `None` once the body was dropped.
    held: Mutex<Option<(Source, H)>>,
    /// When the client last took a piece.
    taken_at: Mutex<Instant>,
}

struct Pieces<H> {
    slot: Arc<Slot<H>>,
    watch: AbortHandle,
}

impl<H> Stream for Pieces<H> {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        *self.slot.taken_at.lock() = Instant::now();
        match &mut *self.slot.held.lock() {
            Some((source, _)) => source.poll_next_unpin(cx),
            None => Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client did not read the answer in time",
            )
            .into()))),
        }
    }
}

impl<H> Drop for Pieces<H> {
    fn drop(&mut self) {
        self.watch.abort();
        drop(self.slot.held.lock().take());
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::{fair::Waiting, http::HttpBounds};

    #[tokio::test]
    async fn a_long_answer_is_encoded_off_the_worker_threads() {
        let places = FairPlaces::new(1, Waiting { all: 8, tenant: 8 });
        let place = || (&places, None);

        let short = encoded(place(), "x".repeat(1000), ()).now_or_never();
        assert_eq!(short.map(|short| short.unwrap().0.len()), Some(1002));

        let taken = places.acquire(None).await.unwrap();
        let mut long = Box::pin(encoded(place(), "x".repeat(WORKED_IN_PLACE_MAX), ()));
        assert!((&mut long).now_or_never().is_none(), "it waits for a place");
        drop(taken);
        assert_eq!(long.await.unwrap().0.len(), WORKED_IN_PLACE_MAX + 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_not_read_gives_its_room_back() {
        let bounds = HttpBounds {
            tenant_answer_bytes_max: 1024,
            ..HttpBounds::default()
        };
        let rooms = AnswerRooms::new(&bounds);
        let connection = ConnectionRoom::new(&bounds);
        let acme = TenantId::new("acme").unwrap();
        let room = rooms.take(&acme, &connection, 1024).await.unwrap();
        let pieces = (0..3).map(|_| Ok::<_, Infallible>(Bytes::from_static(b"x")));
        let pause = Duration::from_secs(60);
        let mut body = answer_body(stream::iter(pieces), room, pause).into_data_stream();

        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            assert_eq!(
                body.next().await.unwrap().unwrap(),
                "x",
                "a slow client goes on"
            );
        }
        assert_eq!(
            rooms.take(&acme, &connection, 1).await.unwrap_err().status,
            429
        );
        tokio::time::sleep(pause).await;

        assert!(rooms.take(&acme, &connection, 1024).await.is_ok());
        assert!(
            body.next().await.unwrap().is_err(),
            "the answer is not cut silently"
        );
    }

    /// An answer in memory of this many bytes, counted in `rooms`, on a connection of its own.
    async fn in_memory(rooms: &AnswerRooms, bytes: usize) -> Result<Response, Problem> {
        let connection = ConnectionRoom::new(&HttpBounds::default());
        let acme = TenantId::new("acme").unwrap();
        let response = "x".repeat(bytes).into_response();
        counted(
            (rooms, &acme, &connection),
            Duration::from_secs(60),
            response,
        )
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_memory_counts_until_it_is_read_or_given_up() {
        let rooms = AnswerRooms::new(&HttpBounds {
            tenant_answer_bytes_max: FREE_BYTES + 1024,
            ..HttpBounds::default()
        });
        let unread = in_memory(&rooms, FREE_BYTES + 1).await.unwrap();
        let refused = in_memory(&rooms, FREE_BYTES + 1).await.unwrap_err();
        assert_eq!((refused.status, &*refused.code), (429, "too_many_bytes"));

        let short = in_memory(&rooms, FREE_BYTES).await.unwrap();
        assert_eq!(short.headers()[header::CONTENT_LENGTH], "65536");
        let shortest = in_memory(&rooms, UNWATCHED_BYTES).await.unwrap();
        tokio::time::sleep(Duration::from_secs(61)).await;
        let read =
            async |response: Response| axum::body::to_bytes(response.into_body(), 1 << 20).await;
        assert!(read(short).await.is_err(), "no client read it for a minute");
        assert_eq!(read(shortest).await.unwrap().len(), UNWATCHED_BYTES);

        let next = in_memory(&rooms, FREE_BYTES + 1).await.unwrap();
        assert_eq!(read(next).await.unwrap().len(), FREE_BYTES + 1);
        drop(unread);
    }
}
