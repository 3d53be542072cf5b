//! Calls over one HTTP/2 connection. A task reads and writes the connection; each call is a stream
//! of it, and the task that waits for an answer reads its stream. Dropping an answer resets its
//! stream and nothing else.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use callboard_actors::ports::ProviderError;
use futures_util::FutureExt;
use h2::{
    Ping, PingPong, Reason, RecvStream, SendStream,
    client::{self, ResponseFuture},
};
use http::Request;
use tokio::time::{interval, timeout};

use super::socket::{PacedSocket, Socket};
use crate::{
    frames::Pace,
    providers::{body::Body, errors::with_sources},
};

/// Bytes of one answer that may arrive before they are read. It bounds the memory of a slow reader.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Bytes of the head of an answer, with 32 for each field. One byte on the wire can be a field, and each
/// takes a hundred times that in memory.
const HEAD_BYTES_MAX: u32 = 64 * 1024;

/// Bytes of all answers of one connection together, by the most calls that it has carried at a time,
/// and at most. Large enough that slow readers of some answers do not stop the others. Frames of a
/// few bytes that were not read yet are counted with the memory that they take, up to half of it; the
/// connection is closed beyond that.
const CALL_WINDOW: u32 = 2 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 32 * 1024 * 1024;

/// How often a connection that carries calls is probed, and how long the answer to a probe may take
/// before the connection counts as lost.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PONG_WAIT: Duration = Duration::from_secs(20);

/// How long the end of an answer may take after its caller has read enough, before its stream is
/// reset.
const END_WAIT: Duration = Duration::from_millis(500);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    /// The server certainly did not begin with the call: it refused the stream, or announced that
    /// it closes the connection before it.
    #[error("the server did not begin with the call")]
    NotStarted(#[source] h2::Error),
    /// The connection was lost, and with it all calls on it.
    #[error("the connection broke")]
    Lost(#[source] h2::Error),
    /// The server or the protocol ended this call alone.
    #[error("the server reset the stream")]
    Reset(#[source] h2::Error),
}

impl Broken {
    fn of(error: h2::Error) -> Self {
        if error.is_remote()
            && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
        {
            Self::NotStarted(error)
        } else if error.is_reset() {
            Self::Reset(error)
        } else {
            Self::Lost(error)
        }
    }

    /// Whether the connection is of no further use.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::NotStarted(error) => error.is_go_away(),
            Self::Reset(_) => false,
        }
    }
}

/// What the calls of one connection share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    is_reported: AtomicBool,
}

impl Shared {
    /// Maps a failed call to its error. Of the calls that a lost connection ends, the first reports
    /// it; the circuit breaker does not count the others.
    pub(super) fn error(&self, broken: Broken) -> ProviderError {
        let message = with_sources(&broken);
        match broken {
            Broken::NotStarted(_) => ProviderError::NotStarted { message },
            Broken::Reset(_) => ProviderError::Connection { message },
            Broken::Lost(_) if self.is_reported.swap(true, Ordering::Relaxed) => {
                ProviderError::SharedConnection { message }
            }
            Broken::Lost(_) => ProviderError::Connection { message },
        }
    }
}

/// A handle to an open connection. Clones open streams on the same connection.
#[derive(Clone)]
pub(super) struct Http2 {
    requests: client::SendRequest<Bytes>,
    pace: Pace,
    pub(super) shared: Arc<Shared>,
    /// The most calls at a time so far.
    most_calls: Arc<AtomicU32>,
}

impl Http2 {
    /// Takes over a socket. The returned future drives the connection until it has ended.
    /// `streams_max` holds until the server announces its own; `is_used` says whether calls are
    /// under way.
    pub(super) async fn open(
        socket: Socket,
        streams_max: usize,
        is_used: impl Fn() -> bool + Send,
    ) -> Result<(Self, impl Future<Output = ()>), h2::Error> {
        let pace = Pace::new();
        let (requests, mut connection) = client::Builder::new()
            .enable_push(false)
            .max_header_list_size(HEAD_BYTES_MAX)
            .initial_max_send_streams(streams_max)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(window(1))
            .handshake(PacedSocket::new(socket, pace.clone()))
            .await?;
        let pings = connection.ping_pong();
        let most_calls = Arc::new(AtomicU32::new(1));
        let most = most_calls.clone();
        let driven = async move {
            // A call wakes the connection, which learns then that there are more.
            let mut known = 1;
            let connection = poll_fn(|cx| {
                let calls = most.load(Ordering::Relaxed);
                if calls > known {
                    known = calls;
                    connection.set_target_window_size(window(calls));
                }
                connection.poll_unpin(cx)
            });
            tokio::select! {
                _ = connection => {}
                () = silent(pings, is_used) => {}
            }
        };
        let shared = Arc::default();
        let opened = Self {
            requests,
            pace,
            shared,
            most_calls,
        };
        Ok((opened, driven))
    }

    /// The connection is to carry this many calls at a time.
    pub(super) fn carries(&self, calls: usize) {
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        self.most_calls.fetch_max(calls, Ordering::Relaxed);
    }

    /// Number of concurrent calls that the server allows.
    pub(super) fn streams_max(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// Waits until a stream can be opened. Fails if the connection takes no further calls.
    pub(super) async fn ready(&mut self) -> Result<(), h2::Error> {
        poll_fn(|cx| self.requests.poll_ready(cx)).await
    }

    /// Sends a request and returns once the head of the answer has arrived. A server may answer
    /// before it has read the whole request.
    pub(super) async fn call(
        &mut self,
        request: Request<()>,
        body: Body,
    ) -> Result<(http::response::Parts, AnswerBody), Broken> {
        self.pace.request();
        let (head, stream) = self
            .requests
            .send_request(request, false)
            .map_err(Broken::of)?;
        let mut exchange = Exchange {
            head,
            sending: Sending::new(stream, body),
        };
        let answer = poll_fn(|cx| exchange.poll(cx)).await?;
        let (head, body) = answer.into_parts();
        let body = AnswerBody {
            body,
            sending: exchange.sending,
            bytes: Bytes::new(),
        };
        Ok((head, body))
    }
}

fn window(calls: u32) -> u32 {
    CALL_WINDOW.saturating_mul(calls).min(CONNECTION_WINDOW)
}

/// Becomes ready when the peer no longer answers probes.
async fn silent(pings: Option<PingPong>, is_used: impl Fn() -> bool) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    let mut ticks = interval(PING_INTERVAL);
    ticks.tick().await; // The first tick is immediate.
    loop {
        ticks.tick().await;
        if !is_used() {
            continue;
        }
        if pings.send_ping(Ping::opaque()).is_err() {
            return std::future::pending().await; // The connection ends by itself.
        }
        match timeout(PONG_WAIT, poll_fn(|cx| pings.poll_pong(cx))).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

/// A request whose answer has not begun.
struct Exchange {
    head: ResponseFuture,
    sending: Sending,
}

impl Exchange {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<http::Response<RecvStream>, Broken>> {
        self.sending.poll(cx);
        self.head.poll_unpin(cx).map_err(Broken::of)
    }
}

/// The part of a request that was not sent yet.
struct Sending {
    /// `None` once everything was handed to the connection, or the server wants no more.
    stream: Option<SendStream<Bytes>>,
    frames: VecDeque<Bytes>,
}

impl Sending {
    fn new(stream: SendStream<Bytes>, body: Body) -> Self {
        Self {
            stream: Some(stream),
            frames: body.into_pieces(),
        }
    }

    /// Sends as much as the windows of the server allow. A server that stops reading says so in its
    /// answer, so errors are left to that.
    fn poll(&mut self, cx: &mut Context<'_>) {
        while let Some(stream) = &mut self.stream {
            let Some(frame) = self.frames.front_mut() else {
                let _ = stream.send_data(Bytes::new(), true);
                self.stream = None;
                return;
            };
            stream.reserve_capacity(frame.len());
            let room = match stream.capacity() {
                0 => match stream.poll_capacity(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Some(Ok(room))) => room,
                    Poll::Ready(Some(Err(_)) | None) => {
                        self.stream = None;
                        return;
                    }
                },
                room => room,
            };
            let piece = frame.split_to(room.min(frame.len()));
            if frame.is_empty() {
                self.frames.pop_front();
            }
            let is_last = self.frames.is_empty();
            if stream.send_data(piece, is_last).is_err() || is_last {
                self.stream = None;
            }
        }
    }
}

/// The body of an answer.
pub(super) struct AnswerBody {
    body: RecvStream,
    sending: Sending,
    /// The bytes of the last read, lent to the caller until the next one.
    bytes: Bytes,
}

impl AnswerBody {
    /// Reads once and returns the bytes that arrived; `None` at the end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<&[u8]>, Broken>> {
        self.sending.poll(cx);
        loop {
            match ready!(self.body.poll_data(cx)) {
                None => return Poll::Ready(Ok(None)),
                // The server wants no more of the request; its answer is whole.
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => {
                    return Poll::Ready(Ok(None));
                }
                Some(Err(error)) => {
                    // The call had begun, whatever the server says.
                    return Poll::Ready(Err(match Broken::of(error) {
                        Broken::NotStarted(error) => Broken::Reset(error),
                        broken => broken,
                    }));
                }
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    let _ = self.body.flow_control().release_capacity(bytes.len());
                    self.bytes = bytes;
                    return Poll::Ready(Ok(Some(&self.bytes)));
                }
            }
        }
    }

    /// Waits for the end of the answer in a separate task, so that a stream that is about to end is
    /// not reset. `held` is kept until then.
    pub(super) fn release(mut self, held: impl Send + 'static) {
        let end = async move {
            while let Ok(Some(_)) = poll_fn(|cx| {
                self.poll(cx)
                    .map(|read| read.map(|bytes| bytes.map(<[u8]>::len)))
            })
            .await
            {}
            drop((self, held));
        };
        let mut end = Box::pin(timeout(END_WAIT, end));
        if end.as_mut().now_or_never().is_none() {
            tokio::spawn(end);
        }
    }
}
