//! A process with open standard streams, as the spawner's thread manages it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use callboard_actors::ports::SandboxError;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    keys,
    launch::{CarryingLaunch, Streams, StreamsReply},
    processes::{MARK, Processes, pidfd},
    start::{Role, clean_command, handed},
    termination::{Group, Needs, Terminate},
};

/// How long killing is attempted.
const KILL_MAX: Duration = Duration::from_millis(1900);

/// A process as the spawner's thread manages it.
pub(super) struct PipedJob {
    child: Child,
    /// Descriptor of the child, readable when the child has ended; `None` where the kernel provides
    /// none.
    gone: Option<OwnedFd>,
    group: Group,
    status: Option<ExitStatus>,
    /// When to kill the process; `None` until it is asked to end.
    kill_at: Option<Instant>,
    ended: Option<oneshot::Sender<Option<i32>>>,
    _permit: OwnedSemaphorePermit,
}

impl PipedJob {
    /// Starts the process. On failure the caller receives the error.
    pub(super) fn start(
        launch: CarryingLaunch,
        reply: StreamsReply,
        ended: oneshot::Sender<Option<i32>>,
        permit: OwnedSemaphorePermit,
    ) -> Option<Self> {
        let started = spawn(launch);
        let (mut child, mark) = match started {
            Ok(started) => started,
            Err(error) => {
                let _ = reply.send(Err(SandboxError::Failed(crate::os_error::words(&error))));
                return None;
            }
        };
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = i32::try_from(child.id()).unwrap_or(0);
        let group = Group::new(pid, mark);
        let mut job = Self {
            gone: pidfd(pid),
            child,
            group,
            status: None,
            kill_at: None,
            ended: Some(ended),
            _permit: permit,
        };
        let given = match streams {
            (Some(stdin), Some(stdout), Some(stderr)) => reply
                .send(Ok(Streams {
                    stdin,
                    stdout,
                    stderr,
                }))
                .is_ok(),
            _ => false,
        };
        if !given {
            job.end(Duration::ZERO);
        }
        Some(job)
    }

    /// Asks for an end within `grace`. Of two requests the earlier deadline counts.
    pub(super) fn end(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The next time at which the process must be checked even if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        match (self.group.killed(), self.kill_at, &self.gone) {
            (Some(since), ..) => Some(
                self.group
                    .due()
                    .map_or(since + KILL_MAX, |again| again.min(since + KILL_MAX)),
            ),
            // Without a descriptor the exit must be polled.
            (None, at, None) => {
                Some(at.map_or(Instant::now() + Duration::from_millis(100), |at| at))
            }
            (None, at, Some(_)) => at.filter(|_| self.status.is_none()),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.gone
            .as_ref()
            .filter(|_| self.status.is_none())
            .map(AsFd::as_fd)
    }

    /// Reaps the process without blocking.
    pub(super) fn step(&mut self) {
        let now = Instant::now();
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        if self.status.is_some() {
            self.group.leader_ended(now);
        } else if self.kill_at.is_some_and(|at| now >= at) {
            self.group.end(now);
        }
    }

    /// Whether the process and everything that it started are gone, or killing has lasted too long:
    /// a process in an uninterruptible sleep cannot be waited for.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.group.is_gone()
            || self
                .group
                .killed()
                .is_some_and(|since| now >= since + KILL_MAX)
    }

    /// Reports the exit to the caller that awaits it.
    pub(super) fn answer(mut self) {
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(self.status.and_then(|status| status.code()));
        }
    }
}

impl Terminate for PipedJob {
    fn needs(&self, now: Instant) -> Needs {
        self.group.needs(now)
    }

    fn kill(&mut self, now: Instant, all: &Processes) {
        self.group.kill(now, all);
    }

    fn leader(&self) -> Option<i32> {
        self.group.leader()
    }

    fn mark(&self) -> &str {
        self.group.mark()
    }

    fn take_marked(&mut self, now: Instant, marked: &[i32]) {
        self.group.take_marked(now, marked);
    }
}

fn spawn(CarryingLaunch { launch, carried }: CarryingLaunch) -> std::io::Result<(Child, String)> {
    let chance = getrandom::u64().map_err(|_| std::io::Error::from(std::io::ErrorKind::Other))?;
    let mark = format!("{chance:016x}");
    let carried = handed(carried.as_ref())?;
    let _ = keys::join_new_session();
    let mut command = clean_command(&launch.argv, Role::Server, carried.as_ref());
    command
        .envs(launch.environment)
        .env(MARK, &mark)
        .current_dir(&launch.folder);
    let child = command.stdin(std::process::Stdio::piped()).spawn()?;
    Ok((child, mark))
}
