//! Background clean-up of artifacts: once at start and after each interval, until it is stopped or
//! the store is dropped.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Inner, lock, run};

/// Longest wait for a running clean-up when the cleaner is stopped.
const STOP_MAX: Duration = Duration::from_secs(5);

/// The background task, if it runs.
#[derive(Default)]
pub(super) struct Cleaner(Mutex<Option<Running>>);

struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Cleaner {
    pub(super) fn start(&self, inner: &Arc<Inner>) {
        let mut running = lock(&self.0);
        if running
            .as_ref()
            .is_some_and(|running| !running.task.is_finished())
        {
            tracing::warn!("the artifact cleaner is already running");
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            tracing::warn!("the artifact cleaner was not started: there is no tokio runtime");
            return;
        };
        // A new token for each start: the previous one may be cancelled.
        let stop = CancellationToken::new();
        let weak = Arc::downgrade(inner);
        let stopped = stop.clone();
        let task = runtime.spawn(async move {
            while let Some(inner) = weak.upgrade() {
                let interval = inner
                    .settings
                    .cleanup_interval
                    .max(Duration::from_millis(1));
                let workers = inner.workers.clone();
                let token = stopped.clone();
                let cleaned = run(&workers, move || {
                    inner.clean(inner.settings.max_age, &token)
                })
                .await;
                if let Err(error) = cleaned {
                    tracing::warn!("the clean-up of artifacts failed: {error}");
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
        let Some(Running { stop, mut task }) = lock(&self.0).take() else {
            return;
        };
        stop.cancel();
        if timeout(STOP_MAX, &mut task).await.is_err() {
            tracing::warn!("a running clean-up of artifacts did not stop in time");
            task.abort();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        lock(&self.0)
            .as_ref()
            .is_some_and(|running| !running.task.is_finished())
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        if let Some(running) = lock(&self.0).take() {
            running.stop.cancel();
        }
    }
}
