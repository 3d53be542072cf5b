//! Memory that processes could hold without showing it: memory files and shared memory, sockets,
//! pipes. [`HiddenMemory::of`] examines every descriptor and mapping, so it is read only after the
//! machine has lost memory. [`open_files`] is cheap and read all the time; [`open_sockets`] follows
//! when there are very many open files.

use std::{
    collections::{HashMap, HashSet},
    fs,
    os::unix::fs::MetadataExt,
};

use super::processes::{Waits, shown};

/// Prefixes of the names of shared memory that is no file of a disk.
const IN_MEMORY: [&str; 4] = ["/memfd:", "/dev/zero (deleted)", "/SYSV", "/dev/shm/"];

/// The result for some processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HiddenMemory {
    /// Bytes of memory files and shared memory, each counted once: the file's size or its mapped
    /// length, whichever is larger.
    pub(super) shared: u64,
    /// Open sockets, and open ends of pipes.
    pub(super) sockets: u64,
    pub(super) pipes: u64,
}

impl HiddenMemory {
    /// Examines processes, `reads` descriptors of theirs at most, which is lowered by those that were
    /// looked at, and as many mappings of each. Stops counting sockets at `sockets_max`, since more
    /// would not change the decision. Of processes that have more descriptors, `open_files`, the
    /// rest counts as the most that it could be. Stops where it takes longer than `waits` allows.
    pub(super) fn of(
        tree: &[i32],
        open_files: u64,
        reads: &mut usize,
        mappings_max: usize,
        sockets_max: u64,
        waits: Option<&Waits>,
    ) -> Self {
        let mut hidden = Self::default();
        let mut files = HashMap::<u64, u64>::new();
        let is_read = usize::try_from(open_files).is_ok_and(|files| files < *reads);
        for pid in tree {
            let shown = shown(*pid);
            let table = is_read.then(|| fs::read_dir(format!("{shown}/fd")));
            for fd in table.into_iter().flatten().flatten().flatten() {
                if *reads == 0
                    || hidden.sockets >= sockets_max
                    || waits.is_some_and(Waits::are_long)
                {
                    break;
                }
                *reads -= 1;
                let to = fs::read_link(fd.path()).unwrap_or_default();
                match to.as_os_str().as_encoded_bytes() {
                    to if to.starts_with(b"socket:") => hidden.sockets += 1,
                    to if to.starts_with(b"pipe:") => hidden.pipes += 1,
                    to if to.starts_with(b"/memfd:") => {
                        if let Ok(file) = fs::metadata(fd.path()) {
                            let bytes = files.entry(file.ino()).or_default();
                            *bytes = (*bytes).max(file.blocks().saturating_mul(512));
                        }
                    }
                    _ => {}
                }
            }
            if waits.is_some_and(Waits::are_long) {
                return hidden;
            }
            let maps = fs::read_to_string(format!("{shown}/maps")).unwrap_or_default();
            for (inode, mapped) in maps.lines().take(mappings_max).filter_map(shared_memory) {
                let bytes = files.entry(inode).or_default();
                *bytes = (*bytes).max(mapped);
            }
        }
        hidden.shared = files
            .values()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes));
        if !is_read || *reads == 0 {
            hidden.shared = u64::MAX;
            hidden.sockets = sockets_in_use(tree).unwrap_or(open_files).min(open_files);
            hidden.pipes = open_files;
        }
        hidden
    }
}

/// Number of open files of all kinds, without looking at each. A file that several processes share
/// counts for each of them.
pub(super) fn open_files(tree: &[i32]) -> u64 {
    let of = |pid: &i32| {
        let folder = format!("/proc/{pid}/fd");
        // Linux 6.2 and later report the number as the folder's size.
        match fs::metadata(&folder).map_or(0, |folder| folder.len()) {
            0 => {
                fs::read_dir(format!("{}/fd", shown(*pid))).map_or(0, |files| files.count() as u64)
            }
            count => count,
        }
    };
    tree.iter().map(of).sum()
}

/// Sockets in the network namespace of the process below the first, which is the command's own behind
/// bubblewrap, those in messages included.
pub(super) fn sockets_in_use(tree: &[i32]) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/net/sockstat", tree.get(1)?)).ok()?;
    let used = text.strip_prefix("sockets: used ")?;
    used.split_ascii_whitespace().next()?.parse().ok()
}

/// Number of open sockets, at most about `sockets_max`, since more would not change the decision.
/// One that several processes share counts once.
pub(super) fn open_sockets(tree: &[i32], sockets_max: u64) -> u64 {
    let mut sockets = HashSet::new();
    for pid in tree {
        if sockets.len() as u64 >= sockets_max {
            break;
        }
        for file in fs::read_dir(format!("{}/fd", shown(*pid)))
            .into_iter()
            .flatten()
            .flatten()
        {
            let to = fs::read_link(file.path()).unwrap_or_default();
            sockets.extend(to.to_str().and_then(|to| {
                to.strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .parse::<u64>()
                    .ok()
            }));
        }
    }
    sockets.len() as u64
}

/// Inode and length of a mapping; `None` if it is not shared memory.
fn shared_memory(line: &str) -> Option<(u64, u64)> {
    let (addresses, rest) = line.split_once(' ')?;
    // Permissions, offset and device come before these fields.
    let (inode, name) = rest.splitn(4, ' ').nth(3)?.split_once(' ')?;
    if !IN_MEMORY
        .iter()
        .any(|begin| name.trim_start().starts_with(begin))
    {
        return None;
    }
    let (from, to) = addresses.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some((
        inode.parse().ok()?,
        address(to)?.saturating_sub(address(from)?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_known_by_its_mapping() {
        assert_eq!(
            shared_memory(
                "7f00-8f00 rw-s 00000000 00:01 1044                       /dev/zero (deleted)"
            ),
            Some((1044, 0x1000))
        );
        assert_eq!(
            shared_memory("7f00-8f00 rw-p 00000000 00:01 7 /memfd:x y (deleted)"),
            Some((7, 0x1000))
        );
        assert_eq!(
            shared_memory("7f00-8f00 r-xp 00001000 fe:00 1234                       /usr/bin/bash"),
            None
        );
        assert_eq!(shared_memory("7f00-8f00 rw-p 00000000 00:00 0 "), None);
        assert_eq!(
            shared_memory("7f00-8f00 rw-p 00000000 00:00 0                          [heap]"),
            None
        );
    }

    #[test]
    fn sockets_and_pipes_of_a_process_are_counted() {
        let own = i32::try_from(std::process::id()).unwrap();
        let of = |mut reads, sockets_max| {
            HiddenMemory::of(&[own], 100, &mut reads, 10_000, sockets_max, None)
        };
        let before = of(10_000, u64::MAX);
        let _held = (
            rustix::pipe::pipe().unwrap(),
            std::os::unix::net::UnixStream::pair().unwrap(),
        );

        let after = of(10_000, u64::MAX);

        // Other tests of this process open and close descriptors too.
        assert!(
            after.sockets >= 2 && after.pipes >= 2,
            "{before:?} {after:?}"
        );
        assert_eq!(of(10_000, 1).sockets, 1);
        let most = of(99, u64::MAX);
        assert_eq!(
            (most.shared, most.sockets, most.pipes),
            (u64::MAX, 100, 100)
        );
        assert!(sockets_in_use(&[0, own]).is_some_and(|used| used >= after.sockets));
        let sockets = open_sockets(&[own], u64::MAX);
        let twice = open_sockets(&[own, own], u64::MAX);
        assert!(
            sockets >= 2 && open_files(&[own]) > sockets && twice < 2 * sockets,
            "{sockets}"
        );
        assert_eq!(open_sockets(&[own], 0), 0);
    }
}
