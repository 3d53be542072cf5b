//! How much of a disk a command takes, in bytes and in files. The kernel counts what living processes wrote; what the disk
//! lost is the sum, whoever took it. A quota of the file system would be exact; this works without rights.

use std::{collections::HashMap, fs, path::PathBuf};

/// Processes that are remembered; what more of them wrote only the disk tells.
const WRITERS_MAX: usize = 4096;

/// Files that a process can create in a tick of the kernel (10 ms), at most: it takes 1.5 µs and more for each. A command that spent
/// less time in the kernel did not create the files that the disk lost.
const FILES_PER_TICK: u64 = 6_600;

/// What is known of a command and its disk.
#[derive(Debug)]
pub(super) struct Disk {
    folder: PathBuf,
    free: Option<Free>,
    /// Bytes by process; the last look counts, and those of processes that have ended stay.
    written: HashMap<i32, u64>,
    /// Ticks that its processes spent in the kernel, and those before the count began.
    ticks: u64,
    ticks_before: u64,
}

/// What a disk has left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Free {
    pub(super) bytes: u64,
    /// `None` where the file system does not count them.
    pub(super) files: Option<u64>,
}

impl Disk {
    /// Looks at the disk that holds `folder`.
    pub(super) fn of(folder: PathBuf) -> Self {
        Self { free: free(&folder), folder, written: HashMap::new(), ticks: 0, ticks_before: 0 }
    }

    /// Looks at what the processes wrote so far. `ticks` is their time in the kernel.
    pub(super) fn watch(&mut self, tree: &[i32], ticks: u64) {
        for pid in tree {
            let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let bytes = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
            if let Some(bytes) = bytes.filter(|bytes| *bytes > 0)
                && (self.written.len() < WRITERS_MAX || self.written.contains_key(pid))
            {
                self.written.insert(*pid, bytes);
            }
        }
        self.ticks = self.ticks.max(ticks);
    }

    /// Bytes that were seen being written.
    pub(super) fn written(&self) -> u64 {
        self.written.values().sum()
    }

    /// Ticks that were spent in the kernel: whoever creates files spends them.
    pub(super) fn ticks(&self) -> u64 {
        self.ticks.saturating_sub(self.ticks_before)
    }

    /// Bytes by which the free space shrank.
    pub(super) fn lost(&self) -> u64 {
        let Some(before) = self.free else { return 0 };
        before.bytes.saturating_sub(free(&self.folder).unwrap_or(before).bytes)
    }

    /// Whether the disk has lost more files than these, and this command had the time to create as many.
    pub(super) fn may_have_created_more_than(&self, files: u64) -> bool {
        let Some(before) = self.free.and_then(|free| free.files) else { return false };
        let now = free(&self.folder).and_then(|free| free.files).unwrap_or(before);
        before.saturating_sub(now) > files && is_enough(self.ticks(), files)
    }

    /// Counts from now on.
    pub(super) fn forget(&mut self) {
        self.free = free(&self.folder);
        self.written.clear();
        self.ticks_before = self.ticks;
    }
}

/// Whether that many files can be created in that many ticks.
fn is_enough(ticks: u64, files: u64) -> bool {
    ticks.saturating_add(1).saturating_mul(FILES_PER_TICK) > files
}

/// What the disk that holds `folder` has left.
pub(super) fn free(folder: &std::path::Path) -> Option<Free> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(Free { bytes: stat.f_bavail.saturating_mul(stat.f_frsize), files: (stat.f_files > 0).then_some(stat.f_ffree) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_spent_no_time_in_the_kernel_created_no_files() {
        assert!(!is_enough(0, 200_000) && !is_enough(20, 200_000));
        assert!(is_enough(40, 200_000) && is_enough(0, 2_000));
    }
}
