//! What waits for the writer: a line a tenant, served in turn. Pushing never waits; the writer does. Appends of one conversation that
//! wait together become one: each costs a commit a savepoint and a row of heads, and a commit has places for so many.

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use callboard_actors::{
    ids::{ConversationId, Scope, Seq, TenantId},
    ports::{Append, AppendError, Durability, StoreError},
};
use tokio::sync::oneshot;

use super::{
    error::{WriteError, unavailable},
    write::Change,
};

/// Members of one commit at most: those who wait for the first must not wait for a thousand others.
const COMMIT_JOBS_MAX: usize = 256;
/// Bytes of one commit at most, for the same reason.
const COMMIT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of appends that became one at most: more would hold up what else is to be in its commit.
const JOINED_BYTES_MAX: usize = 64 * 1024;
/// How long what nobody waits for rides along.
const RIDE: Duration = Duration::from_millis(5);

/// Where an answer goes.
pub(super) type Tell<T> = oneshot::Sender<Result<T, StoreError>>;

/// One change of one conversation, or of all of a tenant. In a line with the appends, so that the order of calls holds for all of them.
#[derive(Debug)]
pub(super) enum Job {
    Append(Append),
    Delete(Scope, Tell<bool>),
    Snapshot(Scope, Seq, Bytes, Tell<()>),
    Mark(Scope, Option<String>, Tell<()>),
    /// All that is left of a tenant, under whatever id.
    Erase(TenantId, Tell<bool>),
    /// The bodies of all entries up to this one, and the snapshot of what they led to.
    Empty(Scope, Seq, Tell<()>),
    /// The bytes of a tenant; changes nothing.
    Count(TenantId, Tell<u64>),
}

impl Job {
    pub(super) fn tenant(&self) -> &TenantId {
        match self {
            Self::Append(append) => &append.scope.tenant,
            Self::Delete(scope, _) | Self::Snapshot(scope, ..) | Self::Mark(scope, ..) | Self::Empty(scope, ..) => &scope.tenant,
            Self::Erase(tenant, _) | Self::Count(tenant, _) => tenant,
        }
    }

    pub(super) fn size(&self) -> usize {
        match self {
            Self::Append(append) => append.size(),
            Self::Snapshot(_, _, bytes, _) => bytes.len().saturating_add(256),
            Self::Delete(..) | Self::Mark(..) | Self::Erase(..) | Self::Empty(..) | Self::Count(..) => 256,
        }
    }

    fn is_awaited(&self) -> bool {
        match self {
            Self::Append(append) => append.durability == Durability::Awaited,
            Self::Delete(..) | Self::Mark(..) | Self::Erase(..) | Self::Empty(..) | Self::Count(..) => true,
            Self::Snapshot(..) => false,
        }
    }

    /// Whether it takes something out of the file, which then is still in the log.
    pub(super) fn is_erasure(&self) -> bool {
        match self {
            Self::Delete(..) | Self::Erase(..) | Self::Empty(..) => true,
            Self::Append(_) | Self::Snapshot(..) | Self::Mark(..) | Self::Count(..) => false,
        }
    }

    /// Reports what became of it.
    pub(super) fn tell(self, result: Result<Change, WriteError>) {
        match self {
            Self::Append(append) => (append.done)(result.map(drop).map_err(AppendError::from)),
            Self::Delete(_, tell) | Self::Erase(_, tell) => drop(tell.send(result.map(|change| change.found).map_err(StoreError::from))),
            Self::Snapshot(_, _, _, tell) | Self::Mark(_, _, tell) | Self::Empty(_, _, tell) => {
                drop(tell.send(result.map(drop).map_err(StoreError::from)));
            }
            Self::Count(_, tell) => drop(tell.send(result.map(|change| change.counted.unwrap_or_default()).map_err(StoreError::from))),
        }
    }

    pub(super) fn refuse(self, why: &str) {
        match self {
            Self::Append(append) => (append.done)(Err(AppendError::Unavailable { message: why.into() })),
            Self::Delete(_, tell) | Self::Erase(_, tell) => drop(tell.send(Err(unavailable(why)))),
            Self::Snapshot(_, _, _, tell) | Self::Mark(_, _, tell) | Self::Empty(_, _, tell) => drop(tell.send(Err(unavailable(why)))),
            Self::Count(_, tell) => drop(tell.send(Err(unavailable(why)))),
        }
    }
}

/// The lines of all tenants.
#[derive(Debug)]
pub(super) struct Queue {
    lines: Mutex<Lines>,
    bell: Condvar,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Lines {
    tenants: HashMap<TenantId, Line>,
    /// The tenants that have something, each once, in the order they are served.
    turn: VecDeque<TenantId>,
    bytes: usize,
    count: usize,
    awaited: usize,
    /// Since when something waits.
    since: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Line {
    jobs: VecDeque<Job>,
    bytes: usize,
    /// Jobs that have left it: the number of the first one that is here.
    left: u64,
    /// Numbers of the appends that the next one of their conversation may be joined to.
    open: HashMap<ConversationId, u64>,
}

/// What a job adds to what waits.
struct Put {
    bytes: usize,
    members: usize,
    awaited: usize,
}

impl Line {
    /// Takes a job, joined to one that waits where that can be.
    fn put(&mut self, job: Job) -> Put {
        let (bytes, awaited) = (job.size(), usize::from(job.is_awaited()));
        match job {
            Job::Append(next) => {
                let Some(append) = self.open_for(&next) else {
                    self.push(Job::Append(next));
                    return Put { bytes, members: 1, awaited };
                };
                let (before, was_awaited) = (append.size(), usize::from(append.durability == Durability::Awaited));
                join(append, next);
                Put { bytes: append.size().saturating_sub(before), members: 0, awaited: awaited.saturating_sub(was_awaited) }
            }
            job @ (Job::Delete(..) | Job::Snapshot(..) | Job::Mark(..) | Job::Erase(..) | Job::Empty(..) | Job::Count(..)) => {
                self.push(job);
                Put { bytes, members: 1, awaited }
            }
        }
    }

    /// The append that this one can be joined to.
    fn open_for(&mut self, next: &Append) -> Option<&mut Append> {
        let number = self.open.get(&next.scope.conversation)?;
        let place = usize::try_from(number.checked_sub(self.left)?).ok()?;
        match self.jobs.get_mut(place)? {
            Job::Append(append) if goes_on(append, next) => Some(append),
            Job::Append(_) | Job::Delete(..) | Job::Snapshot(..) | Job::Mark(..) | Job::Erase(..) | Job::Empty(..) | Job::Count(..) => None,
        }
    }

    fn push(&mut self, job: Job) {
        let number = self.left.saturating_add(self.jobs.len() as u64);
        match &job {
            Job::Append(append) => drop(self.open.insert(append.scope.conversation.clone(), number)),
            // What comes behind it stays behind it.
            Job::Delete(scope, _) | Job::Snapshot(scope, ..) | Job::Mark(scope, ..) | Job::Empty(scope, ..) => {
                let _ = self.open.remove(&scope.conversation);
            }
            Job::Erase(..) | Job::Count(..) => self.open.clear(),
        }
        self.jobs.push_back(job);
    }

    fn pop(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        if let Job::Append(append) = &job
            && self.open.get(&append.scope.conversation) == Some(&self.left)
        {
            self.open.remove(&append.scope.conversation);
        }
        self.left += 1;
        Some(job)
    }
}

/// Whether `next` is the same life going on right behind `append`, and both together are no large append. If the first is not stored
/// the second could not be either: its guard names the first one's end.
fn goes_on(append: &Append, next: &Append) -> bool {
    let end = append.entries.last().map(|entry| entry.seq);
    let follows = append.epoch == next.epoch && next.expected.epoch == append.epoch && Some(next.expected.seq) == end;
    follows && append.size().saturating_add(next.size()) <= JOINED_BYTES_MAX
}

/// Makes two appends one. Who waits for either is told what became of both, in their order.
fn join(append: &mut Append, next: Append) {
    let Append { entries, open, wake_at, durability, done, .. } = next;
    append.entries.extend(entries);
    (append.open, append.wake_at) = (open, wake_at);
    if durability == Durability::Awaited {
        append.durability = durability;
    }
    let first = std::mem::replace(&mut append.done, Box::new(drop));
    append.done = Box::new(move |result: Result<(), AppendError>| {
        let told = catch_unwind(AssertUnwindSafe(|| first(result.clone())));
        done(result);
        told.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

impl Lines {
    fn why_not(&self, job: &Job, bytes_max: usize) -> Option<&'static str> {
        let held = self.tenants.get(job.tenant()).map_or(0, |line| line.bytes);
        let is_over = |held: usize, max: usize| held > 0 && held.saturating_add(job.size()) > max;
        if self.is_closed {
            Some("the store is closed")
        } else if is_over(self.bytes, bytes_max) || is_over(held, bytes_max / 2) {
            // Half for one tenant: one that floods the store leaves room for the others.
            Some("too much waits for the disk")
        } else {
            None
        }
    }

    fn put(&mut self, job: Job) {
        self.since.get_or_insert_with(Instant::now);
        let line = self.tenants.entry(job.tenant().clone()).or_insert_with_key(|tenant| {
            self.turn.push_back(tenant.clone());
            Line::default()
        });
        let Put { bytes, members, awaited } = line.put(job);
        line.bytes = line.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.count += members;
        self.awaited += awaited;
    }

    /// Takes the first of the tenant whose turn it is, if it has room in a commit of `room` bytes.
    fn take(&mut self, room: Option<usize>) -> Option<Job> {
        let tenant = self.turn.front()?;
        let line = self.tenants.get_mut(tenant)?;
        let size = line.jobs.front()?.size();
        if room.is_some_and(|room| size > room) {
            return None;
        }
        let job = line.pop()?;
        line.bytes = line.bytes.saturating_sub(size);
        if let Some(tenant) = self.turn.pop_front() {
            if line.jobs.is_empty() {
                self.tenants.remove(&tenant);
            } else {
                self.turn.push_back(tenant);
            }
        }
        self.bytes = self.bytes.saturating_sub(size);
        self.count -= 1;
        self.awaited -= usize::from(job.is_awaited());
        if self.count == 0 {
            self.since = None;
        }
        Some(job)
    }

    /// How long the writer may still wait for company.
    fn patience(&self) -> Option<Duration> {
        if self.is_closed || self.awaited > 0 || self.count >= COMMIT_JOBS_MAX || self.bytes >= COMMIT_BYTES_MAX {
            return None;
        }
        RIDE.checked_sub(self.since?.elapsed()).filter(|wait| !wait.is_zero())
    }
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { lines: Mutex::default(), bell: Condvar::new(), bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a job in line, or refuses it at once, in the caller.
    pub(super) fn push(&self, job: Job) {
        let mut lines = self.lock();
        let why_not = lines.why_not(&job, self.bytes_max);
        if let Some(why) = why_not {
            drop(lines);
            job.refuse(why);
        } else {
            lines.put(job);
            drop(lines);
            self.bell.notify_one();
        }
    }

    /// Waits for the members of the next commit; `None` once closed and empty.
    pub(super) fn next(&self) -> Option<Vec<Job>> {
        let mut lines = self.lock();
        loop {
            if lines.count == 0 {
                if lines.is_closed {
                    return None;
                }
                lines = self.bell.wait(lines).unwrap_or_else(PoisonError::into_inner);
            } else if let Some(wait) = lines.patience() {
                lines = self.bell.wait_timeout(lines, wait).unwrap_or_else(PoisonError::into_inner).0;
            } else {
                break;
            }
        }
        let (mut jobs, mut bytes) = (Vec::with_capacity(lines.count.min(COMMIT_JOBS_MAX)), 0);
        while jobs.len() < COMMIT_JOBS_MAX {
            // The first goes whatever its size.
            let room = if jobs.is_empty() { None } else { Some(COMMIT_BYTES_MAX.saturating_sub(bytes)) };
            let Some(job) = lines.take(room) else { break };
            bytes += job.size();
            jobs.push(job);
        }
        Some(jobs)
    }

    /// Takes nothing more; what is in line is still written.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.bell.notify_all();
    }

    /// Closes and refuses what is in line; tells how much that was.
    pub(super) fn abandon(&self, why: &str) -> usize {
        let mut lines = self.lock();
        lines.is_closed = true;
        let left: Vec<Job> = std::iter::from_fn(|| lines.take(None)).collect();
        drop(lines);
        self.bell.notify_all();
        let count = left.len();
        for job in left {
            job.refuse(why);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use callboard_actors::{
        ids::{ConversationId, Epoch},
        journal::{Head, StoredEntry},
        stream::Open,
    };

    use super::*;

    fn append(tenant: &str, seq: u64, bytes: usize, durability: Durability) -> Job {
        Job::Append(Append {
            scope: Scope::new(TenantId::new(tenant).unwrap(), ConversationId::new("c").unwrap()),
            expected: Head::default(),
            epoch: Epoch(1),
            entries: vec![StoredEntry { seq: Seq(seq), bytes: vec![0; bytes].into() }],
            open: Open::None,
            wake_at: None,
            durability,
            done: Box::new(|_| {}),
        })
    }

    fn told(jobs: &[Job]) -> Vec<(String, u64)> {
        let one = |job: &Job| match job {
            Job::Append(append) => (append.scope.tenant.to_string(), append.entries[0].seq.0),
            _ => unreachable!(),
        };
        jobs.iter().map(one).collect()
    }

    #[test]
    fn tenants_are_served_in_turn_and_each_in_its_order() {
        let queue = Queue::new(usize::MAX);
        for seq in 1..=300 {
            queue.push(append("flood", seq, 1, Durability::Awaited));
        }
        for seq in 1..=2 {
            queue.push(append("calm", seq, 1, Durability::Awaited));
        }

        let first = told(&queue.next().unwrap());
        let second = told(&queue.next().unwrap());

        let place = |seq| first.iter().position(|told| *told == ("calm".to_owned(), seq));
        assert_eq!((place(1), place(2)), (Some(1), Some(3)));
        assert_eq!((first.len(), second.len()), (COMMIT_JOBS_MAX, 302 - COMMIT_JOBS_MAX));
        let flood: Vec<u64> = first.iter().chain(&second).filter(|(tenant, _)| tenant == "flood").map(|(_, seq)| *seq).collect();
        assert_eq!(flood, (1..=300).collect::<Vec<_>>());
    }

    /// An append of the conversation `c` of the tenant `t` behind the entry `after`, and where it is told.
    fn behind(after: u64, count: u64, durability: Durability, told: &Arc<Mutex<Vec<u64>>>) -> Job {
        let Job::Append(mut job) = append("t", 0, 1, durability) else { unreachable!() };
        job.expected = if after == 0 { Head::default() } else { Head { epoch: Epoch(1), seq: Seq(after) } };
        job.entries = (1..=count).map(|n| StoredEntry { seq: Seq(after + n), bytes: vec![0; 10].into() }).collect();
        let told = told.clone();
        job.done = Box::new(move |result| told.lock().unwrap().push(if result.is_ok() { after } else { 1000 + after }));
        Job::Append(job)
    }

    fn sizes(queue: &Queue) -> (usize, usize, usize) {
        let lines = queue.lock();
        (lines.count, lines.awaited, lines.bytes)
    }

    #[test]
    fn appends_of_a_conversation_that_wait_together_are_one_and_all_are_told_in_order() {
        let (queue, told) = (Queue::new(usize::MAX), Arc::default());
        for (after, count, durability) in [(0, 2, Durability::Awaited), (2, 3, Durability::Unwatched), (5, 1, Durability::Awaited)] {
            queue.push(behind(after, count, durability, &told));
        }
        queue.push(behind(6, 1, Durability::Unwatched, &told));
        assert_eq!((sizes(&queue).0, sizes(&queue).1), (1, 1));

        let jobs = queue.next().unwrap();

        assert_eq!((jobs.len(), sizes(&queue)), (1, (0, 0, 0)));
        let Job::Append(append) = &jobs[0] else { unreachable!() };
        assert_eq!(append.entries.iter().map(|entry| entry.seq.0).collect::<Vec<_>>(), (1..=7).collect::<Vec<_>>());
        assert_eq!((append.expected, append.judge(Head::default()).unwrap().seq), (Head::default(), Seq(7)));
        jobs.into_iter().for_each(|job| job.tell(Ok(Change { found: true, ..Change::default() })));
        assert_eq!(*told.lock().unwrap(), [0, 2, 5, 6]);
    }

    #[test]
    fn appends_are_joined_to_none_that_is_another_lifes_or_gone_or_large_or_before_another_change() {
        let (queue, told) = (Queue::new(usize::MAX), Arc::default());
        let scope = || Scope::new(TenantId::new("t").unwrap(), ConversationId::new("c").unwrap());
        let in_line = |queue: &Queue| sizes(queue).0;

        queue.push(behind(0, 2, Durability::Awaited, &told));
        queue.push(behind(3, 1, Durability::Awaited, &told)); // Not where the first ends.
        assert_eq!(in_line(&queue), 2);
        queue.next();
        queue.push(behind(4, 1, Durability::Awaited, &told)); // What it would be joined to is being written.
        assert_eq!(in_line(&queue), 1);
        let Job::Append(mut other) = behind(5, 1, Durability::Awaited, &told) else { unreachable!() };
        other.epoch = Epoch(2);
        queue.push(Job::Append(other));
        assert_eq!(in_line(&queue), 2);
        queue.next();

        for change in [
            Job::Delete(scope(), oneshot::channel().0),
            Job::Snapshot(scope(), Seq(1), Bytes::new(), oneshot::channel().0),
            Job::Mark(scope(), None, oneshot::channel().0),
            Job::Erase(scope().tenant, oneshot::channel().0),
        ] {
            queue.push(behind(0, 2, Durability::Awaited, &told));
            queue.push(change);
            queue.push(behind(2, 1, Durability::Awaited, &told));
            assert_eq!(queue.next().unwrap().len(), 3);
        }

        let Job::Append(mut large) = behind(0, 1, Durability::Awaited, &told) else { unreachable!() };
        large.entries[0].bytes = vec![0; JOINED_BYTES_MAX].into();
        queue.push(Job::Append(large));
        queue.push(behind(1, 1, Durability::Awaited, &told));
        assert_eq!(queue.next().unwrap().len(), 2);
    }

    #[test]
    fn who_is_joined_to_one_whose_caller_panics_is_told_all_the_same() {
        let (queue, told) = (Queue::new(usize::MAX), Arc::default());
        let Job::Append(mut first) = behind(0, 1, Durability::Awaited, &told) else { unreachable!() };
        first.done = Box::new(|_| panic!("as the test wants it"));
        queue.push(Job::Append(first));
        queue.push(behind(1, 1, Durability::Awaited, &told));

        let job = queue.next().unwrap().pop().unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| job.tell(Ok(Change { found: true, ..Change::default() })))).is_err();

        assert!(panicked);
        assert_eq!(*told.lock().unwrap(), [1]);
    }

    #[test]
    fn a_commit_has_at_most_a_mebibyte_and_at_least_one_member() {
        let queue = Queue::new(usize::MAX);
        for (seq, bytes) in [(1, 3 << 20), (2, 600 << 10), (3, 600 << 10)] {
            queue.push(append("t", seq, bytes, Durability::Awaited));
        }

        let sizes: Vec<usize> = (0..3).map(|_| queue.next().unwrap().len()).collect();

        assert_eq!(sizes, [1, 1, 1]);
    }

    #[test]
    fn what_nobody_waits_for_rides_along_five_milliseconds_at_most() {
        let queue = Queue::new(usize::MAX);

        let started = Instant::now();
        queue.push(append("t", 1, 1, Durability::Unwatched));
        assert_eq!(queue.next().unwrap().len(), 1);
        assert!(started.elapsed() >= RIDE);

        queue.push(append("t", 2, 1, Durability::Unwatched));
        queue.push(append("t", 3, 1, Durability::Awaited));
        assert_eq!(queue.lock().patience(), None, "somebody waits");
        assert_eq!(queue.next().unwrap().len(), 2);
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_a_flooding_tenant_leaves_room() {
        let queue = Queue::new(10_000);
        let push = |tenant: &str| {
            let (tell, mut told) = oneshot::channel();
            let Job::Append(mut job) = append(tenant, 1, 1000, Durability::Awaited) else { unreachable!() };
            job.done = Box::new(move |result| drop(tell.send(result)));
            queue.push(Job::Append(job));
            told.try_recv().ok()
        };

        let flood: Vec<_> = (0..10).map(|_| push("flood")).collect();

        assert!(flood[..3].iter().all(Option::is_none), "in line");
        assert!(matches!(flood.last(), Some(Some(Err(AppendError::Unavailable { .. })))), "refused in the call");
        assert_eq!(push("calm"), None);
        assert!(queue.lock().bytes <= 10_000);
    }
}
