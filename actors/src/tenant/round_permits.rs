//! Round permits: a FIFO semaphore whose capacity can change at run time. While the tenant is
//! paused, no permit is granted.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The permits of one tenant.
#[derive(Debug)]
pub(super) struct RoundPermits {
    permits: Arc<Semaphore>,
    /// The capacity. The lock serializes changes.
    size: Mutex<usize>,
    /// Permits in use that must not return to the semaphore, because the capacity was lowered.
    surplus: AtomicUsize,
    running: AtomicUsize,
    waiting: AtomicUsize,
    paused: AtomicBool,
    go_on: Notify,
}

/// The permit to run one round; returned on drop.
#[derive(Debug)]
pub(crate) struct RoundPermit {
    turns: Arc<RoundPermits>,
    permit: Option<OwnedSemaphorePermit>,
    /// False while the permit waits for the end of a pause.
    runs: bool,
}

impl Drop for RoundPermit {
    fn drop(&mut self) {
        if self.runs {
            self.turns.running.fetch_sub(1, Ordering::AcqRel);
        }
        let Some(permit) = self.permit.take() else {
            return;
        };
        let one_less = |surplus: usize| surplus.checked_sub(1);
        if self
            .turns
            .surplus
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less)
            .is_ok()
        {
            permit.forget();
        }
    }
}

/// Counts a waiter for as long as it waits.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::AcqRel);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl RoundPermits {
    pub(super) fn new(size: usize) -> Arc<Self> {
        let size = size.min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(size)),
            size: Mutex::new(size),
            surplus: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            go_on: Notify::new(),
        })
    }

    /// Changes the capacity. A lower one takes effect as rounds end.
    pub(super) fn resize(&self, size: usize) {
        let size = size.min(Semaphore::MAX_PERMITS);
        let mut current = self.size.lock();
        let grown = size.saturating_sub(*current);
        let shrunk = current.saturating_sub(size);
        *current = size;
        let mut kept = 0; // Permits in use that a growth legalizes again; they need not be added.
        let _ = self
            .surplus
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |surplus| {
                kept = surplus.min(grown);
                Some(surplus - kept)
            });
        self.permits.add_permits(grown - kept);
        // Recorded before free permits are taken, so that a permit that is returned meanwhile is
        // not missed.
        self.surplus.fetch_add(shrunk, Ordering::AcqRel);
        while self.surplus.load(Ordering::Acquire) > 0
            && let Ok(free) = self.permits.clone().try_acquire_owned()
        {
            let one_less = |surplus: usize| surplus.checked_sub(1);
            if self
                .surplus
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less)
                .is_ok()
            {
                free.forget();
            }
        }
    }

    /// Pauses, or resumes all waiters.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Release);
        if !paused {
            self.go_on.notify_waiters();
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Rounds that hold a permit and run.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Acquire)
    }

    /// Rounds that wait for a permit, or for the end of a pause.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Waits for a permit; `None` once the host has closed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub(super) async fn take(self: Arc<Self>) -> Option<RoundPermit> {
        loop {
            let permit = match self.permits.clone().try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => {
                    let _waits = Waits::begin(&self.waiting);
                    self.permits.clone().acquire_owned().await.ok()?
                }
            };
            let mut permit = RoundPermit {
                turns: self.clone(),
                permit: Some(permit),
                runs: false,
            };
            // Waits for the end of a pause with the permit in hand, which keeps the order of
            // arrival. If the capacity was lowered meanwhile, the permit is dropped and the loop
            // asks for another.
            if !self.is_paused() || self.pause_over().await {
                self.running.fetch_add(1, Ordering::AcqRel);
                permit.runs = true;
                return Some(permit);
            }
        }
    }

    /// Waits until the tenant is not paused. Returns whether all permits in use still fit the
    /// capacity.
    async fn pause_over(&self) -> bool {
        let _waits = Waits::begin(&self.waiting);
        loop {
            // Registered before the check, so that a resume in between is not missed.
            let mut notified = std::pin::pin!(self.go_on.notified());
            notified.as_mut().enable();
            if !self.is_paused() {
                return self.surplus.load(Ordering::Acquire) == 0;
            }
            notified.await;
        }
    }
}
