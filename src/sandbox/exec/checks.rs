//! Checks of the limits of commands: when they are made, how long they may take, and which command
//! ends where only the machine shows that too much was taken. What one command may take by itself
//! is its [`Job`]'s to know.
//!
//! Bounds: a pass checks commands for [`SLICE`] and looks at their open files for as long at most.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use callboard_actors::{ids::TenantId, ports::ExecLimits};
use rustix::time::{ClockId, clock_gettime};

use super::{
    crowds::Crowds,
    job::{Hurry, Job, Jobs},
    machine::{self, Machine, Suspect},
    processes::{Paused, Processes, Waits, total},
    scarce, search, tcp,
    turns::Turns,
};

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

/// Share of the time that looking at open files may take: one part in this many, and in that many
/// while all commands stand still for it.
const FILES_SHARE: u32 = 8;
const FILES_HELD_SHARE: u32 = 32;

/// Open files of a command above which all such commands together may have as many as the second
/// number: that many can be looked at in some seconds.
const MANY_FILES: u64 = 4 * 1024;
const MANY_FILES_SUM: u64 = 128 * 1024;

/// Open files of commands without a control group that are looked at in one search for memory.
const DESCRIPTORS_MAX: usize = 8 * 1024;

/// Time that checks of commands, and looks at their open files, may take in one pass.
const SLICE: Duration = Duration::from_millis(4);

/// How long commands that pass their turns are stopped, and run before they are stopped again.
const PASSING_STOPS: Duration = Duration::from_millis(160);
const PASSING_RUNS: Duration = Duration::from_millis(20);

/// Shortest interval between two lines of the log about a disk that fills.
const FILLED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Loss of memory since the last check after which all limits are checked at once: a command fills
/// memory at gigabytes a second. While the machine loses memory it is read more often.
const LOSS: u64 = 16 * 1024 * 1024;
const MEMORY_READ_INTERVAL: Duration = Duration::from_millis(5);
const HURRIED_READ_INTERVAL: Duration = Duration::from_millis(2);

/// How long commands stand still whenever something is read of them that a process which is just
/// replaced (`execve`) holds up, after one has: it holds up the reader until it gets a processor, and
/// the more processes run, the longer that takes.
const HELD_FOR: Duration = Duration::from_secs(30);

/// Pause after a check of commands that lose memory, as a multiple of what the check took.
const LOSS_SHARE: u32 = 3;

/// Share of the time that reading the machine's memory may take on a machine with very many
/// processors: one part in this many.
const READ_SHARE: u32 = 10;

/// Shortest interval between two searches for the command that keeps what is gone, and the share of
/// the time that they may take, in which all commands are paused: one part in this many.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
const SEARCH_SHARE: u32 = 10;

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

/// A check of the limits of all commands, made in slices.
struct LimitCheck {
    all: Processes,
    /// Id of the next job to check.
    next: u64,
    /// Processor time spent so far.
    took: Duration,
}

pub(super) struct Checks {
    checked_at: Instant,
    check_interval: Duration,
    limit_check: Option<LimitCheck>,
    turns: Turns,
    /// The commands that pass their turns, while they are stopped, and when that changes.
    stopped: Option<Paused>,
    stops_due: Instant,
    crowds: Crowds,
    /// The commands that are paused for the new sessions of their tenant, by their ids.
    paused: BTreeMap<u64, Paused>,
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
    /// Until when commands stand still for what may be held up.
    held_until: Instant,
    /// The machine at the last check that examined commands.
    examined: Machine,
    /// Memory available at the last check and at the last read, in bytes; `None` if every command
    /// has a control group.
    available: Option<(u64, u64)>,
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

impl Checks {
    pub(super) fn new(turns: Turns) -> Self {
        let now = Instant::now();
        Self {
            checked_at: now,
            check_interval: CHECK_INTERVAL,
            limit_check: None,
            turns,
            stopped: None,
            stops_due: now,
            crowds: Crowds::new(now),
            paused: BTreeMap::new(),
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
            held_until: now,
            examined: Machine::default(),
            available: None,
        }
    }

    /// Counts from now on: no command has run until now.
    pub(super) fn begin(&mut self) {
        self.checked_at = Instant::now();
        self.read_at = self.checked_at;
        self.usual = total();
    }

    /// Takes a command that has just begun.
    pub(super) fn add(&mut self, job: &Job) {
        if self.available.is_none() && job.is_suspect() {
            self.available = machine::available().map(|available| (available, available));
            self.read_interval = MEMORY_READ_INTERVAL;
        }
    }

    /// When there is something to check or to let go on. `None` while no command runs.
    pub(super) fn due(&self, jobs: &Jobs, now: Instant) -> Option<Instant> {
        if self.limit_check.is_some() {
            return Some(now);
        }
        let read = self.read_at + self.read_interval;
        let check = (self.checked_at + self.check_interval).min(read);
        let check = (!jobs.is_empty()).then_some(check);
        let has_files = jobs.values().any(|job| job.tables_due() > 0);
        let files = has_files.then_some(self.files_due);
        let stops = self.stopped.as_ref().map(|_| self.stops_due.max(read));
        let room = self.crowds.stand_still().then_some(read);
        [check, files, stops, room].into_iter().flatten().min()
    }

    /// Whether the commands of a tenant give way to those of others.
    pub(super) fn give_way(&self, tenant: &TenantId) -> bool {
        self.turns.give_way(tenant)
    }

    /// Whether no command of a tenant begins now.
    pub(super) fn is_barred(&self, tenant: &TenantId, now: Instant) -> bool {
        self.turns.is_barred(tenant, now)
    }

    /// The processes that the check that was started last found; `None` if it is done.
    pub(super) fn scanned(&self) -> Option<&Processes> {
        self.limit_check
            .as_ref()
            .map(|limit_check| &limit_check.all)
    }

    /// Starts a check of all limits if one is due: on its interval, after a jump in processes, or
    /// after a loss of memory. Between checks only the cheap counts of the machine are read.
    /// Returns whether it scanned the processes.
    pub(super) fn start(&mut self, jobs: &mut Jobs, now: Instant) -> bool {
        if jobs.is_empty() {
            // What was stopped is gone, and other processes may get its ids.
            self.stopped = None;
            self.crowds.go_on();
            self.paused.clear();
            self.turns.rest();
        }
        if jobs.is_empty() || self.limit_check.is_some() {
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
                let mut in_order: Vec<_> = jobs.values_mut().collect();
                in_order.sort_by_key(|job| !job.gives_way());
                in_order.into_iter().any(Job::begin_turns);
                self.pause_in_debt(jobs, now, false);
                self.stop_passing(jobs, now);
            }
            self.check_sockets(jobs);
            self.check_losses(jobs);
        }
        if self.turns.is_on() {
            self.crowds.make_room(jobs, now, is_due);
        }
        if is_due {
            let all = Processes::read();
            self.take_turns(jobs, &all, now);
            self.check_memory(jobs, &all);
            self.check_gone(jobs, &all);
            Self::check_tcp(jobs, &all);
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
    fn take_turns(&mut self, jobs: &mut Jobs, all: &Processes, now: Instant) {
        if !self.turns.is_on() {
            return;
        }
        let running = || jobs.values().filter(|job| job.is_running());
        self.turns.count(running().filter_map(Job::tenant), now);
        for job in jobs.values_mut().filter(|job| job.is_running()) {
            let Some(tenant) = job.tenant() else { continue };
            if self.turns.give_way(tenant) {
                job.give_way();
            }
            job.take_turns(all);
        }
        let new = jobs.values().map(|job| (job.tenant(), job.new_sessions()));
        let new = new.filter_map(|(tenant, count)| Some((tenant?.clone(), count)));
        let new: Vec<_> = new.filter(|(_, count)| *count > 0).collect();
        self.turns.owe(new.iter().cloned(), now);
        for tenant in self.turns.with_too_many(new.into_iter()) {
            let its = |job: &&mut Job| job.new_sessions() > 0 && job.tenant() == Some(&tenant);
            jobs.values_mut()
                .filter(its)
                .for_each(Job::stop_making_sessions);
            self.turns.bar(&tenant, now);
        }
        self.pause_in_debt(jobs, now, true);
    }

    /// Pauses the commands that made new sessions, of tenants in debt for those, while commands run
    /// for which they are to wait, and lets all others go on. A process may have been missed, or
    /// let go on by one that was, so that a check looks again.
    fn pause_in_debt(&mut self, jobs: &Jobs, now: Instant, is_check: bool) {
        let running = jobs.values().filter(|job| job.is_running());
        self.turns
            .pause(running.map(|job| (job.tenant(), job.gives_way())), now);
        let turns = &self.turns;
        let is_paused = |job: &Job| {
            job.has_made_sessions() && job.tenant().is_some_and(|of| turns.is_paused(of))
        };
        self.paused
            .retain(|id, _| jobs.get(id).is_some_and(is_paused));
        for (id, job) in jobs.iter().filter(|(_, job)| is_paused(job)) {
            if let Some(paused) = self.paused.get_mut(id) {
                if is_check {
                    paused.stop_below(job.root());
                }
                continue;
            }
            // Its processes may be among those that are stopped, which are let go on soon.
            if self.stopped.take().is_some() {
                self.stops_due = now + PASSING_RUNS;
            }
            let paused = Paused::below([job.root()].into_iter());
            self.paused.insert(*id, paused);
        }
    }

    /// Stops the commands that give way but make sessions all the time, for most of the time while
    /// others run that do not give way.
    fn stop_passing(&mut self, jobs: &Jobs, now: Instant) {
        if now < self.stops_due {
            return;
        }
        if self.stopped.take().is_some() {
            self.stops_due = now + PASSING_RUNS;
            return;
        }
        let running = || jobs.values().filter(|job| job.is_running());
        let passing: Vec<i32> = jobs
            .iter()
            .filter(|(id, job)| job.passes_turns() && !self.paused.contains_key(id))
            .map(|(_, job)| job.root())
            .collect();
        if !passing.is_empty() && running().any(|job| !job.gives_way()) {
            self.stopped = Some(Paused::below(passing.into_iter()));
            self.stops_due = now + PASSING_STOPS;
        }
    }

    /// Checks the sockets of commands without a control group.
    fn check_sockets(&mut self, jobs: &mut Jobs) {
        if self.available.is_none() {
            return;
        }
        let begun = processor_time();
        let hurry = jobs
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
    fn check_losses(&mut self, jobs: &mut Jobs) {
        if self.available.is_none()
            || self.losses_checked_at.elapsed() < self.losses_check_took * LOSS_SHARE
        {
            return;
        }
        let begun = processor_time();
        let Some(now) = Machine::read() else { return };
        if jobs.values().any(|job| job.may_hold_what_is_lost(now)) {
            let roots = || jobs.values().filter(|job| job.is_suspect()).map(Job::root);
            let grows = now.lost_since(self.examined) > LOSS / 2;
            let paused = grows.then(|| Paused::below(roots()));
            let all = Processes::read_below(roots());
            self.end_losing(jobs, &all, paused);
            self.examined = now;
        }
        self.losses_checked_at = Instant::now();
        self.losses_check_took = self.losses_cost.since(begun);
    }

    /// Ends the command that holds what the machine has lost. Needed only for commands without a
    /// control group.
    fn check_memory(&mut self, jobs: &mut Jobs, all: &Processes) {
        let is_needed = jobs.values().any(Job::is_suspect);
        self.available = is_needed
            .then(machine::available)
            .flatten()
            .map(|available| (available, available));
        if is_needed {
            self.end_losing(jobs, all, None);
        }
    }

    /// Ends the command that keeps what is nearly gone.
    fn check_gone(&mut self, jobs: &mut Jobs, all: &Processes) {
        let begun = Instant::now();
        if jobs.is_empty() || begun < self.next_search {
            return;
        }
        let Some(kind) = scarce::gone() else { return };
        let running = jobs.iter().filter(|(_, job)| job.is_running());
        let candidates: Vec<_> = running.map(|(id, job)| job.candidate(*id, all)).collect();
        for id in search::keepers(kind, &candidates) {
            if let Some(job) = jobs.get_mut(&id) {
                job.stop_taking(kind);
            }
        }
        let pause = SEARCH_INTERVAL.max(begun.elapsed() * SEARCH_SHARE);
        self.next_search = Instant::now() + pause;
    }

    /// Ends the command with most memory of TCP, if the machine has too much of it, and those of its
    /// tenant that have much as well.
    fn check_tcp(jobs: &mut Jobs, all: &Processes) {
        if jobs.is_empty() || !tcp::is_much() {
            return;
        }
        let running = jobs.values_mut().filter(|job| job.is_running());
        let mut blamed: Vec<_> = running
            .map(|job| (job.tcp_bytes(all), job))
            .filter(|(bytes, _)| tcp::is_blamed(*bytes))
            .collect();
        let most = blamed.iter().max_by_key(|(bytes, _)| *bytes);
        let Some(tenant) = most.map(|(_, job)| job.tenant().cloned()) else {
            return;
        };
        blamed.retain(|(_, job)| job.tenant() == tenant.as_ref());
        for (_, job) in blamed {
            job.stop_filling_tcp();
        }
    }

    /// Looks at open files of commands, of each tenant in turn and of the command first that has the
    /// fewest tables to read.
    pub(super) fn read_files(&mut self, jobs: &mut Jobs, now: Instant) {
        if now < self.files_due {
            return;
        }
        if jobs.values().all(|job| job.tables_due() == 0) {
            return;
        }
        let held_from = processor_time();
        let waits = Waits::begin();
        let paused = self.hold_if_slow(jobs);
        let begun = processor_time();
        while spent_since(begun) < SLICE && !waits.are_long() {
            let due = jobs.values_mut().filter(|job| job.tables_due() > 0);
            let last = self.files_of.as_ref();
            let next = due.min_by(|a, b| {
                let place = |job: &Job| (job.tenant() <= last, job.tenant().cloned());
                let tables = |job: &Job| job.tables_due();
                (place(a), tables(a)).cmp(&(place(b), tables(b)))
            });
            let Some(job) = next else { break };
            self.files_of = job.tenant().cloned();
            job.read_files(&waits);
        }
        if waits.are_long() {
            self.held_until = Instant::now() + HELD_FOR;
        }
        let took = spent_since(held_from) + waits.sum();
        let share = match paused {
            Some(_) => FILES_HELD_SHARE,
            None => FILES_SHARE,
        };
        self.files_due = Instant::now() + took * share;
    }

    /// Ends the command with most open files of the tenant with most, if those with very many have
    /// too many together.
    fn check_open_files(&mut self, jobs: &mut Jobs) {
        let many = |job: &Job| job.is_running() && job.open_files() > MANY_FILES;
        let mut sums = BTreeMap::<Option<TenantId>, u64>::new();
        for job in jobs.values().filter(|job| many(job)) {
            *sums.entry(job.tenant().cloned()).or_default() += job.open_files();
        }
        let most = sums.iter().max_by_key(|(_, files)| **files);
        let Some((tenant, _)) = most.filter(|_| sums.values().sum::<u64>() > MANY_FILES_SUM) else {
            return;
        };
        let jobs = jobs.values_mut().filter(|job| many(job));
        let jobs = jobs.filter(|job| job.tenant() == tenant.as_ref());
        if let Some(job) = jobs.max_by_key(|job| job.open_files()) {
            job.stop_opening_with_others();
        }
    }

    /// Ends the command that has most of something of which all commands have too much together.
    fn check_scarce(&mut self, jobs: &mut Jobs) {
        let running = || jobs.values().filter(|job| job.is_running());
        let sum = running().fold(scarce::Taken::default(), |sum, job| sum.plus(job.scarce()));
        let Some(kind) = scarce::excess_of_all(sum) else {
            return;
        };
        let jobs = jobs.values_mut().filter(|job| job.is_running());
        if let Some(job) = jobs.max_by_key(|job| job.scarce().of(kind)) {
            job.stop_taking(kind);
        }
    }

    /// Ends the command that holds what the machine has lost. `paused` are the commands if they are
    /// paused for it; otherwise they are if the look at them waits, since whoever is just replaced
    /// holds up the reader.
    fn end_losing(&mut self, jobs: &mut Jobs, all: &Processes, paused: Option<Paused>) {
        let Some(now) = Machine::read() else { return };
        if !jobs.values().any(|job| job.may_hold_what_is_lost(now)) {
            return;
        }
        let mut _paused = paused.or_else(|| self.hold_if_slow(jobs));
        let waits = _paused.is_none().then(Waits::begin);
        let mut suspects = suspects(jobs, all, now, waits.as_ref());
        if waits.is_some_and(|waits| waits.are_long()) {
            self.held_until = Instant::now() + HELD_FOR;
            _paused = Some(Self::hold(jobs));
            suspects = self::suspects(jobs, all, now, None);
        }
        let over = machine::over(
            now,
            &suspects
                .iter()
                .map(|(_, suspect)| *suspect)
                .collect::<Vec<_>>(),
        );
        if let Some(job) = over
            .and_then(|at| suspects.get(at))
            .and_then(|(id, _)| jobs.get_mut(id))
        {
            job.stop_losing(all);
        }
    }

    /// Continues a check of limits with the next slice.
    pub(super) fn go_on(&mut self, jobs: &mut Jobs) {
        let begun = processor_time();
        let Some(mut limit_check) = self.limit_check.take() else {
            return;
        };
        let mut is_done = true;
        let running = jobs.values().filter(|job| job.is_running());
        let roots: Vec<i32> = running.map(Job::root).collect();
        let (waits, mut paused) = (Waits::begin(), None);
        for (id, job) in jobs.range_mut(limit_check.next..) {
            if spent_since(begun) > SLICE {
                (is_done, limit_check.next) = (false, *id);
                break;
            }
            job.check_limits(&limit_check.all);
            if job.may_fill_the_disk() {
                self.watch_the_disk(job, &limit_check.all, &waits, &roots, &mut paused);
            }
        }
        drop(paused);
        limit_check.took += spent_since(begun);
        if !is_done {
            self.limit_check = Some(limit_check);
            return;
        }
        self.check_disks(jobs);
        self.check_scarce(jobs);
        self.check_open_files(jobs);
        self.checked_at = Instant::now();
        self.check_interval = CHECK_INTERVAL
            .max(limit_check.took * CHECK_SHARE)
            .min(CHECK_INTERVAL_MAX);
    }

    /// Pauses all commands.
    fn hold(jobs: &Jobs) -> Paused {
        let running = jobs.values().filter(|job| job.is_running());
        Paused::below(running.map(Job::root))
    }

    /// Pauses all commands if one of them has lately held up what is read of them.
    fn hold_if_slow(&self, jobs: &Jobs) -> Option<Paused> {
        (Instant::now() < self.held_until).then(|| Self::hold(jobs))
    }

    /// Reads what a command has written. `paused` are all commands, if they stand still for it; `roots`
    /// are the processes above theirs.
    fn watch_the_disk(
        &mut self,
        job: &mut Job,
        all: &Processes,
        waits: &Waits,
        roots: &[i32],
        paused: &mut Option<Paused>,
    ) {
        let hold = || Paused::below(roots.iter().copied());
        if paused.is_none() && Instant::now() < self.held_until {
            *paused = Some(hold());
        }
        let waits = paused.is_none().then_some(waits);
        if !job.watch_the_disk(all, waits) {
            self.held_until = Instant::now() + HELD_FOR;
            *paused = Some(hold());
            job.watch_the_disk(all, None);
        }
    }

    /// A disk shows that it fills up, but not who fills it. Of bytes, a command is ended for those
    /// that it wrote itself; if none wrote that much, no command ends and the log says so. Of files,
    /// the one with the most kernel time is ended, and the counts of the others start again.
    fn check_disks(&mut self, jobs: &mut Jobs) {
        let filling = jobs.values_mut().filter(|job| job.fills_the_disk());
        if let Some(job) = filling.max_by_key(|job| job.disk.written()) {
            job.stop_filling();
            let bytes = job.disk.written();
            jobs.values_mut().for_each(|job| job.disk.leave_out(bytes));
        } else if Instant::now() >= self.next_filled_log
            && let Some(job) = jobs.values().find(|job| job.sees_the_disk_filled())
        {
            self.next_filled_log = Instant::now() + FILLED_LOG_INTERVAL;
            tracing::warn!(
                disk = %job.disk.folder().display(),
                mebibytes = job.disk.lost() >> 20,
                "a disk has lost more than a command may write, and none of the running ones wrote \
                 that much: none is ended"
            );
        }
        let filling = jobs
            .values_mut()
            .filter(|job| job.fills_the_disk_with_files());
        if let Some(job) = filling.max_by_key(|job| job.disk.ticks()) {
            job.stop_creating();
            jobs.values_mut().for_each(|job| job.disk.forget_files());
        }
    }
}

/// What each command may hold of what the machine has lost, by its id; those with few open files
/// first. Stops where it takes longer than `waits` allows.
fn suspects(
    jobs: &Jobs,
    all: &Processes,
    now: Machine,
    waits: Option<&Waits>,
) -> Vec<(u64, Suspect)> {
    let mut by_files: Vec<_> = jobs.iter().collect();
    by_files.sort_by_key(|(_, job)| job.open_files());
    let mut reads = DESCRIPTORS_MAX;
    by_files
        .into_iter()
        .filter_map(|(id, job)| Some((*id, job.suspect(all, now, &mut reads, waits)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
