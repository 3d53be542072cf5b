//! Ends what must end, all of it together: one look at `/proc` serves every process group that is being ended at the moment, so that a
//! thousand of them cost about as much as one. Kills what is known before it looks for what has strayed.
//!
//! A group ends in three steps: the group and all below its leader are killed · the leader is waited for · who still carries the group's
//! mark is killed, until nobody does.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::processes::{Marked, Processes, kill_marked};

/// How long the leader of a group may take to go before all is killed again and strays are sought without waiting for it. So long,
/// too, strays of those that have ended wait for others that are just going: what a look costs would keep these.
const PATIENCE: Duration = Duration::from_millis(100);

/// After a look for marks so many times its length must pass before the next: processes that go want the processor, too.
const PAUSE: u32 = 3;

/// What one that ends needs of the next pass.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wish {
    /// To be killed.
    pub(super) kill: Option<Kill>,
    /// To hear who carries its mark, since when.
    pub(super) hear: Option<Instant>,
    /// It was killed a moment ago and has not been waited for.
    pub(super) going: bool,
}

/// How one is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    /// By what is known of it.
    AsKnown,
    /// With all that lies below it.
    WithAllBelow,
}

/// One that may have to end.
pub(super) trait Ends {
    /// What it needs at `now`.
    fn wish(&self, now: Instant) -> Wish;

    /// Kills it. `all` is empty where it did not ask for what lies below.
    fn kill(&mut self, now: Instant, all: &Processes);

    /// Its mark.
    fn mark(&self) -> &str;

    /// Kills those that carry its mark.
    fn hear(&mut self, now: Instant, marked: &[i32]);
}

/// Makes the passes.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// Before this no marks are looked for.
    rested: Option<Instant>,
    /// When marks are to be looked for that could not be yet.
    pub(super) due: Option<Instant>,
    /// Looks at all processes so far.
    looks: Arc<AtomicU64>,
}

impl Together {
    pub(super) fn counted_by(looks: Arc<AtomicU64>) -> Self {
        Self { looks, ..Self::default() }
    }

    /// Ends all that wish it, as far as it goes without waiting. `seen` is a look that was made just now for another reason.
    pub(super) fn pass(&mut self, jobs: &mut [&mut dyn Ends], seen: Option<&Processes>) {
        let now = Instant::now();
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

/// How far the end of a marked process group has come.
#[derive(Debug)]
pub(super) struct Group {
    leader: i32,
    mark: String,
    /// When killing began, and when it is tried again.
    killing: Option<(Instant, Instant)>,
    /// When the leader had been waited for.
    ended: Option<Instant>,
    /// Nobody is left.
    gone: bool,
}

impl Group {
    pub(super) fn new(leader: i32, mark: String) -> Self {
        Self { leader, mark, killing: None, ended: None, gone: false }
    }

    /// It is to be killed with the next pass.
    pub(super) fn end(&mut self, now: Instant) {
        self.killing.get_or_insert((now, now));
    }

    /// Its leader has ended and was waited for: its number is nobody's now.
    pub(super) fn leader_ended(&mut self, now: Instant) {
        self.ended.get_or_insert(now);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// When killing began.
    pub(super) fn killed(&self) -> Option<Instant> {
        self.killing.map(|(since, _)| since)
    }

    /// When it must be killed again if nothing happens.
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
        self.end(now); // what a leader leaves behind ends with it
        marked.iter().filter(|pid| **pid != self.leader || self.ended.is_some()).for_each(|pid| kill_marked(*pid, &self.mark));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has nothing to do with any process.
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

        // A look takes its time from those that go: the next one waits.
        fakes[0].wish.going = false;
        fakes[1].wish.hear = Some(Instant::now());
        together.rested = Some(now + Duration::from_secs(1000));
        pass(&mut together, &mut fakes);
        assert_eq!((fakes[1].heard, together.due), (1, Some(now + Duration::from_secs(1000))));
    }
}
