//! How much of a disk a command takes (FAULTS F3). The kernel counts what living processes wrote; what the disk lost tells the sum,
//! whoever took it. A quota of the file system would be exact; this works without rights.

use std::{collections::HashMap, fs, path::PathBuf};

/// Processes that are remembered; what more of them wrote only the disk tells.
const WRITERS_MAX: usize = 4096;

/// What is known of a command and its disk.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    free: Option<u64>,
    /// Bytes by process; the last look counts, and those of processes that have ended stay.
    written: HashMap<i32, u64>,
}

impl Disk {
    /// Looks at the disk that holds `folder`.
    pub(super) fn of(folder: PathBuf) -> Self {
        Self { free: free(&folder), folder, written: HashMap::new() }
    }

    /// Looks at what the processes wrote so far.
    pub(super) fn watch(&mut self, tree: &[i32]) {
        for pid in tree {
            let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
            if let Some(bytes) = bytes.filter(|bytes| *bytes > 0)
                && (self.written.len() < WRITERS_MAX || self.written.contains_key(pid))
            {
                self.written.insert(*pid, bytes);
            }
        }
    }

    /// Bytes that were seen being written.
    pub(super) fn written(&self) -> u64 {
        self.written.values().sum()
    }

    /// Bytes by which the free space shrank.
    pub(super) fn lost(&self) -> u64 {
        let before = self.free.unwrap_or(0);
        before.saturating_sub(free(&self.folder).unwrap_or(before))
    }

    /// Counts from now on.
    pub(super) fn forget(&mut self) {
        self.free = free(&self.folder);
        self.written.clear();
    }
}

fn free(folder: &std::path::Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
