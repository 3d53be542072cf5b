//! The time of a connection without a request. HTTP/2 clients can keep a connection open with pings
//! and never send a request; only open requests count here.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The open requests of one connection.
#[derive(Debug, Clone)]
pub(super) struct OpenRequests(Arc<Open>);

#[derive(Debug)]
struct Open {
    count: AtomicUsize,
    /// Those of all connections of the client's address.
    of_address: Arc<AtomicUsize>,
    /// How often the connection was polled, and in which poll the last request was answered.
    polls: AtomicU64,
    answered_in: AtomicU64,
    /// When the last request was answered; at first, when the connection was accepted.
    last: Mutex<Instant>,
}

impl OpenRequests {
    /// None yet. `of_address` counts them together with those of other connections.
    pub(super) fn new(of_address: Arc<AtomicUsize>) -> Self {
        Self(Arc::new(Open {
            count: AtomicUsize::new(0),
            of_address,
            polls: AtomicU64::new(1),
            answered_in: AtomicU64::new(0),
            last: Mutex::new(Instant::now()),
        }))
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn begin(&self) -> OpenRequest {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        self.0.of_address.fetch_add(1, Ordering::Relaxed);
        OpenRequest(self.0.clone())
    }

    /// Counts a poll of the connection.
    pub(super) fn polled(&self) {
        self.0.polls.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a request that begins now was sent before the one before it was answered: it begins in
    /// the poll in which that ended.
    pub(super) fn are_pipelined(&self) -> bool {
        let polls = self.0.polls.load(Ordering::Relaxed);
        self.0.answered_in.load(Ordering::Relaxed) == polls
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    /// How many the client's address has.
    pub(super) fn count_of_address(&self) -> usize {
        self.0.of_address.load(Ordering::Relaxed)
    }

    /// Waits until the connection had no request for `idle`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn none_for(&self, idle: Duration) {
        loop {
            let last = match self.0.count.load(Ordering::Relaxed) {
                0 => *self.0.last.lock(),
                _ => Instant::now(),
            };
            if last.elapsed() >= idle {
                return;
            }
            sleep_until(last + idle).await;
        }
    }
}

/// One open request.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<Open>);

impl OpenRequest {
    /// Returns the body of the response, with which the request ends.
    pub(super) fn until_sent(self, body: Body) -> Body {
        held_until_sent(body, self)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        *self.0.last.lock() = Instant::now();
        let polls = self.0.polls.load(Ordering::Relaxed);
        self.0.answered_in.store(polls, Ordering::Relaxed);
        self.0.count.fetch_sub(1, Ordering::Relaxed);
        self.0.of_address.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns a body that keeps `held` until it is sent or dropped.
pub(super) fn held_until_sent<T: Send + Unpin + 'static>(body: Body, held: T) -> Body {
    Body::new(Sending { body, _held: held })
}

struct Sending<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Sending<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        HttpBody::size_hint(&self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_time_without_a_request_begins_with_the_end_of_the_last_one() {
        let open = OpenRequests::new(Arc::default());
        let idle = Duration::from_secs(15);
        let started = Instant::now();
        let request = open.begin();
        let waits = tokio::spawn({
            let open = open.clone();
            async move {
                open.none_for(idle).await;
                started.elapsed().as_secs()
            }
        });

        tokio::time::sleep(Duration::from_secs(100)).await;
        drop(request.until_sent(Body::empty()));

        let ended = waits.await.unwrap();
        assert!((115..=130).contains(&ended), "{ended}");
    }
}
