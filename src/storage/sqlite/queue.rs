//! The writer's queue: one line for each tenant, served round-robin. Pushing never blocks; the
//! writer does. Waiting appends of one conversation are joined into one, since each costs a
//! savepoint and an update of the head row, and a commit takes a limited number of members.

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::{Duration, Instant},
};

use callboard_actors::{
    ids::{ConversationId, TenantId},
    ports::{Append, AppendError, Durability},
};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::job::Job;

/// Most members of a commit, so that the callers of the first do not wait for thousands of others.
const COMMIT_JOBS_MAX: usize = 256;
/// Most bytes of a commit, for the same reason.
const COMMIT_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of a joined append, so that it does not fill a commit alone.
const JOINED_BYTES_MAX: usize = 64 * 1024;
/// How long appends that no caller awaits may wait for other work, to share its commit.
const GROUPING_DELAY: Duration = Duration::from_millis(5);

/// The waiting jobs of all tenants.
#[derive(Debug)]
pub(super) struct Queue {
    lines: Mutex<Lines>,
    bell: Condvar,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Lines {
    tenants: HashMap<TenantId, Line>,
    /// Tenants with waiting jobs, each once, in the order of service.
    turn: VecDeque<TenantId>,
    bytes: usize,
    count: usize,
    awaited: usize,
    /// When the oldest waiting job arrived.
    since: Option<Instant>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Line {
    jobs: VecDeque<Job>,
    bytes: usize,
    /// Number of jobs that have left the line; jobs are numbered, and this is the first one's
    /// number.
    left: u64,
    /// For each conversation, the number of the append that its next append may be joined to.
    open: HashMap<ConversationId, u64>,
}

/// How a pushed job changes the queue's counters.
struct Put {
    bytes: usize,
    members: usize,
    awaited: usize,
}

impl Line {
    /// Adds a job, joining it with a waiting append if possible.
    fn put(&mut self, job: Job) -> Put {
        let bytes = job.size();
        let awaited = usize::from(job.is_awaited());
        match job {
            Job::Append(next) => {
                let Some(append) = self.open_for(&next) else {
                    self.push(Job::Append(next));
                    return Put {
                        bytes,
                        members: 1,
                        awaited,
                    };
                };
                let before = append.size();
                let was_awaited = usize::from(append.durability == Durability::Awaited);
                join(append, next);
                Put {
                    bytes: append.size().saturating_sub(before),
                    members: 0,
                    awaited: awaited.saturating_sub(was_awaited),
                }
            }
            job @ (Job::Delete(..)
            | Job::Snapshot(..)
            | Job::Mark(..)
            | Job::Erase(..)
            | Job::Empty(..)
            | Job::Count(..)) => {
                self.push(job);
                Put {
                    bytes,
                    members: 1,
                    awaited,
                }
            }
        }
    }

    /// The waiting append that `next` can be joined to.
    fn open_for(&mut self, next: &Append) -> Option<&mut Append> {
        // Jobs are addressed by number, not by index: `left` is the number of the line's first job,
        // so entries of `open` stay valid while jobs ahead of them are popped.
        let number = self.open.get(&next.scope.conversation)?;
        let place = usize::try_from(number.checked_sub(self.left)?).ok()?;
        match self.jobs.get_mut(place)? {
            Job::Append(append) if goes_on(append, next) => Some(append),
            Job::Append(_)
            | Job::Delete(..)
            | Job::Snapshot(..)
            | Job::Mark(..)
            | Job::Erase(..)
            | Job::Empty(..)
            | Job::Count(..) => None,
        }
    }

    fn push(&mut self, job: Job) {
        let number = self.left.saturating_add(self.jobs.len() as u64);
        match &job {
            Job::Append(append) => {
                let _ = self.open.insert(append.scope.conversation.clone(), number);
            }
            // Later appends must not move ahead of this job.
            Job::Delete(scope, _)
            | Job::Snapshot(scope, ..)
            | Job::Mark(scope, ..)
            | Job::Empty(scope, ..) => {
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

/// Whether `next` directly continues `append` in the same epoch, and both together are small
/// enough. Joining is safe: if the first is refused, the second would be too, since its guard names
/// the end of the first.
fn goes_on(append: &Append, next: &Append) -> bool {
    let end = append.entries.last().map(|entry| entry.seq);
    let follows = append.epoch == next.epoch
        && next.expected.epoch == append.epoch
        && Some(next.expected.seq) == end;
    follows && append.size().saturating_add(next.size()) <= JOINED_BYTES_MAX
}

/// Joins two appends. Both callers receive the common result, in order.
fn join(append: &mut Append, next: Append) {
    let Append {
        entries,
        open,
        wake_at,
        durability,
        done,
        ..
    } = next;
    append.entries.extend(entries);
    (append.open, append.wake_at) = (open, wake_at);
    if durability == Durability::Awaited {
        append.durability = durability;
    }
    let first = std::mem::replace(&mut append.done, Box::new(drop));
    append.done = Box::new(move |result: Result<(), AppendError>| {
        let first_outcome = catch_unwind(AssertUnwindSafe(|| first(result.clone())));
        done(result);
        first_outcome.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

impl Lines {
    fn refusal(&self, job: &Job, bytes_max: usize) -> Option<&'static str> {
        let held = self.tenants.get(job.tenant()).map_or(0, |line| line.bytes);
        let is_over = |held: usize, max: usize| held > 0 && held.saturating_add(job.size()) > max;
        if self.is_closed {
            Some("the store is closed")
        } else if is_over(self.bytes, bytes_max) || is_over(held, bytes_max / 2) {
            // One tenant may use half, so that a flood from one leaves room for the others.
            Some("too many bytes are waiting for the disk")
        } else {
            None
        }
    }

    fn put(&mut self, job: Job) {
        self.since.get_or_insert_with(Instant::now);
        let line = self
            .tenants
            .entry(job.tenant().clone())
            .or_insert_with_key(|tenant| {
                self.turn.push_back(tenant.clone());
                Line::default()
            });
        let Put {
            bytes,
            members,
            awaited,
        } = line.put(job);
        line.bytes = line.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.count += members;
        self.awaited += awaited;
    }

    /// Takes the first job of the tenant next in turn; `None` if it does not fit into `room` bytes.
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

    /// How long the writer may still wait for jobs to share the commit; `None` if it must commit
    /// now.
    fn grouping_delay(&self) -> Option<Duration> {
        if self.is_closed
            || self.awaited > 0
            || self.count >= COMMIT_JOBS_MAX
            || self.bytes >= COMMIT_BYTES_MAX
        {
            return None;
        }
        GROUPING_DELAY
            .checked_sub(self.since?.elapsed())
            .filter(|wait| !wait.is_zero())
    }
}

impl Queue {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            lines: Mutex::default(),
            bell: Condvar::new(),
            bytes_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }

    /// Queues a job. If the queue is full or closed, refuses it at once, on the caller's thread.
    pub(super) fn push(&self, job: Job) {
        let mut lines = self.lock();
        let refusal = lines.refusal(&job, self.bytes_max);
        if let Some(why) = refusal {
            let is_closed = lines.is_closed;
            drop(lines);
            if is_closed {
                job.refuse(why);
            } else {
                job.refuse_overload(why);
            }
        } else {
            lines.put(job);
            drop(lines);
            self.bell.notify_one();
        }
    }

    /// Waits for the members of the next commit; `None` once closed and empty.
    pub(super) fn next(&self) -> Option<Vec<Job>> {
        // Two waits: for a first job, then for others to share its commit. The second one is
        // skipped as soon as any waiting job has a caller that awaits it.
        let mut lines = self.lock();
        loop {
            if lines.count == 0 {
                if lines.is_closed {
                    return None;
                }
                self.bell.wait(&mut lines);
            } else if let Some(wait) = lines.grouping_delay() {
                self.bell.wait_for(&mut lines, wait);
            } else {
                break;
            }
        }
        let mut jobs = Vec::with_capacity(lines.count.min(COMMIT_JOBS_MAX));
        let mut bytes = 0;
        while jobs.len() < COMMIT_JOBS_MAX {
            // The first member is taken whatever its size.
            let room = if jobs.is_empty() {
                None
            } else {
                Some(COMMIT_BYTES_MAX.saturating_sub(bytes))
            };
            let Some(job) = lines.take(room) else { break };
            bytes += job.size();
            jobs.push(job);
        }
        Some(jobs)
    }

    /// Accepts no further jobs; waiting ones are still written.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.bell.notify_all();
    }

    /// Closes the queue and refuses all waiting jobs; returns their number.
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

    use bytes::Bytes;
    use callboard_actors::{
        ids::{Epoch, Scope, Seq},
        journal::{Head, StoredEntry},
        stream::Open,
    };
    use tokio::sync::oneshot;

    use super::{super::job::Change, *};

    fn append(tenant: &str, seq: u64, bytes: usize, durability: Durability) -> Job {
        Job::Append(Append {
            scope: Scope::new(
                TenantId::new(tenant).unwrap(),
                ConversationId::new("c").unwrap(),
            ),
            expected: Head::default(),
            epoch: Epoch(1),
            entries: vec![StoredEntry {
                seq: Seq(seq),
                bytes: vec![0; bytes].into(),
            }],
            open: Open::None,
            wake_at: None,
            durability,
            done: Box::new(|_| {}),
        })
    }

    fn order(jobs: &[Job]) -> Vec<(String, u64)> {
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

        let first = order(&queue.next().unwrap());
        let second = order(&queue.next().unwrap());

        let place = |seq| {
            first
                .iter()
                .position(|job| *job == ("calm".to_owned(), seq))
        };
        assert_eq!((place(1), place(2)), (Some(1), Some(3)));
        assert_eq!(
            (first.len(), second.len()),
            (COMMIT_JOBS_MAX, 302 - COMMIT_JOBS_MAX)
        );
        let flood: Vec<u64> = first
            .iter()
            .chain(&second)
            .filter(|(tenant, _)| tenant == "flood")
            .map(|(_, seq)| *seq)
            .collect();
        assert_eq!(flood, (1..=300).collect::<Vec<_>>());
    }

    /// An append of the conversation `c` of tenant `t` after the entry `after`; `results` receives
    /// its outcome.
    fn behind(
        after: u64,
        count: u64,
        durability: Durability,
        results: &Arc<Mutex<Vec<u64>>>,
    ) -> Job {
        let Job::Append(mut job) = append("t", 0, 1, durability) else {
            unreachable!()
        };
        job.expected = if after == 0 {
            Head::default()
        } else {
            Head {
                epoch: Epoch(1),
                seq: Seq(after),
            }
        };
        job.entries = (1..=count)
            .map(|n| StoredEntry {
                seq: Seq(after + n),
                bytes: vec![0; 10].into(),
            })
            .collect();
        let results = results.clone();
        job.done = Box::new(move |result| {
            results
                .lock()
                .push(if result.is_ok() { after } else { 1000 + after })
        });
        Job::Append(job)
    }

    fn sizes(queue: &Queue) -> (usize, usize, usize) {
        let lines = queue.lock();
        (lines.count, lines.awaited, lines.bytes)
    }

    #[test]
    fn waiting_appends_of_a_conversation_are_joined_and_answered_in_order() {
        let queue = Queue::new(usize::MAX);
        let results = Arc::default();
        for (after, count, durability) in [
            (0, 2, Durability::Awaited),
            (2, 3, Durability::Deferred),
            (5, 1, Durability::Awaited),
        ] {
            queue.push(behind(after, count, durability, &results));
        }
        queue.push(behind(6, 1, Durability::Deferred, &results));
        assert_eq!((sizes(&queue).0, sizes(&queue).1), (1, 1));

        let jobs = queue.next().unwrap();

        assert_eq!((jobs.len(), sizes(&queue)), (1, (0, 0, 0)));
        let Job::Append(append) = &jobs[0] else {
            unreachable!()
        };
        assert_eq!(
            append
                .entries
                .iter()
                .map(|entry| entry.seq.0)
                .collect::<Vec<_>>(),
            (1..=7).collect::<Vec<_>>()
        );
        assert_eq!(
            (append.expected, append.check(Head::default()).unwrap().seq),
            (Head::default(), Seq(7))
        );
        jobs.into_iter().for_each(|job| {
            job.finish(Ok(Change {
                found: true,
                ..Change::default()
            }))
        });
        assert_eq!(*results.lock(), [0, 2, 5, 6]);
    }

    #[test]
    fn appends_are_not_joined_across_epochs_gaps_other_changes_or_size_limits() {
        let queue = Queue::new(usize::MAX);
        let results = Arc::default();
        let scope = || {
            Scope::new(
                TenantId::new("t").unwrap(),
                ConversationId::new("c").unwrap(),
            )
        };
        let in_line = |queue: &Queue| sizes(queue).0;

        queue.push(behind(0, 2, Durability::Awaited, &results));
        // Does not start where the first ends.
        queue.push(behind(3, 1, Durability::Awaited, &results));
        assert_eq!(in_line(&queue), 2);
        queue.next();
        // Its predecessor is already being written.
        queue.push(behind(4, 1, Durability::Awaited, &results));
        assert_eq!(in_line(&queue), 1);
        let Job::Append(mut other) = behind(5, 1, Durability::Awaited, &results) else {
            unreachable!()
        };
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
            queue.push(behind(0, 2, Durability::Awaited, &results));
            queue.push(change);
            queue.push(behind(2, 1, Durability::Awaited, &results));
            assert_eq!(queue.next().unwrap().len(), 3);
        }

        let Job::Append(mut large) = behind(0, 1, Durability::Awaited, &results) else {
            unreachable!()
        };
        large.entries[0].bytes = vec![0; JOINED_BYTES_MAX].into();
        queue.push(Job::Append(large));
        queue.push(behind(1, 1, Durability::Awaited, &results));
        assert_eq!(queue.next().unwrap().len(), 2);
    }

    #[test]
    fn an_append_joined_to_one_whose_callback_panics_is_still_answered() {
        let queue = Queue::new(usize::MAX);
        let results = Arc::default();
        let Job::Append(mut first) = behind(0, 1, Durability::Awaited, &results) else {
            unreachable!()
        };
        first.done = Box::new(|_| panic!("provoked by the test"));
        queue.push(Job::Append(first));
        queue.push(behind(1, 1, Durability::Awaited, &results));

        let job = queue.next().unwrap().pop().unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            job.finish(Ok(Change {
                found: true,
                ..Change::default()
            }))
        }))
        .is_err();

        assert!(panicked);
        assert_eq!(*results.lock(), [1]);
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
    fn an_unawaited_append_waits_at_most_five_milliseconds() {
        let queue = Queue::new(usize::MAX);

        let started = Instant::now();
        queue.push(append("t", 1, 1, Durability::Deferred));
        assert_eq!(queue.next().unwrap().len(), 1);
        assert!(started.elapsed() >= GROUPING_DELAY);

        queue.push(append("t", 2, 1, Durability::Deferred));
        queue.push(append("t", 3, 1, Durability::Awaited));
        assert_eq!(queue.lock().grouping_delay(), None, "an append is awaited");
        assert_eq!(queue.next().unwrap().len(), 2);
    }

    #[test]
    fn a_full_queue_refuses_at_once_and_a_flooding_tenant_leaves_room() {
        let queue = Queue::new(10_000);
        let push = |tenant: &str| {
            let (sender, mut receiver) = oneshot::channel();
            let Job::Append(mut job) = append(tenant, 1, 1000, Durability::Awaited) else {
                unreachable!()
            };
            job.done = Box::new(move |result| drop(sender.send(result)));
            queue.push(Job::Append(job));
            receiver.try_recv().ok()
        };

        let flood: Vec<_> = (0..10).map(|_| push("flood")).collect();

        assert!(flood[..3].iter().all(Option::is_none), "queued");
        assert!(
            matches!(
                flood.last(),
                Some(Some(Err(AppendError::Overloaded { .. })))
            ),
            "refused during the call"
        );
        assert_eq!(push("calm"), None);
        assert!(queue.lock().bytes <= 10_000);
    }
}
