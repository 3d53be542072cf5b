//! The only place that starts a process: one thread, because `PDEATHSIG` and bubblewrap's `--die-with-parent` bind to the
//! thread that forked (DESIGN §7). The same thread reads the output, watches limits, kills and reaps; callers await a channel.
//!
//! This is the thread's handle, and how a process is started; `thread` is what the thread does.
//!
//! Promises: a job answers once, when all its processes are gone · a dropped caller kills its job · memory of output is bounded.

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

/// So many commands run at once on any machine.
const COMMANDS_MIN: usize = 64;

/// Files that the host must be allowed to open for each command beyond these, see [`COMMANDS_MAX`].
const DESCRIPTORS_PER_COMMAND: u64 = 16;

/// Binds a process to the thread that started it.
pub(super) const SETPRIV: &str = "/usr/bin/setpriv";

/// Starts a program in new namespaces.
pub(super) const UNSHARE: &str = "/usr/bin/unshare";

pub(super) const BASH: &str = "/bin/bash";

/// The descriptor under which a program finds what it is handed beside its standard streams.
pub(super) const CARRIED: i32 = 3;

/// Ends at once if the host (`$1`) was gone before the command was bound to it, because nothing would end it then.
pub(super) const STILL_OURS: &str = r#"if [[ $PPID != "$1" ]]; then exit 137; fi; shift;"#;

/// Closes what the host may have inherited without close-on-exec but for the descriptor `$c`, which becomes [`CARRIED`]. The loop itself
/// is not redirected: bash keeps the original behind a higher number, which the loop would close.
pub(super) const CLOSE: &str = r#"for d in /proc/self/fd/*; do d=${d##*/}; if (( d > 2 )) && [[ $d != "$c" ]]; then eval "exec $d>&-"; fi; done; if [[ -n $c && $c != 3 ]]; then eval "exec 3<&$c $c<&-"; fi; unset c d;"#;

/// Makes a process and all below it the first to be killed when the machine runs out of memory: before the host and its other commands'
/// supervisors.
pub(super) const FIRST_TO_GO: &str = "{ echo 500 >/proc/self/oom_score_adj; } 2>/dev/null;";

/// What a process is to its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A command of a model's. It ends with the thread that started it.
    Command,
    /// A supervisor of a command. It outlives its host to end the command, whose score it raises.
    Supervisor,
    /// A server beside the host. It ends with the thread that started it.
    Server,
}

/// What a program finds at [`CARRIED`].
#[derive(Debug, Clone)]
pub(super) enum Carried {
    /// The file that this process was started from.
    OwnProgram(Arc<OwnedFd>),
    /// These bytes, to be read once; no more than the smallest pipe holds.
    Bytes(Vec<u8>),
}

/// A process to start.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// Program and arguments.
    pub(super) argv: Vec<OsString>,
    /// The whole environment.
    pub(super) environment: Vec<(OsString, OsString)>,
    /// What the program finds as [`CARRIED`].
    pub(super) carried: Option<Carried>,
    /// Where it starts.
    pub(super) folder: PathBuf,
    /// Longest run.
    pub(super) timeout: Duration,
    /// Bytes kept of standard output.
    pub(super) output_bytes_max: usize,
    /// Bytes kept of standard error.
    pub(super) errors_bytes_max: usize,
    /// Hears lines of what is printed.
    pub(super) progress: Progress,
    /// What it may use.
    pub(super) limits: ExecLimits,
    /// A folder of the disk that it may fill.
    pub(super) disk: PathBuf,
    /// Marks the words of its shell.
    pub(super) nonce: String,
    /// Folders of the host that are shown by another name.
    pub(super) shown: Vec<Shown>,
    /// How its processes are found again.
    pub(super) kind: Kind,
}

/// A folder of the host and what it is called in output.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) folder: PathBuf,
    pub(super) name: &'static str,
}

/// How the processes of a job are found and ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The child is bubblewrap; its own child is the first process of a PID namespace, which ends with it.
    Namespace,
    /// The child is our own supervisor: all orphans below it come to it, and it ends them when its standard input closes.
    Supervised,
    /// A plain process group; strays are known by this mark in their environment.
    Group(String),
}

pub(super) type Reply = oneshot::Sender<Result<ExecResult, SandboxError>>;

pub(super) enum Order {
    /// A command has a permit, a probe has none.
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

/// A handle to the thread that starts processes. Clones share it; one is enough for a whole host.
#[derive(Debug, Clone)]
pub struct Spawner(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    orders: mpsc::Sender<Order>,
    /// Written to wake the thread; closed with the last handle.
    wake: OwnedFd,
    next: AtomicU64,
    permits: Arc<Semaphore>,
    piped: Arc<Semaphore>,
    watchdog: Watchdog,
    /// How often the thread looked at all processes to end some.
    #[cfg(test)]
    looks: Arc<AtomicU64>,
}

/// Commands that run at once where so many files may be open: most are left to others.
fn commands_max(files: u64) -> usize {
    usize::try_from(files / DESCRIPTORS_PER_COMMAND).unwrap_or(usize::MAX).clamp(COMMANDS_MIN, COMMANDS_MAX)
}

impl Spawner {
    /// Starts the thread. Commands run in control groups where these can be made.
    ///
    /// # Errors
    /// What the system says when there is no thread or pipe left.
    pub fn start() -> std::io::Result<Self> {
        Self::start_with(ControlGroups::Auto)
    }

    /// As [`Spawner::start`], with or without control groups.
    ///
    /// # Errors
    /// What the system says when there is no thread or pipe left.
    pub fn start_with(groups: ControlGroups) -> std::io::Result<Self> {
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
        let (orders, inbox) = mpsc::channel();
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let looks = Arc::<AtomicU64>::default();
        let counter = looks.clone();
        std::thread::Builder::new().name("callboard-spawner".to_owned()).spawn(move || {
            // Where it may, this thread comes first: as root, where the kernel's limit of processes does not hold, it stops fork bombs.
            let _ = rustix::process::setpriority_process(None, -NICENESS);
            // Where the quota of keys is used up later, processes share this one instead of the host's.
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

    /// What sweeps for this process when it is killed.
    pub(super) fn watchdog(&self) -> &Watchdog {
        &self.0.watchdog
    }

    pub(super) fn piped_permits(&self) -> Arc<Semaphore> {
        self.0.piped.clone()
    }

    /// How often all processes were looked at to end some, so far.
    #[cfg(test)]
    pub(super) fn looks(&self) -> u64 {
        self.0.looks.load(Ordering::Relaxed)
    }

    /// How many more commands may run now.
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
        // A full pipe wakes just as well.
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
                drop(killer); // then the answer comes when the processes are gone
                let _ = answer.await;
                return Err(SandboxError::Cancelled);
            }
        };
        answered.unwrap_or_else(|_| Err(SandboxError::Failed("the thread that starts processes ended".to_owned())))
    }

    /// Runs a short process while the calling thread waits; for probes at start.
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

/// A command that inherits nothing but `carried`: no environment, no other descriptor, no input, a group of its own.
pub(super) fn clean_command(argv: &[OsString], role: Role, carried: Option<&OwnedFd>) -> Command {
    command_of(std::process::id(), argv, role, carried)
}

/// A descriptor to hand to a child, without close-on-exec: it is there for the moment of the start. A child of another thread that
/// starts in that moment inherits it, too; there is nothing secret in it.
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
    // Where it fails, the filter of system calls still refuses commands every keyring.
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

/// Has what a process prints be read without waiting.
pub(super) fn unblock(child: &std::process::Child) -> std::io::Result<()> {
    for fd in [child.stdout.as_ref().map(AsFd::as_fd), child.stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK)?;
    }
    Ok(())
}

/// Starts a watchdog. It ends when its standard input closes, and not with this process.
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

/// Starts this program again as a helper's next stage, in a namespace if one is wanted; its output is the caller's.
pub(super) fn start_helper<'a>(namespace: Option<Namespace>, arguments: impl IntoIterator<Item = &'a OsStr>) -> std::io::Result<u32> {
    const SELF: &str = "/proc/self/exe";
    let mut command = match namespace {
        None => {
            let mut command = Command::new(SELF);
            command.stdin(Stdio::null());
            command
        }
        Some(namespace) => {
            // There `/proc/self/exe` is `unshare`, and our own number leads nowhere from another user namespace. So the program
            // travels as standard input, which `become_command` closes. Opened for reading: the standard library takes a descriptor
            // that cannot be read for a missing one, and opens another in its place.
            let program = std::fs::File::open(SELF)?;
            let mut command = Command::new(UNSHARE);
            command.args(namespace.arguments()).arg("/proc/self/fd/0").stdin(Stdio::from(program));
            command
        }
    };
    command.args(arguments).env_clear().spawn().map(|child| child.id())
}

/// Becomes a program without input; returns only if that fails.
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
        let inherited = rustix::io::dup(&file).unwrap(); // without close-on-exec, as a careless embedding program has it
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
