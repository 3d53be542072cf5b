//! Whether the store of journals takes writes. Every append reports its result here; while writes
//! fail, new prompts are refused at once and one paused activation at a time tries the store.
//!
//! **Invariant:** only a write ends an outage. A read that succeeds proves nothing: a full disk and a
//! locked file can be read.
//!
//! Without a paused activation nothing is appended. The directory then asks the store itself
//! ([`SessionBackend::try_write`](crate::ports::SessionBackend::try_write)).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use crate::ports::StoreError;

/// How long after the last failed write an outage without a paused activation is unattended.
pub(crate) const UNATTENDED: Duration = Duration::from_millis(400);

/// Lines of the log a second, over all changes. A store that fails every other append would fill
/// the log.
const LINES_MAX: u32 = 8;

/// An outage of the store: appends fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOutage {
    /// How long the outage has lasted.
    pub lasted: Duration,
    /// What the last failed append reported, without paths.
    pub message: String,
}

impl From<StoreOutage> for StoreError {
    fn from(outage: StoreOutage) -> Self {
        Self::Unavailable {
            message: outage.message,
        }
    }
}

/// The permit of the one activation that tries an unavailable store.
pub(crate) type Probe = OwnedSemaphorePermit;

/// Whether a store takes writes; shared by all conversations of that store.
pub struct StoreHealth {
    state: Mutex<State>,
    /// Whether a stored append changes anything, so that the usual one takes no lock.
    is_away: AtomicBool,
    /// Notified at the end of an outage.
    back: Notify,
    probes: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    outage: Option<Outage>,
    /// Activations that wait for the end of an outage.
    paused: usize,
    lines: Lines,
}

struct Outage {
    since: Instant,
    failed_at: Instant,
    message: String,
}

/// The lines that were logged in the current second, and the last state that they reported.
#[derive(Default)]
struct Lines {
    second: Option<Instant>,
    count: u32,
    reported_away: bool,
}

impl Lines {
    /// Whether a line may be logged that reports `is_away`. A state that was reported already needs
    /// none.
    fn admit(&mut self, is_away: bool, now: Instant) -> bool {
        if self.reported_away == is_away {
            return false;
        }
        if self
            .second
            .is_none_or(|second| now.duration_since(second) >= Duration::from_secs(1))
        {
            (self.second, self.count) = (Some(now), 0);
        }
        let admitted = self.count < LINES_MAX;
        if admitted {
            self.count += 1;
            self.reported_away = is_away;
        }
        admitted
    }
}

impl Default for StoreHealth {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            is_away: AtomicBool::new(false),
            back: Notify::new(),
            probes: Arc::new(Semaphore::new(1)),
        }
    }
}

/// An activation that waits for the end of an outage. One of them tries the store.
pub(crate) struct Paused(Arc<StoreHealth>);

impl Drop for Paused {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.paused = state.paused.saturating_sub(1);
    }
}

impl StoreHealth {
    /// The outage, if the last append failed.
    pub(crate) fn outage(&self) -> Option<StoreOutage> {
        if !self.is_away.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        let outage = state.outage.as_ref()?;
        Some(StoreOutage {
            lasted: outage.since.elapsed(),
            message: outage.message.clone(),
        })
    }

    /// Whether there is an outage and nothing tries the store.
    pub(crate) fn is_unattended(&self) -> bool {
        if !self.is_away.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.lock();
        let rests = |outage: &Outage| outage.failed_at.elapsed() >= UNATTENDED;
        state.paused == 0 && state.outage.as_ref().is_some_and(rests)
    }

    /// Notes that a write failed because the store is unavailable.
    pub(crate) fn failed(&self, message: &str) {
        let now = Instant::now();
        let mut state = self.state.lock();
        let since = state.outage.as_ref().map_or(now, |outage| outage.since);
        state.outage = Some(Outage {
            since,
            failed_at: now,
            message: message.to_owned(),
        });
        self.is_away.store(true, Ordering::Release);
        let logged = state.lines.admit(true, now);
        drop(state);
        if logged {
            tracing::warn!(
                message,
                "the store cannot be written; prompts are refused until a write succeeds"
            );
        }
    }

    /// Notes that a write succeeded.
    pub(crate) fn written(&self) {
        if !self.is_away.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        let was_away = state.outage.take();
        let logged = state.lines.admit(false, Instant::now());
        // A line that the bound withheld is logged by a later append.
        self.is_away
            .store(state.lines.reported_away, Ordering::Release);
        drop(state);
        if logged {
            let away_ms = was_away.map(|outage| outage.since.elapsed().as_millis());
            tracing::info!(away_ms, "the store can be written again");
        }
        self.back.notify_waiters();
    }

    /// Counts an activation that waits for the end of the outage.
    pub(crate) fn pause(self: &Arc<Self>) -> Paused {
        self.state.lock().paused += 1;
        Paused(self.clone())
    }

    /// Waits until the outage is over or this activation may try the store. `None` when the outage
    /// is over.
    pub(crate) async fn over_or_probe(&self) -> Option<Probe> {
        tokio::select! {
            biased;
            () = self.over() => None,
            probe = self.probes.clone().acquire_owned() => probe.ok(),
        }
    }

    /// Waits until no outage is known.
    pub(crate) async fn over(&self) {
        loop {
            let mut back = std::pin::pin!(self.back.notified());
            back.as_mut().enable();
            if self.state.lock().outage.is_none() {
                return;
            }
            back.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_with_a_write_and_is_unattended_without_a_paused_conversation() {
        let health = Arc::new(StoreHealth::default());
        assert_eq!(health.outage(), None);
        health.failed("disk full");
        let paused = health.pause();

        tokio::time::advance(Duration::from_secs(100)).await;
        let outage = StoreOutage {
            lasted: Duration::from_secs(100),
            message: "disk full".into(),
        };
        assert_eq!(health.outage(), Some(outage));
        assert!(!health.is_unattended());
        drop(paused);
        assert!(health.is_unattended() && health.outage().is_some());

        health.failed("disk full");
        assert!(!health.is_unattended(), "it was tried just now");
        health.written();
        assert_eq!(health.outage(), None);
        assert!(!health.is_unattended());
    }

    #[tokio::test(start_paused = true)]
    async fn one_activation_at_a_time_tries_the_store_and_all_go_on_after_a_write() {
        let health = Arc::new(StoreHealth::default());
        health.failed("away");
        let probe = health.over_or_probe().await;
        assert!(probe.is_some());

        let waits = tokio::spawn({
            let health = health.clone();
            async move { health.over_or_probe().await.is_none() }
        });
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(!waits.is_finished());
        health.written();

        assert!(waits.await.unwrap(), "no probe is needed any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_fails_every_other_append_logs_a_few_lines_a_second() {
        let now = Instant::now();
        let mut lines = Lines::default();

        let logged = (0..1000).filter(|n| lines.admit(n % 2 == 0, now)).count();
        assert!(logged <= 10, "{logged}");
        let reported = lines.reported_away;
        let later = now + Duration::from_secs(1);
        assert!(
            lines.admit(!reported, later),
            "the next second has lines again"
        );
        assert!(
            !lines.admit(!reported, later),
            "and no state is reported twice"
        );
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Fails,
        Stores,
        Pauses,
        Leaves,
        Waits(u64),
    }

    /// Runs one order of steps, and compares each answer with what the steps say.
    async fn judge(steps: &[Step]) {
        let health = Arc::new(StoreHealth::default());
        let (mut paused, mut failed_at) = (Vec::new(), None);
        for step in steps {
            match step {
                Step::Fails => {
                    health.failed("away");
                    failed_at = Some(Instant::now());
                }
                Step::Stores => {
                    health.written();
                    failed_at = None;
                }
                Step::Pauses => paused.push(health.pause()),
                Step::Leaves => drop(paused.pop()),
                Step::Waits(ms) => tokio::time::advance(Duration::from_millis(*ms)).await,
            }
            let rests = |at: Instant| paused.is_empty() && at.elapsed() >= UNATTENDED;
            assert_eq!(
                health.is_unattended(),
                failed_at.is_some_and(rests),
                "{step:?} in {steps:?}"
            );
            assert_eq!(
                health.outage().is_some(),
                failed_at.is_some(),
                "{step:?} in {steps:?}"
            );
            let over = tokio::time::timeout(Duration::ZERO, health.over()).await;
            assert_eq!(over.is_ok(), failed_at.is_none(), "{step:?} in {steps:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn in_every_order_of_results_only_a_write_ends_an_outage() {
        let all = [
            Step::Fails,
            Step::Stores,
            Step::Pauses,
            Step::Leaves,
            Step::Waits(1),
            Step::Waits(500),
        ];
        let length = 5;
        for number in 0..all.len().pow(length) {
            let at = |place| all[number / all.len().pow(place) % all.len()];
            let steps: Vec<Step> = (0..length).map(at).collect();
            judge(&steps).await;
        }
    }
}
