//! One running command: its output so far, its limits, and how it ends. Driven by the spawner's thread.

use std::{
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, ChildStderr, ChildStdout, ExitStatus},
    time::{Duration, Instant},
};

use callboard_actors::ports::{ExecResult, SandboxError};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    capture::Capture,
    policy::{MEMORY_BYTES_MAX, PROCESSES_MAX},
    processes::{Processes, kill, kill_group, marked, memory_of, pidfd},
    spawner::{Kind, Launch},
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
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    out: Capture,
    err: Capture,
    kind: Kind,
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
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            out: Capture::new(launch.output_bytes_max),
            err: Capture::new(launch.output_bytes_max),
            kind: launch.kind,
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
        self.killing = Some((since, now + if self.kind == Kind::Namespace { KILL_AGAIN } else { KILL_AGAIN / 10 }));
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
        if all.threads_of(&tree) > PROCESSES_MAX {
            self.end(Ending::Limit(format!("more than {PROCESSES_MAX} processes and threads")));
        } else if memory_of(&tree) > MEMORY_BYTES_MAX {
            self.end(Ending::Limit(format!("more than {} MiB of memory", MEMORY_BYTES_MAX >> 20)));
        }
    }

    /// Reads, reaps and kills as far as it goes without waiting; tells whether the job is over.
    pub(super) fn step(&mut self, buffer: &mut [u8]) -> bool {
        drain(&mut self.stdout, &mut self.out, buffer);
        drain(&mut self.stderr, &mut self.err, buffer);
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        let now = Instant::now();
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
            Kind::Group(marker) => marked(marker).is_empty(),
        };
        if !gone {
            self.kill(); // what a command leaves behind ends with it
            return false;
        }
        for _ in 0..READS_MAX {
            if !drain(&mut self.stdout, &mut self.out, buffer) && !drain(&mut self.stderr, &mut self.err, buffer) {
                break;
            }
        }
        true
    }

    /// Tells the caller, if it is still there.
    pub(super) fn answer(self) {
        let (stdout, out) = self.out.finish();
        let (stderr, err) = self.err.finish();
        let mut result = ExecResult {
            status: self.status.and_then(|status| status.code()),
            stdout,
            stderr,
            bytes_left_out: out + err,
            timed_out: false,
        };
        let answer = match self.ending {
            None => Ok(result),
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

fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Reads what is there; closes the stream at its end. Tells whether there may be more.
fn drain(stream: &mut Option<impl Read>, capture: &mut Capture, buffer: &mut [u8]) -> bool {
    for _ in 0..READS_MAX {
        let Some(open) = stream else { return false };
        match open.read(buffer) {
            Ok(0) => *stream = None,
            Ok(n) => capture.push(buffer.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => *stream = None,
        }
    }
    stream.is_some()
}
