//! What an event stream waits for beside its events: the end of the server, and the next comment
//! line of a silent stream. Nothing is set up again for each event.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    task::coop::has_budget_remaining,
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::shared::Shared;

/// The end of a wait for events.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum QuietEnd {
    /// The server closes its streams.
    Closing,
    /// Nothing was sent for so long that a comment line is due.
    Comment,
}

/// Watches the server's end and the silence of one stream. One timer serves the whole stream: it
/// moves only when it fires early.
pub(super) struct Quiet {
    closing: CancellationToken,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    comment_every: Duration,
    /// When something was last sent.
    last: Instant,
    timer: Pin<Box<Sleep>>,
    /// The task that both wake already.
    waker: Option<Waker>,
}

impl Quiet {
    /// Starts with a silent stream.
    pub(super) fn new(app: &Shared) -> Self {
        Self::with(app.closing.clone(), app.config.bounds.comment_every)
    }

    fn with(closing: CancellationToken, comment_every: Duration) -> Self {
        Self {
            closed: Box::pin(closing.clone().cancelled_owned()),
            closing,
            comment_every,
            last: Instant::now(),
            timer: Box::pin(sleep(comment_every)),
            waker: None,
        }
    }

    /// Notes that something is sent.
    pub(super) fn sent(&mut self) {
        self.last = Instant::now();
    }

    /// Waits for the server's end, or until nothing was sent for `comment_every`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(super) async fn wait(&mut self) -> QuietEnd {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<QuietEnd> {
        if self.closing.is_cancelled() {
            return Poll::Ready(QuietEnd::Closing);
        }
        // Both already hold this task's waker.
        if !self.timer.is_elapsed()
            && self
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            return Poll::Pending;
        }
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(QuietEnd::Closing);
        }
        let due = self.last + self.comment_every;
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.timer.deadline() >= due {
                return Poll::Ready(QuietEnd::Comment);
            }
            self.timer.as_mut().reset(due);
        }
        // A task without coop budget was woken at once instead of being registered: poll again next
        // time.
        self.waker = has_budget_remaining().then(|| cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const EVERY: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_comment_is_due_after_silence_and_not_after_events() {
        let mut quiet = Quiet::with(CancellationToken::new(), EVERY);
        for _ in 0..4 {
            advance(EVERY / 2).await;
            assert!(timeout(EVERY / 4, quiet.wait()).await.is_err());
            quiet.sent();
        }
        let began = Instant::now();

        for nth in 1..=2 {
            assert_eq!(quiet.wait().await, QuietEnd::Comment);
            assert_eq!(began.elapsed(), EVERY * nth);
            quiet.sent();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_servers_end_reaches_a_stream_in_whichever_task_it_waits() {
        let closing = CancellationToken::new();
        let mut quiet = Quiet::with(closing.clone(), EVERY);
        assert!(timeout(EVERY / 4, quiet.wait()).await.is_err());

        let waits = tokio::spawn(async move { quiet.wait().await });
        tokio::task::yield_now().await;
        closing.cancel();

        assert_eq!(waits.await.unwrap(), QuietEnd::Closing);
    }
}
