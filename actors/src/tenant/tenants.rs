//! All tenants of a host, by id.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use dashmap::DashMap;
use parking_lot::RwLock;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    ConversationCount, HostDefaults, Memory, Rate, RoundPermits, Stored, StoredSpending, Sums,
    Tenant, UNBOUNDED,
};
use crate::{
    ids::TenantId,
    limits::{
        LONG_ANSWERS_MAX, Limits, TENANT_LOADS_MAX, TENANT_LONG_ANSWERS_MAX,
        TENANT_MEASUREMENTS_MAX, TENANT_READS_MAX,
    },
    policy::{Budget, BudgetCounter, BudgetLevel, HostShare},
    ports::SessionBackend,
};

/// All tenants of a host, by id.
pub struct Tenants {
    tenants: DashMap<TenantId, Arc<Tenant>>,
    defaults: HostDefaults,
    memory: Arc<Memory>,
    budget: Budget,
    /// The store that keeps what tenants have spent.
    /// A permit for each long answer of any tenant.
    long_answers: Arc<Semaphore>,
    sessions: Arc<dyn SessionBackend>,
    /// This host's part of the tenants' quotas.
    share: RwLock<HostShare>,
}

impl Tenants {
    /// An empty table; each tenant gets the limits of `limits`.
    pub(crate) fn new(limits: &Limits, sessions: Arc<dyn SessionBackend>) -> Self {
        Self {
            tenants: DashMap::default(),
            defaults: HostDefaults {
                seats_max: limits.tenant_seats_max,
                turns_max: limits.tenant_turns_max,
                stored_bytes_max: limits.tenant_stored_bytes_max,
            },
            memory: Arc::new(Memory::new(
                u64::try_from(limits.memory_bytes_max).unwrap_or(UNBOUNDED),
            )),
            long_answers: Arc::new(Semaphore::new(LONG_ANSWERS_MAX)),
            budget: Budget::default(),
            sessions,
            share: RwLock::default(),
        }
    }

    /// Sets this host's part of every tenant's quotas.
    pub(crate) fn share(&self, share: HostShare) {
        *self.share.write() = share;
        for tenant in self.all() {
            tenant.share(share);
        }
    }

    /// Sets the budget of each tenant that has none configured.
    #[must_use]
    pub(crate) fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// The tenant with this id; created on first use.
    pub(crate) fn get(&self, id: &TenantId) -> Arc<Tenant> {
        if let Some(found) = self.tenants.get(id) {
            return found.clone();
        }
        let made = self
            .tenants
            .entry(id.clone())
            .or_insert_with(|| Arc::new(self.make(id.clone())))
            .clone();
        // After it is in the table: whoever changes the share later finds it there.
        made.share(*self.share.read());
        made
    }

    /// All known tenants, in no particular order.
    pub(crate) fn all(&self) -> Vec<Arc<Tenant>> {
        self.tenants
            .iter()
            .map(|tenant| tenant.value().clone())
            .collect()
    }

    /// Stores what tenants with a budget have spent, and reads what others spent of it. One tenant
    /// whose sum cannot be stored keeps the others from nothing; it is tried again next time.
    pub(crate) async fn store_spending(&self) {
        let due = self.all().into_iter();
        for tenant in due.filter(|tenant| tenant.has_spending_to_store()) {
            if let Err(error) = tenant.store_spending().await {
                tracing::debug!(tenant = %tenant.id, %error, "what a tenant spent was not stored");
            }
        }
    }

    /// Whether histories have grown by `bytes` or more since this last returned `true`.
    pub(crate) fn histories_have_grown(&self, bytes: usize) -> bool {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.memory.has_grown(bytes)
    }

    /// The ids of all tenants in service, sorted.
    pub(crate) fn ids(&self) -> Vec<TenantId> {
        let in_service = self
            .tenants
            .iter()
            .filter(|tenant| !tenant.is_removed.load(Ordering::Acquire));
        let mut ids: Vec<TenantId> = in_service.map(|tenant| tenant.id.clone()).collect();
        ids.sort();
        ids
    }

    /// Takes a tenant out of service. Returns whether it was in service.
    pub(crate) fn remove(&self, id: &TenantId) -> bool {
        self.tenants.get(id).is_some_and(|tenant| tenant.remove())
    }

    /// Replaces a tenant whose data was erased by a new one: same configuration, counters at 0.
    pub(crate) fn renew(&self, old: &Arc<Tenant>) {
        let new = self.make(old.id.clone());
        new.configure(old.quotas(), old.budget.budget());
        new.is_removed
            .store(old.is_removed.load(Ordering::Acquire), Ordering::Release);
        new.pause(old.is_paused());
        if let Some(mut place) = self.tenants.get_mut(&old.id)
            && Arc::ptr_eq(&place, old)
        {
            *place = Arc::new(new);
        }
        self.get(&old.id).share(*self.share.read());
    }

    fn make(&self, id: TenantId) -> Tenant {
        let now = Instant::now();
        Tenant {
            id,
            quotas: RwLock::default(),
            defaults: self.defaults,
            is_removed: AtomicBool::new(false),
            is_erased: AtomicBool::new(false),
            seats: AtomicUsize::new(0),
            seats_max: AtomicUsize::new(self.defaults.seats_max),
            memory: Memory::new(UNBOUNDED),
            host_memory: self.memory.clone(),
            requests: Rate::new(now),
            tokens: Rate::new(now),
            turns: RoundPermits::new(self.defaults.turns_max),
            conversations: ConversationCount::new(),
            stored: Stored::new(self.defaults.stored_bytes_max),
            tools: Arc::default(),
            families: super::Families::default(),
            budget: BudgetCounter::root(BudgetLevel::Tenant, self.budget),
            spending: StoredSpending::new(self.sessions.clone()),
            sums: Sums::default(),
            awake: AtomicUsize::new(0),
            reads: Arc::new(Semaphore::new(TENANT_READS_MAX)),
            loads: Arc::new(Semaphore::new(TENANT_LOADS_MAX)),
            measurements: Arc::new(Semaphore::new(TENANT_MEASUREMENTS_MAX)),
            long_answers: [
                Arc::new(Semaphore::new(TENANT_LONG_ANSWERS_MAX)),
                self.long_answers.clone(),
            ],
        }
    }
}
