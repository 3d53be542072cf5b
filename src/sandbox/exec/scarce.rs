//! What the kernel gives all processes of one user, or of the machine, in a fixed number: watches of
//! epoll, inotify instances, pseudo-terminals. A command that takes them all would stop other
//! commands, and the host itself, which cannot accept a connection without a watch.

use std::{fs, sync::LazyLock};

use super::processes::shown;

/// Open files of a command below which its files are not looked at one by one.
const FILES_FROM: u64 = 24;

/// Descriptors that are looked at in one check.
const READS_MAX: usize = 32 * 1024;

/// How much of each a command may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    watches: u64,
    notifiers: u64,
    terminals: u64,
}

/// Parts of what the kernel allows, so that many commands at once leave enough.
static BOUNDS: LazyLock<Bounds> = LazyLock::new(|| {
    let allowed = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(u64::MAX)
    };
    Bounds {
        watches: (allowed("fs/epoll/max_user_watches") / 32).max(4096),
        notifiers: (allowed("fs/inotify/max_user_instances") / 4).max(8),
        terminals: (allowed("kernel/pty/max") / 8).max(16),
    }
});

/// Why a command that consists of these processes must end: it has more than its part of something.
/// What several processes share counts for each.
pub(super) fn excess(tree: &[i32], open_files: u64) -> Option<String> {
    if open_files < FILES_FROM {
        return None;
    }
    excess_over(tree, *BOUNDS)
}

/// Whether this user has no watch of epoll left. A file whose descriptor was closed, while a thread
/// waits for it, is seen in no process, so what [`excess`] counts is not all.
pub(super) fn are_watches_gone() -> bool {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
    let (Ok(epoll), Ok((end, _other))) = (create(CreateFlags::CLOEXEC), rustix::pipe::pipe())
    else {
        return false;
    };
    add(&epoll, &end, EventData::new_u64(0), EventFlags::IN) == Err(rustix::io::Errno::NOSPC)
}

fn excess_over(tree: &[i32], bounds: Bounds) -> Option<String> {
    let mut reads = READS_MAX;
    let (mut watches, mut notifiers, mut terminals) = (0, 0, 0);
    for shown in tree.iter().map(|pid| shown(*pid)) {
        for fd in fs::read_dir(format!("{shown}/fd"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let Some(left) = reads.checked_sub(1) else {
                return Some(format!("more than {READS_MAX} open files"));
            };
            reads = left;
            let to = fs::read_link(fd.path()).unwrap_or_default();
            match to.as_os_str().as_encoded_bytes() {
                b"anon_inode:[eventpoll]" => watches += watches_of(&shown, &fd.file_name()),
                b"anon_inode:inotify" => notifiers += 1,
                b"/dev/ptmx" | b"/dev/pts/ptmx" => terminals += 1,
                _ => continue,
            }
            let over = [
                (watches, bounds.watches, "epoll watches"),
                (notifiers, bounds.notifiers, "inotify instances"),
                (terminals, bounds.terminals, "pseudo-terminals"),
            ]
            .into_iter()
            .find(|(count, max, _)| count > max);
            if let Some((_, max, what)) = over {
                return Some(format!("more than {max} {what}"));
            }
        }
    }
    None
}

/// Watches of an epoll descriptor, one line each of what the kernel shows of it.
fn watches_of(shown: &str, fd: &std::ffi::OsStr) -> u64 {
    let text = fs::read(format!("{shown}/fdinfo/{}", fd.to_string_lossy())).unwrap_or_default();
    text.split(|byte| *byte == b'\n')
        .filter(|line| line.starts_with(b"tfd:"))
        .count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_takes_of_the_kernels_shared_numbers_is_counted() {
        let own = [i32::try_from(std::process::id()).unwrap()];
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        let (epoll, pipes) = (
            epoll.unwrap(),
            [rustix::pipe::pipe().unwrap(), rustix::pipe::pipe().unwrap()],
        );
        for end in pipes.iter().flat_map(|(read, write)| [read, write]) {
            let data = rustix::event::epoll::EventData::new_u64(0);
            let flags = rustix::event::epoll::EventFlags::IN;
            rustix::event::epoll::add(&epoll, end, data, flags).unwrap();
        }
        let bounds = |watches| Bounds {
            watches,
            notifiers: u64::MAX,
            terminals: u64::MAX,
        };

        assert_eq!(
            excess_over(&own, bounds(3)).as_deref(),
            Some("more than 3 epoll watches")
        );
        // Other tests of this process have event loops of their own.
        assert_eq!(excess_over(&own, bounds(100_000)), None);
        assert_eq!(excess(&own, 0), None);
    }
}
