//! One running command: its output so far, its limits, and how it ends. Driven by the spawner's thread.

use std::{
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus},
    time::{Duration, Instant},
};

use callboard_actors::ports::{ExecLimits, ExecResult, Progress, SandboxError};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    capture::Capture,
    disk::Disk,
    processes::{Processes, kill, kill_group, marked, memory_of, pidfd},
    shell::{Words, rename},
    spawner::{Kind, Launch, Shown},
    tell::{Line, Teller},
};

/// How long the first process of a namespace may take to go before bubblewrap itself is killed, and how often strays are sought.
const KILL_AGAIN: Duration = Duration::from_millis(300);

/// After this a job is answered whatever is left: a process in an uninterruptible sleep cannot be waited for (FAULTS F4: 2 s).
const KILL_MAX: Duration = Duration::from_millis(1900);

/// Buffers read from one stream in a turn: a flood must not starve the other jobs.
const READS_MAX: usize = 16;

/// Why a job was ended by us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    TimedOut,
    Cancelled,
    Limit(String),
}

pub(super) struct Job {
    child: Child,
    pid: i32,
    /// The child, by descriptor: readable when it has ended.
    ended: Option<OwnedFd>,
    /// The first process of the namespace, once known.
    init: Option<OwnedFd>,
    /// Held open for a supervisor: it ends all when this closes, our own death included.
    control: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    out: Capture,
    err: Capture,
    out_line: Line,
    err_line: Line,
    teller: Teller,
    kind: Kind,
    limits: ExecLimits,
    pub(super) disk: Disk,
    nonce: String,
    shown: Vec<Shown>,
    /// Strays that were found when the command had ended.
    left: u32,
    deadline: Instant,
    status: Option<ExitStatus>,
    ending: Option<Ending>,
    /// When killing began, and when it is tried again.
    killing: Option<(Instant, Instant)>,
    reply: oneshot::Sender<Result<ExecResult, SandboxError>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Job {
    pub(super) fn new(
        mut child: Child,
        launch: Launch,
        reply: oneshot::Sender<Result<ExecResult, SandboxError>>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let pid = i32::try_from(child.id()).unwrap_or(0);
        Self {
            pid,
            ended: pidfd(pid),
            init: None,
            control: child.stdin.take(),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            out: Capture::new(launch.output_bytes_max),
            err: Capture::new(launch.errors_bytes_max),
            out_line: Line::default(),
            err_line: Line::default(),
            teller: Teller::new(renamed(launch.progress, &launch.shown)),
            kind: launch.kind,
            limits: launch.limits,
            disk: Disk::of(launch.disk),
            nonce: launch.nonce,
            shown: launch.shown,
            left: 0,
            deadline: Instant::now() + launch.timeout,
            status: None,
            ending: None,
            killing: None,
            reply,
            _permit: permit,
        }
    }

    /// When it must be looked at again even if nothing happens.
    pub(super) fn due(&self) -> Instant {
        match (self.killing, &self.ended) {
            (Some((_, again)), _) => again,
            // Without a descriptor the exit is asked for.
            (None, None) => Instant::now() + Duration::from_millis(10),
            (None, Some(_)) => self.deadline,
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ended = self.ended.as_ref().filter(|_| self.status.is_none()).map(AsFd::as_fd);
        let init = self.init.as_ref().filter(|_| self.status.is_some()).map(AsFd::as_fd);
        [self.stdout.as_ref().map(AsFd::as_fd), self.stderr.as_ref().map(AsFd::as_fd), ended, init].into_iter().flatten()
    }

    /// Begins to end it; the first reason counts.
    pub(super) fn end(&mut self, ending: Ending) {
        if self.ending.is_none() && self.status.is_none() {
            self.ending = Some(ending);
        }
        self.kill();
    }

    fn kill(&mut self) {
        let now = Instant::now();
        let (since, again) = self.killing.unwrap_or((now, now));
        if now < again {
            return;
        }
        self.killing = Some((since, now + if matches!(self.kind, Kind::Group(_)) { KILL_AGAIN / 10 } else { KILL_AGAIN }));
        match &self.kind {
            // The kernel ends a namespace with its first process; bubblewrap, waiting for it, then ends by itself, so its end
            // means that all are gone. Only if that does not come (or has not begun) is bubblewrap killed.
            Kind::Namespace => {
                let found = self.find_init();
                if let Some(init) = &self.init {
                    let _ = rustix::process::pidfd_send_signal(init, Signal::KILL);
                }
                if (!found || since != now) && self.status.is_none() {
                    kill_group(self.pid);
                }
            }
            // It kills and reaps all below it, where they come to when their parents go. Only if that takes long is it helped.
            Kind::Supervised => {
                self.control = None;
                if since != now && self.status.is_none() {
                    Processes::read().tree(self.pid).into_iter().filter(|pid| *pid != self.pid).for_each(kill);
                }
            }
            Kind::Group(marker) => {
                let tree = if self.status.is_none() { Processes::read().tree(self.pid) } else { Vec::new() };
                let strays = marked(marker);
                if self.status.is_none() {
                    kill_group(self.pid);
                }
                tree.into_iter().chain(strays).filter(|pid| *pid != self.pid).for_each(kill);
            }
        }
    }

    fn find_init(&mut self) -> bool {
        if self.init.is_none() && self.status.is_none() {
            self.init = Processes::read().children_of(self.pid).first().and_then(|pid| pidfd(*pid));
        }
        self.init.is_some()
    }

    /// Compares what it holds with what it may (FAULTS F3).
    pub(super) fn watch(&mut self, all: &Processes) {
        if self.status.is_some() || self.killing.is_some() {
            return;
        }
        if self.kind == Kind::Namespace && self.init.is_none() {
            self.init = all.children_of(self.pid).first().and_then(|pid| pidfd(*pid));
        }
        let tree = all.tree(self.pid);
        let ExecLimits { processes, memory_bytes, .. } = self.limits;
        if all.threads_of(&tree) > processes {
            self.end(Ending::Limit(format!("more than {processes} processes and threads")));
        } else if memory_of(&tree) > memory_bytes {
            self.end(Ending::Limit(format!("more than {} MiB of memory", memory_bytes >> 20)));
        }
        self.disk.watch(&tree);
    }

    /// Whether the disk has lost more than this command may take of it.
    pub(super) fn fills_the_disk(&self) -> bool {
        self.status.is_none() && self.killing.is_none() && self.disk.lost() > self.limits.disk_bytes
    }

    pub(super) fn stop_filling(&mut self) {
        self.end(Ending::Limit(format!("more than {} MiB written to the disk", self.limits.disk_bytes >> 20)));
    }

    /// Reads, reaps and kills as far as it goes without waiting; tells whether the job is over.
    pub(super) fn step(&mut self, buffer: &mut [u8]) -> bool {
        self.drain(buffer);
        let now = Instant::now();
        self.teller.tell(now);
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
            if let (Some(_), None, Kind::Group(marker)) = (self.status, &self.ending, &self.kind) {
                self.left = u32::try_from(marked(marker).len()).unwrap_or(u32::MAX);
            }
        }
        if self.status.is_none() && self.ending.is_none() && now >= self.deadline {
            self.end(Ending::TimedOut);
        }
        if self.killing.is_some_and(|(_, again)| now >= again) {
            self.kill();
        }
        self.is_over(now, buffer)
    }

    fn is_over(&mut self, now: Instant, buffer: &mut [u8]) -> bool {
        if let Some((since, _)) = self.killing
            && now >= since + KILL_MAX
        {
            return true;
        }
        if self.status.is_none() {
            return false;
        }
        let gone = match &self.kind {
            Kind::Namespace => self.init.as_ref().is_none_or(has_ended),
            Kind::Supervised => true,
            Kind::Group(marker) => marked(marker).is_empty(),
        };
        if !gone {
            self.kill(); // what a command leaves behind ends with it
            return false;
        }
        for _ in 0..READS_MAX {
            if !self.drain(buffer) {
                break;
            }
        }
        true
    }

    /// Reads both streams as far as they are; tells whether there may be more.
    fn drain(&mut self, buffer: &mut [u8]) -> bool {
        let (out, err, teller) = (&mut self.out, &mut self.err, &mut self.teller);
        let more = drain(&mut self.stdout, buffer, |bytes| {
            out.push(bytes);
            teller.hear(&mut self.out_line, bytes);
        });
        let more_err = drain(&mut self.stderr, buffer, |bytes| {
            err.push(bytes);
            teller.hear(&mut self.err_line, bytes);
        });
        more || more_err
    }

    /// Tells the caller, if it is still there.
    pub(super) fn answer(self) {
        let printed = self.out.total() + self.err.total();
        let (mut stdout, out) = self.out.finish();
        let (mut stderr, err) = self.err.finish();
        let words = Words::take(&mut stderr, &self.nonce);
        for Shown { folder, name } in &self.shown {
            (stdout, stderr) = (rename(&stdout, folder, name), rename(&stderr, folder, name));
        }
        let mut result = ExecResult {
            status: self.status.and_then(|status| status.code()),
            stdout,
            stderr,
            bytes_printed: printed.saturating_sub(words.bytes),
            bytes_left_out: out + err,
            timed_out: false,
            working_dir: words.folder,
            left_running: self.left.max(words.left),
        };
        let answer = match self.ending {
            None => words.failed.map_or(Ok(result), |why| Err(SandboxError::Failed(why))),
            Some(Ending::TimedOut) => {
                (result.timed_out, result.status) = (true, None);
                Ok(result)
            }
            Some(Ending::Cancelled) => Err(SandboxError::Cancelled),
            Some(Ending::Limit(what)) => Err(SandboxError::Limit(what)),
        };
        let _ = self.reply.send(answer);
    }
}

/// A watcher hears no folder of the host.
fn renamed(progress: Progress, shown: &[Shown]) -> Progress {
    let shown = shown.to_vec();
    Progress::new(move |line| progress.tell(shown.iter().fold(line, |line, Shown { folder, name }| rename(&line, folder, name))))
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Reads what is there; closes the stream at its end. Tells whether there may be more.
fn drain(stream: &mut Option<impl Read>, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> bool {
    for _ in 0..READS_MAX {
        let Some(open) = stream else { return false };
        match open.read(buffer) {
            Ok(0) => *stream = None,
            Ok(n) => take(buffer.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => *stream = None,
        }
    }
    stream.is_some()
}
