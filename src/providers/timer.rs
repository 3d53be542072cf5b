//! The deadlines and the cancel token of one model call. A single timer serves the whole call:
//! reads do not re-arm it. When it fires early, it moves to the time that is then due. While the
//! same task waits, neither the timer nor the token is polled again.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use callboard_actors::ports::ProviderError;
use tokio::{
    task::coop::has_budget_remaining,
    time::{Instant, Sleep, sleep_until},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    config::Timeouts,
    errors::{first_byte_error, idle_error, total_error},
};

/// Watches the idle limit, the total limit and the cancel token of one call.
pub(super) struct CallTimer {
    cancel: CancellationToken,
    timeouts: Timeouts,
    deadline: Instant,
    /// When the last bytes arrived; the idle limit counts from here.
    last_bytes: Instant,
    armed: Option<Armed>,
}

/// What a call waits for, which decides the limits that apply. The total limit always does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A connection. Its own limit is that of the connect timeout; a place in the queue is no
    /// silence of the server.
    Connecting,
    /// The first byte of the answer.
    Answer,
    /// The next bytes of the stream.
    Stream,
}

struct Armed {
    sleep: Pin<Box<Sleep>>,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    waker: Option<Waker>,
}

impl CallTimer {
    /// Starts both limits now.
    pub(super) fn new(cancel: CancellationToken, timeouts: Timeouts) -> Self {
        let now = Instant::now();
        Self {
            cancel,
            timeouts,
            deadline: now + timeouts.total,
            last_bytes: now,
            armed: None,
        }
    }

    /// When the total limit ends the call.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Records that bytes arrived, which restarts the idle limit.
    pub(super) fn reset_idle(&mut self) {
        self.last_bytes = Instant::now();
    }

    /// Fails if the call was cancelled or its total limit has passed, without waiting. The idle
    /// limit is not checked here: bytes may lie in the socket that were not read yet.
    pub(super) fn check(&self) -> Result<(), ProviderError> {
        if self.cancel.is_cancelled() {
            return Err(ProviderError::Cancelled);
        }
        if self.last_bytes >= self.deadline {
            Err(total_error(self.timeouts))
        } else {
            Ok(())
        }
    }

    /// Becomes ready with the reason when a limit passes or the call is cancelled.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, phase: Phase) -> Poll<ProviderError> {
        if self.cancel.is_cancelled() {
            return Poll::Ready(ProviderError::Cancelled);
        }
        let idle = match phase {
            Phase::Connecting => self.deadline,
            Phase::Answer => self.last_bytes + self.timeouts.first_byte,
            Phase::Stream => self.last_bytes + self.timeouts.idle,
        };
        let due = idle.min(self.deadline);
        let armed = self.armed.get_or_insert_with(|| Armed {
            sleep: Box::pin(sleep_until(due)),
            cancelled: Box::pin(self.cancel.clone().cancelled_owned()),
            waker: None,
        });
        if armed.sleep.deadline() > due {
            armed.sleep.as_mut().reset(due);
            armed.waker = None;
        }
        // Both already hold this task's waker, and the timer is never set later than the limit that
        // is due.
        if armed
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
            && !armed.sleep.is_elapsed()
        {
            return Poll::Pending;
        }
        if armed.cancelled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(ProviderError::Cancelled);
        }
        while armed.sleep.as_mut().poll(cx).is_ready() {
            if armed.sleep.deadline() >= due {
                return Poll::Ready(match phase {
                    Phase::Answer if idle < self.deadline => first_byte_error(self.timeouts),
                    Phase::Stream if idle < self.deadline => idle_error(self.timeouts),
                    Phase::Connecting | Phase::Answer | Phase::Stream => total_error(self.timeouts),
                });
            }
            armed.sleep.as_mut().reset(due);
        }
        // A task without coop budget was woken at once instead of being registered: poll again next
        // time.
        armed.waker = has_budget_remaining().then(|| cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::{task::coop::consume_budget, time::timeout};

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        connect: Duration::from_secs(1),
        first_byte: Duration::from_secs(15),
        idle: Duration::from_secs(10),
        total: Duration::from_secs(25),
    };

    async fn fires(timer: &mut CallTimer) -> ProviderError {
        timeout(
            Duration::from_secs(100),
            poll_fn(|cx| timer.poll(cx, Phase::Stream)),
        )
        .await
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_restart_the_idle_limit_and_never_the_total_limit() {
        let mut timer = CallTimer::new(CancellationToken::new(), TIMEOUTS);
        let begun = Instant::now();

        assert!(
            timeout(
                Duration::from_secs(9),
                poll_fn(|cx| timer.poll(cx, Phase::Stream))
            )
            .await
            .is_err()
        );
        timer.reset_idle();
        assert_eq!(fires(&mut timer).await, idle_error(TIMEOUTS));
        assert_eq!(begun.elapsed().as_secs(), 19);

        timer.reset_idle();
        assert_eq!(fires(&mut timer).await, total_error(TIMEOUTS));
        assert_eq!(begun.elapsed().as_secs(), 25);
        timer.reset_idle();
        assert_eq!(timer.check(), Err(total_error(TIMEOUTS)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_a_connection_is_no_silence_and_each_phase_has_its_limit() {
        let mut timer = CallTimer::new(CancellationToken::new(), TIMEOUTS);
        let ended = async |timer: &mut CallTimer, phase, wait| {
            let ended = timeout(
                Duration::from_secs(wait),
                poll_fn(|cx| timer.poll(cx, phase)),
            );
            ended.await.ok()
        };

        assert_eq!(ended(&mut timer, Phase::Connecting, 5).await, None);
        timer.reset_idle();
        assert_eq!(ended(&mut timer, Phase::Answer, 14).await, None);
        timer.reset_idle();
        assert_eq!(
            ended(&mut timer, Phase::Stream, 7).await,
            Some(total_error(TIMEOUTS))
        );

        let mut timer = CallTimer::new(CancellationToken::new(), TIMEOUTS);
        assert_eq!(ended(&mut timer, Phase::Connecting, 5).await, None);
        timer.reset_idle();
        assert_eq!(
            ended(&mut timer, Phase::Answer, 16).await,
            Some(first_byte_error(TIMEOUTS))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_call_wakes_whichever_task_waits() {
        let cancel = CancellationToken::new();
        let mut timer = CallTimer::new(cancel.clone(), TIMEOUTS);
        assert!(
            timeout(
                Duration::from_secs(1),
                poll_fn(|cx| timer.poll(cx, Phase::Stream))
            )
            .await
            .is_err()
        );
        assert_eq!(timer.check(), Ok(()));

        // The task that waits now is not the one that armed the timer.
        let waits = tokio::spawn(async move { (fires(&mut timer).await, timer.check()) });
        tokio::task::yield_now().await;
        cancel.cancel();

        assert_eq!(
            waits.await.unwrap(),
            (ProviderError::Cancelled, Err(ProviderError::Cancelled))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_used_up_its_turn_is_still_woken_by_the_timer() {
        let mut timer = CallTimer::new(CancellationToken::new(), TIMEOUTS);
        let mut first = true;
        let fired = poll_fn(|cx| {
            while std::mem::take(&mut first) || (timer.armed.is_none() && has_budget_remaining()) {
                let _ = std::pin::pin!(consume_budget()).poll(cx);
            }
            timer.poll(cx, Phase::Stream)
        });

        assert_eq!(
            timeout(Duration::from_secs(100), fired).await.unwrap(),
            idle_error(TIMEOUTS)
        );
    }
}
