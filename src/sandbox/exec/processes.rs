//! Reads the machine's processes from `/proc`: parents and children, memory, and marks in the
//! environment. A scan takes time in proportion to the number of processes, so callers share one.
//! Also contains the functions that kill processes.
//!
//! While a process is replaced (`execve`), its `stat`, `io`, `maps`, `environ` and `syscall` cannot be
//! read, and no link in its folder followed: a reader waits until the process gets a processor and is
//! done. Sixty that are replaced all the time hold up a scan of those files for seconds, so that scans
//! read `status`, which never waits.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Read,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::thread_clock::ThreadTimes;

/// Environment variable that marks a process; its value identifies the job.
pub(in crate::sandbox) const MARK: &str = "CALLBOARD_JOB";

/// Scans for processes to pause. Each finds only what was started during the one before.
const PAUSE_SCANS_MAX: usize = 4;

/// A process as one scan saw it.
#[derive(Debug, Default)]
struct Seen {
    group: i32,
    session: i32,
    threads: u32,
    /// Whether it has ended and waits for its parent.
    has_ended: bool,
    is_stopped: bool,
    /// Size of the address space, in bytes.
    virtual_bytes: u64,
    held: Held,
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

    fn plus(self, other: Self) -> Self {
        Self {
            private: self.private.saturating_add(other.private),
            shared: self.shared.saturating_add(other.shared),
            tables: self.tables.saturating_add(other.tables),
        }
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
            if let Some((parent, seen)) = file.status(pid) {
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
            if let Some((parent, seen)) = file.status(pid) {
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

    /// Memory that processes hold: private memory, shared memory and page tables, but not mapped
    /// files. Memory behind a descriptor that is not mapped is not included.
    pub(super) fn held(&self, tree: &[i32]) -> Held {
        tree.iter()
            .filter_map(|pid| self.seen.get(pid))
            .fold(Held::default(), |sum, seen| sum.plus(seen.held))
    }

    /// Total address space of processes, in bytes.
    pub(super) fn virtual_bytes(&self, tree: &[i32]) -> u64 {
        tree.iter()
            .filter_map(|pid| self.seen.get(pid))
            .fold(0, |sum, seen| sum.saturating_add(seen.virtual_bytes))
    }

    /// Kills a process group, and descendants of its leader that have left the group. The leader
    /// must not have been reaped, because afterwards its id may be reused. A process that has the id
    /// of another one since the scan is not killed, unless it belongs to the same command.
    pub(super) fn kill_group_and_below(&self, leader: i32) {
        kill_group(leader);
        for pid in self.tree(leader) {
            if let Some(seen) = self.seen.get(&pid).filter(|seen| seen.group != leader) {
                kill_if(pid, |file| {
                    file.status(pid).is_some_and(|(_, now)| {
                        (now.group, now.session) == (seen.group, seen.session)
                    })
                });
            }
        }
    }
}

/// How long one pass may wait for processes that are just replaced.
const WAITS_MAX: Duration = Duration::from_millis(4);

/// What the calling thread has waited for others, beside a processor.
pub(super) struct Waits {
    since: Instant,
    before: Option<Duration>,
}

impl Waits {
    pub(super) fn begin() -> Self {
        Self {
            since: Instant::now(),
            before: ran_or_was_ready(),
        }
    }

    /// How long it has waited since the beginning.
    pub(super) fn sum(&self) -> Duration {
        let ready = ran_or_was_ready().zip(self.before);
        let ready = ready.map(|(now, before)| now.saturating_sub(before));
        ready.map_or(Duration::ZERO, |ready| {
            self.since.elapsed().saturating_sub(ready)
        })
    }

    /// Whether that is all that one pass may.
    pub(super) fn are_long(&self) -> bool {
        self.since.elapsed() > WAITS_MAX && self.sum() > WAITS_MAX
    }
}

fn ran_or_was_ready() -> Option<Duration> {
    ThreadTimes::read().map(|times| times.has_run + times.was_ready)
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
                file.status(pid)
                    .is_some_and(|(_, now)| !now.is_stopped && !now.has_ended)
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
    let seen = Buffer::default().status(pid);
    seen.is_some_and(|(_, seen)| seen.is_stopped)
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
    /// Finds the processes with a mark in `wanted`, but for those in `known`. Other marks are not
    /// stored, however many a process carries.
    pub(super) fn read(wanted: &HashSet<&str>, known: &HashSet<i32>) -> Self {
        let mut marked = Self::default();
        let mut file = Buffer::default();
        for pid in pids().filter(|pid| !known.contains(pid)) {
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

    /// Returns the parent and the status of a process.
    fn status(&mut self, pid: i32) -> Option<(i32, Seen)> {
        let (parent, mut seen) = parse_status(self.read(pid, "status")?)?;
        if seen.has_ended && seen.threads > 1 {
            let shown = fs::read(format!("{}/status", shown(pid))).ok();
            let living = shown.and_then(|text| parse_status(&text));
            if let Some((_, living)) = living {
                seen.has_ended = false;
                (seen.virtual_bytes, seen.held) = (living.virtual_bytes, living.held);
            }
        }
        Some((parent, seen))
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

/// The parent and the status of a process, from its `status`. A name there cannot begin a line.
fn parse_status(text: &[u8]) -> Option<(i32, Seen)> {
    let mut parent = None;
    let mut seen = Seen::default();
    for line in text.split(|byte| *byte == b'\n') {
        let Some((name, value)) = std::str::from_utf8(line)
            .ok()
            .and_then(|line| line.split_once(':'))
        else {
            continue; // the name of a program may be any bytes
        };
        let mut words = value.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        let kib = || first.parse::<u64>().unwrap_or(0).saturating_mul(1024);
        match name {
            "State" => {
                seen.has_ended = matches!(first, "Z" | "X");
                seen.is_stopped = matches!(first, "T" | "t");
            }
            "PPid" => parent = first.parse().ok(),
            "Threads" => seen.threads = first.parse().unwrap_or(1),
            // The first number is that of this process's own namespace.
            "NSpgid" => seen.group = first.parse().unwrap_or(0),
            "NSsid" => seen.session = first.parse().unwrap_or(0),
            "VmSize" => seen.virtual_bytes = kib(),
            "RssAnon" | "VmSwap" => seen.held.private = seen.held.private.saturating_add(kib()),
            "RssShmem" => seen.held.shared = kib(),
            "VmPTE" => seen.held.tables = kib(),
            _ => {}
        }
    }
    Some((parent?, seen))
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
    let status = fs::read(format!("{folder}/status")).unwrap_or_default();
    parse_status(&status).is_none_or(|(_, seen)| seen.has_ended)
}

/// Start time of a process, in ticks since boot.
pub(super) fn began(pid: i32) -> Option<u64> {
    numbers_of_stat(pid, [19]).map(|[began]| began)
}

/// Kernel time of processes and of the ended ones that they waited for, in ticks. Waits for one that
/// is just replaced.
pub(super) fn system_ticks(tree: &[i32]) -> u64 {
    let of = |pid: &i32| numbers_of_stat(*pid, [12, 14]).unwrap_or_default();
    tree.iter().flat_map(of).fold(0, u64::saturating_add)
}

/// Bytes that processes have written, with those of the ended ones that they waited for, and
/// [`system_ticks`]. `None` if it takes longer than `waits` allows.
pub(super) fn written_and_ticks(tree: &[i32], waits: Option<&Waits>) -> Option<(u64, u64)> {
    let (mut written, mut ticks) = (0_u64, 0_u64);
    for pid in tree {
        if waits.is_some_and(Waits::are_long) {
            return None;
        }
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let mut bytes = io
            .lines()
            .filter_map(|line| line.strip_prefix("write_bytes: "));
        let bytes = bytes.next().and_then(|bytes| bytes.parse().ok());
        written = written.saturating_add(bytes.unwrap_or(0));
        ticks = ticks.saturating_add(system_ticks(&[*pid]));
    }
    Some((written, ticks))
}

/// Numbers of a process's `stat`, by how many come between each and the name.
fn numbers_of_stat<const N: usize>(pid: i32, places: [usize; N]) -> Option<[u64; N]> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything. Only numbers follow the last one.
    let rest = stat.get(stat.iter().rposition(|byte| *byte == b')')? + 1..)?;
    let rest = std::str::from_utf8(rest).ok()?;
    let number = |at| rest.split_ascii_whitespace().nth(at)?.parse().ok();
    let mut numbers = [0; N];
    for (number_at, place) in numbers.iter_mut().zip(places) {
        *number_at = number(place)?;
    }
    Some(numbers)
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
        let state = |pid: i32| {
            let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let state = text
                .lines()
                .find_map(|line| line.strip_prefix("State:\t"))?;
            state.bytes().next()
        };
        let states = || -> Vec<u8> {
            let mut states: Vec<u8> = below(pid).into_iter().filter_map(state).collect();
            states.sort_unstable();
            states
        };
        while states() != *b"ST" {} // both have started, and the second one has stopped

        let paused = Paused::below([pid].into_iter());
        while states() != *b"TT" {} // a signal takes effect with a delay
        let root_state = state(pid); // asleep, or still on its way there
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
            marked = Marked::read(&HashSet::from(["a mark"]), &HashSet::new()); // a process has no environment until it has started
        }

        assert!(all.children_of(own).contains(&pid));
        assert_eq!(
            (tree.as_slice(), all.threads_of(&tree)),
            ([pid].as_slice(), 1)
        );
        assert!(all.held(&[own]).private > 1024 * 1024 && all.held(&tree).tables > 0);
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
