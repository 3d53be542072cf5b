//! What the kernel gives all processes of one user, or of the machine, in a fixed number: watches of
//! epoll, inotify instances and their watches, pseudo-terminals. A command that takes them all would
//! stop other commands, and the host itself, which cannot accept a connection without a watch.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::fd::OwnedFd,
    sync::LazyLock,
    time::{Duration, Instant},
};

use rustix::{fs::inotify, io::Errno};

use super::processes::shown;

/// Descriptors that are looked at in one search.
const READS_MAX: usize = 32 * 1024;

/// How long one search may ask what the threads of a command wait for.
const AWAITED_MAX: Duration = Duration::from_millis(250);

/// One of the things that are scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Watches,
    Notifiers,
    Marks,
    Terminals,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Watches, Self::Notifiers, Self::Marks, Self::Terminals];

    fn name(self) -> &'static str {
        match self {
            Self::Watches => "epoll watches",
            Self::Notifiers => "inotify instances",
            Self::Marks => "inotify watches",
            Self::Terminals => "pseudo-terminals",
        }
    }

    /// Why a command ends that has most of what all commands have together.
    pub(super) fn excess_of_all(self) -> String {
        format!("more {} than all commands may have together", self.name())
    }
}

/// How many of each there are: of a command, or allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Taken {
    watches: u64,
    notifiers: u64,
    marks: u64,
    terminals: u64,
}

impl Taken {
    pub(super) fn of(self, kind: Kind) -> u64 {
        match kind {
            Kind::Watches => self.watches,
            Kind::Notifiers => self.notifiers,
            Kind::Marks => self.marks,
            Kind::Terminals => self.terminals,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            watches: self.watches.saturating_add(other.watches),
            notifiers: self.notifiers.saturating_add(other.notifiers),
            marks: self.marks.saturating_add(other.marks),
            terminals: self.terminals.saturating_add(other.terminals),
        }
    }

    /// The first kind of which this is more than `bounds`.
    fn above(self, bounds: Self) -> Option<Kind> {
        let mut kinds = Kind::ALL.into_iter();
        kinds.find(|kind| self.of(*kind) > bounds.of(*kind))
    }
}

/// What the kernel allows.
static ALLOWED: LazyLock<Taken> = LazyLock::new(|| {
    let number = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default();
        text.trim().parse::<u64>().ok()
    };
    let allowed = |name: &str| number(name).unwrap_or(u64::MAX);
    let kept = |name: &str| number(name).unwrap_or(0);
    Taken {
        watches: allowed("fs/epoll/max_user_watches"),
        notifiers: allowed("fs/inotify/max_user_instances"),
        marks: allowed("fs/inotify/max_user_watches"),
        terminals: allowed("kernel/pty/max").saturating_sub(kept("kernel/pty/reserve")),
    }
});

/// What one command may have: parts of what the kernel allows, so that others have enough.
static BOUNDS: LazyLock<Taken> = LazyLock::new(|| Taken {
    watches: (ALLOWED.watches / 32).max(4096),
    notifiers: (ALLOWED.notifiers / 4).max(8),
    marks: (ALLOWED.marks / 4).max(4096),
    terminals: (ALLOWED.terminals / 8).max(16),
});

/// What all commands may have together: half of what the kernel allows.
static SUMS: LazyLock<Taken> = LazyLock::new(|| Taken {
    watches: ALLOWED.watches / 2,
    notifiers: ALLOWED.notifiers / 2,
    marks: ALLOWED.marks / 2,
    terminals: ALLOWED.terminals / 2,
});

/// Fewer than this part of what the kernel allows is never a reason to end a command.
const BLAMED_SHARE: u64 = 8;

/// Inotify instances and terminals that must be left, for the host and what starts next.
const LEFT_MIN: u64 = 4;

/// Whether a command may have this. If not, says why it must end.
pub(super) fn check(taken: Taken) -> Result<(), String> {
    within(taken, *BOUNDS)
}

fn within(taken: Taken, bounds: Taken) -> Result<(), String> {
    let excess = taken.above(bounds);
    let too_much = |kind: Kind| format!("more than {} {}", bounds.of(kind), kind.name());
    excess.map_or(Ok(()), |kind| Err(too_much(kind)))
}

/// What an open file is, of a process that this folder of `/proc` shows.
pub(super) fn of_file(shown: &str, file: &fs::DirEntry) -> Taken {
    let mut taken = Taken::default();
    let to = fs::read_link(file.path()).unwrap_or_default();
    match to.as_os_str().as_encoded_bytes() {
        b"anon_inode:[eventpoll]" => taken.watches = lines(shown, &file.file_name(), b"tfd:"),
        b"anon_inode:inotify" => {
            taken.notifiers = 1;
            taken.marks = lines(shown, &file.file_name(), b"inotify wd:");
        }
        b"/dev/ptmx" | b"/dev/pts/ptmx" => taken.terminals = 1,
        _ => {}
    }
    taken
}

/// How many of a kind processes have. What several share counts for each.
pub(super) fn count_of(kind: Kind, tree: &[i32]) -> u64 {
    let of = |pid: &i32| {
        let shown = shown(*pid);
        let files = fs::read_dir(format!("{shown}/fd")).into_iter().flatten();
        let taken = files.flatten().map(move |file| of_file(&shown, &file));
        taken.fold(Taken::default(), Taken::plus).of(kind)
    };
    tree.iter().map(of).sum()
}

/// The kind of which all commands together have more than their part.
pub(super) fn excess_of_all(sum: Taken) -> Option<Kind> {
    sum.above(*SUMS)
}

/// Whether a command is to be blamed that has, or may have, this many of a kind.
pub(super) fn is_blamed(kind: Kind, count: u64) -> bool {
    count >= (ALLOWED.of(kind) / BLAMED_SHARE).max(LEFT_MIN)
}

/// Whether a command that has this many of a kind has more than all others can have.
pub(super) fn is_most(kind: Kind, count: u64) -> bool {
    count > ALLOWED.of(kind) / 2
}

/// A kind of which this user, or the machine, has nearly none left. Tables of open files do not show all: a
/// file whose descriptor was closed is kept by a thread that waits for it, until a signal ends the
/// wait, and by a message on its way ([`files_in_flight`]).
pub(super) fn gone() -> Option<Kind> {
    let terminals = fs::read_to_string("/proc/sys/kernel/pty/nr").unwrap_or_default();
    let terminals = terminals.trim().parse().unwrap_or(0_u64);
    if are_watches_gone() {
        return Some(Kind::Watches);
    }
    if terminals.saturating_add(LEFT_MIN) > ALLOWED.terminals {
        return Some(Kind::Terminals);
    }
    if are_marks_gone() {
        return Some(Kind::Marks);
    }
    let notifiers: Vec<_> = (0..LEFT_MIN)
        .map(|_| inotify::init(inotify::CreateFlags::CLOEXEC))
        .collect();
    let is_none_left = notifiers
        .iter()
        .any(|notifier| notifier.as_ref().err() == Some(&Errno::MFILE));
    is_none_left.then_some(Kind::Notifiers)
}

/// Folders that are watched for a moment, to see that as many watches are left.
const WATCHED: [&str; 6] = ["/", "/usr", "/etc", "/proc", "/sys", "/dev"];

fn are_marks_gone() -> bool {
    /// Kept: one that had watches is closed slowly.
    static NOTIFIER: LazyLock<Option<OwnedFd>> = LazyLock::new(|| {
        inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK).ok()
    });
    let Some(notifier) = &*NOTIFIER else {
        return false;
    };
    let watch = |path| inotify::add_watch(notifier, path, inotify::WatchFlags::DELETE_SELF);
    let watches = WATCHED.map(watch);
    for watch in watches.iter().flatten() {
        let _ = inotify::remove_watch(notifier, *watch);
    }
    // Each that is removed leaves an event behind.
    let mut events = [0; 4096];
    let _ = rustix::io::read(notifier, &mut events);
    watches.contains(&Err(Errno::NOSPC))
}

fn are_watches_gone() -> bool {
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};
    let (Ok(epoll), Ok((end, _other))) = (create(CreateFlags::CLOEXEC), rustix::pipe::pipe())
    else {
        return false;
    };
    add(&epoll, &end, EventData::new_u64(0), EventFlags::IN) == Err(Errno::NOSPC)
}

/// Most files that the threads of these processes wait for. The kernel keeps such a file although
/// its descriptor was closed.
pub(super) fn awaited_files(tree: &[i32]) -> u64 {
    let threads = tree
        .iter()
        .flat_map(|pid| {
            fs::read_dir(format!("/proc/{pid}/task"))
                .into_iter()
                .flatten()
        })
        .flatten();
    let of = |thread: fs::DirEntry| {
        let call = fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        files_of_call(&call)
    };
    // Of a process that is just replaced the kernel shows a call only afterwards.
    let begun = Instant::now();
    let soon = |_: &fs::DirEntry| begun.elapsed() < AWAITED_MAX;
    threads.take(READS_MAX).take_while(soon).map(of).sum()
}

/// Files that a call waits for, from the line of `/proc` that shows its number and arguments.
fn files_of_call(line: &str) -> u64 {
    let mut words = line.split_ascii_whitespace();
    let Some(call) = words.next().and_then(|word| word.parse::<i64>().ok()) else {
        return 0; // runs, or is not shown
    };
    let mut argument = |at: usize| {
        let word = words.nth(at)?.strip_prefix("0x")?;
        u64::from_str_radix(word, 16).ok()
    };
    // The older names of these calls exist on some processors only.
    #[cfg(target_arch = "x86_64")]
    let (polls, selects, waits) = (
        [libc::SYS_poll, libc::SYS_ppoll],
        [libc::SYS_select, libc::SYS_pselect6],
        [libc::SYS_epoll_wait, libc::SYS_epoll_pwait],
    );
    #[cfg(not(target_arch = "x86_64"))]
    let (polls, selects, waits) = (
        [libc::SYS_ppoll],
        [libc::SYS_pselect6],
        [libc::SYS_epoll_pwait],
    );
    if polls.contains(&call) {
        argument(1).unwrap_or(0)
    } else if selects.contains(&call) {
        argument(0).unwrap_or(0)
    } else {
        let reads = [libc::SYS_read, libc::SYS_readv, libc::SYS_epoll_pwait2];
        u64::from(waits.contains(&call) || reads.contains(&call))
    }
}

/// Files that messages carry which wait in sockets of these processes. One of them may be a socket in
/// which others wait.
pub(super) fn files_in_flight(tree: &[i32]) -> u64 {
    let files = tree.iter().flat_map(|pid| {
        let shown = shown(*pid);
        let files = fs::read_dir(format!("{shown}/fd")).into_iter().flatten();
        files.flatten().map(move |fd| (shown.clone(), fd))
    });
    let carried = |(shown, fd): (String, fs::DirEntry)| {
        let to = fs::read_link(fd.path()).unwrap_or_default();
        if !to.as_os_str().as_encoded_bytes().starts_with(b"socket:") {
            return 0;
        }
        let info = format!("{shown}/fdinfo/{}", fd.file_name().display());
        fs::read_to_string(info).map_or(0, |text| carried_files(&text))
    };
    files.take(READS_MAX).map(carried).sum()
}

/// The files in its messages that the kernel shows of a socket.
fn carried_files(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.map_or(0, |count| count.trim().parse().unwrap_or(0))
}

/// Watches of a descriptor, one line each of what the kernel shows of it. They are counted as they are
/// read: a descriptor can have a million.
fn lines(shown: &str, fd: &std::ffi::OsStr, begin: &[u8]) -> u64 {
    let Ok(file) = fs::File::open(format!("{shown}/fdinfo/{}", fd.to_string_lossy())) else {
        return 0;
    };
    let lines = BufReader::with_capacity(32 * 1024, file).split(b'\n');
    let lines = lines.map_while(Result::ok);
    lines.filter(|line| line.starts_with(begin)).count() as u64
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
        let bounds = |watches| Taken {
            watches,
            notifiers: u64::MAX,
            marks: u64::MAX,
            terminals: u64::MAX,
        };
        let watches = count_of(Kind::Watches, &own);

        // Other tests of this process have event loops of their own.
        assert!(watches >= 4);
        assert_eq!(
            within(bounds(4), bounds(3)).unwrap_err(),
            "more than 3 epoll watches"
        );
        assert_eq!(within(bounds(4), bounds(4)), Ok(()));
    }

    #[test]
    fn watches_of_inotify_are_counted() {
        let notifier = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        for folder in WATCHED {
            inotify::add_watch(&notifier, folder, inotify::WatchFlags::DELETE_SELF).unwrap();
        }
        let own = [i32::try_from(std::process::id()).unwrap()];

        assert!(count_of(Kind::Marks, &own) >= WATCHED.len() as u64);
        assert!(!are_marks_gone());
        assert!(is_blamed(Kind::Marks, ALLOWED.marks / 4));
    }

    #[test]
    fn commands_together_may_have_half_and_who_has_little_is_not_blamed() {
        let of = |notifiers| Taken {
            notifiers,
            ..Taken::default()
        };
        let half = ALLOWED.notifiers / 2;

        assert_eq!(excess_of_all(of(half)), None);
        assert_eq!(excess_of_all(of(half).plus(of(1))), Some(Kind::Notifiers));
        assert!(!is_blamed(Kind::Notifiers, LEFT_MIN - 1));
        assert!(is_blamed(Kind::Notifiers, half));
    }

    #[test]
    fn files_that_a_thread_waits_for_are_counted_without_their_descriptors() {
        let call = |number: i64, arguments: &str| format!("{number} {arguments} 0x7ffd 0x7f01");

        assert_eq!(
            files_of_call(&call(libc::SYS_ppoll, "0x7f00 0x3e8 0x0 0x0 0x0 0x0")),
            1000
        );
        assert_eq!(
            files_of_call(&call(libc::SYS_pselect6, "0x40 0x0 0x0 0x0 0x0 0x0")),
            64
        );
        assert_eq!(
            files_of_call(&call(libc::SYS_read, "0x3 0x7f00 0x10 0x0 0x0 0x0")),
            1
        );
        assert_eq!(
            files_of_call(&call(libc::SYS_futex, "0x7f00 0x80 0x0 0x0 0x0 0x0")),
            0
        );
        assert_eq!(files_of_call("running\n"), 0);
        assert_eq!(files_of_call(""), 0);
    }

    #[test]
    fn a_thread_that_polls_files_keeps_them_and_is_seen() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let waiting = std::thread::spawn(move || {
            use rustix::event::{PollFd, PollFlags, poll};
            let mut files = vec![PollFd::new(&read, PollFlags::IN); 700];
            poll(&mut files, None).unwrap();
        });

        while awaited_files(&[own]) < 700 {
            std::thread::yield_now();
        }
        drop(write);
        waiting.join().unwrap();
    }

    #[test]
    fn files_that_are_sent_and_not_received_are_seen() {
        use std::{io::IoSlice, os::fd::AsFd as _};

        use rustix::net::{
            RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg,
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let shown = |socket: &std::os::unix::net::UnixStream| {
            let fd = std::os::fd::AsRawFd::as_raw_fd(socket);
            carried_files(&fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap())
        };
        assert_eq!(shown(&theirs), 0);

        let files = [read.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        assert!(message.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(
            &ours,
            &[IoSlice::new(b"x")],
            &mut message,
            SendFlags::empty(),
        )
        .unwrap();

        assert_eq!(shown(&theirs), 1);
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(files_in_flight(&[own]) >= 1);
        recv(&theirs, &mut [0; 1], RecvFlags::empty()).unwrap();
        assert_eq!(shown(&theirs), 0);
    }
}
