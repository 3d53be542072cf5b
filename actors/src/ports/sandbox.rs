//! A place where commands run and paths end. One policy decides for every tool (FAULTS, "Only bash is sandboxed").
//!
//! Takes its full form (file operations, network allow-list, limits) with the tools issue; REQUIREMENTS Z-01, Z-03..Z-05.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::BoxFuture;

/// What is allowed inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPolicy {
    /// The one folder that can be read and written.
    pub root: Arc<PathBuf>,
    /// Whether the network can be reached.
    pub network: bool,
    /// Whether a kernel boundary is in force; `false` only in the `local` mode that must be asked for by name.
    pub boundary: bool,
}

/// A command to run.
#[derive(Debug, Clone)]
pub struct Exec {
    /// Given to `bash -c`.
    pub command: String,
    /// Longest run; then the whole process group is killed (Z-04).
    pub timeout: Duration,
    /// Relative to the root; the root itself by default (Z-05).
    pub working_dir: Option<PathBuf>,
    /// Bytes kept of each output stream: half from its head, half from its tail.
    pub output_bytes_max: usize,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecResult {
    /// Exit status; `None` when killed by a signal.
    pub status: Option<i32>,
    /// Standard output, invalid UTF-8 replaced, cut in the middle if long.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// Bytes of both that were left out.
    pub bytes_left_out: u64,
    /// Whether the time was over.
    pub timed_out: bool,
}

/// Why nothing ran, or no path came back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The policy says no.
    #[error("not allowed: {0}")]
    Denied(String),
    /// It could not be started.
    #[error("could not be started: {0}")]
    Failed(String),
    /// It used more than a command may, and its processes are gone.
    #[error("stopped: {0}")]
    Limit(String),
    /// It was cancelled, and its processes are gone.
    #[error("cancelled")]
    Cancelled,
}

/// A sandbox. Its contract: `tests/integration/sandbox.rs` until the tools issue.
pub trait Sandbox: Send + Sync + 'static {
    /// What is allowed.
    fn policy(&self) -> &SandboxPolicy;

    /// Resolves `path` against the root, links included; a path that does not exist yet by its nearest existing parent (Z-03).
    ///
    /// # Errors
    /// [`SandboxError::Denied`] when it leaves the root.
    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError>;

    /// Runs a command to its end. Timeout and cancel kill every process it started.
    fn exec(&self, exec: Exec, cancel: CancellationToken) -> BoxFuture<'_, Result<ExecResult, SandboxError>>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::Sandbox) {}
        let _ = takes;
    }
}
