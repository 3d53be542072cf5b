//! The only place that starts a process: one thread, because `PDEATHSIG` and bubblewrap's `--die-with-parent` bind to the
//! thread that forked (DESIGN §7). The same thread reads the output, watches limits, kills and reaps; callers await a channel.
//!
//! Owns: every running [`Job`]. Ends when the last [`Spawner`] handle goes, killing what still runs.
//!
//! Promises: a job answers once, when all its processes are gone · a dropped caller kills its job · memory of output is bounded.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use callboard_actors::ports::{ExecLimits, ExecResult, Progress, SandboxError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::{
    job::{Ending, Job},
    piped::{PIPED_MAX, PipedJob, PipedLaunch, StreamsReply},
    policy::{COMMANDS_MAX, NICENESS},
    processes::{Processes, total},
};

/// How often limits are looked at (FAULTS F3: 2 s).
const WATCH: Duration = Duration::from_millis(200);

/// How often the number of processes of the machine is looked at. When it has grown by what one command may have, limits are looked at
/// at once: a fork bomb doubles until nobody else gets a processor, and the kernel's own limit does not hold for a superuser.
const GLANCE: Duration = Duration::from_millis(20);

/// Share of the time that watching may take on a machine with very many processes: one in this many.
const WATCH_SHARE: u32 = 20;

/// Closes what the host may have inherited without close-on-exec (FAULTS F5), then becomes the command. The loop itself is not
/// redirected: bash keeps the original behind a higher number, which the loop would close.
const CLOSE_AND_EXEC: &str = r#"for d in /proc/self/fd/*; do d=${d##*/}; if (( d > 2 )); then eval "exec $d>&-"; fi; done; exec "$@""#;

/// A process to start.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    /// Program and arguments.
    pub(super) argv: Vec<OsString>,
    /// The whole environment.
    pub(super) environment: Vec<(OsString, OsString)>,
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
    /// A plain process group; strays are known by this entry of their environment.
    Group(String),
}

type Reply = oneshot::Sender<Result<ExecResult, SandboxError>>;

pub(super) enum Order {
    Start { id: u64, launch: Box<Launch>, reply: Reply, permit: Option<OwnedSemaphorePermit> },
    Kill { id: u64 },
    Pipe { id: u64, launch: Box<PipedLaunch>, reply: StreamsReply, ended: oneshot::Sender<Option<i32>>, permit: OwnedSemaphorePermit },
    EndPiped { id: u64, grace: Duration },
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
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the system says when there is no thread or pipe left.
    pub fn start() -> std::io::Result<Self> {
        let (woken, wake) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK)?;
        let (orders, inbox) = mpsc::channel();
        std::thread::Builder::new().name("callboard-spawner".to_owned()).spawn(move || {
            // Where it may, this thread comes first: as root, where the kernel's limit of processes does not hold, it stops fork bombs.
            let _ = rustix::process::setpriority_process(None, -NICENESS);
            let now = Instant::now();
            let buffer = vec![0; 64 * 1024];
            Thread {
                inbox,
                woken,
                jobs: BTreeMap::new(),
                piped: BTreeMap::new(),
                watched: now,
                watch: WATCH,
                glanced: now,
                usual: 0,
                buffer,
            }
            .run();
        })?;
        Ok(Self(Arc::new(Inner {
            orders,
            wake,
            next: AtomicU64::new(1),
            permits: Arc::new(Semaphore::new(COMMANDS_MAX)),
            piped: Arc::new(Semaphore::new(PIPED_MAX)),
        })))
    }

    pub(super) fn piped_permits(&self) -> Arc<Semaphore> {
        self.0.piped.clone()
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

struct Thread {
    inbox: mpsc::Receiver<Order>,
    woken: OwnedFd,
    jobs: BTreeMap<u64, Job>,
    piped: BTreeMap<u64, PipedJob>,
    watched: Instant,
    watch: Duration,
    glanced: Instant,
    /// Processes of the machine when there was no job.
    usual: u32,
    buffer: Vec<u8>,
}

impl Thread {
    fn run(mut self) {
        loop {
            self.wait();
            let mut drain = [0_u8; 256];
            let closed = loop {
                match rustix::io::read(&self.woken, &mut drain) {
                    Ok(0) => break true,
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break false,
                }
            };
            self.take_orders();
            if closed {
                self.jobs.values_mut().for_each(|job| job.end(Ending::Cancelled));
                self.piped.values_mut().for_each(|job| job.end(Duration::ZERO));
            }
            self.turn();
            if closed && self.jobs.is_empty() && self.piped.is_empty() {
                return;
            }
        }
    }

    /// Sleeps until output, an exit, an order or a deadline.
    fn wait(&self) {
        let now = Instant::now();
        let mut until = if self.jobs.is_empty() { None } else { Some((self.watched + self.watch).min(self.glanced + GLANCE)) };
        for job in self.jobs.values() {
            until = Some(until.map_or(job.due(), |at| at.min(job.due())));
        }
        for due in self.piped.values().filter_map(PipedJob::due) {
            until = Some(until.map_or(due, |at| at.min(due)));
        }
        let timeout = until.map(|at| at.saturating_duration_since(now));
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        for job in self.jobs.values() {
            fds.extend(job.descriptors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        fds.extend(self.piped.values().filter_map(PipedJob::descriptor).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Start { id, launch, reply, permit } => match start(&launch) {
                    Ok(child) => {
                        if self.jobs.is_empty() {
                            self.watched = Instant::now();
                            self.glanced = self.watched;
                            self.usual = total();
                        }
                        self.jobs.insert(id, Job::new(child, *launch, reply, permit));
                    }
                    Err(error) => drop(reply.send(Err(SandboxError::Failed(error.kind().to_string())))),
                },
                Order::Kill { id } => {
                    if let Some(job) = self.jobs.get_mut(&id) {
                        job.end(Ending::Cancelled);
                    }
                }
                Order::Pipe { id, launch, reply, ended, permit } => {
                    self.piped.extend(PipedJob::start(*launch, reply, ended, permit).map(|job| (id, job)));
                }
                Order::EndPiped { id, grace } => {
                    if let Some(job) = self.piped.get_mut(&id) {
                        job.end(grace);
                    }
                }
            }
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        let mut look = now >= self.watched + self.watch;
        if !look && now >= self.glanced + GLANCE {
            self.glanced = now;
            let now_total = total();
            look = now_total > self.usual.saturating_add(ExecLimits::DEFAULT.processes);
            if look {
                // Others may have grown, too: the next jump counts from here.
                self.usual = now_total;
            }
        }
        if !self.jobs.is_empty() && look {
            let all = Processes::read();
            self.jobs.values_mut().for_each(|job| job.watch(&all));
            self.watch_disks();
            self.watched = Instant::now();
            self.watch = WATCH.max((self.watched - now) * WATCH_SHARE);
        }
        self.finish();
    }

    /// A disk tells only that it gets full, not by whom: the one that wrote most goes, and the others count anew.
    fn watch_disks(&mut self) {
        let filling = self.jobs.values_mut().filter(|job| job.fills_the_disk());
        if let Some(job) = filling.max_by_key(|job| job.disk.written()) {
            job.stop_filling();
            self.jobs.values_mut().for_each(|job| job.disk.forget());
        }
    }

    fn finish(&mut self) {
        let buffer = &mut self.buffer;
        let done: Vec<u64> = self.jobs.iter_mut().filter_map(|(id, job)| job.step(buffer).then_some(*id)).collect();
        for job in done.into_iter().filter_map(|id| self.jobs.remove(&id)) {
            job.answer();
        }
        let done: Vec<u64> = self.piped.iter_mut().filter_map(|(id, job)| job.step().then_some(*id)).collect();
        done.into_iter().filter_map(|id| self.piped.remove(&id)).for_each(PipedJob::answer);
    }
}

/// A command that inherits nothing: no environment, no descriptor, no input, a group of its own.
pub(super) fn clean_command(argv: &[OsString]) -> Command {
    use std::os::unix::process::CommandExt;
    let own = rustix::process::getpriority_process(None).unwrap_or(0);
    let mut command = Command::new("/usr/bin/nice");
    command
        .args(["-n", &(NICENESS - own).to_string(), "/bin/bash"])
        .args(["--norc", "--noprofile", "-c", CLOSE_AND_EXEC, "callboard"])
        .args(argv)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

fn start(launch: &Launch) -> std::io::Result<std::process::Child> {
    let child = clean_command(&launch.argv)
        .envs(launch.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&launch.folder)
        .stdin(if launch.kind == Kind::Supervised { Stdio::piped() } else { Stdio::null() })
        .spawn()?;
    for fd in [child.stdout.as_ref().map(AsFd::as_fd), child.stderr.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
        rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK)?;
    }
    Ok(child)
}

/// Starts this program again as a helper's next stage; its descriptors are the caller's standard ones.
pub(super) fn start_helper<'a>(arguments: impl IntoIterator<Item = &'a std::ffi::OsStr>) -> std::io::Result<u32> {
    Command::new("/proc/self/exe").args(arguments).env_clear().stdin(Stdio::null()).spawn().map(|child| child.id())
}

/// Becomes a program; returns only if that fails.
pub(super) fn become_command<'a>(argv: &[OsString], environment: impl IntoIterator<Item = (&'a str, &'a str)>) -> std::io::Error {
    use std::os::unix::process::CommandExt;
    let Some((program, arguments)) = argv.split_first() else { return std::io::ErrorKind::InvalidInput.into() };
    Command::new(program).args(arguments).env_clear().envs(environment).exec()
}
