//! The store as one process sees it: a writer that takes time, and faults. The journals behind it
//! outlive the process.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{bugs::Bug, world::World};
use crate::{
    ids::{Scope, Seq, TenantId},
    journal::{Entry, EntryBody, Head, Loaded, StoredEntry},
    memory::MemorySessions,
    policy::Amount,
    ports::{
        Append, AppendError, BoxFuture, ListQuery, SessionBackend, SessionSummary, StoreError,
    },
    stream::Open,
    time::Timestamp,
};

/// What happens to an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stored,
    Refused,
    /// Stored, but the answer says that the store is unavailable.
    AnswerLost,
    /// Another process writes to the journal just before.
    Rival,
}

struct Queued {
    append: Append,
    fate: Fate,
    takes: Duration,
}

/// The store of one process.
pub(super) struct ProcessStore {
    world: Arc<World>,
    process: u64,
    queue: Mutex<VecDeque<Queued>>,
    /// Rings when an append is queued.
    bell: Notify,
}

fn away() -> String {
    "the store is away".to_owned()
}

impl ProcessStore {
    pub(super) fn new(world: &Arc<World>, process: u64) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            process,
            queue: Mutex::default(),
            bell: Notify::new(),
        })
    }

    fn inner(&self) -> &MemorySessions {
        &self.world.sessions
    }

    /// Writes what is queued, one append after the other, for as long as the process lives.
    pub(super) async fn write(self: Arc<Self>) {
        loop {
            let takes = self.queue.lock().front().map(|next| next.takes);
            match takes {
                None => self.bell.notified().await,
                Some(takes) => {
                    tokio::time::sleep(takes).await;
                    let next = self.queue.lock().pop_front();
                    if let Some(next) = next {
                        self.complete(next.append, next.fate);
                    }
                }
            }
        }
    }

    /// The process was killed: a part of what was queued reaches the disk, in order, and no answer
    /// reaches the process. Another part may arrive when the next process runs already.
    pub(super) fn kill(&self) {
        let (dice, mut queued) = (&self.world.store_dice, self.queue.lock());
        let reached = dice.below(queued.len() as u64 + 1) as usize;
        for (index, mut next) in queued.drain(..).enumerate() {
            next.append.done = Box::new(|_| {});
            if next.fate == Fate::Refused {
                continue;
            }
            if index < reached {
                self.keep(next.append);
            } else if self.world.plan.store.comes_late {
                self.world.late.lock().push(next.append);
            }
        }
    }

    /// What the last process wrote comes late.
    pub(super) async fn come_late(self: Arc<Self>) {
        let takes = self.world.store_dice.below(40);
        tokio::time::sleep(Duration::from_millis(takes)).await;
        let late = std::mem::take(&mut *self.world.late.lock());
        for append in late {
            self.world
                .log(format_args!("append {} comes late", append.scope));
            self.keep(append);
        }
    }

    fn fate(&self) -> Fate {
        let world = &self.world;
        if world.is_away() {
            return Fate::Refused;
        }
        if world.is_calm() {
            return Fate::Stored;
        }
        let (dice, manners) = (&world.store_dice, &world.plan.store);
        match dice.below(100) {
            n if n < manners.refused => Fate::Refused,
            n if n < manners.refused + manners.lost_answer => Fate::AnswerLost,
            n if n < manners.refused + manners.lost_answer + manners.rival => {
                // A rival's rounds wait for the last start of a host, which is the plan's last step.
                let last = world.plan.steps.last().map_or(0, |step| step.at_ms);
                if world.now_ms() < last {
                    Fate::Rival
                } else {
                    Fate::Stored
                }
            }
            _ => Fate::Stored,
        }
    }

    fn takes(&self) -> Duration {
        let (dice, manners) = (&self.world.store_dice, &self.world.plan.store);
        Duration::from_millis(if dice.percent(manners.slow) && !self.world.is_calm() {
            dice.between(100, 4000)
        } else {
            dice.below(6)
        })
    }

    fn complete(&self, mut append: Append, fate: Fate) {
        let refused = || Err(AppendError::Unavailable { message: away() });
        if fate != Fate::Stored {
            self.world.with(|facts| facts.figures.store_faults += 1);
        }
        match fate {
            Fate::Stored => self.keep(append),
            Fate::Refused => (append.done)(refused()),
            Fate::AnswerLost => {
                let done = append.done;
                append.done = Box::new(move |_| done(refused()));
                self.keep(append);
            }
            Fate::Rival => {
                self.rival(&append.scope);
                self.keep(append);
            }
        }
    }

    /// Stores an append and answers it.
    fn keep(&self, mut append: Append) {
        let world = self.world.clone();
        let row = (append.scope.clone(), (append.open, append.wake_at));
        let done = append.done;
        append.done = Box::new(move |result| {
            world.with(|facts| match &result {
                Ok(()) => drop(facts.rows.insert(row.0, row.1)),
                Err(_) => facts.figures.conflicts += 1,
            });
            if let Err(error) = &result {
                world.log(format_args!("append: {error}"));
            }
            done(result);
        });
        self.inner().append(append);
    }

    /// Another process takes the conversation over, and dies.
    fn rival(&self, scope: &Scope) {
        let found = self.head_now(scope);
        if found.seq == Seq(0) {
            return;
        }
        let (open, wake_at) = self
            .world
            .with(|facts| facts.rows.get(scope).copied().unwrap_or_default());
        let entry = Entry {
            seq: found.seq.next(),
            epoch: found.epoch.next(),
            at: Timestamp(0),
            body: EntryBody::LifeStarted {
                nonce: self.world.store_dice.next(),
                in_order: false,
            },
        };
        self.world.log(format_args!("a rival takes {scope} over"));
        self.world
            .with(|facts| facts.taken_over.insert(scope.clone()));
        self.inner().append(Append {
            scope: scope.clone(),
            expected: found,
            epoch: entry.epoch,
            entries: vec![entry.encode()],
            open,
            wake_at,
            messages: Vec::new(),
            durability: crate::ports::Durability::Awaited,
            done: Box::new(|_| {}),
        });
    }

    fn head_now(&self, scope: &Scope) -> Head {
        let head = self.inner().head(scope).now_or_never();
        head.and_then(Result::ok).unwrap_or_default()
    }

    /// The time that a read takes, or its refusal.
    async fn read(&self, what: &str) -> Result<(), StoreError> {
        let refused = || Err(StoreError::Unavailable { message: away() });
        let world = &self.world;
        if !world.is_alive(self.process) {
            return refused();
        }
        if !world.reads_on() {
            return std::future::pending().await;
        }
        let (dice, manners) = (&world.store_dice, &world.plan.store);
        if !world.is_calm() {
            if world.is_away() || dice.percent(manners.reads_refused) {
                world.log(format_args!("{what} is refused"));
                world.with(|facts| facts.figures.store_faults += 1);
                return refused();
            }
            if dice.percent(manners.slow) {
                tokio::time::sleep(Duration::from_millis(dice.between(1, 1500))).await;
            }
        }
        Ok(())
    }
}

impl SessionBackend for ProcessStore {
    fn append(&self, mut append: Append) {
        if !self.world.is_alive(self.process) {
            return;
        }
        let (fate, takes) = (self.fate(), self.takes());
        let upto = append.entries.last().map_or(Seq(0), |last| last.seq);
        let kinds = kinds(&append.entries);
        let Append { scope, epoch, .. } = &append;
        self.world.log(format_args!(
            "append {scope} {epoch}.{upto} {kinds} {fate:?} in {} ms",
            takes.as_millis()
        ));
        if self.world.plan.bug == Some(Bug::AcknowledgesEarly) && fate == Fate::Stored {
            let done = std::mem::replace(&mut append.done, Box::new(|_| {}));
            self.queue.lock().push_back(Queued {
                append,
                fate,
                takes,
            });
            self.bell.notify_one();
            return done(Ok(()));
        }
        if self.world.plan.store.has_writer {
            self.queue.lock().push_back(Queued {
                append,
                fate,
                takes,
            });
            self.bell.notify_one();
        } else {
            self.complete(append, fate);
        }
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(async move {
            self.read("head").await?;
            self.inner().head(scope).await
        })
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        Box::pin(async move {
            self.read("load").await?;
            self.inner().load(scope).await
        })
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        Box::pin(async move {
            self.read("entries").await?;
            self.inner().entries(scope, after, count).await
        })
    }

    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        upto: Seq,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.read("snapshot").await?;
            self.inner().snapshot(scope, upto, bytes).await
        })
    }

    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.read("delete").await?;
            self.world.log(format_args!("delete {scope}"));
            self.world.with(|facts| facts.rows.remove(scope));
            self.inner().delete(scope).await
        })
    }

    fn list<'a>(
        &'a self,
        tenant: &'a TenantId,
        query: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        Box::pin(async move {
            self.read("list").await?;
            self.inner().list(tenant, query).await
        })
    }

    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            self.read("count").await?;
            self.inner().count(tenant).await
        })
    }

    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            self.read("stored bytes").await?;
            self.inner().stored_bytes(tenant).await
        })
    }

    fn spend<'a>(
        &'a self,
        tenant: &'a TenantId,
        amount: Amount,
    ) -> BoxFuture<'a, Result<Option<Amount>, StoreError>> {
        Box::pin(async move {
            self.read("spending").await?;
            self.inner().spend(tenant, amount).await
        })
    }

    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.read("empty").await?;
            self.inner().empty(scope, upto).await
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
            if !self.world.is_alive(self.process) || self.world.is_away() {
                return Err(StoreError::Unavailable { message: away() });
            }
            self.inner().list_open(open, due, after, count).await
        })
    }

    fn mark_failed<'a>(
        &'a self,
        scope: &'a Scope,
        reason: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.world
                .violated(format!("{scope} is marked as failed: {reason:?}"));
            self.inner().mark_failed(scope, reason).await
        })
    }

    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.inner().erase(tenant)
    }

    /// The journals outlive the process, so they stay open.
    fn close(&self, _: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            while !self.queue.lock().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        })
    }
}

/// The kinds of entries, for the trace.
fn kinds(entries: &[StoredEntry]) -> String {
    let kinds = entries
        .iter()
        .map(|entry| Entry::decode(entry).map_or("unreadable", |entry| entry.body.kind()));
    kinds.collect::<Vec<_>>().join("+")
}
