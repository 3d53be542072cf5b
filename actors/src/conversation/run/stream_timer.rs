//! The timer of a model's stream.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    task::coop::has_budget_remaining,
    time::{Instant, Sleep},
};

/// The timer of a stream: the limit of its silence, and the time when collected text is due. It
/// moves only when it fires early or something is due before it, so a token does not touch it.
pub(super) struct StreamTimer {
    silence_max: Duration,
    last: Instant,
    sleep: Pin<Box<Sleep>>,
    /// The task that the timer wakes already.
    waker: Option<Waker>,
}

/// Why a [`StreamTimer`] fired.
pub(super) enum TimerEnd {
    /// The time that the caller asked for has come.
    Due,
    /// The stream was silent for too long.
    Silent,
}

impl StreamTimer {
    pub(super) fn new(silence_max: Duration) -> Self {
        Self {
            silence_max,
            last: Instant::now(),
            sleep: Box::pin(tokio::time::sleep(silence_max)),
            waker: None,
        }
    }

    /// Notes that something was read.
    pub(super) fn reset(&mut self) {
        self.last = Instant::now();
    }

    /// Is ready at `due`, or when the stream was silent for too long.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, due: Option<Instant>) -> Poll<TimerEnd> {
        let silent = self.last + self.silence_max;
        let next = due.map_or(silent, |due| due.min(silent));
        if self.sleep.deadline() > next {
            self.sleep.as_mut().reset(next);
            self.waker = None;
        }
        if !self.sleep.is_elapsed()
            && self
                .waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            return Poll::Pending;
        }
        while self.sleep.as_mut().poll(cx).is_ready() {
            if self.sleep.deadline() >= next {
                return Poll::Ready(match next == silent {
                    true => TimerEnd::Silent,
                    false => TimerEnd::Due,
                });
            }
            self.sleep.as_mut().reset(next);
        }
        // A task without coop budget was woken at once instead of being registered: poll again next
        // time.
        self.waker = has_budget_remaining().then(|| cx.waker().clone());
        Poll::Pending
    }
}
