//! The only place that starts processes: one thread, because `PDEATHSIG` and bubblewrap's
//! `--die-with-parent` bind a process to the thread that forked it. The same thread reads output,
//! checks limits, kills and reaps; callers await a channel.
//!
//! This file contains the thread's handle and the functions that start a process; `thread` contains
//! the loop.
//!
//! Promises: a job answers once, when all its processes are gone · a dropped caller kills its job ·
//! memory for output is bounded.

use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use callboard_actors::ports::{ExecLimits, ExecResult, Progress, SandboxError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    helper::{Namespace, Program},
    keys,
    parked::ControlGroups,
    piped::{CarryingLaunch, PIPED_MAX, StreamsReply},
    policy::{COMMANDS_MAX, NICENESS},
    thread::Thread,
    watchdog::Watchdog,
};

/// Concurrent commands that any machine allows, however few files the host may open.
const COMMANDS_MIN: usize = 64;

/// Files that the host must be allowed to open for each further command; see [`COMMANDS_MAX`].
const DESCRIPTORS_PER_COMMAND: u64 = 16;

/// Program that binds a process to the thread that started it.
pub(super) const SETPRIV: &str = "/usr/bin/setpriv";

/// Program that starts another in new namespaces.
pub(super) const UNSHARE: &str = "/usr/bin/unshare";

pub(super) const BASH: &str = "/bin/bash";

/// Descriptor number at which a program finds the file passed to it beside its standard streams.
pub(super) const CARRIED: i32 = 3;

/// Script that exits if the host (`$1`) was gone before the command was bound to it, since nothing
/// would end the command then.
pub(super) const STILL_OURS: &str = r#"if [[ $PPID != "$1" ]]; then exit 137; fi; shift;"#;

/// Script that closes inherited descriptors without close-on-exec, except `$c`, which becomes
/// [`CARRIED`]. The loop itself is not redirected: bash would keep the original under a higher
/// number, and the loop would close that.
pub(super) const CLOSE: &str = r#"for d in /proc/self/fd/*; do d=${d##*/}; if (( d > 2 )) && [[ $d != "$c" ]]; then eval "exec $d>&-"; fi; done; if [[ -n $c && $c != 3 ]]; then eval "exec 3<&$c $c<&-"; fi; unset c d;"#;

/// Script that makes a process and its children the first to be killed when the machine runs out of
/// memory, before the host and the supervisors of other commands.
pub(super) const FIRST_TO_GO: &str = "{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null;";

/// The role of a process, which decides when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A command of a model. It ends with the thread that started it.
    Command,
    /// A supervisor. It outlives its host to end the command, and raises the command's
    /// out-of-memory score.
    Supervisor,
    /// A server beside the host. It ends with the thread that started it.
    Server,
}

/// What a program finds at [`CARRIED`].
#[derive(Debug, Clone)]
pub(super) enum Carried {
    /// The file that this process was started from.
    OwnProgram(Arc<OwnedFd>),
    /// Bytes to be read once. They must fit into the smallest pipe.
    Bytes(Vec<u8>),
}

/// Describes a process to start.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// Program and arguments.
    pub(super) argv: Vec<OsString>,
    /// The whole environment; nothing is inherited.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// What the program finds at [`CARRIED`].
    pub(super) carried: Option<Carried>,
    /// Folder in which the process starts.
    pub(super) folder: PathBuf,
    /// Longest run time.
    pub(super) timeout: Duration,
    /// Bytes kept of standard output.
    pub(super) output_bytes_max: usize,
    /// Bytes kept of standard error.
    pub(super) errors_bytes_max: usize,
    /// Receives lines of the output while the process runs.
    pub(super) progress: Progress,
    /// Limits of the process.
    pub(super) limits: ExecLimits,
    /// A folder on the disk whose free space is checked.
    pub(super) disk: PathBuf,
    /// Marks the control words of the process's shell.
    pub(super) nonce: String,
    /// Folders of the host that output shows under other names.
    pub(super) shown: Vec<Shown>,
    /// How the process's descendants are found and ended.
    pub(super) kind: Kind,
}

/// A folder of the host and its name in output.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) folder: PathBuf,
    pub(super) name: &'static str,
}

/// How the processes of a job are found and ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The child is bubblewrap. Its child is the first process of a PID namespace, which ends with
    /// that process.
    Namespace,
    /// The child is a supervisor. It adopts all orphans below it, and ends them when its standard
    /// input closes.
    Supervised,
    /// A plain process group. Strays carry this mark in their environment.
    Group(String),
}

pub(super) type Reply = oneshot::Sender<Result<ExecResult, SandboxError>>;

pub(super) enum Order {
    /// Starts a process. A command has a permit; a probe has none.
    Start {
        id: u64,
        launch: Box<Launch>,
        reply: Reply,
        permit: Option<OwnedSemaphorePermit>,
    },
    Kill {
        id: u64,
    },
    Pipe {
        id: u64,
        launch: Box<CarryingLaunch>,
        reply: StreamsReply,
        ended: oneshot::Sender<Option<i32>>,
        permit: OwnedSemaphorePermit,
    },
    EndPiped {
        id: u64,
        grace: Duration,
    },
}

/// A handle to the thread that starts processes. Clones share the thread; one is enough for a host.
#[derive(Debug, Clone)]
pub struct Spawner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    orders: mpsc::Sender<Order>,
    /// Written to in order to wake the thread; closed with the last handle.
    wake: OwnedFd,
    next: AtomicU64,
    permits: Arc<Semaphore>,
    piped: Arc<Semaphore>,
    watchdog: Watchdog,
    /// Number of scans of all processes made to end some.
    #[cfg(test)]
    looks: Arc<AtomicU64>,
}

/// Concurrent commands of a host that may open `files` files. Most files are left for other uses.
fn commands_max(files: u64) -> usize {
    usize::try_from(files / DESCRIPTORS_PER_COMMAND).unwrap_or(usize::MAX).clamp(COMMANDS_MIN, COMMANDS_MAX)
}

impl Spawner {
    /// Starts the thread. Commands run in control groups where these can be created.
    ///
    /// # Errors
    /// The system's error when no thread or pipe can be created.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(ControlGroups::Auto)
    }

    /// Like [`Spawner::start`], with or without control groups.
    ///
    /// # Errors
    /// The system's error when no thread or pipe can be created.
    pub fn start_with(groups: ControlGroups) -> std::io::Result<Self> {
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
        let (orders, inbox) = mpsc::channel();
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let looks = Arc::<AtomicU64>::default();
        let counter = looks.clone();
        std::thread::Builder::new().name("callboard-spawner".to_owned()).spawn(move || {
            // Raise this thread's priority where permitted. As root the kernel's process limit does
            // not apply, so this thread must get a processor to stop a fork bomb.
            let _ = rustix::process::setpriority_process(None, -NICENESS);
            // If the user's quota of keys runs out later, processes share this keyring instead of
            // the host's.
            let _ = keys::join_new_session();
            Thread::new(inbox, woken, counter, groups).run();
        })?;
        Ok(Self(Arc::new(Inner {
            orders,
            wake,
            next: AtomicU64::new(1),
            permits: Arc::new(Semaphore::new(commands_max(files))),
            piped: Arc::new(Semaphore::new(PIPED_MAX)),
            watchdog: Watchdog::default(),
            #[cfg(test)]
            looks,
        })))
    }

    /// The watchdog, which sweeps if this process is killed.
    pub(super) fn watchdog(&self) -> &Watchdog {
        &self.0.watchdog
    }

    pub(super) fn piped_permits(&self) -> Arc<Semaphore> {
        self.0.piped.clone()
    }

    /// Number of scans of all processes made so far to end some.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u64 {
        self.0.looks.load(Ordering::Relaxed)
    }

    /// Number of further commands that may start now.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.0.permits.available_permits()
    }

    pub(super) fn next_id(&self) -> u64 {
        self.0.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn order(&self, order: Order) -> Result<(), SandboxError> {
        let gone = |_| SandboxError::Failed("the thread that starts processes is gone".to_owned());
        self.0.orders.send(order).map_err(gone)?;
        // If the pipe is full, the thread has bytes to read and wakes as well.
        let _ = rustix::io::write(&self.0.wake, &[1]);
        Ok(())
    }

    fn begin(
        &self,
        launch: Launch,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(Killer<'_>, oneshot::Receiver<Result<ExecResult, SandboxError>>), SandboxError> {
        let id = self.next_id();
        let (reply, answer) = oneshot::channel();
        self.order(Order::Start { id, launch: Box::new(launch), reply, permit })?;
        Ok((Killer { spawner: self, id }, answer))
    }

    /// Runs a process to its end.
    ///
    /// # Cancel safety
    /// Dropping the future kills the job.
    pub(super) async fn run(&self, launch: Launch, cancel: &CancellationToken) -> Result<ExecResult, SandboxError> {
        // The permit travels with the job and is released when the thread drops the job, not when
        // this future ends: processes of a cancelled command may still run for a moment, and they
        // count towards the limit of concurrent commands.
        let permit = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(SandboxError::Cancelled),
            permit = self.0.permits.clone().acquire_owned() => permit.ok(),
        };
        let (killer, mut answer) = self.begin(launch, permit)?;
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            () = cancel.cancelled() => {
                drop(killer); // the answer still comes, when the processes are gone
                let _ = answer.await;
                return Err(SandboxError::Cancelled);
            }
        };
        answered.unwrap_or_else(|_| Err(SandboxError::Failed("the thread that starts processes ended".to_owned())))
    }

    /// Runs a short process while the calling thread blocks; for probes at start.
    pub(super) fn run_blocking(&self, launch: Launch) -> Result<ExecResult, SandboxError> {
        let (_killer, mut answer) = self.begin(launch, None)?;
        loop {
            match answer.try_recv() {
                Ok(answered) => return answered,
                Err(oneshot::error::TryRecvError::Empty) => std::thread::sleep(Duration::from_millis(1)),
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Err(SandboxError::Failed("the thread that starts processes ended".to_owned()));
                }
            }
        }
    }
}

struct Killer<'s> {
    spawner: &'s Spawner,
    id: u64,
}

impl Drop for Killer<'_> {
    fn drop(&mut self) {
        let _ = self.spawner.order(Order::Kill { id: self.id });
    }
}

/// A command that inherits only `carried`: no environment, no other descriptor and no input, in a
/// new process group.
pub(super) fn clean_command(argv: &[OsString], role: Role, carried: Option<&OwnedFd>) -> Command {
    command_of(std::process::id(), argv, role, carried)
}

/// Duplicates a descriptor for a child, without close-on-exec, for the moment of the start. A child
/// that another thread starts in that moment inherits it too; it holds nothing secret.
pub(super) fn handed(carried: Option<&Carried>) -> std::io::Result<Option<OwnedFd>> {
    Ok(match carried {
        None => None,
        Some(Carried::OwnProgram(fd)) => Some(rustix::io::dup(fd)?),
        Some(Carried::Bytes(bytes)) => {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK)?;
            rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::empty())?;
            if rustix::io::write(&writer, bytes)? < bytes.len() {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            Some(reader)
        }
    })
}

fn command_of(host: u32, argv: &[OsString], role: Role, carried: Option<&OwnedFd>) -> Command {
    use std::os::unix::process::CommandExt;
    let own = rustix::process::getpriority_process(None).unwrap_or(0);
    let mut command = if role == Role::Supervisor || !std::path::Path::new(SETPRIV).is_file() {
        Command::new("/usr/bin/nice")
    } else {
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "KILL", "--", "/usr/bin/nice"]);
        command
    };
    let score = if role == Role::Command { FIRST_TO_GO } else { "" };
    command
        .args(["-n", &(NICENESS - own).to_string(), BASH])
        .args([
            "--norc",
            "--noprofile",
            "-c",
            &format!("{STILL_OURS} c=$1; shift; {score} {CLOSE} exec \"$@\""),
            "callboard",
            &host.to_string(),
        ])
        .arg(carried.map_or_else(String::new, |fd| fd.as_raw_fd().to_string()))
        .args(argv)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

pub(super) fn start(launch: &Launch) -> std::io::Result<std::process::Child> {
    // On failure the seccomp filter still refuses commands all access to keyrings.
    let _ = keys::join_new_session();
    let carried = handed(launch.carried.as_ref())?;
    let role = if launch.kind == Kind::Supervised { Role::Supervisor } else { Role::Command };
    let child = clean_command(&launch.argv, role, carried.as_ref())
        .envs(launch.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&launch.folder)
        .stdin(if launch.kind == Kind::Supervised { Stdio::piped() } else { Stdio::null() })
        .spawn()?;
    unblock(&child)?;
    Ok(child)
}

/// Sets the child's output streams to non-blocking.
pub(super) fn unblock(child: &std::process::Child) -> std::io::Result<()> {
    for fd in [child.stdout.as_ref().map(AsFd::as_fd), child.stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK)?;
    }
    Ok(())
}

/// Starts a watchdog. It ends when its standard input closes, even if this process has ended
/// already.
pub(super) fn start_watchdog(
    program: &Program,
    arguments: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> std::io::Result<std::process::Child> {
    let argv: Vec<OsString> = std::iter::once(program.path()).chain(arguments).collect();
    let carried = handed(program.carried().as_ref())?;
    let mut command = clean_command(&argv, Role::Supervisor, carried.as_ref());
    command.envs(environment).current_dir("/").stdin(Stdio::piped()).stderr(Stdio::null()).spawn()
}

/// Starts this program again as the helper's next stage, in a namespace if given. The stage
/// inherits the output streams.
pub(super) fn start_helper<'a>(namespace: Option<Namespace>, arguments: impl IntoIterator<Item = &'a OsStr>) -> std::io::Result<u32> {
    const SELF: &str = "/proc/self/exe";
    let mut command = match namespace {
        None => {
            let mut command = Command::new(SELF);
            command.stdin(Stdio::null());
            command
        }
        Some(namespace) => {
            // There `/proc/self/exe` is `unshare`, and from another user namespace a path through
            // our own process id does not resolve. So the program travels as standard input, which
            // `become_command` closes. It is opened for reading, because the standard library
            // treats a descriptor that cannot be read as missing and opens another in its place.
            let program = std::fs::File::open(SELF)?;
            let mut command = Command::new(UNSHARE);
            command.args(namespace.arguments()).arg("/proc/self/fd/0").stdin(Stdio::from(program));
            command
        }
    };
    command.args(arguments).env_clear().spawn().map(|child| child.id())
}

/// Replaces this process with a program without input. Returns only on failure.
pub(super) fn become_command<N: AsRef<OsStr>, V: AsRef<OsStr>>(
    argv: &[OsString],
    environment: impl IntoIterator<Item = (N, V)>,
) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    let Some((program, arguments)) = argv.split_first() else { return std::io::ErrorKind::InvalidInput.into() };
    Command::new(program).args(arguments).env_clear().envs(environment).stdin(Stdio::null()).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_whose_host_is_gone_before_it_begins_does_nothing() {
        let argv = ["/bin/echo", "begun"].map(OsString::from);
        for role in [Role::Command, Role::Supervisor, Role::Server] {
            let ours = command_of(std::process::id(), &argv, role, None).output().unwrap();
            let orphan = command_of(1, &argv, role, None).output().unwrap();

            assert_eq!((ours.status.code(), ours.stdout), (Some(0), b"begun\n".to_vec()));
            assert_eq!((orphan.status.code(), orphan.stdout), (Some(137), Vec::new()));
        }
    }

    #[test]
    fn a_program_finds_what_it_is_handed_and_no_other_descriptor() {
        let file = std::fs::File::open("/usr/bin/env").unwrap();
        let inherited = rustix::io::dup(&file).unwrap(); // without close-on-exec, as a careless embedding program might have it
        let carried = Carried::OwnProgram(Arc::new(OwnedFd::from(file)));
        let argv =
            ["/bin/bash", "-c", "for d in {3..40}; do [ -e /proc/self/fd/$d ] && echo $d $(readlink /proc/self/fd/$d); done; exit 0"];
        for carried in [None, Some(&carried)] {
            let handed = handed(carried).unwrap();

            let output = command_of(std::process::id(), &argv.map(OsString::from), Role::Server, handed.as_ref()).output().unwrap();

            let expected =
                if carried.is_some() { format!("3 {}\n", std::fs::canonicalize("/usr/bin/env").unwrap().display()) } else { String::new() };
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        }
        drop(inherited);
    }

    #[test]
    fn commands_leave_most_of_the_hosts_files_to_others() {
        let most = [0, 1024, 4096, 20_000, u64::MAX].map(commands_max);

        assert_eq!(most, [64, 64, 256, 1024, 1024]);
    }
}
