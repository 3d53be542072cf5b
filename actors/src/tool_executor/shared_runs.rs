//! Single flight: identical `pure` calls made at the same time share one run.
//!
//! The run belongs to its entry in this table, not to the first caller. Callers hold leases, and
//! the run is cancelled when the last lease is dropped. An error is returned to all callers that
//! wait, and is not cached. Bound: one entry per running call.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use super::outcome::Ended;
use crate::{limits::CANCEL_GRACE, ports::Progress};

/// The shared runs of a tenant, by idempotency key.
#[derive(Default)]
pub(super) struct SharedRuns {
    runs: Mutex<HashMap<String, Entry>>,
}

struct Entry {
    run: Arc<SharedRun>,
    leases: usize,
}

/// A run of a tool whose result several equal calls await.
struct SharedRun {
    cancel: CancellationToken,
    ended: watch::Sender<Option<Ended>>,
    listeners: Mutex<Vec<Progress>>,
}

/// A caller's share of a run. Dropping the last lease cancels the run.
pub(super) struct Lease {
    runs: Arc<SharedRuns>,
    key: String,
    run: Arc<SharedRun>,
    ended: watch::Receiver<Option<Ended>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl SharedRuns {
    /// Joins the run of `key`, or starts it. `start` receives the run's cancellation token and a
    /// progress sink that reaches all callers. Returns the lease, and whether this caller started
    /// the run.
    ///
    /// # Cancel safety
    /// A run continues until its last lease is dropped. A tool that ignores cancellation is dropped
    /// after the grace period.
    pub(super) fn join<F>(
        self: &Arc<Self>,
        key: String,
        progress: Progress,
        start: impl FnOnce(CancellationToken, Progress) -> F,
    ) -> (Lease, bool)
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        // Lock order: the table is unlocked before a run's listeners are locked, before the run
        // starts, and before an entry is dropped, since dropping may run a caller's code.
        let mut runs = lock(&self.runs);
        if let Some(entry) = runs.get_mut(&key) {
            entry.leases += 1;
            let run = entry.run.clone();
            drop(runs);
            lock(&run.listeners).push(progress);
            let ended = run.ended.subscribe();
            return (
                Lease {
                    runs: self.clone(),
                    key,
                    run,
                    ended,
                },
                false,
            );
        }
        let (ended, receiver) = watch::channel(None);
        let run = Arc::new(SharedRun {
            cancel: CancellationToken::new(),
            ended,
            listeners: Mutex::new(vec![progress]),
        });
        runs.insert(
            key.clone(),
            Entry {
                run: run.clone(),
                leases: 1,
            },
        );
        drop(runs);
        let to_all = {
            let run = run.clone();
            Progress::new(move |line| {
                let listeners = lock(&run.listeners).clone();
                listeners
                    .iter()
                    .for_each(|listener| listener.report(line.clone()));
            })
        };
        let work = start(run.cancel.clone(), to_all);
        let runs = self.clone();
        let task_key = key.clone();
        let task_run = run.clone();
        tokio::spawn(Box::pin(async move {
            let given_up = async {
                task_run.cancel.cancelled().await;
                sleep(CANCEL_GRACE + Duration::from_millis(100)).await; // Longer than the grace period of the attempt itself.
            };
            let ended = tokio::select! {
                biased;
                ended = work => ended,
                () = given_up => Err(super::RunResult::Cancelled),
            };
            runs.forget(&task_key, &task_run);
            task_run.ended.send_replace(Some(ended));
        }));
        (
            Lease {
                runs: self.clone(),
                key,
                run,
                ended: receiver,
            },
            true,
        )
    }

    /// Removes a run that has ended, so that the next caller starts another one.
    fn forget(&self, key: &str, run: &Arc<SharedRun>) {
        let mut runs = lock(&self.runs);
        let is_ours = runs
            .get(key)
            .is_some_and(|entry| Arc::ptr_eq(&entry.run, run));
        let entry = if is_ours { runs.remove(key) } else { None };
        drop(runs); // The entry is dropped outside of the lock.
        drop(entry);
    }
}

impl Lease {
    /// Waits for the end of the run.
    pub(super) async fn ended(&mut self) -> Ended {
        match self.ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Err(super::RunResult::Cancelled)),
            Err(_) => Err(super::RunResult::Cancelled), // The runtime is shutting down.
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut runs = lock(&self.runs.runs);
        let Some(entry) = runs
            .get_mut(&self.key)
            .filter(|entry| Arc::ptr_eq(&entry.run, &self.run))
        else {
            return;
        };
        entry.leases -= 1;
        if entry.leases == 0 {
            let entry = runs.remove(&self.key);
            drop(runs);
            drop(entry);
            self.run.cancel.cancel();
        }
    }
}
