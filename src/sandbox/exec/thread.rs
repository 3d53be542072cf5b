//! The thread of a [`Spawner`](super::spawner::Spawner): starts processes, reads their output,
//! checks limits, kills and reaps. It blocks in one place only, a poll over all jobs.
//!
//! Owns every running [`Job`] and [`PipedJob`]. Ends when the last handle is dropped, after killing
//! what still runs.
//!
//! Bounds: a pass starts at most [`STARTS`] processes, and checks commands for [`SLICE`] and looks at
//! their open files for as long at most, so that an order to start or to kill never waits longer.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicU64, mpsc},
    time::{Duration, Instant},
};

use callboard_actors::{
    ids::TenantId,
    ports::{ExecLimits, SandboxError},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    time::{ClockId, clock_gettime},
};

use super::{
    job::{Ending, Hurry, Job},
    launch::{Launch, Order, Reply},
    machine::{self, Machine},
    parked::{ControlGroups, Starter},
    piped_job::PipedJob,
    processes::{Paused, Processes, total},
    scarce, search,
    termination::{Terminate, Terminator},
    turns::Turns,
};
use crate::{fair::Place, mask};

/// Interval between two checks of all limits. A command must end within two seconds of exceeding
/// one.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Interval between two reads of the machine's number of processes. If the number has grown by one
/// command's limit, all limits are checked at once: a fork bomb doubles until no other process gets
/// a processor, and the kernel's own limit does not apply to root.
const READ_INTERVAL: Duration = Duration::from_millis(20);

// The shares below count processor time of this thread. Elapsed time would also count its waits for
// a processor, and the checks would become rarest on a busy machine, where they matter most.

/// Share of the time that checking limits may take on a machine with very many processes: one part
/// in this many.
const CHECK_SHARE: u32 = 20;

/// Longest interval between two checks of all limits, however long a check takes. A command must
/// end within two seconds of exceeding one.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(1000);

/// Processes started in one pass (each takes about a millisecond), and the time that checks of
/// commands may take in one.
const STARTS: usize = 16;

/// Commands of a tenant whose commands give way that begin at a time.
const BEGIN_MAX: usize = 8;
const SLICE: Duration = Duration::from_millis(4);

/// Share of the time that looking at open files may take: one part in this many.
const FILES_SHARE: u32 = 8;

/// Open files of a command above which all such commands together may have as many as the second
/// number: that many can be looked at in some seconds.
const MANY_FILES: u64 = 4 * 1024;
const MANY_FILES_SUM: u64 = 128 * 1024;

/// Open files of commands without a control group that are looked at in one search for memory.
const DESCRIPTORS_MAX: usize = 8 * 1024;

/// Shortest interval between two lines of the log about a disk that fills.
const FILLED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Loss of memory since the last check after which all limits are checked at once: a command fills
/// memory at gigabytes a second. While the machine loses memory it is read more often.
const LOSS: u64 = 16 * 1024 * 1024;
const MEMORY_READ_INTERVAL: Duration = Duration::from_millis(5);
const HURRIED_READ_INTERVAL: Duration = Duration::from_millis(2);

/// Pause after a check of commands that lose memory, as a multiple of what the check took.
const LOSS_SHARE: u32 = 3;

/// Share of the time that reading the machine's memory may take on a machine with very many
/// processors: one part in this many.
const READ_SHARE: u32 = 10;

/// Shortest interval between two searches for the command that keeps what is gone, and the share of
/// the time that they may take, in which all commands are paused: one part in this many.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
const SEARCH_SHARE: u32 = 10;

/// Interval for polling the exit of a job that has no descriptor.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Processor time of a repeated check, for pauses that grow with it. One expensive check does not
/// count, only two in a row: the first allocation of a thread alone can take ten milliseconds.
#[derive(Default)]
struct Cost {
    last: Duration,
}

impl Cost {
    /// Takes the time of a check that began at `begun` and returns the smaller of the last two.
    fn since(&mut self, begun: Duration) -> Duration {
        let spent = spent_since(begun);
        std::mem::replace(&mut self.last, spent).min(spent)
    }
}

/// A command that waits to be started.
struct Waiting {
    id: u64,
    launch: Box<Launch>,
    reply: Reply,
    place: Option<Place>,
}

/// A check of the limits of all commands, made in slices.
struct LimitCheck {
    all: Processes,
    /// Id of the next job to check.
    next: u64,
    /// Processor time spent so far.
    took: Duration,
}

pub(super) struct Thread {
    inbox: mpsc::Receiver<Order>,
    woken: OwnedFd,
    waiting: VecDeque<Waiting>,
    /// When the next of them may start.
    starts_due: Instant,
    jobs: BTreeMap<u64, Job>,
    piped: BTreeMap<u64, PipedJob>,
    terminator: Terminator,
    starter: Starter,
    /// Whether the patterns that mask lines are being compiled, in a thread of their own.
    prepares_masks: bool,
    checked_at: Instant,
    check_interval: Duration,
    limit_check: Option<LimitCheck>,
    turns: Turns,
    read_at: Instant,
    /// When the next search for the command that keeps what is gone may begin.
    next_search: Instant,
    /// When open files may be looked at again, and whose were last.
    files_due: Instant,
    files_of: Option<TenantId>,
    /// When the log may have a line about a disk again.
    next_filled_log: Instant,
    /// Number of processes of the machine before the first job started, or at the last jump.
    usual: u32,
    /// Interval to the next read of the machine's processes and memory.
    read_interval: Duration,
    /// Cost of reading the machine's memory, and of counting sockets.
    memory_cost: Cost,
    sockets_cost: Cost,
    /// When the last check of commands that lose memory ended, and what it costs.
    losses_checked_at: Instant,
    losses_check_took: Duration,
    losses_cost: Cost,
    /// The machine at the last check that examined commands.
    examined: Machine,
    /// Memory available at the last check and at the last read, in bytes; `None` if every command
    /// has a control group.
    available: Option<(u64, u64)>,
    buffer: Vec<u8>,
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or_default(),
        time.tv_nsec.try_into().unwrap_or_default(),
    )
}

fn spent_since(begun: Duration) -> Duration {
    processor_time().saturating_sub(begun)
}

impl Thread {
    pub(super) fn new(
        inbox: mpsc::Receiver<Order>,
        woken: OwnedFd,
        scans: Arc<AtomicU64>,
        groups: ControlGroups,
        turns: Turns,
    ) -> Self {
        let now = Instant::now();
        Self {
            inbox,
            woken,
            waiting: VecDeque::new(),
            starts_due: now,
            jobs: BTreeMap::new(),
            piped: BTreeMap::new(),
            terminator: Terminator::counted_by(scans),
            starter: Starter::new(groups),
            prepares_masks: false,
            checked_at: now,
            check_interval: CHECK_INTERVAL,
            limit_check: None,
            turns,
            read_at: now,
            next_search: now,
            files_due: now,
            files_of: None,
            next_filled_log: now,
            usual: 0,
            read_interval: READ_INTERVAL,
            memory_cost: Cost::default(),
            sockets_cost: Cost::default(),
            losses_checked_at: now,
            losses_check_took: Duration::ZERO,
            losses_cost: Cost::default(),
            examined: Machine::default(),
            available: None,
            buffer: vec![0; 64 * 1024],
        }
    }

    pub(super) fn run(mut self) {
        loop {
            let ready = self.wait();
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
                self.waiting.clear();
                self.jobs
                    .values_mut()
                    .for_each(|job| job.end(Ending::Cancelled));
                self.piped
                    .values_mut()
                    .for_each(|job| job.end(Duration::ZERO));
            }
            self.turn(&ready);
            if closed && self.jobs.is_empty() && self.piped.is_empty() {
                self.starter.end();
                return;
            }
        }
    }

    /// Sleeps until there is output, an exit, an order or a deadline. Returns the jobs that have
    /// something to read or reap.
    fn wait(&self) -> HashSet<u64> {
        let now = Instant::now();
        let check = (!self.jobs.is_empty()).then(|| {
            (self.checked_at + self.check_interval).min(self.read_at + self.read_interval)
        });
        let asks = self
            .jobs
            .values()
            .any(Job::exit_is_polled)
            .then(|| now + EXIT_POLL_INTERVAL);
        let files = self.jobs.values().any(|job| job.tables_due() > 0);
        let files = files.then_some(self.files_due);
        let goes_on = self.limit_check.is_some().then_some(now);
        let starts = (!self.waiting.is_empty()).then_some(self.starts_due);
        let dues = self
            .jobs
            .values()
            .filter_map(Job::due)
            .chain(self.piped.values().filter_map(PipedJob::due));
        let until = dues
            .chain(
                [
                    check,
                    asks,
                    files,
                    goes_on,
                    starts,
                    self.terminator.due,
                    self.starter.due,
                ]
                .into_iter()
                .flatten(),
            )
            .min();
        let timeout =
            until.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        let mut owners = Vec::new();
        for (id, job) in &self.jobs {
            for fd in job.descriptors() {
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
                owners.push(*id);
            }
        }
        fds.extend(
            self.piped
                .values()
                .filter_map(PipedJob::descriptor)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        );
        let _ = poll(&mut fds, timeout.as_ref());
        fds.iter()
            .skip(1)
            .zip(owners)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, id)| id)
            .collect()
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.inbox.try_recv() {
            match order {
                Order::Start {
                    id,
                    launch,
                    reply,
                    place,
                } => self.waiting.push_back(Waiting {
                    id,
                    launch,
                    reply,
                    place,
                }),
                Order::Kill { id } => {
                    if let Some(job) = self.jobs.get_mut(&id) {
                        job.end(Ending::Cancelled);
                    } else if let Some(at) =
                        self.waiting.iter().position(|waiting| waiting.id == id)
                        && let Some(waiting) = self.waiting.remove(at)
                    {
                        let _ = waiting.reply.send(Err(SandboxError::Cancelled));
                    }
                }
                Order::Pipe {
                    id,
                    launch,
                    reply,
                    ended,
                    permit,
                } => {
                    self.piped.extend(
                        PipedJob::start(*launch, reply, ended, permit).map(|job| (id, job)),
                    );
                }
                Order::EndPiped { id, grace } => {
                    if let Some(job) = self.piped.get_mut(&id) {
                        job.end(grace);
                    }
                }
            }
        }
    }

    /// Compiles the patterns that mask lines, once. Without it no line of a command is shown.
    fn prepare_masks(&mut self) {
        if !std::mem::replace(&mut self.prepares_masks, true) {
            let _ = std::thread::Builder::new()
                .name("callboard-masks".to_owned())
                .spawn(mask::prepare);
        }
    }

    /// Takes the commands that start now. Of tenants whose commands give way, few begin at a time:
    /// until they are known to the scheduler, they go before what others begin.
    fn next_starts(&mut self) -> Vec<Waiting> {
        let mut begin = HashMap::<TenantId, usize>::new();
        let beginning = self.jobs.values().filter(|job| job.is_beginning());
        for tenant in beginning.filter_map(Job::tenant) {
            *begin.entry(tenant.clone()).or_default() += 1;
        }
        let mut starts = Vec::new();
        let mut held = VecDeque::new();
        while starts.len() < STARTS
            && let Some(next) = self.waiting.pop_front()
        {
            if let Some(tenant) = &next.launch.tenant
                && self.turns.give_way(tenant)
            {
                let begin = begin.entry(tenant.clone()).or_default();
                if *begin >= BEGIN_MAX {
                    held.push_back(next);
                    continue;
                }
                *begin += 1;
            }
            starts.push(next);
        }
        // Those that were not looked at start in the next pass.
        self.starts_due = Instant::now();
        if self.waiting.is_empty() {
            self.starts_due += READ_INTERVAL;
        }
        held.append(&mut self.waiting);
        self.waiting = held;
        starts
    }

    fn start_some(&mut self) {
        let mut shows_lines = false;
        let starts = self.next_starts();
        for Waiting {
            id,
            launch,
            reply,
            place,
        } in starts
        {
            match self.starter.start(&launch, place.is_none()) {
                Ok((child, group)) => {
                    // The host's own commands, which find out what the machine can do, show no lines.
                    shows_lines |= launch.tenant.is_some();
                    if self.jobs.is_empty() {
                        self.checked_at = Instant::now();
                        self.read_at = self.checked_at;
                        self.usual = total();
                    }
                    let job = Job::new(child, *launch, group, reply, place);
                    if self.available.is_none() && job.is_suspect() {
                        self.available =
                            machine::available().map(|available| (available, available));
                        self.read_interval = MEMORY_READ_INTERVAL;
                    }
                    self.jobs.insert(id, job);
                }
                Err(error) => {
                    drop(reply.send(Err(SandboxError::Failed(crate::os_error::words(&error)))))
                }
            }
        }
        if shows_lines {
            self.prepare_masks();
        }
    }

    fn turn(&mut self, ready: &HashSet<u64>) {
        // The order matters. `step` notices exits and timeouts, so it comes before `end`, which
        // kills. `start_limit_check` also comes before `end`, so that both share one scan. `answer`
        // comes last, so that a job that ended in this pass is answered in it.
        self.start_some();
        let now = Instant::now();
        self.starter.refill(now);
        if self.jobs.values().any(Job::waits_for_masks) {
            self.prepare_masks();
        }
        for (id, job) in &mut self.jobs {
            job.send_progress(now);
            if ready.contains(id) || job.exit_is_polled() || job.due().is_some_and(|due| now >= due)
            {
                job.step(&mut self.buffer);
            }
        }
        self.piped.values_mut().for_each(PipedJob::step);
        let scanned = self.start_limit_check(now);
        self.end(scanned);
        self.continue_limit_check();
        self.read_files(now);
        self.answer();
    }

    /// Starts a check of all limits if one is due: on its interval, after a jump in processes, or
    /// after a loss of memory. Between checks only the cheap counts of the machine are read.
    /// Returns whether it scanned the processes.
    fn start_limit_check(&mut self, now: Instant) -> bool {
        if self.jobs.is_empty() || self.limit_check.is_some() {
            return false;
        }
        let begun = processor_time();
        let mut is_due = now >= self.checked_at + self.check_interval;
        if !is_due && now >= self.read_at + self.read_interval {
            self.read_at = now;
            let now_total = total();
            is_due = now_total > self.usual.saturating_add(ExecLimits::DEFAULT.processes);
            if is_due {
                // Other programs may have grown too, so the next jump counts from here.
                self.usual = now_total;
            }
            is_due = is_due || self.loses_memory(now);
            if self.turns.is_on() {
                // The kernel may allow one change in a tenth of a second: those that give way first.
                let mut jobs: Vec<_> = self.jobs.values_mut().collect();
                jobs.sort_by_key(|job| !job.gives_way());
                jobs.into_iter().any(Job::begin_turns);
            }
            self.check_sockets();
            self.check_losses();
        }
        if is_due {
            let all = Processes::read();
            self.take_turns(&all, now);
            self.check_memory(&all);
            self.check_gone(&all);
            self.limit_check = Some(LimitCheck {
                all,
                next: 0,
                took: spent_since(begun),
            });
        }
        is_due
    }

    /// Whether the machine has lost so much memory since the last check that all limits must be
    /// checked. The interval grows with the duration of a check, so that checks keep to their share
    /// of the time however fast memory is lost.
    fn loses_memory(&mut self, now: Instant) -> bool {
        let begun = processor_time();
        self.read_interval = READ_INTERVAL;
        let Some((at_check, at_read)) = self.available else {
            return false;
        };
        let Some(available) = machine::available() else {
            return false;
        };
        self.read_interval = if at_read.saturating_sub(available) > LOSS / 4 {
            HURRIED_READ_INTERVAL
        } else {
            MEMORY_READ_INTERVAL
        };
        self.available = Some((at_check, available));
        self.read_interval = self
            .read_interval
            .max(self.memory_cost.since(begun) * READ_SHARE);
        let rested = now
            >= self.checked_at
                + self
                    .check_interval
                    .saturating_sub(CHECK_INTERVAL)
                    .max(HURRIED_READ_INTERVAL);
        rested && at_check.saturating_sub(available) > LOSS
    }

    /// Lets the commands of tenants whose commands have run long enough give way to others.
    fn take_turns(&mut self, all: &Processes, now: Instant) {
        if !self.turns.is_on() {
            return;
        }
        let running = || self.jobs.values().filter(|job| job.is_running());
        self.turns.count(running().filter_map(Job::tenant), now);
        for job in self.jobs.values_mut().filter(|job| job.is_running()) {
            let Some(tenant) = job.tenant() else { continue };
            if self.turns.give_way(tenant) {
                job.give_way();
            }
            job.take_turns(all);
        }
    }

    /// Checks the sockets of commands without a control group.
    fn check_sockets(&mut self) {
        if self.available.is_none() {
            return;
        }
        let begun = processor_time();
        let hurry = self
            .jobs
            .values_mut()
            .map(Job::check_sockets)
            .max()
            .unwrap_or(Hurry::None);
        let (wanted, share) = match hurry {
            Hurry::None => (MEMORY_READ_INTERVAL, READ_SHARE),
            Hurry::Often => (HURRIED_READ_INTERVAL, LOSS_SHARE),
            Hurry::AtOnce => (HURRIED_READ_INTERVAL, 1),
        };
        self.read_interval = self
            .read_interval
            .min(wanted)
            .max(self.sockets_cost.since(begun) * share);
    }

    /// Checks only commands that may hold what the machine has lost, without scanning other
    /// processes. Takes a quarter of the time at most.
    ///
    /// While the loss grows, the commands are paused during the check: they could fill tens of
    /// mebibytes while their processes are examined.
    fn check_losses(&mut self) {
        if self.available.is_none()
            || self.losses_checked_at.elapsed() < self.losses_check_took * LOSS_SHARE
        {
            return;
        }
        let begun = processor_time();
        let Some(now) = Machine::read() else { return };
        if self.jobs.values().any(|job| job.may_hold_what_is_lost(now)) {
            let roots = || {
                self.jobs
                    .values()
                    .filter(|job| job.is_suspect())
                    .map(Job::root)
            };
            let grows = now.lost_since(self.examined) > LOSS / 2;
            let paused = grows.then(|| Paused::below(roots()));
            let all = Processes::read_below(roots());
            self.end_losing(&all);
            self.examined = now;
            drop(paused);
        }
        self.losses_checked_at = Instant::now();
        self.losses_check_took = self.losses_cost.since(begun);
    }

    /// Ends the command that holds what the machine has lost. Needed only for commands without a
    /// control group.
    fn check_memory(&mut self, all: &Processes) {
        let is_needed = self.jobs.values().any(Job::is_suspect);
        self.available = is_needed
            .then(machine::available)
            .flatten()
            .map(|available| (available, available));
        if is_needed {
            self.end_losing(all);
        }
    }

    /// Ends the command that keeps what is nearly gone.
    fn check_gone(&mut self, all: &Processes) {
        let begun = Instant::now();
        if self.jobs.is_empty() || begun < self.next_search {
            return;
        }
        let Some(kind) = scarce::gone() else { return };
        let running = self.jobs.iter().filter(|(_, job)| job.is_running());
        let candidates: Vec<_> = running.map(|(id, job)| job.candidate(*id, all)).collect();
        let keeper = search::keeper(kind, &candidates);
        if let Some(job) = keeper.and_then(|id| self.jobs.get_mut(&id)) {
            job.stop_taking(kind);
        }
        let pause = SEARCH_INTERVAL.max(begun.elapsed() * SEARCH_SHARE);
        self.next_search = Instant::now() + pause;
    }

    /// Looks at open files of commands, of each tenant in turn and of the command first that has the
    /// fewest tables to read.
    fn read_files(&mut self, now: Instant) {
        if now < self.files_due {
            return;
        }
        let begun = processor_time();
        while spent_since(begun) < SLICE {
            let due = self.jobs.values_mut().filter(|job| job.tables_due() > 0);
            let last = self.files_of.as_ref();
            let next = due.min_by(|a, b| {
                let place = |job: &Job| (job.tenant() <= last, job.tenant().cloned());
                let tables = |job: &Job| job.tables_due();
                (place(a), tables(a)).cmp(&(place(b), tables(b)))
            });
            let Some(job) = next else { break };
            self.files_of = job.tenant().cloned();
            job.read_files();
        }
        self.files_due = Instant::now() + spent_since(begun) * FILES_SHARE;
    }

    /// Ends the command with most open files of the tenant with most, if those with very many have
    /// too many together.
    fn check_open_files(&mut self) {
        let many = |job: &Job| job.is_running() && job.open_files() > MANY_FILES;
        let mut sums = BTreeMap::<Option<TenantId>, u64>::new();
        for job in self.jobs.values().filter(|job| many(job)) {
            *sums.entry(job.tenant().cloned()).or_default() += job.open_files();
        }
        let most = sums.iter().max_by_key(|(_, files)| **files);
        let Some((tenant, _)) = most.filter(|_| sums.values().sum::<u64>() > MANY_FILES_SUM) else {
            return;
        };
        let jobs = self.jobs.values_mut().filter(|job| many(job));
        let jobs = jobs.filter(|job| job.tenant() == tenant.as_ref());
        if let Some(job) = jobs.max_by_key(|job| job.open_files()) {
            job.stop_opening_with_others();
        }
    }

    /// Ends the command that has most of something of which all commands have too much together.
    fn check_scarce(&mut self) {
        let running = || self.jobs.values().filter(|job| job.is_running());
        let sum = running().fold(scarce::Taken::default(), |sum, job| sum.plus(job.scarce()));
        let Some(kind) = scarce::excess_of_all(sum) else {
            return;
        };
        let jobs = self.jobs.values_mut().filter(|job| job.is_running());
        if let Some(job) = jobs.max_by_key(|job| job.scarce().of(kind)) {
            job.stop_taking(kind);
        }
    }

    fn end_losing(&mut self, all: &Processes) {
        let Some(now) = Machine::read() else { return };
        if !self.jobs.values().any(|job| job.may_hold_what_is_lost(now)) {
            return;
        }
        let mut jobs: Vec<_> = self.jobs.iter().collect();
        jobs.sort_by_key(|(_, job)| job.open_files());
        let mut reads = DESCRIPTORS_MAX;
        let suspects: Vec<_> = jobs
            .into_iter()
            .filter_map(|(id, job)| Some((*id, job.suspect(all, now, &mut reads)?)))
            .collect();
        let over = machine::over(
            now,
            &suspects
                .iter()
                .map(|(_, suspect)| *suspect)
                .collect::<Vec<_>>(),
        );
        if let Some(job) = over
            .and_then(|at| suspects.get(at))
            .and_then(|(id, _)| self.jobs.get_mut(id))
        {
            job.stop_losing(all);
        }
    }

    /// Ends the jobs that must end. Reuses the process scan if one was just made.
    fn end(&mut self, scanned: bool) {
        let seen = self
            .limit_check
            .as_ref()
            .filter(|_| scanned)
            .map(|limit_check| &limit_check.all);
        let jobs = self.jobs.values_mut().map(|job| job as &mut dyn Terminate);
        let mut all: Vec<_> = jobs
            .chain(self.piped.values_mut().map(|job| job as &mut dyn Terminate))
            .collect();
        self.terminator.pass(&mut all, seen);
    }

    /// Continues a check of limits with the next slice.
    fn continue_limit_check(&mut self) {
        let begun = processor_time();
        let Some(mut limit_check) = self.limit_check.take() else {
            return;
        };
        let mut is_done = true;
        for (id, job) in self.jobs.range_mut(limit_check.next..) {
            if spent_since(begun) > SLICE {
                (is_done, limit_check.next) = (false, *id);
                break;
            }
            job.check_limits(&limit_check.all);
        }
        limit_check.took += spent_since(begun);
        if !is_done {
            self.limit_check = Some(limit_check);
            return;
        }
        self.check_disks();
        self.check_scarce();
        self.check_open_files();
        self.checked_at = Instant::now();
        self.check_interval = CHECK_INTERVAL
            .max(limit_check.took * CHECK_SHARE)
            .min(CHECK_INTERVAL_MAX);
    }

    /// A disk shows that it fills up, but not who fills it. Of bytes, a command is ended for those
    /// that it wrote itself; if none wrote that much, no command ends and the log says so. Of files,
    /// the one with the most kernel time is ended, and the counts of the others start again.
    fn check_disks(&mut self) {
        let filling = self.jobs.values_mut().filter(|job| job.fills_the_disk());
        if let Some(job) = filling.max_by_key(|job| job.disk.written()) {
            job.stop_filling();
            let bytes = job.disk.written();
            self.jobs
                .values_mut()
                .for_each(|job| job.disk.leave_out(bytes));
        } else if Instant::now() >= self.next_filled_log
            && let Some(job) = self.jobs.values().find(|job| job.sees_the_disk_filled())
        {
            self.next_filled_log = Instant::now() + FILLED_LOG_INTERVAL;
            tracing::warn!(
                disk = %job.disk.folder().display(),
                mebibytes = job.disk.lost() >> 20,
                "a disk has lost more than a command may write, and none of the running ones wrote \
                 that much: none is ended"
            );
        }
        let filling = self
            .jobs
            .values_mut()
            .filter(|job| job.fills_the_disk_with_files());
        if let Some(job) = filling.max_by_key(|job| job.disk.ticks()) {
            job.stop_creating();
            self.jobs
                .values_mut()
                .for_each(|job| job.disk.forget_files());
        }
    }

    fn answer(&mut self) {
        let now = Instant::now();
        let buffer = &mut self.buffer;
        let done: Vec<u64> = self
            .jobs
            .iter_mut()
            .filter_map(|(id, job)| job.is_over(now, buffer).then_some(*id))
            .collect();
        done.into_iter()
            .filter_map(|id| self.jobs.remove(&id))
            .for_each(Job::answer);
        let done: Vec<u64> = self
            .piped
            .iter()
            .filter_map(|(id, job)| job.is_over(now).then_some(*id))
            .collect();
        done.into_iter()
            .filter_map(|id| self.piped.remove(&id))
            .for_each(PipedJob::answer);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use callboard_actors::ports::{Exec, Progress, Sandbox};
    use tokio::sync::oneshot;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::sandbox::{Local, PathRules, Root, Spawner, exec::Kind};

    /// Most scans that a crowd may take together. A job that scans alone takes at least three. The
    /// machine decides over how many passes the crowd is spread, and each pass takes one scan.
    const SCANS_MAX: u64 = 40;

    #[tokio::test]
    async fn groups_that_end_together_take_a_few_scans_of_all_processes() {
        let folder = tempfile::tempdir().unwrap();
        let spawner = Spawner::start().unwrap();
        let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
        let sandbox = Arc::new(Local::new(root, &spawner, ExecLimits::default()));
        let wanted: usize = callboard_actors::testing::TestSize::pick(120, 200, 1000);
        let count = wanted.min(spawner.room());
        let (cancel, (started, mut runs)) = (
            CancellationToken::new(),
            tokio::sync::mpsc::unbounded_channel(),
        );
        let mut commands = tokio::task::JoinSet::new();
        for _ in 0..count {
            let sandbox = sandbox.clone();
            let cancel = cancel.clone();
            let started = started.clone();
            let progress = Progress::new(move |pid| started.send(pid).unwrap());
            let exec = Exec {
                progress,
                ..Exec::new("echo $$; sleep 86400; :")
            };
            commands.spawn(async move { sandbox.exec(exec, cancel).await });
        }
        let mut leaders = Vec::new();
        while leaders.len() < count {
            leaders.push(runs.recv().await.unwrap());
        }

        let before = spawner.scans();
        cancel.cancel();
        let ended = commands.join_all().await;

        let scans = spawner.scans() - before;
        println!("{count} groups ended with {scans} scans of all processes");
        assert!(
            ended.iter().all(|end| *end == Err(SandboxError::Cancelled)),
            "{ended:?}"
        );
        assert!(
            leaders
                .iter()
                .all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()),
            "an answer comes when it is gone"
        );
        assert!(
            (1..=SCANS_MAX).contains(&scans),
            "{count} groups took {scans} scans"
        );
    }

    #[tokio::test]
    async fn commands_of_one_tenant_leave_places_for_those_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let spawner = Spawner::start().unwrap();
        let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
        let sandbox = Arc::new(Local::new(root, &spawner, ExecLimits::default()));
        let of = |tenant: &str, command: &str| Exec {
            tenant: Some(tenant.parse().unwrap()),
            ..Exec::new(command)
        };
        let cancel = CancellationToken::new();
        let mut commands = tokio::task::JoinSet::new();
        for _ in 0..2 * spawner.room() + 8 {
            let (sandbox, exec, cancel) =
                (sandbox.clone(), of("acme", "sleep 86400"), cancel.clone());
            commands.spawn(async move { sandbox.exec(exec, cancel).await });
        }
        tokio::task::yield_now().await;

        let other = sandbox.exec(of("zeta", "echo other"), CancellationToken::new());
        let other = tokio::time::timeout(Duration::from_secs(60), other);
        let other = tokio::select! {
            other = other => other.expect("a place is free").unwrap(),
            ended = commands.join_next() => panic!("an endless command ended: {ended:?}"),
        };
        assert_eq!(other.stdout, "other\n");
        cancel.cancel();
        commands.join_all().await;
    }

    #[tokio::test]
    async fn a_command_that_has_run_goes_behind_those_that_begin() {
        let Ok(own) = std::fs::read_to_string("/proc/self/autogroup") else {
            eprintln!("note: this kernel has no sessions that give way");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let spawner = Spawner::start().unwrap().among_tenants();
        let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
        let sandbox = Arc::new(Local::new(root, &spawner, ExecLimits::default()));
        // In a session of its own, as behind a boundary: until it gives way, or for half a minute.
        let waits = "setsid -w bash -c 'for i in {1..300}; do read -r a </proc/self/autogroup; \
             if [[ $a == *\" nice 19\" ]]; then echo behind; exit; fi; sleep 0.1; done; echo \"$a\"'";
        let exec = Exec {
            tenant: Some("acme".parse().unwrap()),
            ..Exec::new(waits)
        };

        let behind = sandbox.exec(exec, CancellationToken::new()).await.unwrap();

        assert_eq!(behind.stdout, "behind\n");
        assert_eq!(
            std::fs::read_to_string("/proc/self/autogroup").unwrap(),
            own
        );
    }

    #[tokio::test]
    async fn of_a_tenant_whose_commands_give_way_few_begin_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let spawner = Spawner::start().unwrap().among_tenants();
        let root = Arc::new(Root::open(folder.path(), PathRules::default()).unwrap());
        let sandbox = Arc::new(Local::new(root, &spawner, ExecLimits::default()));
        let start = |command: &str| {
            let sandbox = sandbox.clone();
            let exec = Exec {
                tenant: Some("acme".parse().unwrap()),
                ..Exec::new(command)
            };
            tokio::spawn(async move { sandbox.exec(exec, CancellationToken::new()).await })
        };
        // They have run for their time when these end.
        for command in [start("sleep 3"), start("sleep 3")] {
            command.await.unwrap().unwrap();
        }
        // Each says how many run beside it.
        let count = "touch begun.$$; sleep 0.5; ls | grep -c begun; rm begun.$$";

        let all: Vec<_> = (0..3 * BEGIN_MAX).map(|_| start(count)).collect();

        for command in all {
            let beside: usize = command
                .await
                .unwrap()
                .unwrap()
                .stdout
                .trim()
                .parse()
                .unwrap();
            assert!(beside <= BEGIN_MAX, "{beside}");
        }
    }

    fn launch() -> Box<Launch> {
        Box::new(Launch {
            tenant: None,
            argv: vec!["/bin/true".into()],
            environment: Vec::new(),
            carried: None,
            folder: PathBuf::from("/"),
            timeout: Duration::from_secs(1),
            output_bytes_max: 0,
            errors_bytes_max: 0,
            progress: Progress::new(|_| {}),
            limits: ExecLimits::default(),
            disk: PathBuf::from("/"),
            nonce: "nonce".to_owned(),
            shown: Vec::new(),
            gate: None,
            kind: Kind::Group("mark".to_owned()),
        })
    }

    /// A page fault once made the first check ten times as expensive as all others, and the next
    /// one came after a tenth of a second, in which a command fills hundreds of mebibytes.
    #[test]
    fn one_expensive_check_does_not_delay_the_next() {
        let mut cost = Cost::default();
        let busy = || {
            let begun = processor_time();
            while spent_since(begun) < Duration::from_millis(2) {
                std::hint::spin_loop();
            }
            begun
        };

        assert_eq!(cost.since(busy()), Duration::ZERO);
        assert!(cost.since(busy()) >= Duration::from_millis(2));
        assert!(cost.since(processor_time()) < Duration::from_millis(2));
        assert!(cost.since(busy()) < Duration::from_millis(2));
    }

    #[test]
    fn a_command_that_waits_for_its_start_can_be_cancelled_and_a_turn_starts_only_some() {
        let (orders, inbox) = mpsc::channel();
        let (woken, _wake) = rustix::pipe::pipe().unwrap();
        let turns = Turns::new(Arc::default());
        let mut thread = Thread::new(inbox, woken, Arc::default(), ControlGroups::Off, turns);
        let mut answers: Vec<_> = (0..STARTS as u64 + 2)
            .map(|id| {
                let (reply, answer) = oneshot::channel();
                orders
                    .send(Order::Start {
                        id,
                        launch: launch(),
                        reply,
                        place: None,
                    })
                    .unwrap();
                answer
            })
            .collect();
        orders.send(Order::Kill { id: 1 }).unwrap();

        thread.take_orders();
        assert_eq!(answers[1].try_recv().unwrap(), Err(SandboxError::Cancelled));
        thread.start_some();

        assert_eq!((thread.jobs.len(), thread.waiting.len()), (STARTS, 1));
        while !thread.jobs.is_empty() || !thread.waiting.is_empty() {
            let ready = thread.wait();
            thread.turn(&ready);
        }
        answers.remove(1);
        assert!(
            answers
                .iter_mut()
                .all(|answer| answer.try_recv().unwrap().unwrap().status == Some(0))
        );
    }
}
