//! A writer's queue: one line for each tenant, served round-robin. Pushing never blocks; the
//! writer waits, as a thread ([`Queue::next`]) or as a task ([`Queue::next_async`]). Waiting appends
//! of one conversation are joined into one, since each costs a savepoint and an update of the head
//! row, and a commit takes a limited number of members.

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
use tokio::sync::Notify;

use super::{
    ERASURES_WAITING, TENANT_ERASURES_WAITING,
    job::{Change, Job},
};

/// Most members of a commit, so that the callers of the first do not wait for thousands of others.
const COMMIT_JOBS_MAX: usize = 256;
/// Most bytes of a commit, for the same reason.
const COMMIT_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of a joined append, so that it does not fill a commit alone.
const JOINED_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a job from which its commit takes long: an imported history, a fork, a large snapshot.
const LARGE_BYTES: usize = 256 * 1024;
/// Pause before the next such job while other tenants have work, as a multiple of what its commit
/// took, and the longest one: a change of a conversation takes several commits, and would wait for
/// one of a flood before each of them.
const LARGE_PAUSE: u32 = 2;
const LARGE_PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long ago a tenant may have had its last job to count as one that has work.
const RECENT: Duration = Duration::from_secs(1);
/// Snapshots may take one part in this many of the queue's bytes, beside what appends may take: a
/// thousand conversations that fall asleep together must not get live appends refused.
const CACHE_SHARE: usize = 8;
/// Why a job is refused that comes back after all were.
const ABANDONED: &str = "the store was closed before this was written";
/// How long appends that no caller awaits may wait for other work, to share its commit.
const GROUPING_DELAY: Duration = Duration::from_millis(5);

/// The waiting jobs of all tenants.
#[derive(Debug)]
pub(in crate::storage) struct Queue {
    lines: Mutex<Lines>,
    /// Rings for a writer that is a thread.
    bell: Condvar,
    /// Rings for a writer that is a task.
    task_bell: Notify,
    bytes_max: usize,
}

/// What a writer does next.
enum Next {
    /// Nothing comes any more.
    End,
    /// It waits for a job.
    Idle,
    /// It waits this long at most for jobs that share the commit.
    Group(Duration),
    Commit(Vec<Job>),
}

#[derive(Debug, Default)]
struct Lines {
    tenants: HashMap<TenantId, Line>,
    /// Tenants with waiting jobs, each once, in the order of service.
    turn: VecDeque<TenantId>,
    bytes: usize,
    /// Bytes of snapshots; `bytes` does not include them, and neither does that of a line.
    cache_bytes: usize,
    count: usize,
    awaited: usize,
    erasures: usize,
    /// When the oldest waiting job arrived.
    since: Option<Instant>,
    /// When a commit with a large job was given out, and when the next such job may be.
    large_begun: Option<Instant>,
    large_due: Option<Instant>,
    /// The two tenants whose jobs came last, and when.
    recent: [Option<(TenantId, Instant)>; 2],
    is_closed: bool,
    /// Whether waiting jobs are refused, also those that a writer puts back.
    is_abandoned: bool,
}

#[derive(Debug, Default)]
struct Line {
    jobs: VecDeque<Job>,
    bytes: usize,
    erasures: usize,
    /// Number of jobs that have left the line, less those that were put back; jobs are numbered,
    /// and this is the first one's number. It wraps.
    left: u64,
    /// For each conversation, the number of the append that its next append may be joined to.
    open: HashMap<ConversationId, u64>,
}

/// Whether a job may wait in the queue.
enum Admission {
    Granted,
    /// It may be lost, and is: finished without being done.
    Skipped,
    Refused(&'static str),
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
            #[cfg(feature = "sqlite")]
            job @ Job::Outbox(..) => {
                self.push(job);
                Put {
                    bytes,
                    members: 1,
                    awaited,
                }
            }
            job @ (Job::Delete(..)
            | Job::Clear(..)
            | Job::Snapshot(..)
            | Job::Mark(..)
            | Job::Erase(..)
            | Job::Empty(..)
            | Job::Cut(..)
            | Job::Count(..)
            | Job::Spend(..)
            | Job::Release(_)) => {
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
        let place = usize::try_from(number.wrapping_sub(self.left)).ok()?;
        match self.jobs.get_mut(place)? {
            Job::Append(append) if goes_on(append, next) => Some(append),
            Job::Append(_)
            | Job::Delete(..)
            | Job::Clear(..)
            | Job::Snapshot(..)
            | Job::Mark(..)
            | Job::Erase(..)
            | Job::Empty(..)
            | Job::Cut(..)
            | Job::Count(..)
            | Job::Spend(..)
            | Job::Release(_) => None,
            #[cfg(feature = "sqlite")]
            Job::Outbox(..) => None,
        }
    }

    fn push(&mut self, job: Job) {
        let number = self.left.wrapping_add(self.jobs.len() as u64);
        match &job {
            Job::Append(append) => {
                let _ = self.open.insert(append.scope.conversation.clone(), number);
            }
            // Later appends must not move ahead of this job.
            Job::Delete(scope, _)
            | Job::Snapshot(scope, ..)
            | Job::Mark(scope, ..)
            | Job::Empty(scope, ..)
            | Job::Cut(scope, ..)
            | Job::Release(scope) => {
                let _ = self.open.remove(&scope.conversation);
            }
            Job::Erase(..) | Job::Count(..) => self.open.clear(),
            Job::Clear(..) => {} // What it removes belongs to no conversation any more.
            Job::Spend(..) => {} // It and the appends change different rows.
            #[cfg(feature = "sqlite")]
            Job::Outbox(..) => {} // As above.
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
        self.left = self.left.wrapping_add(1);
        Some(job)
    }

    /// Puts a job back in front of the line. No later append is joined to it.
    fn put_back(&mut self, job: Job) {
        self.left = self.left.wrapping_sub(1);
        self.jobs.push_front(job);
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
        messages,
        durability,
        done,
        ..
    } = next;
    append.entries.extend(entries);
    append.messages.extend(messages);
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
    fn admit(&self, job: &Job, bytes_max: usize) -> Admission {
        let held = self.tenants.get(job.tenant()).map_or(0, |line| line.bytes);
        let is_over = |held: usize, max: usize| held > 0 && held.saturating_add(job.size()) > max;
        if self.is_closed {
            return Admission::Refused("the store is closed");
        }
        if job.is_cache() {
            return match is_over(self.cache_bytes, bytes_max / CACHE_SHARE) {
                true => Admission::Skipped,
                false => Admission::Granted,
            };
        }
        if is_over(self.bytes, bytes_max) || is_over(held, bytes_max / 2) {
            // One tenant may use half, so that a flood from one leaves room for the others.
            return Admission::Refused("too many bytes are waiting for the store");
        }
        if job.is_erasure() {
            let held = self
                .tenants
                .get(job.tenant())
                .map_or(0, |line| line.erasures);
            if self.erasures >= ERASURES_WAITING {
                return Admission::Refused("too many deletions are waiting for the store");
            }
            if held >= TENANT_ERASURES_WAITING {
                return Admission::Refused(
                    "too many deletions of this tenant are waiting for the store",
                );
            }
        }
        Admission::Granted
    }

    fn put(&mut self, job: Job) {
        self.put_by(job, Line::put);
    }

    /// Puts a job back in front of its tenant's line.
    fn put_back(&mut self, job: Job) {
        self.put_by(job, |line, job| {
            let put = Put {
                bytes: job.size(),
                members: 1,
                awaited: usize::from(job.is_awaited()),
            };
            line.put_back(job);
            put
        });
    }

    fn put_by(&mut self, job: Job, put: impl FnOnce(&mut Line, Job) -> Put) {
        self.since.get_or_insert_with(Instant::now);
        self.note_recent(job.tenant());
        let is_cache = job.is_cache();
        let erasures = usize::from(job.is_erasure());
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
        } = put(line, job);
        line.erasures += erasures;
        self.erasures += erasures;
        match is_cache {
            true => self.cache_bytes = self.cache_bytes.saturating_add(bytes),
            false => {
                line.bytes = line.bytes.saturating_add(bytes);
                self.bytes = self.bytes.saturating_add(bytes);
            }
        }
        self.count += members;
        self.awaited += awaited;
    }

    fn note_recent(&mut self, tenant: &TenantId) {
        let [last, before] = &mut self.recent;
        if last.as_ref().is_none_or(|(of, _)| of != tenant) {
            std::mem::swap(last, before);
        }
        *last = Some((tenant.clone(), Instant::now()));
    }

    /// Lets those go first in turn whose next job may be taken now. Returns how long to wait if there
    /// is none.
    fn pass_large(&mut self, now: Instant) -> Option<Duration> {
        let due = self.large_due.filter(|due| *due > now && !self.is_closed)?;
        for _ in 0..self.turn.len() {
            let tenant = self.turn.front()?;
            let next = self.tenants.get(tenant)?.jobs.front()?;
            let mut recent = self.recent.iter().flatten();
            let is_alone =
                recent.all(|(of, at)| of == tenant || now.saturating_duration_since(*at) > RECENT);
            if next.size() <= LARGE_BYTES || is_alone {
                return None;
            }
            self.turn.rotate_left(1);
        }
        Some(due - now)
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
        match job.is_cache() {
            true => self.cache_bytes = self.cache_bytes.saturating_sub(size),
            false => {
                line.bytes = line.bytes.saturating_sub(size);
                self.bytes = self.bytes.saturating_sub(size);
            }
        }
        let erasures = usize::from(job.is_erasure());
        line.erasures = line.erasures.saturating_sub(erasures);
        self.erasures = self.erasures.saturating_sub(erasures);
        if let Some(tenant) = self.turn.pop_front() {
            if line.jobs.is_empty() {
                self.tenants.remove(&tenant);
            } else {
                self.turn.push_back(tenant);
            }
        }
        self.count -= 1;
        self.awaited -= usize::from(job.is_awaited());
        if self.count == 0 {
            self.since = None;
        }
        Some(job)
    }

    /// Takes the members of the next commit, if it is time for one. There are two waits: for a first
    /// job, then for others to share its commit; the second is skipped as soon as any waiting job has
    /// a caller that awaits it.
    fn next(&mut self, now: Instant) -> Next {
        if let Some(begun) = self.large_begun.take() {
            let took = now.saturating_duration_since(begun);
            self.large_due = Some(now + (took * LARGE_PAUSE).min(LARGE_PAUSE_MAX));
        }
        if self.count == 0 {
            return match self.is_closed {
                true => Next::End,
                false => Next::Idle,
            };
        }
        if let Some(wait) = self.grouping_delay() {
            return Next::Group(wait);
        }
        let mut jobs = Vec::with_capacity(self.count.min(COMMIT_JOBS_MAX));
        let mut bytes = 0;
        let mut wait = None;
        while jobs.len() < COMMIT_JOBS_MAX {
            wait = self.pass_large(now);
            if wait.is_some() {
                break;
            }
            // The first member is taken whatever its size.
            let room = if jobs.is_empty() {
                None
            } else {
                Some(COMMIT_BYTES_MAX.saturating_sub(bytes))
            };
            let Some(job) = self.take(room) else { break };
            bytes += job.size();
            if job.size() > LARGE_BYTES {
                self.large_begun = Some(now);
            }
            jobs.push(job);
        }
        match wait {
            Some(wait) if jobs.is_empty() => Next::Group(wait),
            _ => Next::Commit(jobs),
        }
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
    pub(in crate::storage) fn new(bytes_max: usize) -> Self {
        Self {
            lines: Mutex::default(),
            bell: Condvar::new(),
            task_bell: Notify::new(),
            bytes_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }

    /// Queues a job. If the queue is full or closed, refuses it at once, on the caller's thread.
    pub(in crate::storage) fn push(&self, job: Job) {
        let mut lines = self.lock();
        match lines.admit(&job, self.bytes_max) {
            Admission::Granted => {
                lines.put(job);
                drop(lines);
                self.bell.notify_one();
                self.task_bell.notify_one();
            }
            Admission::Skipped => {
                drop(lines);
                job.finish(Ok(Change::default()));
            }
            Admission::Refused(why) => {
                let is_closed = lines.is_closed;
                drop(lines);
                if is_closed {
                    job.refuse(why);
                } else {
                    job.refuse_overload(why);
                }
            }
        }
    }

    /// Takes back members of a commit that were not done, or not whole, in the order in which they
    /// were given out. They are the next ones of their tenants.
    pub(in crate::storage) fn put_back(&self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let mut lines = self.lock();
        if lines.is_abandoned {
            drop(lines);
            jobs.into_iter().for_each(|job| job.refuse(ABANDONED));
            return;
        }
        jobs.into_iter().rev().for_each(|job| lines.put_back(job));
    }

    /// Waits for the members of the next commit; `None` once closed and empty. Returns none of them
    /// after `idle` without a job.
    #[cfg(feature = "sqlite")]
    pub(in crate::storage) fn next(&self, idle: Duration) -> Option<Vec<Job>> {
        let mut lines = self.lock();
        loop {
            match lines.next(Instant::now()) {
                Next::End => return None,
                Next::Commit(jobs) => return Some(jobs),
                Next::Group(wait) => {
                    self.bell.wait_for(&mut lines, wait);
                }
                Next::Idle => {
                    if self.bell.wait_for(&mut lines, idle).timed_out() && lines.count == 0 {
                        return Some(Vec::new());
                    }
                }
            }
        }
    }

    /// Waits for the members of the next commit; `None` once closed and empty. For one task.
    ///
    /// # Cancel safety
    /// Nothing is taken out of the queue before the future is ready.
    #[cfg(feature = "postgres")]
    pub(in crate::storage) async fn next_async(&self) -> Option<Vec<Job>> {
        loop {
            let next = self.lock().next(Instant::now());
            match next {
                Next::End => return None,
                Next::Commit(jobs) => return Some(jobs),
                // A push between the look above and the wait has left a permit.
                Next::Idle => self.task_bell.notified().await,
                Next::Group(wait) => {
                    let _ = tokio::time::timeout(wait, self.task_bell.notified()).await;
                }
            }
        }
    }

    /// Accepts no further jobs; waiting ones are still written.
    pub(in crate::storage) fn close(&self) {
        self.lock().is_closed = true;
        self.ring_all();
    }

    fn ring_all(&self) {
        self.bell.notify_all();
        self.task_bell.notify_one();
    }

    /// Closes the queue and refuses all waiting jobs; returns their number.
    pub(in crate::storage) fn abandon(&self, why: &str) -> usize {
        let mut lines = self.lock();
        lines.is_closed = true;
        lines.is_abandoned = true;
        let left: Vec<Job> = std::iter::from_fn(|| lines.take(None)).collect();
        drop(lines);
        self.ring_all();
        let count = left.len();
        for job in left {
            job.refuse(why);
        }
        count
    }
}

#[cfg(test)]
mod tests;
