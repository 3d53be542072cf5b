//! Reads the machine's processes from `/proc`: parents and children, memory, and marks in the
//! environment. A scan takes time in proportion to the number of processes, so callers share one.
//! Also contains the functions that kill processes.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Read,
    os::fd::OwnedFd,
};

use rustix::process::{Pid, PidfdFlags, Signal};

/// Environment variable that marks a process; its value identifies the job.
pub(in crate::sandbox) const MARK: &str = "CALLBOARD_JOB";

/// Largest page size of any supported machine, in bytes.
const PAGE_MAX: u64 = 64 * 1024;

/// Fewest bytes of address space per byte of page table: one table of 4 KiB covers 2 MiB, and a few
/// more tables lie above it.
const BYTES_PER_TABLE_BYTE: u64 = 500;

/// Scans for processes to pause. Each finds only what was started during the one before.
const PAUSE_SCANS_MAX: usize = 4;

/// A process as one scan saw it.
#[derive(Debug)]
struct Seen {
    group: i32,
    session: i32,
    threads: u32,
    /// Start time, in ticks since boot. Together with the process id it identifies the process.
    began: u64,
    /// Kernel time of the process and of its reaped children, in ticks.
    system_ticks: u64,
    /// Size of the address space, in bytes.
    virtual_bytes: u64,
    resident_pages: u64,
}

/// Memory that processes hold, in bytes, as far as `/proc` reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Anonymous memory, including swapped pages.
    pub(super) private: u64,
    /// Touched pages of shared mappings, which other processes may map too.
    pub(super) shared: u64,
    /// Kernel memory of page tables.
    pub(super) tables: u64,
}

impl Held {
    pub(super) fn sum(self) -> u64 {
        self.private
            .saturating_add(self.shared)
            .saturating_add(self.tables)
    }
}

/// Processes by parent, from one scan.
#[derive(Debug, Default)]
pub(super) struct Processes {
    children: HashMap<i32, Vec<i32>>,
    seen: HashMap<i32, Seen>,
}

impl Processes {
    pub(super) fn read() -> Self {
        let mut all = Self::default();
        let mut file = Buffer::default();
        for pid in pids() {
            if let Some((parent, seen)) = file.stat(pid) {
                all.children.entry(parent).or_default().push(pid);
                all.seen.insert(pid, seen);
            }
        }
        all
    }

    /// Reads `roots` and all processes below them, without scanning the rest of the machine.
    pub(super) fn read_below(roots: impl IntoIterator<Item = i32>) -> Self {
        let mut all = Self::default();
        let mut file = Buffer::default();
        for pid in roots
            .into_iter()
            .flat_map(|root| std::iter::once(root).chain(below(root)))
        {
            if let Some((parent, seen)) = file.stat(pid) {
                all.children.entry(parent).or_default().push(pid);
                all.seen.insert(pid, seen);
            }
        }
        all
    }

    pub(super) fn children_of(&self, pid: i32) -> &[i32] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Returns `pid` and all its descendants.
    pub(super) fn tree(&self, pid: i32) -> Vec<i32> {
        let mut tree = vec![pid];
        let mut at = 0;
        while let Some(parent) = tree.get(at).copied() {
            tree.extend_from_slice(self.children_of(parent));
            at += 1;
        }
        tree
    }

    /// The sessions that processes belong to.
    pub(super) fn sessions_of(&self, tree: &[i32]) -> HashSet<i32> {
        let seen = tree.iter().filter_map(|pid| self.seen.get(pid));
        seen.map(|seen| seen.session).collect()
    }

    pub(super) fn threads_of(&self, tree: &[i32]) -> u32 {
        tree.iter()
            .filter_map(|pid| self.seen.get(pid))
            .map(|seen| seen.threads)
            .sum()
    }

    /// Whether processes may hold more than `bytes`, by a cheap upper bound. If not, the exact
    /// values need not be read.
    pub(super) fn may_hold(&self, tree: &[i32], bytes: u64) -> bool {
        let seen = || tree.iter().filter_map(|pid| self.seen.get(pid));
        let pages: u64 = seen().map(|seen| seen.resident_pages).sum();
        pages
            .saturating_mul(PAGE_MAX)
            .saturating_add(self.virtual_bytes(tree) / BYTES_PER_TABLE_BYTE)
            > bytes
    }

    /// Total address space of processes, in bytes.
    pub(super) fn virtual_bytes(&self, tree: &[i32]) -> u64 {
        tree.iter()
            .filter_map(|pid| self.seen.get(pid))
            .fold(0, |sum, seen| sum.saturating_add(seen.virtual_bytes))
    }

    /// Kernel time of processes and their ended children, in ticks.
    pub(super) fn system_ticks(&self, tree: &[i32]) -> u64 {
        tree.iter()
            .filter_map(|pid| self.seen.get(pid))
            .map(|seen| seen.system_ticks)
            .sum()
    }

    /// Kills a process group, and descendants of its leader that have left the group. The leader
    /// must not have been reaped, because afterwards its id may be reused.
    pub(super) fn kill_group_and_below(&self, leader: i32) {
        kill_group(leader);
        for pid in self.tree(leader) {
            if let Some(seen) = self.seen.get(&pid).filter(|seen| seen.group != leader) {
                kill_if(pid, |file| {
                    file.stat(pid)
                        .is_some_and(|(_, now)| now.began == seen.began)
                });
            }
        }
    }
}

/// Processes that do not run while this value lives. Ones that were stopped before are left as they
/// are.
#[derive(Debug)]
pub(super) struct Paused(Vec<i32>);

impl Paused {
    /// Stops every process below `roots`, but not the roots themselves: a supervisor must be able
    /// to notice that the host is gone.
    pub(super) fn below(roots: impl Iterator<Item = i32>) -> Self {
        let mut paused = Self(Vec::new());
        roots.for_each(|root| paused.stop_below(root));
        paused
    }

    /// Stops the processes below `root` that run, also such as were missed or let go on before.
    pub(super) fn stop_below(&mut self, root: i32) {
        let mut file = Buffer::default();
        let mut known = HashSet::new();
        // A process that was starting another one may have been missed, so the search is repeated
        // until it finds nothing new.
        for _ in 0..PAUSE_SCANS_MAX {
            let new: Vec<i32> = below(root)
                .into_iter()
                .filter(|pid| known.insert(*pid))
                .collect();
            if new.is_empty() {
                break;
            }
            let runs = |file: &mut Buffer, pid: i32| {
                file.state(pid)
                    .is_some_and(|state| !matches!(state, b'T' | b't' | b'Z'))
            };
            self.0.extend(
                new.into_iter()
                    .filter(|pid| runs(&mut file, *pid) && signal(*pid, Signal::STOP)),
            );
        }
        self.0.sort_unstable();
        self.0.dedup();
    }

    /// Whether no process was stopped.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether a process is stopped by a signal.
pub(super) fn is_stopped(pid: i32) -> bool {
    Buffer::default().state(pid) == Some(b'T')
}

impl Drop for Paused {
    fn drop(&mut self) {
        for pid in &self.0 {
            signal(*pid, Signal::CONT);
        }
    }
}

/// Processes by the mark in their environment, from one scan.
#[derive(Debug, Default)]
pub(super) struct Marked(HashMap<Vec<u8>, Vec<i32>>);

impl Marked {
    /// Finds the processes with a mark in `wanted`. Other marks are not stored, however many a
    /// process carries.
    pub(super) fn read(wanted: &HashSet<&str>) -> Self {
        let mut marked = Self::default();
        let mut file = Buffer::default();
        for pid in pids() {
            for mark in file
                .marks(pid)
                .filter(|mark| std::str::from_utf8(mark).is_ok_and(|mark| wanted.contains(mark)))
            {
                marked.0.entry(mark.to_vec()).or_default().push(pid);
            }
        }
        marked
    }

    pub(super) fn with(&self, mark: &str) -> &[i32] {
        self.0.get(mark.as_bytes()).map_or(&[], Vec::as_slice)
    }
}

/// Kills a process if it still carries the mark.
pub(super) fn kill_marked(pid: i32, mark: &str) {
    kill_if(pid, |file| {
        file.marks(pid).any(|found| found == mark.as_bytes())
    });
}

/// Buffer for small files of `/proc`: one read each, without asking for the size first.
#[derive(Debug)]
struct Buffer(Vec<u8>);

impl Default for Buffer {
    fn default() -> Self {
        Self(vec![0; 16 * 1024])
    }
}

impl Buffer {
    fn read(&mut self, pid: i32, name: &str) -> Option<&[u8]> {
        let mut file = File::open(format!("/proc/{pid}/{name}")).ok()?;
        let mut len = 0;
        loop {
            let read = file.read(self.0.get_mut(len..)?).ok()?;
            len += read;
            // The kernel returns all that it has, so a partly filled buffer means the end.
            if len < self.0.len() {
                return self.0.get(..len);
            }
            self.0.resize(len * 2, 0);
        }
    }

    /// State of a process, as one letter.
    fn state(&mut self, pid: i32) -> Option<u8> {
        let stat = self.read(pid, "stat")?;
        stat.get(stat.iter().rposition(|b| *b == b')')? + 2)
            .copied()
    }

    /// Returns the parent and the status of a process.
    fn stat(&mut self, pid: i32) -> Option<(i32, Seen)> {
        let stat = self.read(pid, "stat")?;
        // The name is in parentheses and may contain anything. Only numbers follow the last one.
        let rest = stat.get(stat.iter().rposition(|b| *b == b')')? + 1..)?;
        let mut fields = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let session = fields.next()?.parse().ok()?;
        let system: u64 = fields.nth(8)?.parse().ok()?;
        let of_children: u64 = fields.nth(1)?.parse().ok()?;
        let threads = fields.nth(2)?.parse().ok()?;
        let began = fields.nth(1)?.parse().ok()?;
        let mut virtual_bytes = fields.next()?.parse().ok()?;
        let mut resident_pages = fields.next()?.parse().ok()?;
        if virtual_bytes == 0 && threads > 1 {
            (virtual_bytes, resident_pages) = sizes(&shown(pid)).unwrap_or_default();
        }
        Some((
            parent,
            Seen {
                group,
                session,
                threads,
                began,
                system_ticks: system.saturating_add(of_children),
                virtual_bytes,
                resident_pages,
            },
        ))
    }

    /// Returns the marks that a process carries.
    fn marks(&mut self, pid: i32) -> impl Iterator<Item = &[u8]> {
        let environ = self
            .read(pid, "environ")
            .filter(|environ| memchr::memmem::find(environ, MARK.as_bytes()).is_some());
        let rows = environ.unwrap_or_default().split(|b| *b == 0);
        rows.filter_map(|row| row.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))
    }
}

/// Processes and threads of the whole machine: one small read, where a scan of `/proc` takes
/// milliseconds.
pub(in crate::sandbox) fn total() -> u32 {
    let total = |text: String| {
        text.split_ascii_whitespace()
            .nth(3)?
            .split_once('/')?
            .1
            .parse()
            .ok()
    };
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(total)
        .unwrap_or(u32::MAX)
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Memory that processes hold: private memory, shared memory and page tables, but not mapped files.
/// Memory behind a descriptor that is not mapped is not included.
pub(super) fn memory_of(tree: &[i32]) -> Held {
    let mut held = Held::default();
    for pid in tree {
        let mut text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        if !text.contains("RssAnon") {
            let shown = format!("{}/status", shown(*pid));
            text = fs::read_to_string(shown).unwrap_or_default();
        }
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let of = match name {
                "RssAnon" | "VmSwap" => &mut held.private,
                "RssShmem" => &mut held.shared,
                "VmPTE" => &mut held.tables,
                _ => continue,
            };
            let bytes = value
                .trim()
                .strip_suffix(" kB")
                .and_then(|kib| kib.trim().parse::<u64>().ok())
                .unwrap_or(0)
                .saturating_mul(1024);
            *of = of.saturating_add(bytes);
        }
    }
    held
}

/// The folder of `/proc` that shows memory and files of a process: its own, or that of another of its
/// threads when the main thread has ended. Of such a process, `/proc/PID` shows nothing.
pub(super) fn shown(pid: i32) -> String {
    let own = format!("/proc/{pid}");
    if !has_ended(&own) {
        return own;
    }
    let threads = fs::read_dir(format!("{own}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut living = threads
        .map(|thread| format!("{own}/task/{}", thread.file_name().to_string_lossy()))
        .filter(|thread| !has_ended(thread));
    living.next().unwrap_or(own)
}

/// Whether a thread has ended and only its entry is left.
fn has_ended(folder: &str) -> bool {
    let stat = fs::read(format!("{folder}/stat")).unwrap_or_default();
    let end = stat.iter().rposition(|byte| *byte == b')');
    let state = end.and_then(|end| stat.get(end + 2));
    state.is_none_or(|state| matches!(state, b'Z' | b'X'))
}

/// Bytes of address space and resident pages.
fn sizes(folder: &str) -> Option<(u64, u64)> {
    let stat = fs::read(format!("{folder}/stat")).ok()?;
    let rest = stat.get(stat.iter().rposition(|byte| *byte == b')')? + 1..)?;
    let mut fields = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
    Some((fields.nth(20)?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Start time of a process, in ticks since boot.
pub(super) fn began(pid: i32) -> Option<u64> {
    Buffer::default().stat(pid).map(|(_, seen)| seen.began)
}

/// All descendants of a process, found from the top, so the cost does not depend on the rest of the
/// machine. A process that starts or ends during the scan may be missing.
pub(in crate::sandbox) fn below(pid: i32) -> Vec<i32> {
    if fs::metadata("/proc/thread-self/children").is_err() {
        return Processes::read().tree(pid).into_iter().skip(1).collect(); // this kernel does not list children
    }
    let children = |pid: i32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten()
            .flatten();
        let texts =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        texts.flat_map(|text| {
            text.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        })
    };
    let mut below: Vec<i32> = children(pid).collect();
    let mut at = 0;
    while let Some(parent) = below.get(at).copied() {
        below.extend(children(parent));
        at += 1;
    }
    below
}

/// Opens a descriptor of a process. Unlike a process id, it is never reused for another process.
pub(in crate::sandbox) fn pidfd(pid: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Kills one process.
pub(in crate::sandbox) fn kill(pid: i32) {
    signal(pid, Signal::KILL);
}

/// Sends a signal to one process. Returns whether there was one.
fn signal(pid: i32, signal: Signal) -> bool {
    Pid::from_raw(pid).is_some_and(|pid| rustix::process::kill_process(pid, signal).is_ok())
}

/// Kills a process if `is_it` still recognizes it. The check comes after the process's descriptor
/// is open, so its id cannot be reused between the check and the kill.
fn kill_if(pid: i32, is_it: impl FnOnce(&mut Buffer) -> bool) {
    let held = pidfd(pid);
    if is_it(&mut Buffer::default()) {
        match held {
            Some(held) => drop(rustix::process::pidfd_send_signal(held, Signal::KILL)),
            None => kill(pid),
        }
    }
}

/// Kills a process group.
pub(super) fn kill_group(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_below_are_paused_and_go_on_and_a_stopped_one_stays_stopped() {
        let mut root = std::process::Command::new("/bin/bash")
            .args(["-c", "sleep 60 & sleep 60 & kill -STOP $!; wait"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = i32::try_from(root.id()).unwrap();
        let states = || -> Vec<u8> {
            let mut states: Vec<u8> = below(pid)
                .into_iter()
                .filter_map(|pid| Buffer::default().state(pid))
                .collect();
            states.sort_unstable();
            states
        };
        while states() != *b"ST" {} // both have started, and the second one has stopped

        let paused = Paused::below([pid].into_iter());
        while states() != *b"TT" {} // a signal takes effect with a delay
        let root_state = Buffer::default().state(pid); // asleep, or still on its way there
        assert!(
            matches!(root_state, Some(b'S' | b'R')),
            "the root itself goes on: {root_state:?}"
        );
        drop(paused);

        while states() != *b"ST" {}
        below(pid).into_iter().chain([pid]).for_each(kill);
        root.wait().unwrap();
    }

    #[test]
    fn a_process_is_found_below_by_either_look_and_by_its_mark() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("/bin/cat")
            .stdin(std::process::Stdio::piped())
            .env(MARK, "a mark")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();

        let all = Processes::read();
        let tree = all.tree(pid);
        while !below(own).contains(&pid) {} // other children of this process start and end
        let mut marked = Marked::default();
        while marked.with("a mark").is_empty() {
            marked = Marked::read(&HashSet::from(["a mark"])); // a process has no environment until it has started
        }

        assert!(all.children_of(own).contains(&pid));
        assert_eq!(
            (tree.as_slice(), all.threads_of(&tree)),
            ([pid].as_slice(), 1)
        );
        assert!(all.may_hold(&[own], memory_of(&[own]).sum()) && !all.may_hold(&tree, u64::MAX));
        assert_eq!(
            (marked.with("a mark"), marked.with("another")),
            ([pid].as_slice(), [].as_slice())
        );
        kill_marked(pid, "another");
        assert!(child.try_wait().unwrap().is_none());
        kill_marked(pid, "a mark");
        assert!(!child.wait().unwrap().success());
    }
}
