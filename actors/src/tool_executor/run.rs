//! Runs one attempt: its time limit, its cancel, its panic. Whatever happens, one [`RunResult`] comes back.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{RunResult, message::Run};
use crate::{
    limits::CANCEL_GRACE,
    ports::{ArtifactStore, Artifacts, Extensions, Progress, ToolContext},
};

/// What the conversation lends to its tools.
#[derive(Clone)]
pub struct Lent {
    /// The folder that the conversation works in.
    pub workspace: Option<std::sync::Arc<std::path::PathBuf>>,
    /// Values of the embedding application.
    pub extensions: Extensions,
    /// Where results go that are too large to show.
    pub artifacts: Option<std::sync::Arc<dyn ArtifactStore>>,
}

/// Runs an attempt to its end. `cancel` is the round's.
pub(super) async fn run(run: &Run, lent: Lent, cancel: CancellationToken, progress: Progress) -> RunResult {
    if cancel.is_cancelled() {
        return RunResult::NotBegun; // It waited for its entry, and the round was cancelled meanwhile: it never begins.
    }
    let spec = run.tool.spec();
    let time = if run.attempt == 0 { spec.timeout } else { spec.retry.timeout(spec.timeout, run.attempt) };
    let token = cancel.child_token();
    let context = ToolContext {
        key: run.key.clone(),
        tool_call_id: run.tool_call_id.clone(),
        cancel: token.clone(),
        deadline: Instant::now() + time,
        attempt: run.attempt,
        progress,
        workspace: lent.workspace,
        extensions: lent.extensions,
        artifacts: lent.artifacts.map(|store| Artifacts { store, owner: run.key.scope.clone() }),
    };
    let call = AssertUnwindSafe(async { run.tool.call(run.input.clone(), context).await }).catch_unwind();
    tokio::pin!(call);
    let ended = match timeout(time, &mut call).await {
        Ok(ended) => ended,
        Err(_) => {
            // T-46: really cancelled before anything else may start. The tool ends its processes on the token; what does not
            // listen is dropped with the future.
            token.cancel();
            let _ = timeout(CANCEL_GRACE, &mut call).await;
            tracing::info!(tool = spec.name(), call = %run.key, "Tool execution timed out after {}ms", time.as_millis());
            return RunResult::TimedOut { after: time };
        }
    };
    match ended {
        Ok(Ok(output)) => RunResult::Output(output),
        Ok(Err(_)) if cancel.is_cancelled() => RunResult::Cancelled,
        Ok(Err(error)) => RunResult::Error(error),
        Err(panic) => RunResult::Panicked { message: panic_message(&*panic) },
    }
}

/// The words of a panic.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").chars().take(200).collect()
}

/// Milliseconds since `began`.
pub(super) fn duration_ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().min(Duration::from_secs(u64::from(u32::MAX))).as_millis()).unwrap_or(u64::MAX)
}
