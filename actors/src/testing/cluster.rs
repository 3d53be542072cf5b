//! Journals in memory that several hosts share, as a database shares them: each conversation is
//! owned by the host whose activation appended last, until that host gives it up or is gone.

use std::{
    collections::{HashMap, HashSet},
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use parking_lot::Mutex;

use crate::{
    ids::{Epoch, Scope, Seq, TenantId},
    journal::{Head, Loaded, StoredEntry},
    memory::MemorySessions,
    policy::Amount,
    ports::{
        Append, AppendError, BoxFuture, ListQuery, SessionBackend, SessionSummary, StoreError,
    },
    stream::Open,
    time::Timestamp,
};

/// The journals of a cluster. [`MemoryCluster::host`] adds a host.
#[derive(Debug, Default, Clone)]
pub struct MemoryCluster {
    sessions: Arc<MemorySessions>,
    owners: Arc<Mutex<Owners>>,
}

#[derive(Debug, Default)]
struct Owners {
    owner_of: HashMap<Scope, usize>,
    hosts: usize,
    gone: HashSet<usize>,
    /// The last epochs of deleted journals.
    deleted: HashMap<Scope, Epoch>,
    bug: Option<Bug>,
}

/// What a store may get wrong. Planted by the test of the explorer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    OwnerNotCompared,
    ReleasesOfOthers,
    NoTombstone,
    LostAppend,
}

impl Owners {
    /// The host that owns a conversation, if it is alive and not `me`.
    fn other(&self, scope: &Scope, me: usize) -> Option<usize> {
        let owner = self.owner_of.get(scope).copied();
        owner.filter(|owner| *owner != me && !self.gone.contains(owner))
    }
}

impl MemoryCluster {
    /// Creates an empty cluster without hosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a host. Its address is `host-` and its number, from 0.
    pub fn host(&self) -> Arc<ClusterSessions> {
        let mut owners = self.owners.lock();
        let me = owners.hosts;
        owners.hosts += 1;
        Arc::new(ClusterSessions {
            me,
            cluster: self.clone(),
            is_closed: AtomicBool::new(false),
        })
    }
}

/// The journals as one host of a [`MemoryCluster`] sees them.
#[derive(Debug)]
pub struct ClusterSessions {
    me: usize,
    cluster: MemoryCluster,
    is_closed: AtomicBool,
}

impl ClusterSessions {
    /// The others take this host for dead from now on, whether it is or not.
    pub fn expire(&self) {
        self.cluster.owners.lock().gone.insert(self.me);
    }

    /// The others take this host for alive again.
    pub fn return_alive(&self) {
        self.cluster.owners.lock().gone.remove(&self.me);
    }
}

impl ClusterSessions {
    /// Stores an append, or refuses it because another host owns the conversation. Owner and head
    /// change in one step, so the owners stay locked meanwhile.
    fn store(&self, append: Append) -> Result<(), AppendError> {
        let mut owners = self.cluster.owners.lock();
        let scope = append.scope.clone();
        let is_owner = owners.owner_of.get(&scope) == Some(&self.me);
        let is_activation = append.epoch != append.expected.epoch;
        let is_compared = owners.bug != Some(Bug::OwnerNotCompared);
        let (reply, answer) = std::sync::mpsc::channel();
        let sessions = &self.cluster.sessions;
        let is_of_deleted = append.expected == Head::default()
            && owners.bug != Some(Bug::NoTombstone)
            && owners
                .deleted
                .get(&scope)
                .is_some_and(|last| append.epoch <= *last);
        if is_of_deleted {
            let found = Head::default();
            return Err(AppendError::Conflict { scope, found });
        }
        let is_free = !is_compared || is_activation && owners.other(&scope, self.me).is_none();
        if owners.bug == Some(Bug::LostAppend) && append.expected.seq == Seq(1) {
            return Ok(());
        }
        if is_owner || is_free {
            let done = Box::new(move |result| drop(reply.send(result)));
            sessions.append(Append { done, ..append });
        } else {
            let found = sessions.head(&scope).now_or_never();
            drop(reply.send(Err(AppendError::Conflict {
                scope: scope.clone(),
                found: found.and_then(Result::ok).unwrap_or_default(),
            })));
        }
        // The journals in memory have answered.
        let result = answer.try_recv().expect("an answer at once");
        if result.is_ok() {
            owners.owner_of.insert(scope, self.me);
        }
        result
    }
}

impl SessionBackend for ClusterSessions {
    fn append(&self, mut append: Append) {
        let done = std::mem::replace(&mut append.done, Box::new(drop));
        done(match self.is_closed.load(Ordering::Acquire) {
            true => Err(AppendError::Unavailable {
                message: "the store is closed".into(),
            }),
            false => self.store(append),
        });
    }

    fn head<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Head, StoreError>> {
        self.cluster.sessions.head(scope)
    }

    fn load<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        self.cluster.sessions.load(scope)
    }

    fn load_to_own<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Loaded, StoreError>> {
        match self.cluster.owners.lock().other(scope, self.me) {
            Some(other) => Box::pin(ready(Err(StoreError::Elsewhere {
                host: format!("host-{other}"),
            }))),
            None => self.load(scope),
        }
    }

    fn release(&self, scope: &Scope) {
        let mut owners = self.cluster.owners.lock();
        let is_owner = owners.owner_of.get(scope) == Some(&self.me);
        if is_owner || owners.bug == Some(Bug::ReleasesOfOthers) {
            owners.owner_of.remove(scope);
        }
    }

    fn is_sure_to_own(&self) -> bool {
        !self.cluster.owners.lock().gone.contains(&self.me)
    }

    fn entries<'a>(
        &'a self,
        scope: &'a Scope,
        after: Seq,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<StoredEntry>, StoreError>> {
        self.cluster.sessions.entries(scope, after, count)
    }

    fn cut<'a>(
        &'a self,
        scope: &'a Scope,
        to: Head,
        open: Open,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.cluster.sessions.cut(scope, to, open)
    }

    fn snapshot<'a>(
        &'a self,
        scope: &'a Scope,
        upto: Seq,
        bytes: Bytes,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.cluster.sessions.snapshot(scope, upto, bytes)
    }

    fn delete<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<bool, StoreError>> {
        let mut owners = self.cluster.owners.lock();
        owners.owner_of.remove(scope);
        // The journals in memory answer at once.
        let head = self.cluster.sessions.head(scope).now_or_never();
        if let Some(Ok(head)) = head
            && head != Head::default()
        {
            owners.deleted.insert(scope.clone(), head.epoch);
        }
        self.cluster.sessions.delete(scope)
    }

    fn list<'a>(
        &'a self,
        tenant: &'a TenantId,
        query: ListQuery,
    ) -> BoxFuture<'a, Result<Vec<SessionSummary>, StoreError>> {
        self.cluster.sessions.list(tenant, query)
    }

    fn count<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.cluster.sessions.count(tenant)
    }

    fn stored_bytes<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.cluster.sessions.stored_bytes(tenant)
    }

    fn spend<'a>(
        &'a self,
        tenant: &'a TenantId,
        amount: Amount,
    ) -> BoxFuture<'a, Result<Option<Amount>, StoreError>> {
        self.cluster.sessions.spend(tenant, amount)
    }

    fn erase<'a>(&'a self, tenant: &'a TenantId) -> BoxFuture<'a, Result<bool, StoreError>> {
        self.cluster.sessions.erase(tenant)
    }

    fn empty<'a>(&'a self, scope: &'a Scope, upto: Seq) -> BoxFuture<'a, Result<(), StoreError>> {
        self.cluster.sessions.empty(scope, upto)
    }

    fn list_open(
        &self,
        open: Open,
        due: Option<Timestamp>,
        after: Option<Scope>,
        count: usize,
    ) -> BoxFuture<'_, Result<Vec<Scope>, StoreError>> {
        Box::pin(async move {
            let sessions = &self.cluster.sessions;
            let mut found = sessions.list_open(open, due, after, usize::MAX).await?;
            let owners = self.cluster.owners.lock();
            found.retain(|scope| owners.other(scope, self.me).is_none());
            found.truncate(if count == 0 { 1000 } else { count });
            Ok(found)
        })
    }

    fn mark_failed<'a>(
        &'a self,
        scope: &'a Scope,
        reason: Option<String>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.cluster.sessions.mark_failed(scope, reason)
    }

    fn close(&self, _within: Duration) -> BoxFuture<'_, Result<(), StoreError>> {
        self.is_closed.store(true, Ordering::Release);
        Box::pin(ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::contract;

    #[tokio::test]
    async fn hosts_of_a_cluster_in_memory_keep_the_contract_of_owners() {
        contract::session_owners(async || {
            let cluster = MemoryCluster::new();
            let (first, second) = (cluster.host(), cluster.host());
            let leaving = first.clone();
            contract::TwoHosts {
                first,
                second,
                first_address: "host-0".into(),
                expire_first: Box::pin(async move { leaving.expire() }),
            }
        })
        .await;
    }

    #[tokio::test]
    async fn one_host_of_a_cluster_keeps_the_contract_of_a_session_backend() {
        contract::session_backend(async || MemoryCluster::new().host() as Arc<dyn SessionBackend>)
            .await;
    }

    /// Bounds of the explorations: entries, changes in flight, deletions. Together they take a debug
    /// build some seconds; the long form adds the last.
    const BOUNDS: [(u64, usize, u32); 3] = [(2, 1, 1), (2, 2, 0), (3, 1, 1)];

    fn bounds((entries, in_flight, deletions): (u64, usize, u32)) -> contract::FenceBounds {
        contract::FenceBounds {
            entries,
            in_flight,
            deletions,
        }
    }

    fn fence_hosts(bug: Option<Bug>) -> contract::FenceHosts {
        let cluster = MemoryCluster::new();
        cluster.owners.lock().bug = bug;
        let hosts = [cluster.host(), cluster.host()];
        let lives = hosts.clone();
        contract::FenceHosts {
            hosts: hosts.map(|host| host as Arc<dyn SessionBackend>),
            set_alive: Box::new(move |host, alive| {
                match alive {
                    true => lives[host].return_alive(),
                    false => lives[host].expire(),
                }
                Box::pin(ready(()))
            }),
            name: "f".into(),
        }
    }

    #[tokio::test]
    async fn no_order_of_two_hosts_breaks_the_fence() {
        let reaches = crate::testing::TestSize::pick(1, 2, 3);
        for reach in BOUNDS.into_iter().take(reaches) {
            let hosts = fence_hosts(None);

            let states = contract::explore_fence(&hosts, bounds(reach))
                .await
                .unwrap();

            assert!(states > 5000, "{states} states are not all");
        }
    }

    #[tokio::test]
    async fn the_explorer_of_the_fence_finds_planted_bugs() {
        for (bug, rule) in [
            (Bug::OwnerNotCompared, "two hosts own the journal"),
            (Bug::ReleasesOfOthers, "an append was refused"),
            (Bug::NoTombstone, "a stale append passed"),
            (Bug::LostAppend, "the journal is not what was acknowledged"),
        ] {
            let hosts = fence_hosts(Some(bug));

            let found = contract::explore_fence(&hosts, bounds(BOUNDS[0])).await;

            let found = found.expect_err("the bug is found");
            assert!(found.starts_with(rule), "{bug:?}: {found}");
        }
    }
}
