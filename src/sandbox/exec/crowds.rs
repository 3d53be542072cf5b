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
    processes::Paused,
};

/// How long a boundary may take before the crowds of other tenants stand still for it, how long they
/// do at most, and the processes and threads that the commands of a tenant have together in a crowd.
const BEGINS_SLOWLY: Duration = Duration::from_millis(200);
const ROOM_MAX: Duration = Duration::from_secs(3);
const CROWD: u32 = 64;

/// Crowds run at least one part in this many of the time for which they stood still, and stand still
/// for this long after the last command began: thousands of processes take half a second to stop.
const ROOM_SHARE: u32 = 16;
const ROOM_AFTER: Duration = Duration::from_millis(500);

/// How long crowds stand still at once for each command that begins, after one began slowly.
const CROWDED_FOR: Duration = Duration::from_secs(30);

/// Crowds that stand still, since when, and when a command last began.
struct Room {
    paused: Paused,
    since: Instant,
    needed_at: Instant,
}

/// The crowds among the commands.
pub(super) struct Crowds {
    room: Option<Room>,
    /// When they may stand still again, and until when they do at once.
    due: Instant,
    crowded_until: Instant,
}

impl Crowds {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            room: None,
            due: now,
            crowded_until: now,
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
        let crowded = crowded(jobs);
        if self.room.is_none() && crowded.is_empty() {
            return;
        }
        let time = match now < self.crowded_until {
            true => Duration::ZERO,
            false => BEGINS_SLOWLY,
        };
        let begin: Vec<_> = jobs
            .values_mut()
            .filter_map(|job| job.begins_slowly(time).then(|| job.tenant().cloned()))
            .collect();
        let is_in_the_way = |job: &&Job| {
            gives_way(job)
                && crowded.contains(&job.tenant().cloned())
                && begin.iter().any(|tenant| tenant.as_ref() != job.tenant())
        };
        let crowds = jobs.values().filter(is_in_the_way).map(Job::root);
        if let Some(room) = &mut self.room {
            if !begin.is_empty() {
                room.needed_at = now;
            }
            let stood = now - room.since;
            if now - room.needed_at > ROOM_AFTER || stood > ROOM_MAX {
                self.room = None;
                self.due = now + stood / ROOM_SHARE;
            } else if is_check {
                crowds.for_each(|root| room.paused.stop_below(root));
            }
        } else if now >= self.due {
            let paused = Paused::below(crowds);
            if !paused.is_empty() {
                self.room = Some(Room {
                    paused,
                    since: now,
                    needed_at: now,
                });
                // Only one that began slowly is a reason, so that commands that begin all the time
                // do not stop an honest build for good.
                if now >= self.crowded_until {
                    self.crowded_until = now + CROWDED_FOR;
                }
            }
        }
    }
}

/// Whether a command counts for the crowd of its tenant.
fn gives_way(job: &Job) -> bool {
    job.is_running() && job.gives_way()
}

/// The tenants whose commands that give way are a crowd.
fn crowded(jobs: &Jobs) -> BTreeSet<Option<TenantId>> {
    let mut threads = BTreeMap::<Option<&TenantId>, u32>::new();
    for job in jobs.values().filter(|job| gives_way(job)) {
        *threads.entry(job.tenant()).or_default() += job.threads();
    }
    let many = threads.into_iter().filter(|(_, threads)| *threads >= CROWD);
    many.map(|(tenant, _)| tenant.cloned()).collect()
}
