//! Single flight: identical `pure` calls that are made at the same time share one run (DESIGN §4.5).
//!
//! The run belongs to its entry here and not to who asked first: callers hold leases, and the run is cancelled when the last lease
//! goes. An error is shared by those who wait for it and kept for nobody else. Bound: one entry a running call.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use super::outcome::Ended;
use crate::{id_hash::IdHash, limits::CANCEL_GRACE, ports::Progress};

/// The runs of a tenant that are shared, by what is called with what.
#[derive(Default)]
pub(super) struct SharedRuns {
    runs: Mutex<HashMap<String, Entry, IdHash>>,
}

struct Entry {
    run: Arc<SharedRun>,
    leases: usize,
}

/// One run.
struct SharedRun {
    cancel: CancellationToken,
    ended: watch::Sender<Option<Ended>>,
    listeners: Mutex<Vec<Progress>>,
}

/// A caller's share of a run. Dropping the last one cancels it.
pub(super) struct Lease {
    runs: Arc<SharedRuns>,
    key: String,
    run: Arc<SharedRun>,
    ended: watch::Receiver<Option<Ended>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedRuns {
    /// Joins the run of `key`, or begins it: `start` gets the run's own cancel token and the progress of all who joined.
    ///
    /// # Cancel safety
    /// What is begun goes on until its last lease is dropped; a tool that does not listen is dropped after the grace.
    pub(super) fn join<F>(
        self: &Arc<Self>,
        key: String,
        progress: Progress,
        start: impl FnOnce(CancellationToken, Progress) -> F,
    ) -> (Lease, bool)
    where
        F: Future<Output = Ended> + Send + 'static,
    {
        let mut runs = lock(&self.runs);
        if let Some(entry) = runs.get_mut(&key) {
            entry.leases += 1;
            let run = entry.run.clone();
            drop(runs);
            lock(&run.listeners).push(progress);
            let ended = run.ended.subscribe();
            return (Lease { runs: self.clone(), key, run, ended }, false);
        }
        let (ended, receiver) = watch::channel(None);
        let run = Arc::new(SharedRun { cancel: CancellationToken::new(), ended, listeners: Mutex::new(vec![progress]) });
        runs.insert(key.clone(), Entry { run: run.clone(), leases: 1 });
        drop(runs);
        let to_all = {
            let run = run.clone();
            Progress::new(move |line| {
                let listeners = lock(&run.listeners).clone();
                listeners.iter().for_each(|listener| listener.tell(line.clone()));
            })
        };
        let work = start(run.cancel.clone(), to_all);
        let (runs, task_key, task_run) = (self.clone(), key.clone(), run.clone());
        tokio::spawn(Box::pin(async move {
            let given_up = async {
                task_run.cancel.cancelled().await;
                sleep(CANCEL_GRACE + Duration::from_millis(100)).await; // Behind the grace of the attempt itself.
            };
            let ended = tokio::select! {
                biased;
                ended = work => ended,
                () = given_up => Err(super::RunResult::Cancelled),
            };
            runs.forget(&task_key, &task_run);
            task_run.ended.send_replace(Some(ended));
        }));
        (Lease { runs: self.clone(), key, run, ended: receiver }, true)
    }

    /// Takes a run that is over, or that nobody wants, out of the list: the next caller begins another one.
    fn forget(&self, key: &str, run: &Arc<SharedRun>) {
        let mut runs = lock(&self.runs);
        let is_ours = runs.get(key).is_some_and(|entry| Arc::ptr_eq(&entry.run, run));
        let entry = if is_ours { runs.remove(key) } else { None };
        drop(runs); // What the entry holds is let go without the lock.
        drop(entry);
    }
}

impl Lease {
    /// How the run ended.
    pub(super) async fn ended(&mut self) -> Ended {
        match self.ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Err(super::RunResult::Cancelled)),
            Err(_) => Err(super::RunResult::Cancelled), // The runtime goes down.
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut runs = lock(&self.runs.runs);
        let Some(entry) = runs.get_mut(&self.key).filter(|entry| Arc::ptr_eq(&entry.run, &self.run)) else { return };
        entry.leases -= 1;
        if entry.leases == 0 {
            let entry = runs.remove(&self.key);
            drop(runs);
            drop(entry);
            self.run.cancel.cancel();
        }
    }
}
