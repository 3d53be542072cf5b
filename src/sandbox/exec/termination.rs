//! Ends process groups, many in one pass: one scan of `/proc` serves every group that is ending, so
//! ending a thousand costs about as much as ending one. Known processes are killed before strays
//! are searched for.
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
const LEADER_GRACE: Duration = Duration::from_millis(100);

/// Pause after a scan for marks, as a multiple of the scan's duration, so that ending processes get
/// the processor too.
const PAUSE: u32 = 3;

/// What a group needs from the next pass.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Needs {
    /// How to kill it; `None` to leave it running.
    pub(super) kill: Option<Kill>,
    /// Since when it waits for the processes with its mark; `None` if it does not need them.
    pub(super) marks_since: Option<Instant>,
    /// Whether it was killed a moment ago and has not been reaped.
    pub(super) dying: bool,
}

/// How to kill a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    /// By the processes known to it.
    Known,
    /// With all descendants, which needs a scan.
    Tree,
}

/// A group of processes that may have to end.
pub(super) trait Terminate {
    /// What it needs at `now`.
    fn needs(&self, now: Instant) -> Needs;

    /// Kills its processes. `all` is empty unless it asked for [`Kill::Tree`].
    fn kill(&mut self, now: Instant, all: &Processes);

    /// The process above its others; `None` once that was reaped, since another may have its id.
    fn leader(&self) -> Option<i32>;

    /// The mark in the environment of its processes; empty if it has none.
    fn mark(&self) -> &str;

    /// Receives the processes that carry its mark, and kills them.
    fn take_marked(&mut self, now: Instant, marked: &[i32]);
}

/// Schedules the passes and shares the scans.
#[derive(Debug, Default)]
pub(super) struct Terminator {
    /// Earliest time of the next scan for marks.
    not_before: Option<Instant>,
    /// When to scan for marks that are waited for; `None` if no group waits.
    pub(super) due: Option<Instant>,
    /// Number of scans so far.
    scans: Arc<AtomicU64>,
}

impl Terminator {
    pub(super) fn counted_by(scans: Arc<AtomicU64>) -> Self {
        Self {
            scans,
            ..Self::default()
        }
    }

    /// Ends all groups that ask for it, without blocking. `seen` is a scan that was just made for
    /// another reason. Kills come first and share one scan. The scan for marks comes later, when no
    /// group is just ending or one has waited too long.
    pub(super) fn pass(&mut self, jobs: &mut [&mut dyn Terminate], seen: Option<&Processes>) {
        let now = Instant::now();
        // Groups whose processes are known are killed first, since the scan for the others takes
        // milliseconds.
        let none = Processes::default();
        let all_needs = jobs.iter().map(|job| job.needs(now)).collect::<Vec<_>>();
        let mut below = Vec::new();
        for (job, needs) in jobs.iter_mut().zip(all_needs) {
            match needs.kill {
                Some(Kill::Known) => job.kill(now, &none),
                Some(Kill::Tree) => below.push(job),
                None => {}
            }
        }
        if !below.is_empty() {
            let read;
            let all = match seen {
                Some(seen) => seen,
                None => {
                    self.scans.fetch_add(1, Ordering::Relaxed);
                    read = Processes::read();
                    &read
                }
            };
            below.into_iter().for_each(|job| job.kill(now, all));
        }
        self.scan_for_marks(jobs);
    }

    fn scan_for_marks(&mut self, jobs: &mut [&mut dyn Terminate]) {
        let now = Instant::now();
        let all_needs: Vec<Needs> = jobs.iter().map(|job| job.needs(now)).collect();
        self.due = all_needs
            .iter()
            .filter_map(|needs| needs.marks_since)
            .min()
            .map(|since| {
                let earliest = if all_needs.iter().any(|needs| needs.dying) {
                    since + LEADER_GRACE
                } else {
                    since
                };
                self.not_before
                    .map_or(earliest, |not_before| earliest.max(not_before))
            });
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let asking = jobs
            .iter()
            .zip(&all_needs)
            .filter(|(_, needs)| needs.marks_since.is_some());
        self.scans.fetch_add(1, Ordering::Relaxed);
        let wanted = asking.map(|(job, _)| job.mark()).collect::<HashSet<_>>();
        // What is below a group that does not end belongs to that one.
        let others = jobs.iter().zip(&all_needs);
        let others = others.filter(|(_, needs)| needs.marks_since.is_none());
        let others: Vec<i32> = others.filter_map(|(job, _)| job.leader()).collect();
        let all = match others.is_empty() {
            true => Processes::default(),
            false => Processes::read(),
        };
        let known = others.iter().flat_map(|root| all.tree(*root)).collect();
        let marked = Marked::read(&wanted, &known);
        let over = Instant::now();
        let not_before = over + (over - now) * PAUSE;
        let mut again = false;
        for (job, _) in jobs
            .iter_mut()
            .zip(&all_needs)
            .filter(|(_, needs)| needs.marks_since.is_some())
        {
            let found = marked.with(job.mark());
            job.take_marked(over, found);
            again |= job.needs(over).marks_since.is_some();
        }
        (self.not_before, self.due) = (Some(not_before), again.then_some(not_before));
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
        Self {
            leader,
            mark,
            killing: None,
            ended: None,
            gone: false,
        }
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
        self.killing
            .filter(|_| self.ended.is_none())
            .map(|(_, again)| again)
    }
}

impl Terminate for Group {
    fn needs(&self, now: Instant) -> Needs {
        match (self.killing, self.ended) {
            _ if self.gone => Needs::default(),
            (_, Some(ended)) => Needs {
                marks_since: Some(ended),
                ..Needs::default()
            },
            (Some((since, again)), None) => {
                let late = since + LEADER_GRACE;
                Needs {
                    kill: (now >= again).then_some(Kill::Tree),
                    marks_since: (now >= late).then_some(late),
                    dying: now < late,
                }
            }
            (None, None) => Needs::default(),
        }
    }

    fn kill(&mut self, now: Instant, all: &Processes) {
        let since = self.killed().unwrap_or(now);
        self.killing = Some((since, now + LEADER_GRACE));
        if self.ended.is_none() {
            all.kill_group_and_below(self.leader);
        }
    }

    fn leader(&self) -> Option<i32> {
        self.ended.is_none().then_some(self.leader)
    }

    fn mark(&self) -> &str {
        &self.mark
    }

    fn take_marked(&mut self, now: Instant, marked: &[i32]) {
        if marked.is_empty() && self.ended.is_some() {
            self.gone = true;
            return;
        }
        self.end(now); // what a leader leaves running ends with it
        marked
            .iter()
            .filter(|pid| **pid != self.leader || self.ended.is_some())
            .for_each(|pid| kill_marked(*pid, &self.mark));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group without processes.
    #[derive(Default)]
    struct Fake {
        needs: Needs,
        killed: u32,
        scanned: u32,
    }

    impl Terminate for Fake {
        fn needs(&self, _: Instant) -> Needs {
            self.needs
        }

        fn kill(&mut self, _: Instant, _: &Processes) {
            (self.needs.kill, self.needs.dying) = (None, true);
            self.killed += 1;
        }

        fn leader(&self) -> Option<i32> {
            None
        }

        fn mark(&self) -> &str {
            "no process has this mark"
        }

        fn take_marked(&mut self, _: Instant, marked: &[i32]) {
            assert!(marked.is_empty());
            self.needs.marks_since = None;
            self.scanned += 1;
        }
    }

    fn pass(terminator: &mut Terminator, fakes: &mut [Fake]) {
        terminator.pass(
            &mut fakes
                .iter_mut()
                .map(|fake| fake as &mut dyn Terminate)
                .collect::<Vec<_>>(),
            None,
        );
    }

    #[test]
    fn one_scan_serves_all_that_end_at_once() {
        let scans = Arc::<AtomicU64>::default();
        let mut terminator = Terminator::counted_by(scans.clone());
        let below = Needs {
            kill: Some(Kill::Tree),
            ..Needs::default()
        };
        let mut fakes: Vec<Fake> = (0..1000)
            .map(|_| Fake {
                needs: below,
                ..Fake::default()
            })
            .collect();

        pass(&mut terminator, &mut fakes);
        assert!(fakes.iter().all(|fake| fake.killed == 1));
        assert_eq!(scans.load(Ordering::Relaxed), 1);

        let now = Instant::now();
        fakes.iter_mut().for_each(|fake| {
            fake.needs = Needs {
                marks_since: Some(now),
                ..Needs::default()
            }
        });
        pass(&mut terminator, &mut fakes);
        assert!(fakes.iter().all(|fake| fake.scanned == 1));
        assert_eq!((scans.load(Ordering::Relaxed), terminator.due), (2, None));
    }

    #[test]
    fn known_processes_are_killed_without_a_scan() {
        let scans = Arc::<AtomicU64>::default();
        let mut terminator = Terminator::counted_by(scans.clone());
        let mut fakes = [Fake {
            needs: Needs {
                kill: Some(Kill::Known),
                ..Needs::default()
            },
            ..Fake::default()
        }];

        pass(&mut terminator, &mut fakes);

        assert_eq!((fakes[0].killed, scans.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn strays_are_searched_for_when_no_group_is_dying_or_one_takes_long() {
        let scans = Arc::<AtomicU64>::default();
        let mut terminator = Terminator::counted_by(scans.clone());
        let dying = Needs {
            kill: Some(Kill::Known),
            ..Needs::default()
        };
        let mut fakes = [
            Fake {
                needs: dying,
                ..Fake::default()
            },
            Fake::default(),
        ];
        let now = Instant::now();

        fakes[1].needs.marks_since = Some(now);
        pass(&mut terminator, &mut fakes);
        assert_eq!(
            (fakes[1].scanned, terminator.due),
            (0, Some(now + LEADER_GRACE))
        );

        fakes[1].needs.marks_since = now.checked_sub(LEADER_GRACE);
        pass(&mut terminator, &mut fakes);
        assert_eq!((fakes[1].scanned, scans.load(Ordering::Relaxed)), (1, 1));

        // A scan takes processor time from ending processes, so the next one waits.
        fakes[0].needs.dying = false;
        fakes[1].needs.marks_since = Some(Instant::now());
        terminator.not_before = Some(now + Duration::from_secs(1000));
        pass(&mut terminator, &mut fakes);
        assert_eq!(
            (fakes[1].scanned, terminator.due),
            (1, Some(now + Duration::from_secs(1000)))
        );
    }
}
