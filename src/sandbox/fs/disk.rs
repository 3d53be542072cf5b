//! Estimates how much of a disk one command takes, in bytes and in files. The kernel counts the
//! bytes that each living process wrote; the free space of the disk shows the sum over all writers.
//! A file system quota would be exact, but setting one needs privileges.

use std::{collections::HashMap, fs, path::PathBuf};

/// Processes whose written bytes are remembered. Beyond these, only the free space of the disk
/// counts.
const WRITERS_MAX: usize = 4096;

/// Files that a process can create in one kernel tick (10 ms) at most, since each takes at least
/// 1.5 µs. A command with less kernel time did not create the files that the disk lost.
const FILES_PER_TICK: u64 = 6_600;

/// Disk usage of one command.
#[derive(Debug)]
pub(in crate::sandbox) struct Disk {
    folder: PathBuf,
    free: Option<Free>,
    /// Bytes written, by process, as of the last check. Entries of ended processes stay.
    written: HashMap<i32, u64>,
    /// Kernel ticks of the command's processes, and the ticks before the count began.
    ticks: u64,
    ticks_before: u64,
}

/// Free space of a disk.
#[derive(Debug, Clone, Copy)]
pub(in crate::sandbox) struct Free {
    pub(in crate::sandbox) bytes: u64,
    /// Free inodes; `None` where the file system does not count them.
    pub(in crate::sandbox) files: Option<u64>,
}

impl Disk {
    /// Starts to observe the disk that holds `folder`.
    pub(in crate::sandbox) fn of(folder: PathBuf) -> Self {
        Self {
            free: free(&folder),
            folder,
            written: HashMap::new(),
            ticks: 0,
            ticks_before: 0,
        }
    }

    /// Records what the processes of `tree` have written. `ticks` is their kernel time.
    pub(in crate::sandbox) fn watch(&mut self, tree: &[i32], ticks: u64) {
        for pid in tree {
            let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
            let bytes = text
                .lines()
                .find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
            if let Some(bytes) = bytes.filter(|bytes| *bytes > 0)
                && (self.written.len() < WRITERS_MAX || self.written.contains_key(pid))
            {
                self.written.insert(*pid, bytes);
            }
        }
        self.ticks = self.ticks.max(ticks);
    }

    /// Bytes that the command's processes were seen to write.
    pub(in crate::sandbox) fn written(&self) -> u64 {
        self.written.values().sum()
    }

    /// Kernel ticks since the count began. Creating files takes kernel time, so the command with
    /// the most ticks is the likeliest creator.
    pub(in crate::sandbox) fn ticks(&self) -> u64 {
        self.ticks.saturating_sub(self.ticks_before)
    }

    /// Bytes by which the free space shrank since the count began, whoever wrote them.
    pub(in crate::sandbox) fn lost(&self) -> u64 {
        let Some(before) = self.free else { return 0 };
        before
            .bytes
            .saturating_sub(free(&self.folder).unwrap_or(before).bytes)
    }

    /// Whether the disk has lost more than `files` files and this command had the kernel time to
    /// create them.
    pub(in crate::sandbox) fn may_have_created_more_than(&self, files: u64) -> bool {
        let Some(before) = self.free.and_then(|free| free.files) else {
            return false;
        };
        let now = free(&self.folder)
            .and_then(|free| free.files)
            .unwrap_or(before);
        before.saturating_sub(now) > files && is_enough(self.ticks(), files)
    }

    /// Starts the count again from the current state of the disk.
    pub(in crate::sandbox) fn forget(&mut self) {
        self.free = free(&self.folder);
        self.written.clear();
        self.ticks_before = self.ticks;
    }
}

/// Whether `files` files can be created in `ticks` kernel ticks.
fn is_enough(ticks: u64, files: u64) -> bool {
    ticks.saturating_add(1).saturating_mul(FILES_PER_TICK) > files
}

/// Free space of the disk that holds `folder`.
pub(in crate::sandbox) fn free(folder: &std::path::Path) -> Option<Free> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(Free {
        bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        files: (stat.f_files > 0).then_some(stat.f_ffree),
    })
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
