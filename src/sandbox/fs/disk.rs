//! Estimates how much of a disk one command takes, in bytes and in files. The kernel counts the
//! bytes that each process wrote, with those of the ended processes that it waited for; the free
//! space of the disk shows the sum over all writers. A file system quota would be exact, but setting
//! one needs privileges.
//!
//! A command cannot take room without writing: the filter of system calls refuses `fallocate`.

use std::path::PathBuf;

/// Files that a process can create in one kernel tick (10 ms) at most, since each takes at least
/// 1.5 µs. A command with less kernel time did not create the files that the disk lost.
const FILES_PER_TICK: u64 = 6_600;

/// What a command has written is noted once its disk has lost one part in this many of what the
/// command may write, and then after each further part.
const FIRST_PART: u64 = 8;
const NEXT_PART: u64 = 32;

/// Disk usage of one command.
#[derive(Debug)]
pub(in crate::sandbox) struct Disk {
    folder: PathBuf,
    free: Option<Free>,
    /// Bytes that the processes had written which lived at the last check, and those of ended ones
    /// that no living one has in its count.
    living: u64,
    ended: u64,
    /// Kernel ticks of the command's processes, and the ticks before the count began.
    ticks: u64,
    ticks_before: u64,
    /// Bytes and files that the disk had lost when these were noted.
    noted_at: (u64, u64),
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
            living: 0,
            ended: 0,
            ticks: 0,
            ticks_before: 0,
            noted_at: (0, 0),
        }
    }

    /// Whether to note again what a command has written that may write `bytes_max` and create
    /// `files_max`: the disk has lost a part of that, and more than at the last time, whoever took it.
    pub(in crate::sandbox) fn is_due(&self, bytes_max: u64, files_max: u64) -> bool {
        let (bytes, files) = self.noted_at;
        is_more(self.lost(), bytes, bytes_max) || is_more(self.lost_files(), files, files_max)
    }

    /// Records what the living processes have written, and their kernel time.
    pub(in crate::sandbox) fn note(&mut self, written: u64, ticks: u64) {
        self.noted_at = (self.lost(), self.lost_files());
        self.note_written(written);
        self.ticks = self.ticks.max(ticks);
    }

    /// Takes the sum over the living. It falls only when a process ended whose bytes no living one
    /// has.
    fn note_written(&mut self, living: u64) {
        let ended = self.living.saturating_sub(living);
        self.ended = self.ended.saturating_add(ended);
        self.living = living;
    }

    /// Bytes that the command's processes were seen to write.
    pub(in crate::sandbox) fn written(&self) -> u64 {
        self.ended.saturating_add(self.living)
    }

    /// Leaves out what a command wrote that was ended for it: its files may remain.
    pub(in crate::sandbox) fn leave_out(&mut self, bytes: u64) {
        if let Some(free) = &mut self.free {
            free.bytes = free.bytes.saturating_sub(bytes);
        }
    }

    /// The folder whose disk is observed.
    pub(in crate::sandbox) fn folder(&self) -> &std::path::Path {
        &self.folder
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

    /// Files by which the free ones became fewer since the count began, whoever created them.
    fn lost_files(&self) -> u64 {
        let Some(before) = self.free.and_then(|free| free.files) else {
            return 0;
        };
        let now = free(&self.folder).and_then(|free| free.files);
        before.saturating_sub(now.unwrap_or(before))
    }

    /// Whether the disk has lost more than `files` files and this command had the kernel time to
    /// create them.
    pub(in crate::sandbox) fn may_have_created_more_than(&self, files: u64) -> bool {
        self.lost_files() > files && is_enough(self.ticks(), files)
    }

    /// Starts the count of files again from the current state of the disk.
    pub(in crate::sandbox) fn forget_files(&mut self) {
        let files = free(&self.folder).and_then(|free| free.files);
        if let Some(before) = &mut self.free {
            before.files = files;
        }
        self.ticks_before = self.ticks;
        self.noted_at.1 = 0;
    }
}

/// Whether so much more is lost than `before` that it matters to a bound. Beyond the bound it always
/// does.
fn is_more(lost: u64, before: u64, max: u64) -> bool {
    lost > max || (lost > max / FIRST_PART && lost > before.saturating_add(max / NEXT_PART))
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
    fn what_ended_processes_wrote_counts_once() {
        let mut disk = Disk::of(PathBuf::from("/"));
        let mut after = |living| {
            disk.note_written(living);
            disk.written()
        };

        assert_eq!([10, 30].map(&mut after), [10, 30]);
        assert_eq!(after(5), 30, "one ended, and no process waited for it");
        assert_eq!(after(8), 33);
    }

    #[test]
    fn what_was_written_is_noted_when_more_is_lost() {
        let noted = [(100, 0), (101, 0), (126, 101), (127, 101), (801, 800)];
        let is_due = noted.map(|(lost, before)| is_more(lost, before, 800));
        assert_eq!(is_due, [false, true, false, true, true]);
    }

    #[test]
    fn a_command_that_spent_no_time_in_the_kernel_created_no_files() {
        assert!(!is_enough(0, 200_000) && !is_enough(20, 200_000));
        assert!(is_enough(40, 200_000) && is_enough(0, 2_000));
    }
}
