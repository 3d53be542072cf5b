//! How fast a connection is read. HTTP/2 has frames that are no part of a request (`SETTINGS`, `PING`,
//! `PRIORITY`, `WINDOW_UPDATE`), take ten bytes and cost the host as much as hundreds of bytes of a
//! body. A connection that sends nothing else is read slowly; requests, the bytes of their bodies that
//! are used, and the bytes of answers give it more to send.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Bytes, HttpBody};
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};

/// Bytes that are read before other tasks have their turn.
const IN_TURN: usize = 4 * 1024;

/// Bytes of an HTTP/2 connection that are read before its first request begins, those that each
/// request gives, and those that a connection may have at most.
const FIRST: usize = 16 * 1024;
const OF_REQUEST: usize = 16 * 1024;
const MOST: usize = 256 * 1024;

/// Bytes that a connection without any left may send after each pause.
const OF_PAUSE: usize = 1024;
pub(super) const PAUSE: Duration = Duration::from_millis(250);

/// What a connection may send.
#[derive(Debug, Clone)]
pub(super) struct Pace(Arc<Left>);

#[derive(Debug)]
struct Left {
    bytes: AtomicUsize,
    in_turn: AtomicUsize,
    /// The task of the connection, while it waits for more.
    waits: AtomicWaker,
}

/// Whether a connection is read now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// At most this number of bytes.
    Read(usize),
    /// Once other tasks had theirs.
    Later,
    /// Once it may send more, or after a pause.
    Waits,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self(Arc::new(Left {
            bytes: AtomicUsize::new(FIRST),
            in_turn: AtomicUsize::new(IN_TURN),
            waits: AtomicWaker::new(),
        }))
    }

    /// A request begins.
    pub(super) fn request(&self) {
        self.add(OF_REQUEST);
    }

    /// Bytes of a request's body were used. A frame of few bytes takes more than it gives.
    pub(super) fn used(&self, bytes: usize) {
        self.add(bytes.saturating_mul(2));
    }

    /// Bytes of an answer were sent: the client acknowledges them.
    pub(super) fn wrote(&self, bytes: usize) {
        self.add(bytes / 2);
    }

    /// The connection has waited for a pause.
    pub(super) fn paused(&self) {
        self.add(OF_PAUSE);
    }

    fn add(&self, bytes: usize) {
        let more = |left: usize| Some(left.saturating_add(bytes).min(MOST));
        let before = self
            .0
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if before == Ok(0) && bytes > 0 {
            self.0.waits.wake();
        }
    }

    /// What the connection may read, whose pace counts if `is_paced`. Wakes its task when it may
    /// read more, except for the pause.
    pub(super) fn turn(&self, is_paced: bool, context: &mut Context<'_>) -> Turn {
        let in_turn = self.0.in_turn.load(Ordering::Relaxed);
        if in_turn == 0 {
            self.0.in_turn.store(IN_TURN, Ordering::Relaxed);
            context.waker().wake_by_ref();
            return Turn::Later;
        }
        if !is_paced {
            return Turn::Read(in_turn);
        }
        if self.0.bytes.load(Ordering::Relaxed) == 0 {
            self.0.waits.register(context.waker());
        }
        match self.0.bytes.load(Ordering::Relaxed) {
            0 => Turn::Waits,
            left => Turn::Read(left.min(in_turn)),
        }
    }

    /// Bytes were read.
    pub(super) fn read(&self, bytes: usize, is_paced: bool) {
        let less = |left: usize| Some(left.saturating_sub(bytes));
        let counts = [Some(&self.0.in_turn), is_paced.then_some(&self.0.bytes)];
        for count in counts.into_iter().flatten() {
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Counts the bytes of a request's body when they are used.
    pub(super) fn of_body<B>(&self, body: B) -> Paced<B> {
        Paced {
            body,
            pace: self.clone(),
        }
    }
}

/// The body of a request.
pub(super) struct Paced<B> {
    body: B,
    pace: Pace,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Paced<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.pace.used(data.len());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker;

    use super::*;

    /// Reads frames of one size until the connection waits, each of which adds something. Returns how
    /// many were read.
    fn frames(pace: &Pace, size: usize, add: impl Fn(&Pace)) -> usize {
        let waker = noop_waker();
        let mut context = Context::from_waker(&waker);
        let (mut frames, mut part) = (0, 0);
        while frames < 100_000 {
            match pace.turn(true, &mut context) {
                Turn::Read(bytes_max) => {
                    let bytes = bytes_max.min(size - part);
                    pace.read(bytes, true);
                    part += bytes;
                    if part == size {
                        add(pace);
                        (frames, part) = (frames + 1, 0);
                    }
                }
                Turn::Later => {}
                Turn::Waits => break,
            }
        }
        frames
    }

    #[test]
    fn frames_that_are_no_request_are_read_slowly() {
        let pace = Pace::new();

        // `SETTINGS`, each with its acknowledgement.
        assert!(frames(&pace, 9, |pace| pace.wrote(9)) < 2 * FIRST / 9);
        pace.paused();
        assert!((100..300).contains(&frames(&pace, 9, |pace| pace.wrote(9))));
        // A body in frames of one byte.
        pace.request();
        assert!(frames(&pace, 10, |pace| pace.used(1)) < 2 * OF_REQUEST / 9);
    }

    #[test]
    fn requests_bodies_and_answers_are_read_without_a_pause() {
        for (size, add) in [
            // Requests of some hundred bytes.
            (300, (|pace: &Pace| pace.request()) as fn(&Pace)),
            // A body in frames of a KiB.
            (1024 + 9, |pace| pace.used(1024)),
            // Two acknowledgements for each token of a stream.
            (2 * 13, |pace| pace.wrote(120)),
        ] {
            assert_eq!(frames(&Pace::new(), size, add), 100_000, "{size}");
        }
    }

    #[test]
    fn a_connection_gives_way_after_some_bytes_and_wakes_when_it_may_send_more() {
        let pace = Pace::new();
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut context = Context::from_waker(&waker);

        assert_eq!(pace.turn(false, &mut context), Turn::Read(IN_TURN));
        pace.read(IN_TURN, false);
        assert_eq!(pace.turn(false, &mut context), Turn::Later);
        assert_eq!(woken.0.swap(0, Ordering::Relaxed), 1);
        assert_eq!(pace.turn(false, &mut context), Turn::Read(IN_TURN));
        pace.read(FIRST, true);
        assert_eq!(pace.turn(true, &mut context), Turn::Later);
        assert_eq!(woken.0.swap(0, Ordering::Relaxed), 1);
        assert_eq!(pace.turn(true, &mut context), Turn::Waits);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        pace.request();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(pace.turn(true, &mut context), Turn::Read(IN_TURN));
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
