//! Looks at the processes of this machine through `/proc`: whose child is whose, how much they hold, who carries a mark. A look costs
//! as much as there are processes, so one serves all that need it at that moment. Beside it, the few ways to kill.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::Read,
    os::fd::OwnedFd,
};

use rustix::process::{Pid, PidfdFlags, Signal};

/// Stands in the environment of what is known by its mark; the value tells whose it is.
pub(super) const MARK: &str = "CALLBOARD_JOB";

/// The most bytes that a page of memory has anywhere.
const PAGE_MAX: u64 = 64 * 1024;

/// The least addresses that a byte of their tables stands for: a table of 4 KiB for 2 MiB, and a few above it.
const BYTES_PER_TABLE_BYTE: u64 = 500;

/// A process, as one look saw it.
#[derive(Debug)]
struct Seen {
    group: i32,
    threads: u32,
    /// When it began, in ticks since the machine did: with its number, who it is.
    began: u64,
    /// Time in the kernel, its own and that of its children that were waited for, in ticks.
    system_ticks: u64,
    /// Addresses in use.
    virtual_bytes: u64,
    resident_pages: u64,
}

/// What processes hold of the machine's memory, as far as it can be asked of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Memory of their own, swapped out or not.
    pub(super) private: u64,
    /// Memory that may be another's, too, mapped and touched.
    pub(super) shared: u64,
    /// Tables of pages.
    pub(super) tables: u64,
}

impl Held {
    pub(super) fn sum(self) -> u64 {
        self.private.saturating_add(self.shared).saturating_add(self.tables)
    }
}

/// Processes by parent, from one look.
#[derive(Debug, Default)]
pub(super) struct Processes {
    children: HashMap<i32, Vec<i32>>,
    seen: HashMap<i32, Seen>,
}

impl Processes {
    pub(super) fn read() -> Self {
        let (mut all, mut file) = (Self::default(), Buffer::default());
        for pid in pids() {
            if let Some((parent, seen)) = file.stat(pid) {
                all.children.entry(parent).or_default().push(pid);
                all.seen.insert(pid, seen);
            }
        }
        all
    }

    /// These and all below them, without a look at the rest of the machine.
    pub(super) fn read_below(roots: impl IntoIterator<Item = i32>) -> Self {
        let (mut all, mut file) = (Self::default(), Buffer::default());
        for pid in roots.into_iter().flat_map(|root| std::iter::once(root).chain(below(root))) {
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
        tree.iter().filter_map(|pid| self.seen.get(pid)).map(|seen| seen.threads).sum()
    }

    /// Whether processes may hold more than `bytes`; if not, there is no need to ask them one by one.
    pub(super) fn may_hold(&self, tree: &[i32], bytes: u64) -> bool {
        let seen = || tree.iter().filter_map(|pid| self.seen.get(pid));
        let pages: u64 = seen().map(|seen| seen.resident_pages).sum();
        pages.saturating_mul(PAGE_MAX).saturating_add(self.virtual_bytes(tree) / BYTES_PER_TABLE_BYTE) > bytes
    }

    /// Addresses that processes use, all together.
    pub(super) fn virtual_bytes(&self, tree: &[i32]) -> u64 {
        tree.iter().filter_map(|pid| self.seen.get(pid)).fold(0, |sum, seen| sum.saturating_add(seen.virtual_bytes))
    }

    /// Time in the kernel of processes and their children that have ended, in ticks.
    pub(super) fn system_ticks(&self, tree: &[i32]) -> u64 {
        tree.iter().filter_map(|pid| self.seen.get(pid)).map(|seen| seen.system_ticks).sum()
    }

    /// Kills a process group at once, and what lies below its leader and has left the group. The leader must not have been waited
    /// for: until then its number is nobody else's.
    pub(super) fn kill_group_and_below(&self, leader: i32) {
        kill_group(leader);
        for pid in self.tree(leader) {
            if let Some(seen) = self.seen.get(&pid).filter(|seen| seen.group != leader) {
                kill_if(pid, |file| file.stat(pid).is_some_and(|(_, now)| now.began == seen.began));
            }
        }
    }
}

/// Processes by the mark in their environment, from one look.
#[derive(Debug, Default)]
pub(super) struct Marked(HashMap<Vec<u8>, Vec<i32>>);

impl Marked {
    /// Looks for these; others are not remembered, however many a process carries.
    pub(super) fn read(wanted: &HashSet<&str>) -> Self {
        let (mut marked, mut file) = (Self::default(), Buffer::default());
        for pid in pids() {
            for mark in file.marks(pid).filter(|mark| std::str::from_utf8(mark).is_ok_and(|mark| wanted.contains(mark))) {
                marked.0.entry(mark.to_vec()).or_default().push(pid);
            }
        }
        marked
    }

    pub(super) fn with(&self, mark: &str) -> &[i32] {
        self.0.get(mark.as_bytes()).map_or(&[], Vec::as_slice)
    }
}

/// Kills a process that was seen with a mark.
pub(super) fn kill_marked(pid: i32, mark: &str) {
    kill_if(pid, |file| file.marks(pid).any(|found| found == mark.as_bytes()));
}

/// What small files of `/proc` are read into: one read each, without a look at their size first.
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
            // The kernel gives all there is: less than there is room for is the end.
            if len < self.0.len() {
                return self.0.get(..len);
            }
            self.0.resize(len * 2, 0);
        }
    }

    /// Its parent and what else is known of it.
    fn stat(&mut self, pid: i32) -> Option<(i32, Seen)> {
        let stat = self.read(pid, "stat")?;
        // The name stands in parentheses and may hold anything; what follows the last one is numbers.
        let rest = stat.get(stat.iter().rposition(|b| *b == b')')? + 1..)?;
        let mut fields = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        let system: u64 = fields.nth(9)?.parse().ok()?;
        let of_children: u64 = fields.nth(1)?.parse().ok()?;
        let threads = fields.nth(2)?.parse().ok()?;
        let began = fields.nth(1)?.parse().ok()?;
        let virtual_bytes = fields.next()?.parse().ok()?;
        let resident_pages = fields.next()?.parse().ok()?;
        Some((parent, Seen { group, threads, began, system_ticks: system.saturating_add(of_children), virtual_bytes, resident_pages }))
    }

    /// The marks that a process carries.
    fn marks(&mut self, pid: i32) -> impl Iterator<Item = &[u8]> {
        let environ = self.read(pid, "environ").filter(|environ| memchr::memmem::find(environ, MARK.as_bytes()).is_some());
        let rows = environ.unwrap_or_default().split(|b| *b == 0);
        rows.filter_map(|row| row.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))
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

/// What processes hold: their own memory, shared memory and its tables, not mapped files. Memory behind a descriptor that is not mapped is
/// not among it.
pub(super) fn memory_of(tree: &[i32]) -> Held {
    let mut held = Held::default();
    for pid in tree {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            let of = match name {
                "RssAnon" | "VmSwap" => &mut held.private,
                "RssShmem" => &mut held.shared,
                "VmPTE" => &mut held.tables,
                _ => continue,
            };
            let bytes = value.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024);
            *of = of.saturating_add(bytes);
        }
    }
    held
}

/// When a process began, in ticks since the machine did.
pub(super) fn began(pid: i32) -> Option<u64> {
    Buffer::default().stat(pid).map(|(_, seen)| seen.began)
}

/// All below a process, asked for from there downwards: what the rest of the machine runs costs nothing. Who is born or ends meanwhile
/// may be missing.
pub(super) fn below(pid: i32) -> Vec<i32> {
    if fs::metadata("/proc/thread-self/children").is_err() {
        return Processes::read().tree(pid).into_iter().skip(1).collect(); // a kernel that does not tell them
    }
    let children = |pid: i32| {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        texts.flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
    };
    let (mut below, mut at): (Vec<i32>, _) = (children(pid).collect(), 0);
    while let Some(parent) = below.get(at).copied() {
        below.extend(children(parent));
        at += 1;
    }
    below
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

/// Kills a process if it still is the one that was seen, which is asked when its number can no more become another's unnoticed.
fn kill_if(pid: i32, is_it: impl FnOnce(&mut Buffer) -> bool) {
    let held = pidfd(pid);
    if is_it(&mut Buffer::default()) {
        match held {
            Some(held) => drop(rustix::process::pidfd_send_signal(held, Signal::KILL)),
            None => kill(pid),
        }
    }
}

/// Kills a process group at once.
pub(super) fn kill_group(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_below_by_either_look_and_by_its_mark() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut child = std::process::Command::new("/bin/cat").stdin(std::process::Stdio::piped()).env(MARK, "a mark").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();

        let all = Processes::read();
        let tree = all.tree(pid);
        while !below(own).contains(&pid) {} // others of this process come and go
        let mut marked = Marked::default();
        while marked.with("a mark").is_empty() {
            marked = Marked::read(&HashSet::from(["a mark"])); // it has no environment before it has begun
        }

        assert!(all.children_of(own).contains(&pid));
        assert_eq!((tree.as_slice(), all.threads_of(&tree)), ([pid].as_slice(), 1));
        assert!(all.may_hold(&[own], memory_of(&[own]).sum()) && !all.may_hold(&tree, u64::MAX));
        assert_eq!((marked.with("a mark"), marked.with("another")), ([pid].as_slice(), [].as_slice()));
        kill_marked(pid, "another");
        assert!(child.try_wait().unwrap().is_none());
        kill_marked(pid, "a mark");
        assert!(!child.wait().unwrap().success());
    }
}
