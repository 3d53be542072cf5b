//! A journal store with planned faults: the nth append or read fails in a chosen way, identically
//! in every run.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::{
    ids::{Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    policy::Amount,
    ports::{
        Append, AppendError, BoxFuture, ListQuery, Salvaged, SessionBackend, SessionSummary,
        StoreError,
    },
    stream::Open,
    time::Timestamp,
};

/// How one call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fails with `Unavailable`, and nothing is stored.
    Refused,
    /// Fails with `Unavailable`, although the entries are stored if the guards hold: an unknown
    /// outcome. A read is simply refused.
    Unknown,
    /// The call and all appends after it wait until [`FaultySessions::release`]; then they continue
    /// normally.
    Hang,
    /// The call takes this long (in `tokio::time`), and appends after it wait for it.
    Slow(Duration),
}

/// Which calls fail. Appends are counted from 1, and all other calls separately, also from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultPlan {
    appends: BTreeMap<u64, Fault>,
    reads: BTreeMap<u64, Fault>,
}

impl FaultPlan {
    /// A plan without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the nth append fail.
    #[must_use]
    pub fn append(mut self, nth: u64, fault: Fault) -> Self {
        self.appends.insert(nth, fault);
        self
    }

    /// Makes the nth of all other calls fail: heads, loads, entries, snapshots, deletes, lists and
    /// marks.
    #[must_use]
    pub fn read(mut self, nth: u64, fault: Fault) -> Self {
        self.reads.insert(nth, fault);
        self
    }
}

/// A store whose calls fail according to a [`FaultPlan`].
pub struct FaultySessions<S: SessionBackend + ?Sized>(Arc<Shared<S>>);

struct Shared<S: ?Sized> {
    plan: Mutex<FaultPlan>,
    line: Mutex<Line>,
    appends: AtomicU64,
    reads: AtomicU64,
    listed: AtomicU64,
    away: AtomicBool,
    read_only: AtomicBool,
    /// Number of releases so far.
    released: watch::Sender<u64>,
    inner: Arc<S>,
}

/// Appends in call order. One at a time passes to the inner store, so that a slow one delays those
/// behind it.
#[derive(Default)]
struct Line {
    waiting: VecDeque<(Append, Option<Fault>)>,
    hangs: Option<Append>,
    is_busy: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

const REFUSED: &str = "refused by the fault plan";

impl<S: SessionBackend + ?Sized> Shared<S> {
    /// Passes appends to the inner store until one hangs or is slow.
    fn pump(self: &Arc<Self>) {
        // `is_busy` marks the one append that is on its way. The lock of the line is released before
        // the inner store or a callback runs, since either may append again and take the lock.
        loop {
            let mut line = lock(&self.line);
            if line.is_busy {
                return;
            }
            let Some((mut append, fault)) = line.waiting.pop_front() else {
                return;
            };
            line.is_busy = true;
            match fault {
                Some(Fault::Hang) => {
                    line.hangs = Some(append);
                    return;
                }
                Some(Fault::Slow(wait)) => {
                    drop(line);
                    let shared = Arc::clone(self);
                    tokio::spawn(async move {
                        tokio::time::sleep(wait).await;
                        shared.pass(append);
                        shared.pump();
                    });
                    return;
                }
                Some(Fault::Refused) => {
                    drop(line);
                    (append.done)(Err(AppendError::Unavailable {
                        message: REFUSED.into(),
                    }));
                    lock(&self.line).is_busy = false;
                }
                Some(Fault::Unknown) => {
                    drop(line);
                    let done = append.done;
                    append.done = Box::new(move |_| {
                        done(Err(AppendError::Unavailable {
                            message: "no answer came".into(),
                        }))
                    });
                    self.pass(append);
                }
                None => {
                    drop(line);
                    self.pass(append);
                }
            }
        }
    }

    fn pass(&self, append: Append) {
        self.inner.append(append);
        lock(&self.line).is_busy = false;
    }
}

impl<S: SessionBackend + ?Sized> FaultySessions<S> {
    /// Wraps a store with a plan.
    pub fn new(inner: Arc<S>, plan: FaultPlan) -> Self {
        Self(Arc::new(Shared {
            plan: Mutex::new(plan),
            line: Mutex::default(),
            appends: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            away: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            released: watch::Sender::new(0),
            inner,
        }))
    }

    /// Replaces the plan and restarts both counts at 1.
    pub fn set_plan(&self, plan: FaultPlan) {
        *lock(&self.0.plan) = plan;
        self.0.appends.store(0, Ordering::SeqCst);
        self.0.reads.store(0, Ordering::SeqCst);
    }

    /// Makes the store unavailable, or available again. While it is unavailable, all calls without
    /// a planned fault are refused.
    pub fn set_away(&self, away: bool) {
        self.0.away.store(away, Ordering::SeqCst);
    }

    /// Refuses appends, or takes them again. Reads succeed all the time, as with a full disk.
    pub fn set_read_only(&self, read_only: bool) {
        self.0.read_only.store(read_only, Ordering::SeqCst);
    }

    /// Lets the hanging append and the hanging reads continue.
    pub fn release(&self) {
        self.0.released.send_modify(|count| *count += 1);
        let hung = lock(&self.0.line).hangs.take();
        if let Some(append) = hung {
            self.0.pass(append);
            self.0.pump();
        }
    }

    /// Number of appends so far.
    pub fn appends(&self) -> u64 {
        self.0.appends.load(Ordering::SeqCst)
    }

    /// Number of all other calls so far.
    pub fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::SeqCst)
    }

    /// Rows that lists of one tenant's conversations have returned.
    pub fn listed(&self) -> u64 {
        self.0.listed.load(Ordering::SeqCst)
    }

    /// Whether an append hangs.
    pub fn is_hanging(&self) -> bool {
        lock(&self.0.line).hangs.is_some()
    }

    /// The wrapped store.
    pub fn inner(&self) -> &Arc<S> {
        &self.0.inner
    }

    fn fault(
        &self,
        calls: &AtomicU64,
        plan: impl FnOnce(&FaultPlan) -> &BTreeMap<u64, Fault>,
    ) -> Option<Fault> {
        let nth = calls.fetch_add(1, Ordering::SeqCst) + 1;
        let planned = plan(&lock(&self.0.plan)).get(&nth).copied();
        planned.or_else(|| self.0.away.load(Ordering::SeqCst).then_some(Fault::Refused))
    }

    async fn read(&self) -> Result<(), StoreError> {
        let mut released = self.0.released.subscribe();
        match self.fault(&self.0.reads, |plan| &plan.reads) {
            Some(Fault::Refused | Fault::Unknown) => {
                return Err(StoreError::Unavailable {
                    message: REFUSED.into(),
                });
            }
            Some(Fault::Hang) => drop(released.changed().await),
            Some(Fault::Slow(wait)) => tokio::time::sleep(wait).await,
            None => {}
        }
        Ok(())
    }
}

impl<S: SessionBackend + ?Sized> Drop for FaultySessions<S> {
    fn drop(&mut self) {
        let mut line = lock(&self.0.line);
        let left: Vec<Append> = line
            .hangs
            .take()
            .into_iter()
            .chain(line.waiting.drain(..).map(|(append, _)| append))
            .collect();
        drop(line);
        for append in left {
            (append.done)(Err(AppendError::Unavailable {
                message: "the store went away".into(),
            }));
        }
    }
}

impl<S: SessionBackend + ?Sized> SessionBackend for FaultySessions<S> {
    fn append(&self, append: Append) {
        // Counted under the lock of the line, so that the nth append is also the nth in the line.
        let mut line = lock(&self.0.line);
        let fault = self
            .fault(&self.0.appends, |plan| &plan.appends)
            .or_else(|| {
                self.0
                    .read_only
                    .load(Ordering::SeqCst)
                    .then_some(Fault::Refused)
            });
        line.waiting.push_back((append, fault));
        drop(line);
        self.0.pump();
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.head(scope).await
        })
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.load(scope).await
        })
    }

    fn load_to_own<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.load_to_own(scope).await
        })
    }

    fn release(&self, scope: &Scope) {
        self.0.inner.release(scope);
    }

    fn is_sure_to_own(&self) -> bool {
        self.0.inner.is_sure_to_own()
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.entries(scope, after, count).await
        })
    }

    fn salvage<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<Salvaged>, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.salvage(scope, after, count).await
        })
    }

    fn cut<'a>(
        &'a self,
        scope: &'a Scope,
        to: Head,
        open: Open,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.cut(scope, to, open).await
        })
    }

    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        upto: Seq,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.snapshot(scope, upto, bytes).await
        })
    }

    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.delete(scope).await
        })
    }

    fn list<'a>(
        &'a self,
        tenant: &'a TenantId,
        query: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            let rows = self.0.inner.list(tenant, query).await?;
            self.0.listed.fetch_add(rows.len() as u64, Ordering::SeqCst);
            Ok(rows)
        })
    }

    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.count(tenant).await
        })
    }

    /// Never fails, since every prompt makes this call and would change the count of the others.
    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.0.inner.stored_bytes(tenant)
    }

    /// Never fails, for the same reason.
    fn spend<'a>(
        &'a self,
        tenant: &'a TenantId,
        amount: Amount,
    ) -> BoxFuture<'a, Result<Option<Amount>, StoreError>> {
        self.0.inner.spend(tenant, amount)
    }

    fn keeps_entries(&self) -> bool {
        self.0.inner.keeps_entries()
    }

    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.empty(scope, upto).await
        })
    }

    fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<Scope>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.list_open(open, due, after, count).await
        })
    }

    fn mark_failed<'a>(
        &'a self,
        scope: &'a Scope,
        reason: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.read().await?;
            self.0.inner.mark_failed(scope, reason).await
        })
    }

    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.0.inner.erase(tenant)
    }

    fn scrub(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.inner.scrub()
    }

    fn try_write(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.0.away.load(Ordering::SeqCst) || self.0.read_only.load(Ordering::SeqCst) {
            let message = "the store takes no writes".to_owned();
            return Box::pin(std::future::ready(Err(StoreError::Unavailable { message })));
        }
        self.0.inner.try_write()
    }

    fn close(&self, within: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.inner.close(within)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::{
        ids::{ConversationId, Epoch},
        memory::MemorySessions,
        ports::{AppendExt, Durability},
    };

    fn scope() -> Scope {
        Scope::new(
            TenantId::new("t").unwrap(),
            ConversationId::new("c").unwrap(),
        )
    }

    fn head(seq: u64) -> Head {
        Head {
            epoch: Epoch(u64::from(seq > 0)),
            seq: Seq(seq),
        }
    }

    fn entry(seq: u64) -> StoredEntry {
        StoredEntry {
            seq: Seq(seq),
            bytes: Bytes::from_static(b"{}"),
        }
    }

    /// Appends entry `seq` and sends (seq, success) from the callback.
    fn append(store: &dyn SessionBackend, seq: u64, answers: &mpsc::UnboundedSender<(u64, bool)>) {
        let answers = answers.clone();
        store.append(Append {
            scope: scope(),
            expected: head(seq - 1),
            epoch: Epoch(1),
            entries: vec![entry(seq)],
            open: Open::None,
            wake_at: None,
            messages: Vec::new(),
            durability: Durability::Awaited,
            done: Box::new(move |result| answers.send((seq, result.is_ok())).unwrap_or_default()),
        });
    }

    #[tokio::test]
    async fn the_nth_append_fails_as_planned() {
        for (fault, stored) in [(Fault::Refused, 1), (Fault::Unknown, 2)] {
            let store = FaultySessions::new(
                Arc::new(MemorySessions::new()),
                FaultPlan::new().append(2, fault),
            );
            let append = async |seq: u64| {
                store
                    .append_and_wait(
                        &scope(),
                        head(seq - 1),
                        Epoch(1),
                        vec![entry(seq)],
                        Open::None,
                    )
                    .await
                    .is_ok()
            };

            assert!(append(1).await);
            assert!(!append(2).await);

            assert_eq!(store.head(&scope()).await, Ok(head(stored)), "{fault:?}");
            assert!(append(stored + 1).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_and_slow_appends_keep_the_order() {
        let plan = FaultPlan::new()
            .append(1, Fault::Hang)
            .append(3, Fault::Slow(Duration::from_secs(5)));
        let store = FaultySessions::new(Arc::new(MemorySessions::new()), plan);
        let (sender, mut answers) = mpsc::unbounded_channel();

        for seq in 1..=4 {
            append(&store, seq, &sender);
        }
        assert!(store.is_hanging() && answers.try_recv().is_err());
        store.release();
        assert_eq!(
            [answers.try_recv(), answers.try_recv()],
            [Ok((1, true)), Ok((2, true))]
        );
        assert!(answers.try_recv().is_err());

        let started = tokio::time::Instant::now();
        assert_eq!(
            [answers.recv().await, answers.recv().await],
            [Some((3, true)), Some((4, true))]
        );
        assert!(started.elapsed() >= Duration::from_secs(5));
    }

    #[tokio::test]
    async fn a_dropped_store_answers_the_calls_that_hang() {
        let store = FaultySessions::new(
            Arc::new(MemorySessions::new()),
            FaultPlan::new().append(1, Fault::Hang),
        );
        let (sender, mut answers) = mpsc::unbounded_channel();
        append(&store, 1, &sender);
        append(&store, 2, &sender);

        drop(store);

        assert_eq!(
            [answers.try_recv(), answers.try_recv()],
            [Ok((1, false)), Ok((2, false))]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn reads_fail_hang_and_come_back() {
        let store = FaultySessions::new(
            Arc::new(MemorySessions::new()),
            FaultPlan::new()
                .read(1, Fault::Refused)
                .read(2, Fault::Hang),
        );

        assert!(matches!(
            store.head(&scope()).await,
            Err(StoreError::Unavailable { .. })
        ));
        let scope = scope();
        let mut hung = store.head(&scope);
        assert!(
            tokio::time::timeout(Duration::from_secs(60), &mut hung)
                .await
                .is_err()
        );
        store.release();
        assert_eq!(hung.await, Ok(Head::default()));

        store.set_away(true);
        assert!(store.load(&scope).await.is_err());
        store.set_away(false);
        assert_eq!(store.load(&scope).await, Ok(Loaded::default()));
        assert_eq!(store.reads(), 4);
    }
}
