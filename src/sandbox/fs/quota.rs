//! The quota of a workspace, the number of files and bytes that it may hold, together with its last
//! count. Plain data; `space` does the counting.

use std::{fmt, time::Instant};

use parking_lot::{Mutex, MutexGuard};

/// The quota of a workspace. The default has no limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkspaceQuota {
    /// Most files and folders; `None` for no limit.
    pub files_max: Option<u64>,
    /// Most bytes on disk; `None` for no limit. With this limit the size of every file is read
    /// before each command, which takes some microseconds per file.
    pub bytes_max: Option<u64>,
}

/// Usage of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkspaceUsage {
    /// Files and folders. A file with several hard links counts once for each.
    pub files: u64,
    /// Bytes on disk; `None` if they are not limited.
    pub bytes: Option<u64>,
}

/// The quota that a workspace exceeds: its usage, then its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sandbox) enum Excess {
    Files(u64, u64),
    Bytes(u64, u64),
}

impl Excess {
    /// Whether the workspace exceeds its quota by more than `slack`.
    #[cfg(all(feature = "sandbox-linux", target_os = "linux"))]
    pub(in crate::sandbox) fn is_beyond(&self, slack: impl Fn(&Self) -> u64) -> bool {
        let (Self::Files(held, max) | Self::Bytes(held, max)) = self;
        held.saturating_sub(*max) > slack(self)
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(files, max) => write!(
                f,
                "the workspace's quota is {max} files and folders, and it has {files}; remove some"
            ),
            Self::Bytes(bytes, max) => write!(
                f,
                "the workspace's quota is {max} bytes, and it has {bytes}; remove files"
            ),
        }
    }
}

impl WorkspaceQuota {
    pub(in crate::sandbox) fn is_bounded(&self) -> bool {
        *self != Self::default()
    }

    /// Returns the quota that `usage` exceeds, if any.
    pub(in crate::sandbox) fn excess(&self, usage: WorkspaceUsage) -> Option<Excess> {
        let files = self
            .files_max
            .filter(|max| usage.files > *max)
            .map(|max| Excess::Files(usage.files, max));
        let bytes = || {
            self.bytes_max
                .zip(usage.bytes)
                .filter(|(max, bytes)| bytes > max)
                .map(|(max, bytes)| Excess::Bytes(bytes, max))
        };
        files.or_else(bytes)
    }
}

/// A workspace's quota and its last count.
#[derive(Debug, Default)]
pub(super) struct Space(Mutex<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) quota: WorkspaceQuota,
    pub(super) counted: Option<(WorkspaceUsage, Instant)>,
}

impl Space {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}
