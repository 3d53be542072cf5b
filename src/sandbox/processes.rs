//! Looks at the processes of this machine through `/proc`: whose child is whose, how much they hold. Reads only.

use std::{collections::HashMap, fs, os::fd::OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal};

/// Children by parent, from one pass over `/proc`.
#[derive(Debug, Default)]
pub(super) struct Processes {
    children: HashMap<i32, Vec<i32>>,
    threads: HashMap<i32, u32>,
}

impl Processes {
    pub(super) fn read() -> Self {
        let mut all = Self::default();
        for pid in pids() {
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            // The name stands in parentheses and may hold anything; what follows the last one is numbers.
            let Some((_, rest)) = stat.rsplit_once(')') else { continue };
            let mut fields = rest.split_ascii_whitespace();
            if let Some(parent) = fields.nth(1).and_then(|field| field.parse().ok()) {
                all.children.entry(parent).or_default().push(pid);
            }
            if let Some(threads) = fields.nth(15).and_then(|field| field.parse().ok()) {
                all.threads.insert(pid, threads);
            }
        }
        all
    }

    pub(super) fn children_of(&self, pid: i32) -> &[i32] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// `pid` and all below it.
    pub(super) fn tree(&self, pid: i32) -> Vec<i32> {
        let mut tree = vec![pid];
        let mut at = 0;
        while let Some(parent) = tree.get(at).copied() {
            tree.extend_from_slice(self.children_of(parent));
            at += 1;
        }
        tree
    }

    pub(super) fn threads_of(&self, tree: &[i32]) -> u32 {
        tree.iter().filter_map(|pid| self.threads.get(pid)).sum()
    }
}

/// Processes and threads of the whole machine: one small read, where a pass over `/proc` costs milliseconds.
pub(super) fn total() -> u32 {
    let total = |text: String| text.split_ascii_whitespace().nth(3)?.split_once('/')?.1.parse().ok();
    fs::read_to_string("/proc/loadavg").ok().and_then(total).unwrap_or(u32::MAX)
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Bytes that processes hold for themselves: anonymous and shared memory, not mapped files.
pub(super) fn memory_of(tree: &[i32]) -> u64 {
    let one = |pid: &i32| -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let rows = status.lines().filter_map(|line| line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:")));
        Some(rows.filter_map(|row| row.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).sum())
    };
    tree.iter().filter_map(one).sum::<u64>().saturating_mul(1024)
}

/// Processes in whose environment `marker` stands.
pub(super) fn marked(marker: &str) -> Vec<i32> {
    let holds = |pid: &i32| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| environ.split(|b| *b == 0).any(|row| row == marker.as_bytes()))
    };
    pids().filter(holds).collect()
}

/// A descriptor of a process, which its number is not: numbers are used again.
pub(super) fn pidfd(pid: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Kills one process at once.
pub(super) fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Kills a process group at once.
pub(super) fn kill_group(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}
