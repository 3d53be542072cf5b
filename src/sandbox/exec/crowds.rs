//! Commands of very many processes that keep those of others from beginning: they stand still
//! meanwhile.
//!
//! Each mount of a boundary waits for every process that reads the kernel's list of mounts, and one
//! that reads waits for a processor with all the others of its crowd. So what was a crowd's share of
//! the processors is not enough to keep it out of the way.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use callboard_actors::ids::TenantId;

use super::{
    job::{Job, Jobs},
    mounts,
    processes::Paused,
};

/// How long a boundary may take before the crowds of other tenants stand still for it, how long they
/// do at most, and the processes and threads that the commands of a tenant have together in a crowd.
const BEGINS_SLOWLY: Duration = Duration::from_millis(200);
const ROOM_MAX: Duration = Duration::from_secs(3);
const CROWD: u32 = 64;

/// A crowd that was seen to wait for the list of mounts runs at least one part in this many of the
/// time for which it stood still; one that only may be in the way runs as long as it stood.
const ROOM_SHARE: u32 = 16;
const ROOM_SHARE_OF_SUSPECTS: u32 = 1;

/// Crowds stand still for this long after the last command began: thousands of processes take half a
/// second to stop.
const ROOM_AFTER: Duration = Duration::from_millis(500);

/// How long a crowd that was seen in the way stands still at once for each command that begins.
const CROWDED_FOR: Duration = Duration::from_secs(30);

type Tenants = BTreeSet<Option<TenantId>>;

/// Crowds that stand still, since when, and when a command last began.
struct Room {
    of: Tenants,
    share: u32,
    paused: Paused,
    since: Instant,
    needed_at: Instant,
}

/// The crowds among the commands.
pub(super) struct Crowds {
    room: Option<Room>,
    /// When they may stand still again.
    due: Instant,
    /// The tenants whose crowds do so at once, and until when.
    in_the_way: BTreeMap<Option<TenantId>, Instant>,
}

impl Crowds {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            room: None,
            due: now,
            in_the_way: BTreeMap::new(),
        }
    }

    /// Whether some stand still.
    pub(super) fn stand_still(&self) -> bool {
        self.room.is_some()
    }

    /// Lets all go on.
    pub(super) fn go_on(&mut self) {
        self.room = None;
    }

    /// Stops the crowds that give way while a command of another tenant takes long to begin.
    pub(super) fn make_room(&mut self, jobs: &mut Jobs, now: Instant, is_check: bool) {
        self.in_the_way.retain(|_, until| now < *until);
        match &mut self.room {
            Some(room) => {
                if jobs_begin(jobs, &room.of, Duration::ZERO).next().is_some() {
                    room.needed_at = now;
                }
                let stood = now - room.since;
                if now - room.needed_at > ROOM_AFTER || stood > ROOM_MAX {
                    self.due = now + stood / room.share;
                    self.room = None;
                } else if is_check {
                    roots(jobs, &room.of).for_each(|root| room.paused.stop_below(root));
                }
            }
            None if now >= self.due => self.room = self.room(jobs, now),
            None => {}
        }
    }

    fn room(&mut self, jobs: &mut Jobs, now: Instant) -> Option<Room> {
        let crowded = crowded(jobs);
        if crowded.is_empty() {
            return None;
        }
        let known = |tenant: &&Option<TenantId>| self.in_the_way.contains_key(*tenant);
        let mut of: Tenants = crowded.iter().filter(known).cloned().collect();
        let mut share = ROOM_SHARE;
        if of.is_empty() || jobs_begin(jobs, &of, Duration::ZERO).next().is_none() {
            (of, share) = self.found(jobs, crowded, now)?;
        }
        let paused = Paused::below(roots(jobs, &of));
        (!paused.is_empty()).then_some(Room {
            of,
            share,
            paused,
            since: now,
            needed_at: now,
        })
    }

    /// The crowds for which a command of another tenant waits: those that are seen to wait for the
    /// list of mounts too, or else all. Only those that were seen are stopped at once from now on, so
    /// that commands that begin slowly for another reason do not stop an honest build for long.
    fn found(&mut self, jobs: &mut Jobs, crowded: Tenants, now: Instant) -> Option<(Tenants, u32)> {
        let is_held_up = |job: &mut Job| job.waits_for_mounts() != Some(false);
        let others: Tenants = crowded
            .into_iter()
            .filter(|tenant| {
                let of = BTreeSet::from([tenant.clone()]);
                jobs_begin(jobs, &of, BEGINS_SLOWLY).any(is_held_up)
            })
            .collect();
        let waits = |tenant: &&Option<TenantId>| {
            let of = BTreeSet::from([(*tenant).clone()]);
            mounts::wait_for_the_list(roots(jobs, &of))
        };
        let seen: Tenants = others.iter().filter(waits).cloned().collect();
        if others.is_empty() || seen.is_empty() {
            return (!others.is_empty()).then_some((others, ROOM_SHARE_OF_SUSPECTS));
        }
        let until = now + CROWDED_FOR;
        let new = seen.iter().map(|tenant| (tenant.clone(), until));
        self.in_the_way.extend(new);
        Some((seen, ROOM_SHARE))
    }
}

/// The commands of other tenants than one of these that have begun for so long, and not begun yet.
fn jobs_begin<'a>(
    jobs: &'a mut Jobs,
    crowds: &'a Tenants,
    time: Duration,
) -> impl Iterator<Item = &'a mut Job> {
    let is_other = |job: &Job| {
        let is_of_another = |tenant: &Option<TenantId>| tenant.as_ref() != job.tenant();
        crowds.iter().any(is_of_another)
    };
    jobs.values_mut()
        .filter_map(move |job| (is_other(job) && job.begins_slowly(time)).then_some(job))
}

/// The first processes of the commands of these tenants that give way.
fn roots(jobs: &Jobs, tenants: &Tenants) -> impl Iterator<Item = i32> {
    let is_of = |job: &&Job| gives_way(job) && tenants.contains(&job.tenant().cloned());
    jobs.values().filter(is_of).map(Job::root)
}

/// Whether a command counts for the crowd of its tenant.
fn gives_way(job: &Job) -> bool {
    job.is_running() && job.gives_way()
}

/// The tenants whose commands that give way are a crowd.
fn crowded(jobs: &Jobs) -> Tenants {
    let mut threads = BTreeMap::<Option<&TenantId>, u32>::new();
    for job in jobs.values().filter(|job| gives_way(job)) {
        *threads.entry(job.tenant()).or_default() += job.threads();
    }
    let many = threads.into_iter().filter(|(_, threads)| *threads >= CROWD);
    many.map(|(tenant, _)| tenant.cloned()).collect()
}
