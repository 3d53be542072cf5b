//! Cleans in the background (REQUIREMENTS ): at start and after each interval, until it is stopped or its owner is gone.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Inner, lock, run};

/// Longest wait for a clean-up that runs when cleaning is stopped.
const STOP_MAX: Duration = Duration::from_secs(5);

/// The background task, if there is one.
#[derive(Default)]
pub(super) struct Cleaner(Mutex<Option<Running>>);

struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Cleaner {
    pub(super) fn start(&self, inner: &Arc<Inner>) {
        let mut running = lock(&self.0);
        if running.as_ref().is_some_and(|running| !running.task.is_finished()) {
            tracing::warn!("artifacts are cleaned up already");
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            tracing::warn!("artifacts are not cleaned up in the background: there is no runtime");
            return;
        };
        // A token of its own: one that was stopped before does not stop this one.
        let stop = CancellationToken::new();
        let (weak, stopped) = (Arc::downgrade(inner), stop.clone());
        let task = runtime.spawn(async move {
            while let Some(inner) = weak.upgrade() {
                let interval = inner.settings.cleanup_interval.max(Duration::from_millis(1));
                let (workers, token) = (inner.workers.clone(), stopped.clone());
                let cleaned = run(&workers, move || inner.clean(inner.settings.max_age, &token)).await;
                if let Err(error) = cleaned {
                    tracing::warn!("artifacts could not be cleaned up: {error}");
                }
                tokio::select! {
                    biased;
                    () = stopped.cancelled() => return,
                    () = tokio::time::sleep(interval) => {}
                }
            }
        });
        *running = Some(Running { stop, task });
    }

    pub(super) async fn stop(&self) {
        let Some(Running { stop, mut task }) = lock(&self.0).take() else { return };
        stop.cancel();
        if timeout(STOP_MAX, &mut task).await.is_err() {
            tracing::warn!("a clean-up of artifacts did not stop in time");
            task.abort();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        lock(&self.0).as_ref().is_some_and(|running| !running.task.is_finished())
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        if let Some(running) = lock(&self.0).take() {
            running.stop.cancel();
        }
    }
}
