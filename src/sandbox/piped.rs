//! Processes with open standard streams: the spawner's thread starts a process and passes its three
//! streams to the caller. For servers that run beside the host without a jail (MCP over standard
//! input and output): the user chose them, and they run with the user's rights.
//!
//! Promises: the environment is an allow-list, and no descriptor above 2 is inherited · a process
//! ends with its handle, with the spawner and (where `setpriv` exists) with the host · processes
//! that it started are found by a mark in their environment and end with it.

use std::{
    ffi::OsString,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use callboard_actors::ports::SandboxError;
use tokio::{
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::{OwnedSemaphorePermit, oneshot},
};

use super::{
    processes::{MARK, Processes, pidfd},
    spawner::{Carried, Order, Spawner},
    together::{Ends, Group, Wish},
};

/// Concurrent processes under one spawner: a host has a few servers per tenant, and memory is
/// finite.
pub(super) const PIPED_MAX: usize = 256;

/// How long killing is attempted.
const KILL_MAX: Duration = Duration::from_millis(1900);

/// Describes a process to start.
#[derive(Debug, Clone)]
pub struct PipedLaunch {
    /// Program and arguments. The program is looked up in the `PATH` of `environment`.
    pub argv: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// Folder in which the process starts.
    pub folder: PathBuf,
}

/// A launch with the descriptor that the process finds at [`CARRIED`](super::spawner::CARRIED).
pub(super) struct CarryingLaunch {
    launch: PipedLaunch,
    carried: Option<Carried>,
}

/// A running process and its streams.
#[derive(Debug)]
pub struct Piped {
    /// Input of the process.
    pub stdin: ChildStdin,
    /// Output of the process.
    pub stdout: ChildStdout,
    /// Error output. The caller must read it, or the process stops when the pipe is full.
    pub stderr: ChildStderr,
    /// Handle to end the process and await its exit.
    pub process: PipedProcess,
}

/// A handle to a process. Dropping it kills the process and everything that the process started.
#[derive(Debug)]
pub struct PipedProcess {
    spawner: Spawner,
    id: u64,
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<Option<i32>>>>,
}

/// The streams that the thread returns once a process runs.
pub(super) struct Streams {
    stdin: std::process::ChildStdin,
    stdout: std::process::ChildStdout,
    stderr: std::process::ChildStderr,
}

pub(super) type StreamsReply = oneshot::Sender<Result<Streams, SandboxError>>;

impl Spawner {
    /// Starts a process and returns its streams.
    ///
    /// # Errors
    /// [`SandboxError::Limit`] above 256 such processes; [`SandboxError::Failed`] when the process
    /// cannot be started.
    ///
    /// # Cancel safety
    /// Dropping the future kills the process.
    pub async fn start_piped(&self, launch: PipedLaunch) -> Result<Piped, SandboxError> {
        self.start_carrying(launch, None).await
    }

    /// Like [`start_piped`](Self::start_piped), with a descriptor beside the streams.
    pub(super) async fn start_carrying(&self, launch: PipedLaunch, carried: Option<Carried>) -> Result<Piped, SandboxError> {
        let permit = self.piped_permits().try_acquire_owned();
        let permit = permit.map_err(|_| SandboxError::Limit(format!("more than {PIPED_MAX} servers")))?;
        let (reply, answer) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let id = self.next_id();
        let process = PipedProcess { spawner: self.clone(), id, ended: tokio::sync::Mutex::new(Some(end)) };
        self.order(Order::Pipe { id, launch: Box::new(CarryingLaunch { launch, carried }), reply, ended, permit })?;
        let gone = || SandboxError::Failed("the thread that starts processes ended".to_owned());
        let streams = answer.await.map_err(|_| gone())??;
        let failed = |error: std::io::Error| SandboxError::Failed(error.kind().to_string());
        Ok(Piped {
            stdin: ChildStdin::from_std(streams.stdin).map_err(failed)?,
            stdout: ChildStdout::from_std(streams.stdout).map_err(failed)?,
            stderr: ChildStderr::from_std(streams.stderr).map_err(failed)?,
            process,
        })
    }
}

impl PipedProcess {
    /// Gives the process `grace` to exit (its input should be closed), then kills it and everything
    /// that it started.
    pub fn end(&self, grace: Duration) {
        let _ = self.spawner.order(Order::EndPiped { id: self.id, grace });
    }

    /// Waits until the process and everything that it started are gone. Returns its exit code;
    /// `None` if it was killed.
    ///
    /// # Cancel safety
    /// The future may be dropped and created again until it returns; later calls return `None`.
    pub async fn ended(&self) -> Option<i32> {
        let mut ended = self.ended.lock().await;
        let status = match ended.as_mut() {
            Some(end) => end.await.ok().flatten(),
            None => None,
        };
        *ended = None;
        status
    }
}

impl Drop for PipedProcess {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

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
                let _ = reply.send(Err(SandboxError::Failed(error.kind().to_string())));
                return None;
            }
        };
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = i32::try_from(child.id()).unwrap_or(0);
        let group = Group::new(pid, mark);
        let mut job = Self { gone: pidfd(pid), child, group, status: None, kill_at: None, ended: Some(ended), _permit: permit };
        let given = match streams {
            (Some(stdin), Some(stdout), Some(stderr)) => reply.send(Ok(Streams { stdin, stdout, stderr })).is_ok(),
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
            (Some(since), ..) => Some(self.group.due().map_or(since + KILL_MAX, |again| again.min(since + KILL_MAX))),
            // Without a descriptor the exit must be polled.
            (None, at, None) => Some(at.map_or(Instant::now() + Duration::from_millis(100), |at| at)),
            (None, at, Some(_)) => at.filter(|_| self.status.is_none()),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.gone.as_ref().filter(|_| self.status.is_none()).map(AsFd::as_fd)
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
        self.group.is_gone() || self.group.killed().is_some_and(|since| now >= since + KILL_MAX)
    }

    /// Reports the exit to the caller that awaits it.
    pub(super) fn answer(mut self) {
        if let Some(ended) = self.ended.take() {
            let _ = ended.send(self.status.and_then(|status| status.code()));
        }
    }
}

impl Ends for PipedJob {
    fn wish(&self, now: Instant) -> Wish {
        self.group.wish(now)
    }

    fn kill(&mut self, now: Instant, all: &Processes) {
        self.group.kill(now, all);
    }

    fn mark(&self) -> &str {
        self.group.mark()
    }

    fn hear(&mut self, now: Instant, marked: &[i32]) {
        self.group.hear(now, marked);
    }
}

fn spawn(CarryingLaunch { launch, carried }: CarryingLaunch) -> std::io::Result<(Child, String)> {
    let chance = getrandom::u64().map_err(|_| std::io::Error::from(std::io::ErrorKind::Other))?;
    let mark = format!("{chance:016x}");
    let carried = super::spawner::handed(carried.as_ref())?;
    let _ = super::keys::join_new_session();
    let mut command = super::spawner::clean_command(&launch.argv, super::spawner::Role::Server, carried.as_ref());
    command.envs(launch.environment).env(MARK, &mark).current_dir(&launch.folder);
    let child = command.stdin(std::process::Stdio::piped()).spawn()?;
    Ok((child, mark))
}
