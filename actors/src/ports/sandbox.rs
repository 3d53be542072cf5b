//! The sandbox in which commands run. One policy applies to all tools.
//!
//! File tools do not use this port; they share the sandbox's root (`callboard::sandbox::Root`).

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{BoxFuture, Network, Progress, TOOL_TIMEOUT};
use crate::ids::TenantId;

/// Resource limits of one command. A command over a limit is stopped with [`SandboxError::Limit`],
/// or the operating system refuses it more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecLimits {
    /// Longest run that a caller may request, in milliseconds. The default is ten minutes.
    pub time_ms: u64,
    /// Processes and threads together. A build needs dozens, a fork bomb thousands.
    pub processes: u32,
    /// Bytes of memory of all processes together, including memory-backed files, socket buffers and
    /// page tables. A linker fits, a memory bomb does not.
    pub memory_bytes: u64,
    /// Bytes of one written file.
    pub file_bytes: u64,
    /// Bytes by which the free space of the workspace's disk may shrink during the command.
    pub disk_bytes: u64,
    /// Number of files by which the free inodes of the workspace's disk may shrink during the
    /// command. Not enforced on a file system without inode counts.
    pub files: u64,
    /// Bytes of the private `/tmp`, where it is memory-backed.
    pub tmp_bytes: u64,
    /// Seconds of processor time per process. The default is the longest run on two cores.
    pub cpu_seconds: u64,
    /// Open files per process. The default is the usual soft limit of a login.
    pub open_files: u64,
}

impl ExecLimits {
    /// The limits of a host that configures none.
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

    /// Limits a requested timeout to `time_ms`.
    pub fn clamp(&self, timeout: Duration) -> Duration {
        timeout.min(Duration::from_millis(self.time_ms))
    }
}

impl Default for ExecLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What commands may do. The serialized form contains no path of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxPolicy {
    /// The only folder that commands can read and write.
    #[serde(skip)]
    pub root: Arc<PathBuf>,
    /// Name of the sandbox: `bubblewrap`, `landlock`, `landlock-closed` (without a mount
    /// namespace), `local`, or the name of your own.
    pub kind: &'static str,
    /// The network policy in force, which may be narrower than the configured one.
    pub network: Network,
    /// Whether the operating system enforces the policy. `false` only for `local`, which must be
    /// configured by name.
    pub boundary: bool,
    /// Resource limits of one command.
    pub limits: ExecLimits,
}

/// A command to run.
#[derive(Debug, Clone)]
pub struct Exec {
    /// Whose command it is. Tenants share the places for commands in turn; `None` is the host.
    pub tenant: Option<TenantId>,
    /// Script for bash.
    pub command: String,
    /// Longest run. Afterwards every process of the command is killed.
    pub timeout: Duration,
    /// Folder to start in, relative to the root. `None` means the root.
    pub working_dir: Option<PathBuf>,
    /// Bytes of standard output that are kept: half from the start, half from the end.
    pub output_bytes_max: usize,
    /// Bytes of standard error that are kept, likewise.
    pub errors_bytes_max: usize,
    /// Receives a line of output at most every 500 ms, unmasked.
    pub progress: Progress,
    /// Whether this command needs no approval because git only reads in it. A sandbox that finds a
    /// repository whose configuration names a program that git runs for reading refuses the command with
    /// [`SandboxError::Denied`].
    pub git_only_reads: bool,
}

impl Exec {
    /// Creates a command in the root with a timeout of two minutes and 16 KiB of each stream.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            tenant: None,
            command: command.into(),
            timeout: TOOL_TIMEOUT,
            working_dir: None,
            output_bytes_max: 16 * 1024,
            errors_bytes_max: 16 * 1024,
            progress: Progress::silent(),
            git_only_reads: false,
        }
    }
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecResult {
    /// Exit status; `None` for a command that a signal killed.
    pub status: Option<i32>,
    /// Standard output, with invalid UTF-8 replaced and the middle cut out if it is long.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// Bytes that the command printed to both streams.
    pub bytes_printed: u64,
    /// Bytes of both streams that were cut out.
    pub bytes_left_out: u64,
    /// Whether the command exceeded its timeout.
    pub timed_out: bool,
    /// The shell's last working folder, relative to the root. `None` if unknown or outside.
    pub working_dir: Option<PathBuf>,
    /// Processes that still ran when the shell exited, and were killed.
    pub left_running: u32,
}

/// Why a command did not complete or a path was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The policy forbids it.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The command could not start.
    #[error("could not be started: {0}")]
    Failed(String),
    /// The command exceeded a limit, and its processes were killed.
    #[error("stopped: {0}")]
    Limit(String),
    /// The command was cancelled, and its processes were killed.
    #[error("cancelled")]
    Cancelled,
}

/// A sandbox. Its contract: `testing::contract::sandbox`. Anything with a folder and bash can
/// implement it, such as a container or a small virtual machine.
pub trait Sandbox: Send + Sync + 'static {
    /// Returns the policy in force.
    fn policy(&self) -> &SandboxPolicy;

    /// Resolves `path` against the root, including symbolic links. A path that does not exist yet
    /// is resolved by its nearest existing parent.
    ///
    /// # Errors
    /// [`SandboxError::Denied`] when the path leaves the root.
    fn validate_path(&self, path: &str) -> Result<PathBuf, SandboxError>;

    /// Runs a command to its end. A timeout or a cancellation kills every process that the command
    /// started.
    fn exec(
        &self,
        exec: Exec,
        cancel: CancellationToken,
    ) -> BoxFuture<'_, Result<ExecResult, SandboxError>>;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn super::Sandbox) {}
        let _ = takes;
    }
}
