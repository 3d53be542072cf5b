//! One running command: its output, its limits and how it ends. The spawner's thread drives it with
//! `step` and `check_limits`, which never block.

use std::{
    collections::BTreeMap,
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus},
    time::{Duration, Instant},
};

use callboard_actors::{
    ids::TenantId,
    ports::{ExecLimits, ExecResult, Progress, SandboxError},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::Signal,
};
use tokio::sync::{mpsc, oneshot};

use super::{
    capture::Capture,
    groups::CommandGroup,
    hidden_memory::{HiddenMemory, open_files, open_sockets, sockets_in_use},
    launch::{AtGate, Kind, Launch, Shown},
    machine::{self, Machine, SOCKET_BYTES, Suspect, charged_socket_bytes},
    mounts, netlink,
    processes::{
        Held, Paused, Processes, Waits, below, kill, kill_group, pidfd, written_and_ticks,
    },
    progress::{Line, ProgressSender},
    scarce,
    search::Candidate,
    tables::Tables,
    tcp,
    termination::{Group, Kill, Needs, Terminate},
    turns::Sessions,
    words::{COVERED, Words, rename, take_word},
};
use crate::{fair::Place, mask, sandbox::fs::Disk};

/// How long a namespace's first process may take to end before bubblewrap is killed too, and a
/// supervisor before its processes are killed for it.
const KILL_AGAIN: Duration = Duration::from_millis(300);

/// Time from the first kill after which a job is answered, whatever is left. Callers get an answer
/// within two seconds; a process in an uninterruptible sleep cannot be waited for.
const KILL_MAX: Duration = Duration::from_millis(1900);

/// How long processes that remain in the control group may take to end after all known ones have,
/// and the interval between two checks.
const EMPTY_MAX: Duration = Duration::from_millis(1900);
const EMPTY_AGAIN: Duration = Duration::from_millis(1);

/// Mappings of a process that are checked one by one for memory files.
const MAPPINGS_MAX: usize = 16 * 1024;

/// Files that all processes of a command may have open together, a shared one counted for each.
const OPEN_FILES_MAX: u64 = 32 * 1024;

/// Sockets are counted again when the number of open files has grown by one part in this many.
const RECOUNT_SHARE: u64 = 16;

/// Buffers read from one stream in a pass, so that a flood of output does not starve other jobs.
const READS_MAX: usize = 16;

/// How long a command begins: its boundary is made, and the scheduler learns its place.
const BEGINNING: Duration = Duration::from_secs(1);

/// How long a command may count as one whose shell has not begun: it may replace its shell at once.
const BEGINS_MAX: Duration = Duration::from_secs(10);

/// Why the host ended a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    TimedOut,
    Cancelled,
    Limit(String),
}

/// When the sockets of a job must be checked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hurry {
    /// At the usual interval.
    None,
    /// More often: it has many open files.
    Often,
    /// As soon as possible: it has just been counted and goes on.
    AtOnce,
}

/// How the job's processes are ended, and the progress of that. `killing` is the time of the first
/// kill and of the next attempt; `None` before.
enum EndMethod {
    /// The kernel ends all processes of the namespace with its first one. `init` is that process,
    /// once it is known.
    Namespace {
        init: Option<OwnedFd>,
        killing: Option<(Instant, Instant)>,
    },
    /// A supervisor ends all processes when `control` closes, which the host's own death also does.
    Supervised {
        control: Option<ChildStdin>,
        killing: Option<(Instant, Instant)>,
    },
    Group(Group),
}

/// A command that waits until its mounts were checked.
struct Gate {
    report: mpsc::Sender<AtGate>,
    /// What was printed on standard error so far.
    said: Vec<u8>,
}

/// Bytes on standard error that are kept for a command whose mounts are not made yet.
const SAID_MAX: usize = 64 * 1024;

pub(super) struct Job {
    child: Child,
    pid: i32,
    /// Descriptor of the child, readable when the child has ended; `None` where the kernel provides
    /// none.
    ended: Option<OwnedFd>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    out: Capture,
    err: Capture,
    out_line: Line,
    err_line: Line,
    sender: ProgressSender,
    method: EndMethod,
    limits: ExecLimits,
    /// Bytes of memory at which it is ended: its bound, or less without a control group.
    memory_max: u64,
    pub(super) disk: Disk,
    /// The command's control group, where there are control groups.
    group: Option<CommandGroup>,
    /// Set while unknown processes remain in the control group after all known ones ended: when
    /// that was first seen, and when to check again.
    emptying: Option<(Instant, Instant)>,
    /// Memory of the machine at the start; `None` for a job with a control group.
    before: Option<Machine>,
    /// Memory held, and processes and threads, at the last check.
    held: Held,
    threads: u32,
    /// Its open files.
    tables: Tables,
    tenant: Option<TenantId>,
    sessions: Sessions,
    began: Instant,
    /// Number of open files when its sockets were last counted.
    counted_files: u64,
    nonce: String,
    shown: Vec<Shown>,
    /// Strays found when the command ended.
    left: u32,
    deadline: Instant,
    /// Whether the shell of the command has begun, behind its boundary.
    has_shell: bool,
    /// Set until the command's mounts are made.
    gate: Option<Gate>,
    status: Option<ExitStatus>,
    ending: Option<Ending>,
    reply: oneshot::Sender<Result<ExecResult, SandboxError>>,
    _place: Option<Place>,
}

/// The commands that run, by their ids.
pub(super) type Jobs = BTreeMap<u64, Job>;

impl Job {
    pub(super) fn new(
        mut child: Child,
        launch: Launch,
        group: Option<CommandGroup>,
        reply: oneshot::Sender<Result<ExecResult, SandboxError>>,
        place: Option<Place>,
    ) -> Self {
        let pid = i32::try_from(child.id()).unwrap_or(0);
        let method = match launch.kind {
            Kind::Namespace => EndMethod::Namespace {
                init: None,
                killing: None,
            },
            Kind::Supervised => EndMethod::Supervised {
                control: child.stdin.take(),
                killing: None,
            },
            Kind::Group(mark) => EndMethod::Group(Group::new(pid, mark)),
        };
        Self {
            pid,
            has_shell: matches!(method, EndMethod::Group(_)),
            ended: pidfd(pid),
            stdout: child.stdout.take(),
            stderr: child.stderr.take(),
            child,
            out: Capture::new(launch.output_bytes_max),
            err: Capture::new(launch.errors_bytes_max),
            out_line: Line::default(),
            err_line: Line::default(),
            sender: ProgressSender::new(renamed(launch.progress, &launch.shown)),
            method,
            memory_max: match group {
                Some(_) => launch.limits.memory_bytes,
                None => machine::watched_bound(launch.limits.memory_bytes),
            },
            limits: launch.limits,
            disk: Disk::of(launch.disk),
            before: if group.is_none() {
                Machine::read()
            } else {
                None
            },
            group,
            emptying: None,
            held: Held::default(),
            threads: 0,
            tables: Tables::default(),
            tenant: launch.tenant,
            sessions: Sessions::default(),
            began: Instant::now(),
            counted_files: 0,
            nonce: launch.nonce,
            shown: launch.shown,
            left: 0,
            deadline: Instant::now() + launch.timeout,
            gate: launch.gate.map(|report| Gate {
                report,
                said: Vec::new(),
            }),
            status: None,
            ending: None,
            reply,
            _place: place,
        }
    }

    /// The next time at which the job must be checked even if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        let again = match &self.method {
            EndMethod::Namespace { killing, .. } | EndMethod::Supervised { killing, .. } => {
                killing.map(|(_, again)| again)
            }
            EndMethod::Group(group) => group.due(),
        };
        let again = [again, self.emptying.map(|(_, again)| again)]
            .into_iter()
            .flatten()
            .min();
        match (self.killed(), self.status) {
            (None, Some(_)) => again,
            (Some(since), _) => {
                Some(again.map_or(since + KILL_MAX, |again| again.min(since + KILL_MAX)))
            }
            (None, None) => Some(self.deadline),
        }
    }

    /// Whether the job has no descriptor to wait for, so that its exit must be polled.
    pub(super) fn exit_is_polled(&self) -> bool {
        self.ended.is_none() && self.status.is_none()
    }

    /// Time of the first kill.
    fn killed(&self) -> Option<Instant> {
        match &self.method {
            EndMethod::Namespace { killing, .. } | EndMethod::Supervised { killing, .. } => {
                killing.map(|(since, _)| since)
            }
            EndMethod::Group(group) => group.killed(),
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ended = self
            .ended
            .as_ref()
            .filter(|_| self.status.is_none())
            .map(AsFd::as_fd);
        let init = match &self.method {
            EndMethod::Namespace { init, .. } => init
                .as_ref()
                .filter(|_| self.status.is_some())
                .map(AsFd::as_fd),
            EndMethod::Supervised { .. } | EndMethod::Group(_) => None,
        };
        [
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
            ended,
            init,
        ]
        .into_iter()
        .flatten()
    }

    /// Ends the job with the next pass. The first reason counts.
    pub(super) fn end(&mut self, ending: Ending) {
        if self.ending.is_none() && self.status.is_none() {
            self.ending = Some(ending);
        }
        self.kill_soon();
    }

    fn kill_soon(&mut self) {
        let now = Instant::now();
        match &mut self.method {
            EndMethod::Namespace { killing, .. } | EndMethod::Supervised { killing, .. } => {
                let _ = killing.get_or_insert((now, now));
            }
            EndMethod::Group(group) => group.end(now),
        }
    }

    /// Compares the job's processes, memory and disk usage with its limits.
    pub(super) fn check_limits(&mut self, all: &Processes) {
        if self.status.is_some() || self.killed().is_some() {
            return;
        }
        if let EndMethod::Namespace { init, .. } = &mut self.method {
            find_init(init, self.pid, all);
        }
        let tree = all.tree(self.pid);
        let processes = self.limits.processes;
        let is_over = self.group.as_ref().is_some_and(CommandGroup::is_over);
        self.held = all.held(&tree);
        self.held.shared = self.held.shared.saturating_add(self.files_in_memory(all));
        self.threads = all.threads_of(&tree);
        if self.threads > processes {
            self.end(Ending::Limit(format!(
                "more than {processes} processes and threads"
            )));
        } else if is_over || self.held.sum() > self.memory_max {
            self.stop_hoarding();
        } else if matches!(self.method, EndMethod::Namespace { .. }) && netlink::is_much(&tree) {
            let mebibytes = netlink::UNREAD_MAX >> 20;
            self.end(Ending::Limit(format!(
                "more than {mebibytes} MiB of unread netlink answers"
            )));
        }
        self.tables.count(&tree, Instant::now());
        if self.tables.files() > OPEN_FILES_MAX {
            self.stop_opening();
        }
    }

    /// Whether to read what the command has written.
    pub(super) fn may_fill_the_disk(&self) -> bool {
        let limits = &self.limits;
        self.is_running() && self.disk.is_due(limits.disk_bytes, limits.files)
    }

    /// Reads what the command has written. Returns false if that takes longer than `waits` allows.
    pub(super) fn watch_the_disk(&mut self, all: &Processes, waits: Option<&Waits>) -> bool {
        let read = written_and_ticks(&all.tree(self.pid), waits);
        if let Some((written, ticks)) = read {
            self.disk.note(written, ticks);
        }
        read.is_some()
    }

    /// Bytes that the command wrote to its `/tmp` and `/dev/shm` behind bubblewrap. Zero for a job
    /// with a control group, which counts them itself.
    fn files_in_memory(&self, all: &Processes) -> u64 {
        let (None, EndMethod::Namespace { .. }, Some(init)) =
            (&self.group, &self.method, all.children_of(self.pid).first())
        else {
            return 0;
        };
        let used = |place: &str| {
            let stat = rustix::fs::statvfs(format!("/proc/{init}/root{place}")).ok()?;
            // Until bubblewrap has set up the namespace, these are the host's own folders.
            let is_ours = stat.f_blocks.saturating_mul(stat.f_frsize)
                <= self.limits.tmp_bytes.saturating_add(stat.f_frsize);
            is_ours.then(|| {
                stat.f_blocks
                    .saturating_sub(stat.f_bfree)
                    .saturating_mul(stat.f_frsize)
            })
        };
        ["/tmp", "/dev/shm"].into_iter().filter_map(used).sum()
    }

    /// Whether the job is checked against the memory that the machine loses.
    pub(super) fn is_suspect(&self) -> bool {
        self.before.is_some() && self.is_running()
    }

    /// Whether the machine has lost so much memory since the job began that its processes must be
    /// examined. The margin of a quarter covers what they have grown since they were last examined.
    pub(super) fn may_hold_what_is_lost(&self, now: Machine) -> bool {
        let bound = self.memory_max;
        let lost = self
            .before
            .filter(|_| self.is_suspect())
            .map_or(0, |before| now.lost_since(before));
        lost > 0 && lost.saturating_add(self.held.sum()) > bound - bound / 4
    }

    /// The job's part in the memory lost so far: what it visibly holds, and what it could hold
    /// unseen. `reads` is how many open files may be looked at, for as long as `waits` allows.
    pub(super) fn suspect(
        &self,
        all: &Processes,
        now: Machine,
        reads: &mut usize,
        waits: Option<&Waits>,
    ) -> Option<Suspect> {
        let before = self.before.filter(|_| self.is_suspect())?;
        let tree = all.tree(self.pid);
        let held = all.held(&tree);
        let hidden = HiddenMemory::of(
            &tree,
            open_files(&tree),
            reads,
            MAPPINGS_MAX,
            now.lost_since(before) / SOCKET_BYTES + 1,
            waits,
        );
        Some(Suspect {
            before,
            bound: self.memory_max,
            private: held.private.saturating_add(held.tables),
            tables: held.tables,
            shared: held.shared.saturating_add(self.files_in_memory(all)),
            shared_means: hidden.shared,
            kernel_means: machine::kernel_means(
                hidden.sockets,
                hidden.pipes,
                all.virtual_bytes(&tree),
                tree.len() as u64,
            ),
        })
    }

    /// Ends the job if it has too many open files, or if its sockets can hold more than its bound
    /// leaves them. They are counted only if its open files, were they all sockets, could hold half
    /// the bound, and so could the sockets of its network namespace, and again only when more are
    /// open. The job is paused meanwhile, since it could open and fill more.
    ///
    /// Returns when to check again.
    pub(super) fn check_sockets(&mut self) -> Hurry {
        if !self.is_suspect() {
            return Hurry::None;
        }
        let bound = self.memory_max;
        let each = charged_socket_bytes();
        let tree = Processes::read_below([self.pid]).tree(self.pid);
        let files = open_files(&tree);
        if files > OPEN_FILES_MAX {
            self.stop_opening();
            return Hurry::None;
        }
        let might_hold = files.saturating_mul(each);
        let is_counted = files
            <= self
                .counted_files
                .saturating_add(self.counted_files / RECOUNT_SHARE);
        let is_within = |bytes: u64| bytes.saturating_add(self.held.sum()) <= bound / 2;
        if is_within(might_hold)
            || is_counted
            || sockets_in_use(&tree).is_some_and(|used| is_within(used.saturating_mul(each)))
        {
            return if might_hold > bound / 8 {
                Hurry::Often
            } else {
                Hurry::None
            };
        }
        let _paused = Paused::below([self.pid].into_iter());
        let all = Processes::read_below([self.pid]);
        let tree = all.tree(self.pid);
        let visible = all.held(&tree).sum();
        let sockets_max = bound.saturating_sub(visible) / each + 1;
        let in_use = match self.method {
            // It has a network namespace of its own.
            EndMethod::Namespace { .. } => sockets_in_use(&tree),
            EndMethod::Supervised { .. } | EndMethod::Group(_) => None,
        };
        let sockets = in_use.unwrap_or_else(|| open_sockets(&tree, sockets_max));
        let held = sockets.saturating_mul(each).saturating_add(visible);
        if held > bound {
            self.stop_losing(&all);
        }
        self.counted_files = files;
        Hurry::AtOnce
    }

    /// Whether the job has not ended and is not being ended.
    pub(super) fn is_running(&self) -> bool {
        self.status.is_none() && self.killed().is_none()
    }

    /// What the job had of scarce things when its files were last looked at.
    pub(super) fn scarce(&self) -> scarce::Taken {
        self.tables.taken()
    }

    /// Number of open files, and of tables of them that are to be read, at the last check.
    pub(super) fn open_files(&self) -> u64 {
        self.tables.files()
    }

    pub(super) fn tables_due(&self) -> usize {
        match self.is_running() {
            true => self.tables.due(),
            false => 0,
        }
    }

    /// Looks at some of the open files, and ends the job if it has more than its part of something.
    pub(super) fn read_files(&mut self, waits: &Waits) {
        if let Err(excess) = self.tables.step(Instant::now(), waits) {
            self.end(Ending::Limit(excess));
        }
    }

    pub(super) fn tenant(&self) -> Option<&TenantId> {
        self.tenant.as_ref()
    }

    /// Lets the commands of other tenants go first from now on.
    pub(super) fn give_way(&mut self) {
        if let Some(group) = self.group.as_ref().filter(|_| !self.gives_way()) {
            group.give_way();
        }
        self.sessions.give_way();
    }

    /// Whether its boundary has taken longer than this, and its shell has not begun.
    pub(super) fn begins_slowly(&mut self, time: Duration) -> bool {
        let began = self.began.elapsed();
        if self.has_shell || !self.is_running() || began <= time || began > BEGINS_MAX {
            return false;
        }
        let is_shell = |pid: &&i32| {
            let name = std::fs::read(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name == b"bash\n")
        };
        let all = Processes::read_below([self.pid]);
        let tree = all.tree(self.pid);
        // Above the namespace are shells of the host, which begin the command.
        let above = match self.method {
            EndMethod::Namespace { .. } => 1 + all.children_of(self.pid).len(),
            EndMethod::Supervised { .. } | EndMethod::Group(_) => 1,
        };
        self.has_shell = tree.iter().skip(above).any(|pid| is_shell(&pid));
        !self.has_shell
    }

    /// Whether its boundary, which is not made yet, waits for the kernel's list of mounts. `None` if
    /// that cannot be known.
    pub(super) fn waits_for_mounts(&self) -> Option<bool> {
        mounts::is_held_up(&Processes::read_below([self.pid]).tree(self.pid))
    }

    /// Number of processes and threads at the last check.
    pub(super) fn threads(&self) -> u32 {
        self.threads
    }

    /// Whether it has begun within the last second.
    pub(super) fn is_beginning(&self) -> bool {
        self.is_running() && self.began.elapsed() < BEGINNING
    }

    pub(super) fn gives_way(&self) -> bool {
        self.sessions.are_behind()
    }

    /// Whether the command gives way, but its sessions, made all the time, do not.
    pub(super) fn passes_turns(&self) -> bool {
        self.is_running() && self.gives_way() && self.sessions.keep_being_made()
    }

    /// New sessions, without those that the command began with.
    pub(super) fn new_sessions(&self) -> usize {
        if self.is_running() {
            self.sessions.new_ones()
        } else {
            0
        }
    }

    /// Whether it has made new sessions since it began.
    pub(super) fn has_made_sessions(&self) -> bool {
        self.is_running() && self.sessions.have_been_new()
    }

    /// Ends the job for the new sessions of its tenant's commands.
    pub(super) fn stop_making_sessions(&mut self) {
        self.end(Ending::Limit(
            "very many new sessions (setsid), all the time: other commands would wait".to_owned(),
        ));
    }

    /// Gives new sessions of the command the place among others that it has.
    pub(super) fn take_turns(&mut self, all: &Processes) {
        let tree = all.tree(self.pid);
        self.sessions.count(all.sessions_of(&tree));
        self.sessions.look_at(&tree);
    }

    /// The same for a command that has just begun. Returns whether more is to do.
    pub(super) fn begin_turns(&mut self) -> bool {
        if !self.sessions.have_begun() && self.is_beginning() {
            self.sessions.look_at(&below(self.pid));
        }
        self.sessions.go_on()
    }

    /// The job as one that may keep what is gone.
    pub(super) fn candidate(&self, id: u64, all: &Processes) -> Candidate {
        let tree = all.tree(self.pid);
        Candidate {
            id,
            tenant: self.tenant().cloned(),
            root: self.pid,
            files: open_files(&tree),
            tree,
        }
    }

    /// Bytes that the job has in connections of TCP.
    pub(super) fn tcp_bytes(&self, all: &Processes) -> u64 {
        let counted = self.group.as_ref().and_then(CommandGroup::tcp_bytes);
        counted.unwrap_or_else(|| tcp::held_by(&all.tree(self.pid)))
    }

    pub(super) fn stop_filling_tcp(&mut self) {
        self.end(Ending::Limit(
            "more memory of TCP than all commands may have together".to_owned(),
        ));
    }

    pub(super) fn stop_taking(&mut self, kind: scarce::Kind) {
        self.end(Ending::Limit(kind.excess_of_all()));
    }

    fn stop_opening(&mut self) {
        self.end(Ending::Limit(format!(
            "more than {OPEN_FILES_MAX} open files"
        )));
    }

    /// Ends the job for the open files of all commands together.
    pub(super) fn stop_opening_with_others(&mut self) {
        self.end(Ending::Limit(
            "more open files than all commands may have together".to_owned(),
        ));
    }

    fn stop_hoarding(&mut self) {
        self.end(Ending::Limit(self.too_much_memory()));
    }

    /// Ends the job for memory that the machine lost. Kills its processes directly: on a busy
    /// machine a supervisor may get the processor late, and reading all processes again takes
    /// milliseconds in which the command would continue.
    pub(super) fn stop_losing(&mut self, all: &Processes) {
        self.stop_hoarding();
        all.tree(self.pid)
            .into_iter()
            .filter(|pid| *pid != self.pid)
            .for_each(kill);
    }

    /// The process above all others of the job.
    pub(super) fn root(&self) -> i32 {
        self.pid
    }

    fn too_much_memory(&self) -> String {
        format!("more than {} MiB of memory", self.memory_max >> 20)
    }

    /// Whether the disk has lost more space than this command may use, whoever took it.
    pub(super) fn sees_the_disk_filled(&self) -> bool {
        self.is_running() && self.disk.lost() > self.limits.disk_bytes
    }

    /// Whether the disk has lost more space than this command may use, and the command has written
    /// that much.
    pub(super) fn fills_the_disk(&self) -> bool {
        self.disk.written() > self.limits.disk_bytes && self.sees_the_disk_filled()
    }

    pub(super) fn stop_filling(&mut self) {
        self.end(Ending::Limit(format!(
            "more than {} MiB written to the disk",
            self.limits.disk_bytes >> 20
        )));
    }

    /// Whether the disk has lost more files than this command may create, and the command had the
    /// kernel time to create them.
    pub(super) fn fills_the_disk_with_files(&self) -> bool {
        self.is_running() && self.disk.may_have_created_more_than(self.limits.files)
    }

    pub(super) fn stop_creating(&mut self) {
        self.end(Ending::Limit(format!(
            "more than {} new files",
            self.limits.files
        )));
    }

    /// Whether a line waits that cannot be masked at once.
    pub(super) fn waits_for_masks(&self) -> bool {
        self.sender.has_line() && !mask::is_prepared()
    }

    /// Sends the latest line to watchers if it is due. Not before lines can be masked at once:
    /// compiling the patterns would stop the watch over all commands for a tenth of a second.
    pub(super) fn send_progress(&mut self, now: Instant) {
        if mask::is_prepared() {
            self.sender.send_due(now);
        }
    }

    /// Reads output and reaps the child, without blocking.
    pub(super) fn step(&mut self, buffer: &mut [u8]) {
        self.drain(buffer);
        let now = Instant::now();
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
            if let (Some(_), EndMethod::Group(group)) = (self.status, &mut self.method) {
                group.leader_ended(now);
            }
        }
        if self.status.is_none() && self.ending.is_none() && now >= self.deadline {
            self.end(Ending::TimedOut);
        }
        // Processes that the command left running end with it.
        if self.status.is_some()
            && let EndMethod::Namespace {
                init: Some(init), ..
            } = &self.method
            && !has_ended(init)
        {
            self.kill_soon();
        }
    }

    /// Whether the job is over. If so, the remaining output has been read.
    pub(super) fn is_over(&mut self, now: Instant, buffer: &mut [u8]) -> bool {
        if self.killed().is_some_and(|since| now >= since + KILL_MAX) {
            return true;
        }
        let gone = self.status.is_some()
            && match &self.method {
                EndMethod::Namespace { init, .. } => init.as_ref().is_none_or(has_ended),
                EndMethod::Supervised { .. } => true,
                EndMethod::Group(group) => group.is_gone(),
            }
            && self.is_empty(now);
        if gone {
            for _ in 0..READS_MAX {
                if !self.drain(buffer) {
                    break;
                }
            }
        }
        gone
    }

    /// Whether the control group has no process left. Remaining ones are killed: the kernel counts
    /// a process there even if it detached from every other.
    fn is_empty(&mut self, now: Instant) -> bool {
        if self.emptying.is_some_and(|(_, again)| now < again) {
            return false;
        }
        let since = self.emptying.map_or(now, |(since, _)| since);
        let is_empty =
            now >= since + EMPTY_MAX || self.group.as_ref().is_none_or(|group| !group.kill_all());
        self.emptying = (!is_empty).then_some((since, now + EMPTY_AGAIN));
        is_empty
    }

    /// Reads the available output of both streams. Returns whether there may be more.
    fn drain(&mut self, buffer: &mut [u8]) -> bool {
        let out = &mut self.out;
        let err = &mut self.err;
        let mut made = None;
        let sender = &mut self.sender;
        let more = drain(&mut self.stdout, buffer, |bytes| {
            out.push(bytes);
            sender.push(&mut self.out_line, bytes);
        });
        let gate = &mut self.gate;
        let mut is_made = None;
        let more_err = drain(&mut self.stderr, buffer, |bytes| {
            let mut rest = Vec::new();
            let bytes = match gate.as_mut() {
                Some(gate) => {
                    let room = SAID_MAX.saturating_sub(gate.said.len());
                    gate.said
                        .extend_from_slice(bytes.get(..bytes.len().min(room)).unwrap_or_default());
                    let Some(pid) = take_word(&mut gate.said, &self.nonce, COVERED) else {
                        return;
                    };
                    rest.append(&mut gate.said);
                    is_made = Some(pid);
                    rest.as_slice()
                }
                None => bytes,
            };
            err.push(bytes);
            sender.push(&mut self.err_line, bytes);
            if is_made.is_some() && gate.is_some() {
                made = gate.take().map(|gate| gate.report);
            }
        });
        if let Some((report, pid)) = made.zip(is_made) {
            self.report_covered(&report, pid.parse().ok());
        }
        more || more_err
    }

    /// Reports that the command's mounts are made. Behind bubblewrap the shell that says so knows its
    /// number in the namespace only.
    fn report_covered(&mut self, report: &mpsc::Sender<AtGate>, pid: Option<i32>) {
        let (pid, waits) = match &mut self.method {
            EndMethod::Namespace { init, .. } => {
                let all = Processes::read_below([self.pid]);
                find_init(init, self.pid, &all);
                let waits = self.child.stdin.take().map(OwnedFd::from);
                (all.children_of(self.pid).first().copied(), waits)
            }
            EndMethod::Supervised { control, .. } => {
                let waits = control
                    .as_ref()
                    .and_then(|control| control.as_fd().try_clone_to_owned().ok());
                (pid, waits)
            }
            EndMethod::Group(_) => (None, None),
        };
        if let Some((pid, waits)) = pid.zip(waits) {
            // A caller that is gone has cancelled the command.
            let _ = report.try_send(AtGate { pid, waits });
        }
    }

    /// Sends the result to the caller, if it still waits.
    pub(super) fn answer(mut self) {
        // The kernel may have killed a process between two checks.
        if self.ending.is_none() && self.group.as_ref().is_some_and(CommandGroup::is_over) {
            self.ending = Some(Ending::Limit(self.too_much_memory()));
        }
        // What was said instead: why the mounts could not be made.
        if let Some(gate) = self.gate.take() {
            self.err.push(&gate.said);
        }
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
            None => words
                .failed
                .map_or(Ok(result), |why| Err(SandboxError::Failed(why))),
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

impl Terminate for Job {
    fn needs(&self, now: Instant) -> Needs {
        let due = |killing: &Option<(Instant, Instant)>| killing.filter(|(_, again)| now >= *again);
        let kill = match &self.method {
            EndMethod::Namespace { init, killing } => {
                due(killing).map(|_| match init.is_none() && self.status.is_none() {
                    true => Kill::Tree,
                    false => Kill::Known,
                })
            }
            EndMethod::Supervised { control, killing } => due(killing)
                .filter(|_| self.status.is_none())
                .map(|_| match control.is_none() {
                    true => Kill::Tree,
                    false => Kill::Known,
                }),
            EndMethod::Group(group) => return group.needs(now),
        };
        Needs {
            kill,
            ..Needs::default()
        }
    }

    fn kill(&mut self, now: Instant, all: &Processes) {
        let lives = self.status.is_none();
        match &mut self.method {
            // The kernel ends the whole namespace with its first process, and bubblewrap exits when
            // that process is gone. So the exit of bubblewrap proves that no process is left.
            // Bubblewrap itself is killed only if it does not exit in time, or has no first process
            // yet.
            EndMethod::Namespace { init, killing } => {
                let first = killing.is_none_or(|(since, again)| since == again);
                *killing = Some((killing.map_or(now, |(since, _)| since), now + KILL_AGAIN));
                if lives {
                    find_init(init, self.pid, all);
                }
                if let Some(init) = init {
                    let _ = rustix::process::pidfd_send_signal(init, Signal::KILL);
                }
                if lives && (init.is_none() || !first) {
                    kill_group(self.pid);
                }
            }
            // Closing the control pipe makes the supervisor kill and reap all processes below it;
            // orphans become its children. Only if that takes too long are they killed here.
            EndMethod::Supervised { control, killing } => {
                *killing = Some((killing.map_or(now, |(since, _)| since), now + KILL_AGAIN));
                if control.take().is_none() && lives {
                    all.tree(self.pid)
                        .into_iter()
                        .filter(|pid| *pid != self.pid)
                        .for_each(kill);
                }
            }
            EndMethod::Group(group) => group.kill(now, all),
        }
    }

    fn leader(&self) -> Option<i32> {
        self.status.is_none().then_some(self.pid)
    }

    fn mark(&self) -> &str {
        match &self.method {
            EndMethod::Namespace { .. } | EndMethod::Supervised { .. } => "",
            EndMethod::Group(group) => group.mark(),
        }
    }

    fn take_marked(&mut self, now: Instant, marked: &[i32]) {
        if let EndMethod::Group(group) = &mut self.method {
            if self.status.is_some() && self.ending.is_none() && group.killed().is_none() {
                self.left = u32::try_from(marked.len()).unwrap_or(u32::MAX);
            }
            group.take_marked(now, marked);
        }
    }
}

/// The first process of a namespace is bubblewrap's only child.
fn find_init(init: &mut Option<OwnedFd>, bubblewrap: i32, all: &Processes) {
    if init.is_none() {
        *init = all
            .children_of(bubblewrap)
            .first()
            .and_then(|pid| pidfd(*pid));
    }
}

/// Replaces folders of the host by their shown names in lines for watchers.
fn renamed(progress: Progress, shown: &[Shown]) -> Progress {
    let shown = shown.to_vec();
    Progress::new(move |line| {
        progress.report(shown.iter().fold(line, |line, Shown { folder, name }| {
            rename(&line, folder, name)
        }))
    })
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Reads the available bytes and closes the stream at its end. Returns whether there may be more.
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
