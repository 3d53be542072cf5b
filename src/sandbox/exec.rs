//! What both sandboxes do to a command before it runs.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use callboard_actors::ports::SandboxError;

use super::{
    PathError, Root,
    policy::{CPU_SECONDS_MAX, EXEC_TIME_MAX, FILE_BYTES_MAX, MEMORY_BYTES_MAX, OPEN_FILES_MAX, PROCESSES_MAX},
};

/// What the shell that sets the limits does then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// It waits for the command: as first process of a namespace it ends the namespace with itself, and the command is an ordinary
    /// process with ordinary signals.
    Wait,
    /// It becomes the command.
    Become,
}

/// The command behind its limits: set inside the jail, hard. The command is an argument, never part of a script. Data rather than
/// address space is limited: runtimes reserve addresses that they never use.
pub(super) fn limited_command(command: &str, then: Then) -> impl Iterator<Item = OsString> {
    let limits = format!(
        "ulimit -c 0; ulimit -n {OPEN_FILES_MAX}; ulimit -u {PROCESSES_MAX}; ulimit -t {CPU_SECONDS_MAX}; ulimit -d {}; ulimit -f {}",
        MEMORY_BYTES_MAX / 1024,
        FILE_BYTES_MAX / 1024,
    );
    let (before, after) = match then {
        Then::Wait => ("", "; exit $?"),
        Then::Become => ("exec ", ""),
    };
    let script = format!("{{ {limits}; }} 2>/dev/null; {before}/bin/bash --norc --noprofile -c \"$1\"{after}");
    ["/bin/bash", "--norc", "--noprofile", "-c", &script, "bash", command].map(OsString::from).into_iter()
}

/// A timeout that ends.
pub(super) fn clamp(timeout: Duration) -> Duration {
    timeout.min(EXEC_TIME_MAX)
}

/// Where a command starts, relative to the root (REQUIREMENTS Z-05).
pub(super) fn working_dir(root: &Root, folder: Option<&Path>) -> Result<PathBuf, SandboxError> {
    let Some(folder) = folder else { return Ok(PathBuf::new()) };
    root.open_folder(&folder.to_string_lossy()).map(|(_, relative)| relative).map_err(denied)
}

pub(super) fn denied(error: PathError) -> SandboxError {
    SandboxError::Denied(error.to_string())
}

/// Runs file work where it may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(SandboxError::Failed("the file work did not end".to_owned())))
}
