//! Ends process groups together: one scan of `/proc` serves every group that is ending, so ending a
//! thousand costs about as much as ending one. Known processes are killed before strays are
//! searched for.
//!
//! A group ends in three steps: the group and all descendants of its leader are killed · the leader
//! is reaped · processes that carry the group's mark are killed until none is left.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::processes::{Marked, Processes, kill_marked};

/// How long the leader of a group may take to end before everything is killed again and strays are
/// searched for without it. Strays of ended groups wait as long for other groups that are just
/// ending, since a scan would slow those down.
const PATIENCE: Duration = Duration::from_millis(100);

/// Pause after a scan for marks, as a multiple of the scan's duration, so that ending processes get
/// the processor too.
const PAUSE: u32 = 3;

/// What a group needs from the next pass.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wish {
    /// How to kill it; `None` to leave it running.
    pub(super) kill: Option<Kill>,
    /// Since when it waits for the processes with its mark; `None` if it does not need them.
    pub(super) hear: Option<Instant>,
    /// Whether it was killed a moment ago and has not been reaped.
    pub(super) going: bool,
}

/// How to kill a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    /// By the processes known to it.
    AsKnown,
    /// Together with all descendants, which needs a scan.
    WithAllBelow,
}

/// A group of processes that may have to end.
pub(super) trait Ends {
    /// What it needs at `now`.
    fn wish(&self, now: Instant) -> Wish;

    /// Kills its processes. `all` is empty unless it asked for [`Kill::WithAllBelow`].
    fn kill(&mut self, now: Instant, all: &Processes);

    /// The mark in the environment of its processes; empty if it has none.
    fn mark(&self) -> &str;

    /// Receives the processes that carry its mark, and kills them.
    fn hear(&mut self, now: Instant, marked: &[i32]);
}

/// Schedules the passes and shares the scans.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// Earliest time of the next scan for marks.
    rested: Option<Instant>,
    /// When to scan for marks that are waited for; `None` if no group waits.
    pub(super) due: Option<Instant>,
    /// Number of scans so far.
    looks: Arc<AtomicU64>,
}

impl Together {
    pub(super) fn counted_by(looks: Arc<AtomicU64>) -> Self {
        Self { looks, ..Self::default() }
    }

    /// Ends all groups that ask for it, without blocking. `seen` is a scan that was just made for
    /// another reason. Kills come first and share one scan. The scan for marks comes later, when no
    /// group is just ending or one has waited too long.
    pub(super) fn pass(&mut self, jobs: &mut [&mut dyn Ends], seen: Option<&Processes>) {
        let now = Instant::now();
        // Groups whose processes are known are killed first, since the scan for the others takes
        // milliseconds.
        let (none, wishes) = (Processes::default(), jobs.iter().map(|job| job.wish(now)).collect::<Vec<_>>());
        let mut below = Vec::new();
        for (job, wish) in jobs.iter_mut().zip(wishes) {
            match wish.kill {
                Some(Kill::AsKnown) => job.kill(now, &none),
                Some(Kill::WithAllBelow) => below.push(job),
                None => {}
            }
        }
        if !below.is_empty() {
            let read;
            let all = match seen {
                Some(seen) => seen,
                None => {
                    self.looks.fetch_add(1, Ordering::Relaxed);
                    read = Processes::read();
                    &read
                }
            };
            below.into_iter().for_each(|job| job.kill(now, all));
        }
        self.hear(jobs);
    }

    fn hear(&mut self, jobs: &mut [&mut dyn Ends]) {
        let now = Instant::now();
        let wishes: Vec<Wish> = jobs.iter().map(|job| job.wish(now)).collect();
        self.due = wishes.iter().filter_map(|wish| wish.hear).min().map(|since| {
            let patient = if wishes.iter().any(|wish| wish.going) { since + PATIENCE } else { since };
            self.rested.map_or(patient, |rested| patient.max(rested))
        });
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let asking = jobs.iter().zip(&wishes).filter(|(_, wish)| wish.hear.is_some());
        self.looks.fetch_add(1, Ordering::Relaxed);
        let marked = Marked::read(&asking.map(|(job, _)| job.mark()).collect::<HashSet<_>>());
        let over = Instant::now();
        let rested = over + (over - now) * PAUSE;
        let mut again = false;
        for (job, _) in jobs.iter_mut().zip(&wishes).filter(|(_, wish)| wish.hear.is_some()) {
            let found = marked.with(job.mark());
            job.hear(over, found);
            again |= job.wish(over).hear.is_some();
        }
        (self.rested, self.due) = (Some(rested), again.then_some(rested));
    }
}

/// Progress of the end of a marked process group.
#[derive(Debug)]
pub(super) struct Group {
    leader: i32,
    mark: String,
    /// Time of the first kill and of the next attempt; `None` before.
    killing: Option<(Instant, Instant)>,
    /// When the leader was reaped.
    ended: Option<Instant>,
    /// Whether no process is left.
    gone: bool,
}

impl Group {
    pub(super) fn new(leader: i32, mark: String) -> Self {
        Self { leader, mark, killing: None, ended: None, gone: false }
    }

    /// Kills the group with the next pass.
    pub(super) fn end(&mut self, now: Instant) {
        self.killing.get_or_insert((now, now));
    }

    /// Records that the leader was reaped. Its process id may be reused from now on.
    pub(super) fn leader_ended(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Time of the first kill.
    pub(super) fn killed(&self) -> Option<Instant> {
        self.killing.map(|(since, _)| since)
    }

    /// When to kill again if nothing happens.
    pub(super) fn due(&self) -> Option<Instant> {
        self.killing.filter(|_| self.ended.is_none()).map(|(_, again)| again)
    }
}

impl Ends for Group {
    fn wish(&self, now: Instant) -> Wish {
        match (self.killing, self.ended) {
            _ if self.gone => Wish::default(),
            (_, Some(ended)) => Wish { hear: Some(ended), ..Wish::default() },
            (Some((since, again)), None) => {
                let late = since + PATIENCE;
                Wish { kill: (now >= again).then_some(Kill::WithAllBelow), hear: (now >= late).then_some(late), going: now < late }
            }
            (None, None) => Wish::default(),
        }
    }

    fn kill(&mut self, now: Instant, all: &Processes) {
        let since = self.killed().unwrap_or(now);
        self.killing = Some((since, now + PATIENCE));
        if self.ended.is_none() {
            all.kill_group_and_below(self.leader);
        }
    }

    fn mark(&self) -> &str {
        &self.mark
    }

    fn hear(&mut self, now: Instant, marked: &[i32]) {
        if marked.is_empty() && self.ended.is_some() {
            self.gone = true;
            return;
        }
        self.end(now); // what a leader leaves running ends with it
        marked.iter().filter(|pid| **pid != self.leader || self.ended.is_some()).for_each(|pid| kill_marked(*pid, &self.mark));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group without processes.
    #[derive(Default)]
    struct Fake {
        wish: Wish,
        killed: u32,
        heard: u32,
    }

    impl Ends for Fake {
        fn wish(&self, _: Instant) -> Wish {
            self.wish
        }

        fn kill(&mut self, _: Instant, _: &Processes) {
            (self.wish.kill, self.wish.going) = (None, true);
            self.killed += 1;
        }

        fn mark(&self) -> &str {
            "nobody has this mark"
        }

        fn hear(&mut self, _: Instant, marked: &[i32]) {
            assert!(marked.is_empty());
            self.wish.hear = None;
            self.heard += 1;
        }
    }

    fn pass(together: &mut Together, fakes: &mut [Fake]) {
        together.pass(&mut fakes.iter_mut().map(|fake| fake as &mut dyn Ends).collect::<Vec<_>>(), None);
    }

    #[test]
    fn one_look_serves_all_that_end_at_once() {
        let looks = Arc::<AtomicU64>::default();
        let mut together = Together::counted_by(looks.clone());
        let below = Wish { kill: Some(Kill::WithAllBelow), ..Wish::default() };
        let mut fakes: Vec<Fake> = (0..1000).map(|_| Fake { wish: below, ..Fake::default() }).collect();

        pass(&mut together, &mut fakes);
        assert!(fakes.iter().all(|fake| fake.killed == 1));
        assert_eq!(looks.load(Ordering::Relaxed), 1);

        let now = Instant::now();
        fakes.iter_mut().for_each(|fake| fake.wish = Wish { hear: Some(now), ..Wish::default() });
        pass(&mut together, &mut fakes);
        assert!(fakes.iter().all(|fake| fake.heard == 1));
        assert_eq!((looks.load(Ordering::Relaxed), together.due), (2, None));
    }

    #[test]
    fn what_is_known_is_killed_without_a_look() {
        let looks = Arc::<AtomicU64>::default();
        let mut together = Together::counted_by(looks.clone());
        let mut fakes = [Fake { wish: Wish { kill: Some(Kill::AsKnown), ..Wish::default() }, ..Fake::default() }];

        pass(&mut together, &mut fakes);

        assert_eq!((fakes[0].killed, looks.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn strays_are_sought_when_nobody_is_just_going_or_when_that_takes_long() {
        let looks = Arc::<AtomicU64>::default();
        let mut together = Together::counted_by(looks.clone());
        let going = Wish { kill: Some(Kill::AsKnown), ..Wish::default() };
        let mut fakes = [Fake { wish: going, ..Fake::default() }, Fake::default()];
        let now = Instant::now();

        fakes[1].wish.hear = Some(now);
        pass(&mut together, &mut fakes);
        assert_eq!((fakes[1].heard, together.due), (0, Some(now + PATIENCE)));

        fakes[1].wish.hear = now.checked_sub(PATIENCE);
        pass(&mut together, &mut fakes);
        assert_eq!((fakes[1].heard, looks.load(Ordering::Relaxed)), (1, 1));

        // A scan takes processor time from ending processes, so the next one waits.
        fakes[0].wish.going = false;
        fakes[1].wish.hear = Some(Instant::now());
        together.rested = Some(now + Duration::from_secs(1000));
        pass(&mut together, &mut fakes);
        assert_eq!((fakes[1].heard, together.due), (1, Some(now + Duration::from_secs(1000))));
    }
}
