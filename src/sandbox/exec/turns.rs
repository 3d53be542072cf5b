//! Which commands go first where the processors are busy. A command of many processes that start and
//! end without a pause keeps the ones that are about to begin waiting for seconds, though each has a
//! fair part of the time.
//!
//! So the commands of a tenant give way once they have run for [`FRESH`] together: where the
//! processors are busy they get what others leave, a seventieth at least. A tenant whose commands
//! rest gets the time back. A command that gives way does so until it ends.
//!
//! The kernel divides processors among sessions (autogroups) first, so a session is what gives way.
//! A new session of a command does at the next look. A command that makes sessions all the time is
//! stopped for most of the time while commands run that do not give way, and ends if they are very
//! many. What new sessions take before others their tenant owes: where that is much, its commands
//! that made some are paused until time has paid most of it, as long as commands of others run.
//!
//! Where the host is in a control group with a weight of its own, sessions count for nothing, and
//! the weight of the command's group does.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use callboard_actors::ids::TenantId;

/// How long the commands of a tenant run before they give way.
const FRESH: Duration = Duration::from_secs(2);

/// One part in this many of the time in which no command of a tenant runs is given back.
const BACK_SHARE: u32 = 10;

/// Longest time between two counts that counts as run: they are made at least that often while
/// commands run.
const COUNTED_MAX: Duration = Duration::from_secs(1);

/// Processes of a command that are looked at in one call; each takes about ten microseconds.
const LOOKS_MAX: usize = 64;

/// Sessions of a command that the kernel let not be changed at once and that are changed after one
/// call: each is an open file of the host.
const DUE_MAX: usize = 8;

/// A command makes sessions all the time where more than a third of the checks find a new one: a check
/// that does counts two up to the second number, and each other takes one back.
const WITH_NEW: u8 = 4;
const WITH_NEW_MAX: u8 = 10;

/// The first sessions of a command, which do not count: those of its boundary.
const OF_BOUNDARY: usize = 4;

/// New sessions that the commands of a tenant may have in two checks in a row on a machine with few
/// processors, as a multiple of this those in one check, and those of all tenants in two in a row. With
/// more of them the host itself waits for a processor.
const NEW_FEW: usize = 16;
const AT_ONCE: usize = 4;
const OF_ALL: usize = 2;

/// What a tenant owes for each new session on a machine with few processors, and less with more of
/// them: about as long one goes before others until it is looked at.
const OWED_EACH: Duration = Duration::from_millis(200);

/// A tenant is in debt from when it owes more than the first until it owes at most the second; more
/// than the third is not remembered.
const OWES_MUCH: Duration = Duration::from_millis(1600);
const OWES_LITTLE: Duration = Duration::from_millis(800);
const OWED_MAX: Duration = Duration::from_secs(20);

/// How long the commands of a tenant in debt stand still after the last one for which they did:
/// what runs between two commands of another tenant would hold the host before the second begins.
const PAUSED_AFTER: Duration = Duration::from_millis(500);

/// How long no command of a tenant begins after one of its commands had too many of those.
const BARRED: Duration = Duration::from_secs(30);

/// Niceness of the sessions of a command from its begin, so that the host goes first, and once it
/// gives way.
const BEGUN: i32 = 5;
const GIVES_WAY: i32 = 19;

#[derive(Debug, Default)]
struct Debt {
    owed: Duration,
    is_large: bool,
}

/// How long the commands of each tenant have run.
#[derive(Debug)]
pub(super) struct Turns {
    used: HashMap<TenantId, Duration>,
    /// How many commands of each ran at the last count, and when that was.
    running: HashMap<TenantId, u32>,
    counted: Option<Instant>,
    /// Tenants whose commands do not begin, and until when.
    barred: HashMap<TenantId, Instant>,
    /// New sessions of each tenant that its last check found in which it was not paused, how many
    /// may be, and whether the last check found too many of all.
    new: HashMap<TenantId, usize>,
    new_max: usize,
    had_too_many: bool,
    /// What each tenant owes for new sessions, since when time pays it, who is paused for it, and
    /// when a command last ran for which one in debt is.
    debts: HashMap<TenantId, Debt>,
    owed_at: Option<Instant>,
    paused: HashSet<TenantId>,
    waited_for_at: Option<Instant>,
    /// Whether there may be commands of several tenants.
    among_tenants: Arc<AtomicBool>,
}

impl Turns {
    pub(super) fn new(among_tenants: Arc<AtomicBool>) -> Self {
        Self {
            used: HashMap::new(),
            running: HashMap::new(),
            counted: None,
            barred: HashMap::new(),
            new: HashMap::new(),
            new_max: std::thread::available_parallelism()
                .map_or(NEW_FEW, |count| NEW_FEW.max(count.get())),
            had_too_many: false,
            debts: HashMap::new(),
            owed_at: None,
            paused: HashSet::new(),
            waited_for_at: None,
            among_tenants,
        }
    }

    /// Takes the tenants of the commands that run now, each once for each command, and counts the time
    /// since the last call for those that ran then.
    pub(super) fn count<'a>(&mut self, running: impl Iterator<Item = &'a TenantId>, now: Instant) {
        let passed = self.counted.map_or(Duration::ZERO, |at| now - at);
        self.counted = Some(now);
        // Nothing is counted while no command runs.
        let ran = passed.min(COUNTED_MAX);
        for (tenant, used) in &mut self.used {
            let commands = self.running.get(tenant).copied().unwrap_or_default();
            let rested = if commands == 0 { passed } else { passed - ran };
            // What is beyond is not remembered: the time comes back within some tens of seconds.
            *used = (*used + ran * commands).min(2 * FRESH);
            *used = used.saturating_sub(rested / BACK_SHARE);
        }
        self.running.clear();
        for tenant in running {
            *self.running.entry(tenant.clone()).or_default() += 1;
            self.used.entry(tenant.clone()).or_default();
        }
        self.used
            .retain(|tenant, used| !used.is_zero() || self.running.contains_key(tenant));
    }

    /// Takes the numbers of new sessions that a check found, each with its tenant. Returns the tenants
    /// whose commands must end: those that have too many by themselves, and then those with the most,
    /// until the others have not too many together.
    pub(super) fn with_too_many(
        &mut self,
        found: impl Iterator<Item = (TenantId, usize)>,
    ) -> Vec<TenantId> {
        let mut new: HashMap<TenantId, usize> = HashMap::new();
        for (tenant, count) in found {
            *new.entry(tenant).or_default() += count;
        }
        let (max, of_all_max) = (self.new_max, self.new_max * OF_ALL);
        let mut left: usize = new.values().sum();
        let had_too_many = std::mem::replace(&mut self.had_too_many, left > of_all_max);
        let mut by_count: Vec<_> = new.iter().map(|(of, count)| (*count, of)).collect();
        by_count.sort_unstable_by(|one, other| other.cmp(one));
        let before = |tenant| self.new.get(tenant).copied().unwrap_or_default();
        let mut ending = Vec::new();
        for (count, tenant) in by_count {
            let own = count > max * AT_ONCE || count > max && before(tenant) > max;
            if own || had_too_many && left > of_all_max {
                left -= count;
                ending.push(tenant.clone());
            }
        }
        // A check in which the commands of a tenant stood still is not one without new sessions.
        let paused = &self.paused;
        self.new.retain(|tenant, _| paused.contains(tenant));
        for (tenant, count) in new {
            let kept = self.new.entry(tenant).or_default();
            *kept = count.max(*kept);
        }
        ending
    }

    /// Takes the numbers of new sessions that a check found, each with its tenant, as what the
    /// tenants owe, and lets the time since the last call pay.
    pub(super) fn owe(&mut self, found: impl Iterator<Item = (TenantId, usize)>, now: Instant) {
        let passed = self.owed_at.map_or(Duration::ZERO, |at| now - at);
        self.owed_at = Some(now);
        for debt in self.debts.values_mut() {
            debt.owed = debt.owed.saturating_sub(passed);
        }
        let each = OWED_EACH.mul_f64(NEW_FEW as f64 / self.new_max as f64);
        for (tenant, count) in found {
            let owed = &mut self.debts.entry(tenant).or_default().owed;
            // More than any machine finds in a check counts no more.
            let more = each.saturating_mul(count.try_into().unwrap_or(u32::MAX));
            *owed = owed.saturating_add(more).min(OWED_MAX);
        }
        self.debts.retain(|_, debt| !debt.owed.is_zero());
        for debt in self.debts.values_mut() {
            let bound = if debt.is_large {
                OWES_LITTLE
            } else {
                OWES_MUCH
            };
            debt.is_large = debt.owed > bound;
        }
    }

    /// Takes the tenants of the commands that run now, each with whether the command gives way.
    /// Those in debt are paused while, and shortly after, a command of another one runs that does
    /// not give way. Tenants in debt do not keep each other waiting.
    pub(super) fn pause<'a>(
        &mut self,
        mut running: impl Iterator<Item = (Option<&'a TenantId>, bool)>,
        now: Instant,
    ) {
        let debts = &self.debts;
        let is_in_debt = |tenant| debts.get(tenant).is_some_and(|debt| debt.is_large);
        let is_waited_for =
            running.any(|(tenant, gives_way)| !gives_way && !tenant.is_some_and(is_in_debt));
        if is_waited_for {
            self.waited_for_at = Some(now);
        }
        let ends = self.waited_for_at.map(|at| at + PAUSED_AFTER);
        self.paused.clear();
        if ends.is_some_and(|at| now < at) {
            let in_debt = debts.iter().filter(|(_, debt)| debt.is_large);
            self.paused
                .extend(in_debt.map(|(tenant, _)| tenant.clone()));
        }
    }

    /// Whether those commands of a tenant that made new sessions stand still.
    pub(super) fn is_paused(&self, tenant: &TenantId) -> bool {
        self.paused.contains(tenant)
    }

    /// Forgets the last check: no command runs.
    pub(super) fn rest(&mut self) {
        self.new.clear();
        self.had_too_many = false;
        self.paused.clear();
    }

    /// Lets no command of a tenant begin for some time.
    pub(super) fn bar(&mut self, tenant: &TenantId, now: Instant) {
        self.barred.retain(|_, until| *until > now);
        self.barred.insert(tenant.clone(), now + BARRED);
    }

    pub(super) fn is_barred(&self, tenant: &TenantId, now: Instant) -> bool {
        self.barred.get(tenant).is_some_and(|until| *until > now)
    }

    /// Whether commands are those of tenants.
    pub(super) fn is_on(&self) -> bool {
        self.among_tenants.load(Ordering::Relaxed)
    }

    /// Whether the commands of a tenant give way to those of others.
    pub(super) fn give_way(&self, tenant: &TenantId) -> bool {
        self.is_on() && self.used.get(tenant).is_some_and(|used| *used >= FRESH)
    }
}

/// The sessions of a command among those of tenants.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Their niceness.
    niceness: i32,
    /// Whether one was found.
    have_begun: bool,
    /// Processes looked at so far.
    looked: usize,
    /// Those of the last check.
    known: HashSet<i32>,
    /// Grows with each check that finds a new one, and shrinks with the others.
    with_new: u8,
    /// How many new ones the last check found, and whether any did.
    new: usize,
    have_been_new: bool,
    /// How many more do not count as new.
    of_boundary: usize,
    /// Those that have not this niceness yet, each as the file of one of its processes. An unprivileged
    /// host may change one session in a tenth of a second.
    due: Vec<File>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            niceness: BEGUN,
            have_begun: false,
            looked: 0,
            known: HashSet::new(),
            with_new: 0,
            new: 0,
            have_been_new: false,
            of_boundary: OF_BOUNDARY,
            due: Vec::new(),
        }
    }
}

impl Sessions {
    /// Whether one was found: a command makes its session when it begins.
    pub(super) fn have_begun(&self) -> bool {
        self.have_begun
    }

    /// Lets them give way from now on.
    pub(super) fn give_way(&mut self) {
        self.niceness = GIVES_WAY;
    }

    /// Whether they give way.
    pub(super) fn are_behind(&self) -> bool {
        self.niceness == GIVES_WAY
    }

    /// How many new ones the last check found, without those of the boundary.
    pub(super) fn new_ones(&self) -> usize {
        self.new
    }

    /// Whether there was a new one since the command began.
    pub(super) fn have_been_new(&self) -> bool {
        self.have_been_new
    }

    /// Whether new ones are made all the time. A session goes before the others until the next look:
    /// a chain of sessions, each made by the one before it, would never give way.
    pub(super) fn keep_being_made(&self) -> bool {
        self.with_new >= WITH_NEW
    }

    /// Changes those of these processes that have not their niceness. Looks at some of many
    /// processes, and at the next ones in the next call.
    pub(super) fn look_at(&mut self, tree: &[i32]) {
        // The host's own file may be closed to itself for writing. It is empty in the first session of
        // a machine, which has no name: every session with a name is then one of a command.
        let own = std::fs::read_to_string("/proc/self/autogroup").unwrap_or_default();
        let own = named(&own).map(|(name, _)| name);
        let mut found = HashSet::new();
        self.due.clear();
        let looks = tree.len().min(LOOKS_MAX);
        let from = self.looked % tree.len().max(1);
        self.looked = from + looks;
        for pid in tree.iter().cycle().skip(from).take(looks) {
            let Some((mut file, name, niceness)) = session(*pid) else {
                continue;
            };
            let is_own = own == Some(name.as_str());
            self.have_begun |= !is_own;
            let is_due = !is_own && niceness < self.niceness && self.due.len() < DUE_MAX;
            // A host that may change many does so at once, so that none stays an open file.
            if !is_due || !found.insert(name) {
                continue;
            }
            if !self.due.is_empty() || is_to_wait(&mut file, self.niceness) {
                self.due.push(file);
            }
        }
    }

    /// Takes the sessions that a check found.
    pub(super) fn count(&mut self, sessions: HashSet<i32>) {
        let new = sessions.difference(&self.known).count();
        let of_boundary = new.min(self.of_boundary);
        self.of_boundary -= of_boundary;
        self.new = new - of_boundary;
        self.have_been_new |= self.new > 0;
        self.with_new = match self.new {
            0 => self.with_new.saturating_sub(1),
            _ => WITH_NEW_MAX.min(self.with_new + 2),
        };
        self.known = sessions;
    }

    /// Goes on where the kernel let no more be changed. Returns whether more are to come.
    pub(super) fn go_on(&mut self) -> bool {
        while let Some(file) = self.due.first_mut() {
            if is_to_wait(file, self.niceness) {
                return true;
            }
            self.due.remove(0);
        }
        false
    }
}

/// Changes the session of this file. Returns whether the kernel lets that be done only later.
fn is_to_wait(file: &mut File, niceness: i32) -> bool {
    let changed = file.write(niceness.to_string().as_bytes());
    changed.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// The session of a process, and a file that stays that of this process. `None` where the kernel has
/// no sessions, or the host may not change this one.
fn session(pid: i32) -> Option<(File, String, i32)> {
    let mut open = File::options();
    let open = open.read(true).write(true);
    let mut file = open.open(format!("/proc/{pid}/autogroup")).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let (name, niceness) = named(&text)?;
    Some((file, name.to_owned(), niceness))
}

/// The name of a session for the scheduler, and its niceness.
fn named(text: &str) -> Option<(&str, i32)> {
    let (name, niceness) = text.trim_end().split_once(" nice ")?;
    Some((name, niceness.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenants() -> (TenantId, TenantId) {
        (
            TenantId::new("acme").unwrap(),
            TenantId::new("zeta").unwrap(),
        )
    }

    /// Counts twice a second until `ms` after the last time.
    fn pass(turns: &mut Turns, at: &mut Instant, ms: u64, running: &[&TenantId]) {
        turns.count(running.iter().copied(), *at);
        for _ in 0..ms / 500 {
            *at += Duration::from_millis(500);
            turns.count(running.iter().copied(), *at);
        }
    }

    #[test]
    fn commands_of_a_tenant_give_way_after_their_time_and_get_it_back_by_resting() {
        let (acme, zeta) = tenants();
        let mut turns = Turns::new(Arc::new(true.into()));
        let mut at = Instant::now();

        pass(&mut turns, &mut at, 1_500, &[&acme]);
        assert!(!turns.give_way(&acme));
        pass(&mut turns, &mut at, 3_500, &[&acme]);
        turns.among_tenants.store(false, Ordering::Relaxed);
        assert!(!turns.give_way(&acme), "commands of one user");
        turns.among_tenants.store(true, Ordering::Relaxed);
        pass(&mut turns, &mut at, 1_500, &[&acme, &zeta]);
        assert!(turns.give_way(&acme) && !turns.give_way(&zeta));
        pass(&mut turns, &mut at, 500, &[&zeta]);
        assert!(turns.give_way(&acme) && turns.give_way(&zeta));
        // Two seconds beyond the bound are remembered, and a tenth of the time comes back.
        pass(&mut turns, &mut at, 1_000, &[]);
        assert!(turns.give_way(&acme) && !turns.give_way(&zeta));
        pass(&mut turns, &mut at, 20_000, &[]);
        assert!(!turns.give_way(&acme));
    }

    #[test]
    fn new_sessions_are_too_many_in_two_checks_in_a_row_or_very_many_in_one() {
        let (acme, zeta) = tenants();
        let mut turns = Turns::new(Arc::new(true.into()));
        turns.new_max = NEW_FEW;
        let mut found = |of_acme: usize, of_zeta: usize| {
            let of = [(&acme, of_acme), (&zeta, of_zeta)];
            turns.with_too_many(
                of.map(|(tenant, count)| (tenant.clone(), count))
                    .into_iter(),
            )
        };

        let alone = [17, 16, 17, 17, 3, 65].map(|new| found(new, 0).len());
        assert_eq!(alone, [0, 0, 0, 1, 0, 1]);
        // One with few does not end for those of another.
        let beside = [(16, 8), (16, 15), (17, 15), (17, 16)].map(|(a, z)| found(a, z));
        assert_eq!(beside, [vec![], vec![], vec![], vec![acme.clone()]]);
        // Many together: the most first.
        assert_eq!([found(16, 16), found(17, 16)].concat(), []);
        assert_eq!(found(16, 17), vec![zeta.clone()]);

        let now = Instant::now();
        turns.bar(&acme, now);
        let is_barred = |tenant, seconds| {
            let at = now + Duration::from_secs(seconds);
            turns.is_barred(tenant, at)
        };
        assert!(is_barred(&acme, 29) && !is_barred(&acme, 30) && !is_barred(&zeta, 1));
    }

    #[test]
    fn sessions_with_which_a_command_begins_do_not_count_and_each_later_one_does() {
        let mut sessions = Sessions::default();

        let new = [&[1, 2, 3][..], &[1, 2, 3], &[1, 2, 3, 4], &[4, 5, 6]].map(|found| {
            sessions.count(found.iter().copied().collect());
            sessions.new_ones()
        });

        // A boundary may be seen when half of it is made.
        assert_eq!(new, [0, 0, 0, 2]);
        assert!(sessions.have_been_new());
        let mut many = Sessions::default();
        many.count((0..20).collect());
        assert_eq!(many.new_ones(), 20 - OF_BOUNDARY);
    }

    /// Finds new sessions of each in a check every 200 ms, and says who is paused after it.
    fn checks<const N: usize>(
        turns: &mut Turns,
        at: &mut Instant,
        tenants: [(&TenantId, bool); 2],
        found: [[usize; 2]; N],
    ) -> [[bool; 2]; N] {
        found.map(|found| {
            *at += Duration::from_millis(200);
            let new = || {
                let new = tenants.into_iter().zip(found);
                new.map(|((tenant, _), count)| (tenant.clone(), count))
            };
            assert_eq!(turns.with_too_many(new()), []);
            turns.owe(new(), *at);
            turns.pause(
                tenants
                    .into_iter()
                    .map(|(of, gives_way)| (Some(of), gives_way)),
                *at,
            );
            tenants.map(|(tenant, _)| turns.is_paused(tenant))
        })
    }

    #[test]
    fn a_tenant_with_bursts_of_new_sessions_is_paused_for_others_until_time_has_paid_for_them() {
        let (acme, zeta) = tenants();
        let mut turns = Turns::new(Arc::new(true.into()));
        turns.new_max = NEW_FEW;
        let mut at = Instant::now();

        let paused = checks(
            &mut turns,
            &mut at,
            [(&acme, false), (&zeta, false)],
            [
                [8, 0],
                [1, 0],
                [1, 0],
                [2, 3],
                [0, 5],
                [0, 0],
                [0, 0],
                [0, 0],
                [0, 0],
            ],
        );
        // Eight are not too many, nor is one in each check: those are paid for.
        let of_acme = [false, false, false, true, true, true, true, true, false];
        assert_eq!(paused.map(|[acme, _]| acme), of_acme);
        // Those of acme are no reason for those of zeta to stand still.
        assert!(paused.iter().all(|[_, zeta]| !zeta));

        // A burst of any size is paid for within twenty seconds.
        turns.owe([(acme.clone(), 10_000)].into_iter(), at);
        let paused = checks(
            &mut turns,
            &mut at,
            [(&acme, false), (&zeta, false)],
            [[0, 0]; 100],
        );
        let paused = paused.iter().filter(|[acme, _]| *acme).count();
        assert_eq!(paused, 95, "until it owes eight tenths of a second");
    }

    #[test]
    fn tenants_in_debt_go_on_beside_each_other_alone_and_beside_commands_that_give_way() {
        let (acme, zeta) = tenants();
        let now = Instant::now();
        let in_debt = || {
            let mut turns = Turns::new(Arc::new(true.into()));
            turns.new_max = NEW_FEW;
            turns.owe([(acme.clone(), 40)].into_iter(), now);
            turns
        };
        let is_paused = |turns: &mut Turns, others: &[(Option<&TenantId>, bool)], ms| {
            let running = [(Some(&acme), false), (Some(&acme), true)];
            let running = running.iter().chain(others).copied();
            turns.pause(running, now + Duration::from_millis(ms));
            turns.is_paused(&acme)
        };

        assert!(!is_paused(&mut in_debt(), &[], 0));
        assert!(!is_paused(&mut in_debt(), &[(Some(&zeta), true)], 0));
        assert!(is_paused(&mut in_debt(), &[(None, false)], 0));
        let mut after = in_debt();
        let paused = [
            is_paused(&mut after, &[(Some(&zeta), false)], 0),
            is_paused(&mut after, &[], 499),
            is_paused(&mut after, &[], 500),
        ];
        assert_eq!(paused, [true, true, false]);
        let mut both = in_debt();
        both.owe([(zeta.clone(), 40)].into_iter(), now);
        assert!(!is_paused(&mut both, &[(Some(&zeta), false)], 0));
    }

    #[test]
    fn bursts_that_only_a_pause_keeps_apart_are_those_of_two_checks_in_a_row() {
        let (acme, zeta) = tenants();
        let burst = |others_wait: bool| {
            let mut turns = Turns::new(Arc::new(true.into()));
            turns.new_max = NEW_FEW;
            let mut at = Instant::now();
            let found = [[30, 0], [0, 0], [0, 0], [0, 0]];
            let running = [(&acme, false), (&zeta, !others_wait)];
            let paused = checks(&mut turns, &mut at, running, found);
            assert!(paused.iter().all(|[acme, _]| *acme == others_wait));
            turns.with_too_many([(acme.clone(), 30)].into_iter())
        };

        assert_eq!(burst(true), vec![acme.clone()]);
        assert_eq!(burst(false), []);
    }

    #[test]
    fn a_machine_with_more_processors_bears_more_new_sessions() {
        let (acme, zeta) = tenants();
        let is_paused = |new_max, new| {
            let mut turns = Turns::new(Arc::new(true.into()));
            turns.new_max = new_max;
            turns.owe([(acme.clone(), new)].into_iter(), Instant::now());
            turns.pause([(Some(&zeta), false)].into_iter(), Instant::now());
            turns.is_paused(&acme)
        };

        assert!(!is_paused(NEW_FEW, 8) && is_paused(NEW_FEW, 9));
        assert!(!is_paused(4 * NEW_FEW, 32) && is_paused(4 * NEW_FEW, 33));
    }

    #[test]
    fn two_commands_at_a_time_take_twice_the_time() {
        let (acme, zeta) = tenants();
        let mut turns = Turns::new(Arc::new(true.into()));

        pass(
            &mut turns,
            &mut Instant::now(),
            1_000,
            &[&acme, &acme, &zeta],
        );

        assert!(turns.give_way(&acme) && !turns.give_way(&zeta));
    }

    #[test]
    fn tenants_whose_commands_have_rested_are_forgotten_and_idle_time_is_not_counted() {
        let (acme, zeta) = tenants();
        let mut turns = Turns::new(Arc::new(true.into()));
        let mut at = Instant::now();
        pass(&mut turns, &mut at, 500, &[&acme, &zeta]);

        at += Duration::from_secs(3600);
        turns.count([&acme].into_iter(), at);

        assert_eq!(turns.used, HashMap::from([(acme, Duration::ZERO)]));
    }
}
