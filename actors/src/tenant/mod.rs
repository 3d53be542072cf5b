//! What a tenant may use: seats for its prompts, permits for its turns. Counters behind atomics; a refusal costs no actor, and
//! no conversation is linked to it (DESIGN §3, 4.5).

mod quotas;

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicUsize, Ordering},
};

use dashmap::DashMap;
pub use quotas::Quotas;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    conversation::Setup,
    ids::TenantId,
    limits::Limits,
    metrics_collector::TenantFigures,
    policy::{Budget, BudgetCounter, BudgetLevel},
    tool_executor::TenantTools,
};

/// A tenant's counters.
pub struct Tenant {
    id: TenantId,
    configured: RwLock<Configured>,
    seats: AtomicUsize,
    seats_max: usize,
    turns: Arc<Semaphore>,
    tools: Arc<TenantTools>,
    budget: Arc<BudgetCounter>,
    figures: Arc<TenantFigures>,
}

/// How it is configured; exchanged as a whole.
struct Configured {
    setup: Arc<Setup>,
    quotas: Quotas,
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tenant({})", self.id)
    }
}

/// One prompt's place between admission and answer; freed on drop, also when a mailbox is thrown away.
#[derive(Debug)]
pub struct Seat(Arc<Tenant>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.seats.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The right to have one turn running.
#[derive(Debug)]
pub struct TurnPermit {
    _permit: OwnedSemaphorePermit,
}

impl Tenant {
    /// Which tenant.
    pub fn id(&self) -> &TenantId {
        &self.id
    }

    /// How its conversations are set up.
    pub fn setup(&self) -> Arc<Setup> {
        self.configured.read().unwrap_or_else(PoisonError::into_inner).setup.clone()
    }

    /// What it may use.
    pub fn quotas(&self) -> Quotas {
        self.configured.read().unwrap_or_else(PoisonError::into_inner).quotas
    }

    /// Configures it anew.
    pub fn configure(&self, setup: Arc<Setup>, quotas: Quotas, budget: Budget) {
        *self.configured.write().unwrap_or_else(PoisonError::into_inner) = Configured { setup, quotas };
        self.budget.set(budget);
    }

    /// What its tool calls share.
    pub fn tools(&self) -> &Arc<TenantTools> {
        &self.tools
    }

    /// What all its conversations together may spend, and have since this host began.
    pub fn budget(&self) -> &Arc<BudgetCounter> {
        &self.budget
    }

    /// What the host counts of it.
    pub fn figures(&self) -> &Arc<TenantFigures> {
        &self.figures
    }

    /// Prompts between admission and answer.
    pub fn seats_taken(&self) -> usize {
        self.seats.load(Ordering::Acquire)
    }

    /// Takes a seat, if one is free.
    pub fn take_seat(self: &Arc<Self>) -> Option<Seat> {
        let taken = self.seats.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < self.seats_max).then_some(n + 1));
        taken.ok().map(|_| Seat(self.clone()))
    }

    /// Waits for the right to run a turn; `None` once the host closed it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn turn(self: Arc<Self>) -> Option<TurnPermit> {
        let permit = match self.turns.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.turns.clone().acquire_owned().await.ok()?,
        };
        Some(TurnPermit { _permit: permit })
    }
}

/// All tenants of a host, by id.
pub struct Tenants {
    usual: Arc<Setup>,
    tenants: DashMap<TenantId, Arc<Tenant>>,
    seats_max: usize,
    turns_max: usize,
    budget: Budget,
}

impl Tenants {
    /// No tenants yet; each gets the bounds of `limits` and the `usual` set-up.
    pub fn new(limits: &Limits, usual: Arc<Setup>) -> Self {
        Self {
            usual,
            tenants: DashMap::new(),
            seats_max: limits.tenant_seats_max,
            turns_max: limits.tenant_turns_max,
            budget: Budget::default(),
        }
    }

    /// Bounds what each tenant may spend, until it gets a budget of its own.
    #[must_use]
    pub fn with_budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// All of them, in no order.
    pub fn all(&self) -> Vec<Arc<Tenant>> {
        self.tenants.iter().map(|tenant| tenant.value().clone()).collect()
    }

    /// The tenant with this id, made when it is first named.
    pub fn get(&self, id: &TenantId) -> Arc<Tenant> {
        if let Some(found) = self.tenants.get(id) {
            return found.clone();
        }
        let make = || {
            Arc::new(Tenant {
                id: id.clone(),
                configured: RwLock::new(Configured { setup: self.usual.clone(), quotas: Quotas::default() }),
                seats: AtomicUsize::new(0),
                seats_max: self.seats_max,
                turns: Arc::new(Semaphore::new(self.turns_max)),
                tools: Arc::default(),
                budget: BudgetCounter::root(BudgetLevel::Tenant, self.budget),
                figures: Arc::default(),
            })
        };
        self.tenants.entry(id.clone()).or_insert_with(make).clone()
    }
}
