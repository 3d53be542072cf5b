//! A process that is spoken to: started by the spawner's thread, its three streams given to the caller. For servers that run beside
//! the host and are not in a jail (MCP over standard input and output): their user chose them, and they run with the user's rights.
//!
//! Promises: an allow-listed environment and no descriptor above 2 · it ends with its handle, with the spawner and (where `setpriv`
//! exists) with the host's own death · what it started is found by a marker in its environment and ends with it.

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

/// Processes of this kind that run at once under one spawner: a host has a few servers a tenant, memory has an end.
pub(super) const PIPED_MAX: usize = 256;

/// How long killing is tried.
const KILL_MAX: Duration = Duration::from_millis(1900);

/// A process to speak to.
#[derive(Debug, Clone)]
pub struct PipedLaunch {
    /// Program and arguments; the program is looked for in the `PATH` of `environment`.
    pub argv: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it starts.
    pub folder: PathBuf,
}

/// The same with what it finds as [`CARRIED`](super::spawner::CARRIED).
pub(super) struct CarryingLaunch {
    launch: PipedLaunch,
    carried: Option<Carried>,
}

/// A running process and its streams.
#[derive(Debug)]
pub struct Piped {
    /// To write to it.
    pub stdin: ChildStdin,
    /// What it says.
    pub stdout: ChildStdout,
    /// What it says besides. Must be read, else the process stops when the pipe is full.
    pub stderr: ChildStderr,
    /// To end it.
    pub process: PipedProcess,
}

/// A handle to a process. Dropping it kills the process and what that started.
#[derive(Debug)]
pub struct PipedProcess {
    spawner: Spawner,
    id: u64,
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<Option<i32>>>>,
}

/// What the thread gives back when a process runs.
pub(super) struct Streams {
    stdin: std::process::ChildStdin,
    stdout: std::process::ChildStdout,
    stderr: std::process::ChildStderr,
}

pub(super) type StreamsReply = oneshot::Sender<Result<Streams, SandboxError>>;

impl Spawner {
    /// Starts a process and hands out its streams.
    ///
    /// # Errors
    /// [`SandboxError::Limit`] above 256 such processes; [`SandboxError::Failed`] when nothing can be started.
    ///
    /// # Cancel safety
    /// Dropping the future kills what was started.
    pub async fn start_piped(&self, launch: PipedLaunch) -> Result<Piped, SandboxError> {
        self.start_carrying(launch, None).await
    }

    /// As [`start_piped`](Self::start_piped), with a descriptor beside the streams.
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
    /// Lets it go by itself for `grace` (its input should be closed), then kills it and what it started.
    pub fn end(&self, grace: Duration) {
        let _ = self.spawner.order(Order::EndPiped { id: self.id, grace });
    }

    /// Waits until it and what it started are gone; its exit status, if it had one.
    ///
    /// # Cancel safety
    /// The future may be dropped and made again until it gave its answer; after that the answer is `None`.
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

/// A process as the spawner's thread knows it.
pub(super) struct PipedJob {
    child: Child,
    /// The child, by descriptor: readable when it has ended.
    gone: Option<OwnedFd>,
    group: Group,
    status: Option<ExitStatus>,
    /// When killing begins, if it was asked to end.
    kill_at: Option<Instant>,
    ended: Option<oneshot::Sender<Option<i32>>>,
    _permit: OwnedSemaphorePermit,
}

impl PipedJob {
    /// Starts it; on failure the caller hears why.
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

    /// Asks it to be gone after `grace`; the sooner of two counts.
    pub(super) fn end(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// When it must be looked at again even if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        match (self.group.killed(), self.kill_at, &self.gone) {
            (Some(since), ..) => Some(self.group.due().map_or(since + KILL_MAX, |again| again.min(since + KILL_MAX))),
            // Without a descriptor the exit is asked for.
            (None, at, None) => Some(at.map_or(Instant::now() + Duration::from_millis(100), |at| at)),
            (None, at, Some(_)) => at.filter(|_| self.status.is_none()),
        }
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.gone.as_ref().filter(|_| self.status.is_none()).map(AsFd::as_fd)
    }

    /// Reaps as far as it goes without waiting.
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

    /// Tells whether it and all that it started are gone. A process in an uninterruptible sleep cannot be waited for.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.group.is_gone() || self.group.killed().is_some_and(|since| now >= since + KILL_MAX)
    }

    /// Tells who waits for its end.
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
