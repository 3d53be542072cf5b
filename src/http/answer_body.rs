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

/// What counts an answer.
pub(super) trait Counts: Send + 'static {
    /// Takes `bytes` out of the count: they are given to a connection, which keeps them until its
    /// client reads. They count by themselves from then on.
    fn part(&mut self, bytes: usize) -> Option<AnswerRoom>;
}

impl Counts for AnswerRoom {
    fn part(&mut self, bytes: usize) -> Option<AnswerRoom> {
        Some(self.split(bytes))
    }
}

/// Builds a body of `source`, in pieces. `counted` counts it until it is sent, or until its client
/// has taken no piece for `pause_max`. Time in which `source` has no piece counts too.
pub(super) fn answer_body<E: Into<BoxError> + 'static>(
    source: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    counted: impl Counts,
    pause_max: Duration,
) -> Body {
    let slot = Arc::new(Slot {
        held: Mutex::new(Some(Held {
            source: source.map_err(Into::into).boxed(),
            chunk: Bytes::new(),
            is_cut: false,
            counted,
        })),
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

/// Bytes of a piece: a connection takes no more that its client does not read.
const PIECE_BYTES: usize = 64 * 1024;

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
    let whole = std::future::ready(Ok::<_, Infallible>(bytes));
    answer_body(stream::once(whole), room, pause_max)
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

/// Bytes of a short answer, which has a room of its own: more than most have.
pub(super) const SHORT_BYTES: usize = 64 * 1024;

/// Bytes of an answer that takes no room and may wait for its client for ever: less than a
/// connection takes at once.
pub(super) const UNWATCHED_BYTES: usize = 4 * 1024;

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
    if bytes <= SHORT_BYTES {
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
/// 429 without room.
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
    let room = if bytes > SHORT_BYTES {
        let taken = answers.take_within(HELD_WAIT_MAX, tenant, connection, bytes);
        taken.await?
    } else {
        let taken = answers.take_short(HELD_WAIT_MAX, tenant, connection, bytes);
        taken.await?
    };
    let (mut parts, body) = response.into_parts();
    parts
        .headers
        .entry(header::CONTENT_LENGTH)
        .or_insert_with(|| HeaderValue::from(bytes));
    let body = answer_body(body.into_data_stream(), room, pause_max);
    Ok(Response::from_parts(parts, body))
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

struct Slot<C> {
    /// What is not sent; `None` once the body was dropped.
    held: Mutex<Option<Held<C>>>,
    /// When the client last took a piece.
    taken_at: Mutex<Instant>,
}

struct Held<C> {
    source: BoxStream<'static, Result<Bytes, BoxError>>,
    /// What is left of the chunk that `source` gave last.
    chunk: Bytes,
    /// Whether that chunk is longer than a piece.
    is_cut: bool,
    counted: C,
}

impl<C: Counts> Held<C> {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        while self.chunk.is_empty() {
            match std::task::ready!(self.source.poll_next_unpin(cx)) {
                Some(Ok(chunk)) => {
                    self.is_cut = chunk.len() > PIECE_BYTES;
                    self.chunk = chunk;
                }
                end => return Poll::Ready(end),
            }
        }
        let bytes = self.chunk.split_to(self.chunk.len().min(PIECE_BYTES));
        let piece = Piece {
            _counted: self.counted.part(bytes.len()),
            // A slice would keep the whole chunk in memory.
            bytes: match self.is_cut {
                true => Bytes::copy_from_slice(&bytes),
                false => bytes,
            },
        };
        Poll::Ready(Some(Ok(Bytes::from_owner(piece))))
    }
}

/// Bytes that a connection has. They count until it has sent them.
struct Piece {
    bytes: Bytes,
    _counted: Option<AnswerRoom>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct Pieces<C> {
    slot: Arc<Slot<C>>,
    watch: AbortHandle,
}

impl<C: Counts> Stream for Pieces<C> {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        *self.slot.taken_at.lock() = Instant::now();
        match &mut *self.slot.held.lock() {
            Some(held) => held.poll_piece(cx),
            None => Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client did not read the answer in time",
            )
            .into()))),
        }
    }
}

impl<C> Drop for Pieces<C> {
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
            tenant_answer_bytes_max: 3 * 1024,
            ..HttpBounds::default()
        };
        let rooms = AnswerRooms::new(&bounds);
        let connection = ConnectionRoom::new(&bounds);
        let acme = TenantId::new("acme").unwrap();
        let take = async |units: usize| rooms.take(&acme, &connection, units * 1024).await;
        let room = take(3).await.unwrap();
        let pieces = (0..3).map(|_| Ok::<_, Infallible>(Bytes::from("x".repeat(1024))));
        let pause = Duration::from_secs(60);
        let mut body = answer_body(stream::iter(pieces), room, pause).into_data_stream();

        let mut given = None;
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            let piece = body.next().await.unwrap();
            given = Some(piece.expect("a slow client goes on"));
        }
        assert!(take(2).await.is_ok(), "what is taken counts as short");
        assert_eq!(take(3).await.unwrap_err().status, 429);
        tokio::time::sleep(pause).await;

        assert!(take(3).await.is_ok());
        let short = async || rooms.take_short(pause, &acme, &connection, 3 * 1024).await;
        let held = take(3).await.unwrap();
        assert!(short().await.is_err(), "the connection still has a piece");
        drop(given);
        assert!(short().await.is_ok());
        drop(held);
        assert!(
            body.next().await.unwrap().is_err(),
            "the answer is not cut silently"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_is_not_read_keeps_no_more_than_itself_in_memory() {
        let whole: Arc<[u8]> = vec![7; 5 * PIECE_BYTES / 2].into();
        let answer = Bytes::from_owner(whole.clone());
        let room = AnswerRooms::new(&HttpBounds::default());
        let connection = ConnectionRoom::new(&HttpBounds::default());
        let acme = TenantId::new("acme").unwrap();
        let room = room.take(&acme, &connection, answer.len()).await.unwrap();
        let mut body = whole_body(answer, room, Duration::from_secs(60)).into_data_stream();

        let first = body.next().await.unwrap().unwrap();
        let second = body.next().await.unwrap().unwrap();
        let last = body.next().await.unwrap().unwrap();

        drop(body);
        let all: Vec<u8> = [first, second, last].into_iter().flatten().collect();
        assert_eq!(all, *whole);
        assert_eq!(Arc::strong_count(&whole), 1);
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
            tenant_answer_bytes_max: SHORT_BYTES + 1024,
            ..HttpBounds::default()
        });
        let unread = in_memory(&rooms, SHORT_BYTES + 1).await.unwrap();
        let refused = in_memory(&rooms, SHORT_BYTES + 1).await.unwrap_err();
        assert_eq!((refused.status, &*refused.code), (429, "too_many_bytes"));

        let short = in_memory(&rooms, SHORT_BYTES).await.unwrap();
        assert_eq!(short.headers()[header::CONTENT_LENGTH], "65536");
        let shortest = in_memory(&rooms, UNWATCHED_BYTES).await.unwrap();
        tokio::time::sleep(Duration::from_secs(61)).await;
        let read =
            async |response: Response| axum::body::to_bytes(response.into_body(), 1 << 20).await;
        assert!(read(short).await.is_err(), "no client read it for a minute");
        assert_eq!(read(shortest).await.unwrap().len(), UNWATCHED_BYTES);

        let next = in_memory(&rooms, SHORT_BYTES + 1).await.unwrap();
        assert_eq!(read(next).await.unwrap().len(), SHORT_BYTES + 1);
        drop(unread);
    }
}
