//! The appends of one activation whose results the store has not reported yet. The next activation
//! after a crash starts when there are none: it would otherwise read a journal that still grows.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts the appends under way. Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnsettledAppends(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    under_way: AtomicUsize,
    settled: Notify,
}

/// One append under way. Dropping it settles the append.
pub(crate) struct UnsettledAppend(Arc<Count>);

impl UnsettledAppends {
    /// Counts an append until the guard is dropped.
    pub(crate) fn begin(&self) -> UnsettledAppend {
        self.0.under_way.fetch_add(1, Ordering::AcqRel);
        UnsettledAppend(self.0.clone())
    }

    /// Completes when no append is under way.
    pub(crate) async fn settled(&self) {
        loop {
            let mut settled = std::pin::pin!(self.0.settled.notified());
            settled.as_mut().enable();
            if self.0.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }
}

impl Drop for UnsettledAppend {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.settled.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn appends_are_settled_when_the_last_guard_is_dropped() {
        let appends = UnsettledAppends::default();
        assert!(appends.settled().now_or_never().is_some());
        let (first, second) = (appends.begin(), appends.begin());

        drop(first);
        assert!(appends.settled().now_or_never().is_none());
        drop(second);

        assert!(appends.settled().now_or_never().is_some());
    }
}
