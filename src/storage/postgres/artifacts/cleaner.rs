//! Background clean-up: at the start and after each interval, until the store is dropped.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Inner;

/// Stops the background task when it is dropped.
#[derive(Default)]
pub(super) struct Cleaner {
    stop: Option<(CancellationToken, DropGuard)>,
}

impl Cleaner {
    pub(super) fn start(inner: &Arc<Inner>) -> Self {
        let Ok(runtime) = Handle::try_current() else {
            tracing::warn!("the artifact cleaner was not started: there is no tokio runtime");
            return Self::default();
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let weak = Arc::downgrade(inner);
        runtime.spawn(async move {
            while let Some(inner) = weak.upgrade() {
                let settings = inner.settings.clone();
                if let Err(error) = inner.clean(settings.max_age, &stopped).await {
                    tracing::warn!("the clean-up of artifacts failed: {error}");
                }
                drop(inner);
                let interval = settings.cleanup_interval.max(Duration::from_millis(1));
                tokio::select! {
                    biased;
                    () = stopped.cancelled() => return,
                    () = tokio::time::sleep(interval) => {}
                }
            }
        });
        Self {
            stop: Some((stop.clone(), stop.drop_guard())),
        }
    }

    /// Stops the background task after the statement that it runs.
    pub(super) fn stop(&self) {
        if let Some((stop, _)) = &self.stop {
            stop.cancel();
        }
    }
}
