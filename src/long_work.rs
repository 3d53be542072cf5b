//! Work of tools that takes long: files, and texts of megabytes. It runs on blocking threads, as many
//! at a time as leave processors to all else, the tenants in turn.

use std::{
    num::NonZero,
    sync::{Arc, LazyLock},
};

use callboard_actors::{ports::ToolContext, tool::ToolError};
use tokio_util::sync::CancellationToken;

use crate::fair::{FairPlaces, Waiting};

/// The error of work that was cancelled.
pub(crate) fn cancelled() -> ToolError {
    ToolError::failed("cancelled").code("INTERRUPTED")
}

/// Places for file work, so that searches leave processors to all else. Each tenant gets some.
static FILE_WORK: LazyLock<Arc<FairPlaces>> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let waiting = Waiting {
        all: 64 * 1024,
        tenant: 16 * 1024,
    };
    FairPlaces::new(2 * processors.max(2), waiting)
});

/// Runs file work on a blocking thread, once there is a place for it. The work is cancelled when the
/// round is cancelled or this future is dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    context: ToolContext,
    work: impl FnOnce(&CancellationToken) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    let cancel = context.cancel.child_token();
    let _stops_with_the_caller = cancel.clone().drop_guard();
    let tenant = context.key.scope.tenant.clone();
    // Work whose time is over when its place is free shows what it finds at once.
    let place = tokio::select! {
        biased;
        place = FILE_WORK.acquire(Some(tenant)) => place,
        () = context.cancel.cancelled() => return Err(cancelled()),
    };
    let place = place.map_err(|_| ToolError::failed("too much file work waits"))?;
    // Work whose caller is gone holds its place until it ends.
    let work = move || {
        let _place = place;
        work(&cancel)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The executor turns a panic into a result, so pass it on.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(cancelled()),
    }
}

/// Bytes of text that are masked in place: within a millisecond, or some where much looks like a
/// key.
const IN_PLACE_BYTES_MAX: usize = 64 * 1024;

/// Works on what a tool returned: on a short text here, on a long one on a blocking thread. A
/// worker that masks megabytes serves no other tenant meanwhile.
pub(crate) async fn on_text<T: Send + 'static>(
    bytes: usize,
    context: &ToolContext,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ToolError> {
    if bytes <= IN_PLACE_BYTES_MAX {
        return Ok(work());
    }
    blocking(context.clone(), move |_| Ok(work())).await
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;
    use crate::tools::fixture::context;

    #[tokio::test]
    async fn blocking_work_leaves_the_thread_of_its_caller_to_others() {
        let (sender, receiver) = mpsc::channel();
        let waits = blocking(context(), move |_| {
            let is_sent = receiver.recv_timeout(Duration::from_secs(30)).is_ok();
            Ok((is_sent, thread::current().id()))
        });
        let sends = async move { sender.send(()) };

        let (worked, sent) = tokio::join!(biased; waits, sends);

        let (is_sent, worker) = worked.unwrap();
        assert!(is_sent && sent.is_ok(), "the work held up the runtime");
        assert_ne!(worker, thread::current().id());
    }
}
