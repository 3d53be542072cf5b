//! A place where commands run and paths end. One policy decides for every tool (FAULTS, "Only bash is sandboxed").
//!
//! REQUIREMENTS Z-01, Z-03..Z-06. File tools do not come through here: they share its root (`callboard::sandbox::Root`).

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, Network, Progress, TOOL_TIMEOUT};

/// What one command may use (FAULTS F3). A command that goes over is stopped and told as [`SandboxError::Limit`], or the kernel
/// refuses it more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecLimits {
    /// Longest run that a caller may ask for, in milliseconds: ten minutes.
    pub time_ms: u64,
    /// Processes and threads, all together: a build needs dozens, a fork bomb thousands.
    pub processes: u32,
    /// Bytes of memory, all processes together: a linker fits, a bomb does not. Memory files, buffers of sockets, page tables and files
    /// in memory count.
    pub memory_bytes: u64,
    /// Bytes of one written file.
    pub file_bytes: u64,
    /// Bytes by which the free space of the workspace's disk may shrink while the command runs.
    pub disk_bytes: u64,
    /// Files by which the free ones of the workspace's disk may get fewer while the command runs: a large repository with all that it
    /// depends on fits. Where a file system counts none, there is no bound.
    pub files: u64,
    /// Bytes of the private `/tmp` where that is memory.
    pub tmp_bytes: u64,
    /// Seconds of processor time of one process: the longest run, spent on two cores.
    pub cpu_seconds: u64,
    /// Open files of one process: the usual soft limit of a login.
    pub open_files: u64,
}

impl ExecLimits {
    /// What holds unless the host says otherwise.
    pub const DEFAULT: Self = Self {
        time_ms: 600_000,
        processes: 512,
        memory_bytes: 4 * 1024 * 1024 * 1024,
        file_bytes: 1024 * 1024 * 1024,
        disk_bytes: 8 * 1024 * 1024 * 1024,
        files: 200_000,
        tmp_bytes: 512 * 1024 * 1024,
        cpu_seconds: 1200,
        open_files: 1024,
    };

    /// A timeout that ends.
    pub fn clamp(&self, timeout: Duration) -> Duration {
        timeout.min(Duration::from_millis(self.time_ms))
    }
}

impl Default for ExecLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What is allowed inside. Its serialised form holds no path of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxPolicy {
    /// The one folder that can be read and written.
    #[serde(skip)]
    pub root: Arc<PathBuf>,
    /// Which sandbox it is: `bubblewrap`, `landlock`, `landlock-closed` (without a mount namespace), `local`, or the name of one of yours.
    pub kind: &'static str,
    /// What of the network can be reached; not what was wished but what is in force.
    pub network: Network,
    /// Whether a kernel boundary is in force; `false` only in the `local` mode that must be asked for by name.
    pub boundary: bool,
    /// What one command may use.
    pub limits: ExecLimits,
}

/// A command to run.
#[derive(Debug, Clone)]
pub struct Exec {
    /// Given to bash.
    pub command: String,
    /// Longest run; then every process of it is killed (Z-04).
    pub timeout: Duration,
    /// Relative to the root; the root itself by default (Z-05).
    pub working_dir: Option<PathBuf>,
    /// Bytes kept of standard output: half from its head, half from its tail.
    pub output_bytes_max: usize,
    /// Bytes kept of standard error, likewise.
    pub errors_bytes_max: usize,
    /// Gets a line of what it prints, at most every 500 ms, unmasked.
    pub progress: Progress,
}

impl Exec {
    /// A command in the root, with two minutes and 16 KiB of each stream.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            timeout: TOOL_TIMEOUT,
            working_dir: None,
            output_bytes_max: 16 * 1024,
            errors_bytes_max: 16 * 1024,
            progress: Progress::silent(),
        }
    }
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
    /// Bytes of both that the command printed.
    pub bytes_printed: u64,
    /// Bytes of both that were left out.
    pub bytes_left_out: u64,
    /// Whether the time was over.
    pub timed_out: bool,
    /// The folder that its shell ended in, relative to the root, if that is known and inside.
    pub working_dir: Option<PathBuf>,
    /// Processes that still ran when the shell ended, and were killed.
    pub left_running: u32,
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

/// A sandbox. Its contract: `testing::contract::sandbox`. Any place with a folder and a bash can be one: a container, a small
/// virtual machine (REQUIREMENTS Z-06).
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
