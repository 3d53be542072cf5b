//! What all sandboxes do around a command: resolve its first and its last folder, run file work on
//! the blocking pool, and survive a caller that drops the call.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use callboard_actors::ports::{BoxFuture, Exec, ExecResult, SandboxError};
use tokio_util::sync::CancellationToken;

use crate::sandbox::fs::{Found, PathError, Root};

/// Longest wait for a probe at start.
pub(in crate::sandbox) const PROBE_TIME_MAX: Duration = Duration::from_secs(10);

/// Start folder of a command, relative to the root. A folder outside the root or a missing one is
/// refused.
pub(in crate::sandbox) fn working_dir(
    root: &Root,
    folder: Option<&Path>,
) -> Result<PathBuf, SandboxError> {
    let Some(folder) = folder else {
        return Ok(PathBuf::new());
    };
    root.open_folder(&folder.to_string_lossy())
        .map(|(_, relative)| relative)
        .map_err(denied)
}

/// Resolves the command's final folder inside the root; clears it if it lies elsewhere or is gone.
pub(in crate::sandbox) fn resolve_folder(root: &Root, result: &mut ExecResult) {
    let said = result
        .working_dir
        .take()
        .filter(|folder| folder.is_absolute());
    result.working_dir = said
        .and_then(|folder| root.open_folder(&folder.to_string_lossy()).ok())
        .map(|(_, relative)| relative);
}

/// Refuses a command in which git only reads, where git would run a program for it.
pub(in crate::sandbox) fn check_git(exec: &Exec, found: &Found) -> Result<(), SandboxError> {
    if exec.git_only_reads && found.git_runs_programs {
        return Err(SandboxError::Denied(
            "the configuration of a repository here may name a program that git runs to read (a filter, or a driver of \
             diffs), so this needs an approval: write `command git` in place of `git`"
                .to_owned(),
        ));
    }
    Ok(())
}

pub(in crate::sandbox) fn denied(error: PathError) -> SandboxError {
    SandboxError::Denied(error.to_string())
}

/// Runs file system work on the blocking pool.
pub(in crate::sandbox) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(SandboxError::Failed("the file work did not end".to_owned())))
}

/// Appends lines of the sandbox to the output of a command.
pub(in crate::sandbox) fn add_lines(text: &mut String, lines: &[String]) {
    for line in lines {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
    }
}

/// Runs a command in a separate task. A dropped caller cancels the command, but the work after it,
/// such as the sweep, still runs.
pub(in crate::sandbox) fn in_a_task<
    F: Future<Output = Result<ExecResult, SandboxError>> + Send + 'static,
>(
    cancel: CancellationToken,
    run: impl FnOnce(CancellationToken) -> F + Send + 'static,
) -> BoxFuture<'static, Result<ExecResult, SandboxError>> {
    Box::pin(async move {
        // A drop of this future cancels the child token through the guard, while the spawned task
        // continues to the end of its clean-up.
        let cancel = cancel.child_token();
        let _ends_with_the_caller = cancel.clone().drop_guard();
        match tokio::spawn(run(cancel)).await {
            Ok(result) => result,
            Err(error) => Err(SandboxError::Failed(
                if error.is_panic() {
                    "it panicked"
                } else {
                    "the runtime is shutting down"
                }
                .to_owned(),
            )),
        }
    })
}

/// The reason of an error, without the words that its `Display` puts before it.
pub(in crate::sandbox) fn reason(error: &SandboxError) -> String {
    match error {
        SandboxError::Failed(reason) => reason.clone(),
        other => other.to_string(),
    }
}
