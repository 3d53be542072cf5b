//! What a tenant may use: seats for its prompts, permits for its turns, rates, memory, conversations. Counters behind atomics; a
//! refusal costs no actor, and no conversation is linked to it (DESIGN §3, 4.5).
//!
//! A prompt is let in by [`Tenant::admit`], which takes a [`Seat`] that rides with it to the end of its round. Every bound may change
//! at any time; a lower one takes hold as work ends, and nothing that runs is ended for it.
//!
//! What counts as memory: the bytes of prompts, from admission to the end of their rounds, one KiB each for what is kept of them
//! meanwhile, and to a tenant's own bound the events that are kept for watchers. Histories of conversations that are awake have a bound
//! of their own ([`crate::limits`]) and do not count here.

pub mod admission;
mod families;
mod quotas;
mod usage;
mod round_permits;
mod places;
mod stored;
mod tenants;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use tokio::time::Instant;

pub use admission::NotAdmitted;
use families::Families;
pub(crate) use families::Family;
pub(crate) use places::{Place, Places, Taken};
pub use quotas::Quotas;
pub use round_permits::RoundPermit;
pub(crate) use stored::{Coming, Stored};
pub use tenants::Tenants;
pub use usage::{Refused, TenantUsage};

use crate::{
    ids::{ConversationId, TenantId},
    metrics_collector::TenantFigures,
    policy::{Budget, BudgetCounter},
    tool_executor::TenantTools,
};
use round_permits::RoundPermits;
use usage::Sums;

/// What a prompt under way takes beside its own bytes.
const PROMPT_KEPT_BYTES: u64 = 1024;

/// A rate or an amount without a bound.
const UNBOUNDED: u64 = u64::MAX;

/// A tenant's counters.
pub struct Tenant {
    id: TenantId,
    quotas: RwLock<Quotas>,
    /// What a quota that is `None` means.
    usual: Usual,
    is_removed: AtomicBool,
    is_erased: AtomicBool,
    seats: AtomicUsize,
    seats_max: AtomicUsize,
    memory: Memory,
    host_memory: Arc<Memory>,
    requests: Rate,
    tokens: Rate,
    turns: Arc<RoundPermits>,
    places: Arc<Places>,
    stored: Arc<Stored>,
    tools: Arc<TenantTools>,
    budget: Arc<BudgetCounter>,
    families: Families,
    sums: Sums,
    figures: Arc<TenantFigures>,
}

/// The host's bounds for a tenant that has none of its own.
#[derive(Debug, Clone, Copy)]
struct Usual {
    seats_max: usize,
    turns_max: usize,
    stored_bytes_max: u64,
}

/// Bytes that are taken, and how many may be.
#[derive(Debug)]
struct Memory {
    bytes: AtomicU64,
    max: AtomicU64,
}

impl Memory {
    fn new(max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), max: AtomicU64::new(max) }
    }

    /// Takes some bytes if there is room beside `others`. One prompt alone always has room: a bound below its size would lock its tenant out.
    fn take(&self, bytes: u64, others: u64) -> bool {
        let max = self.max.load(Ordering::Acquire);
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| sum.saturating_add(others) <= max || (taken == 0 && max > 0));
        self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// A rate: see [`admission`].
#[derive(Debug)]
struct Rate {
    per_minute: AtomicU64,
    full_at: AtomicU64,
    since: Instant,
}

impl Rate {
    fn new(since: Instant) -> Self {
        Self { per_minute: AtomicU64::new(UNBOUNDED), full_at: AtomicU64::new(0), since }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn set(&self, per_minute: Option<u64>) {
        let new = per_minute.unwrap_or(UNBOUNDED);
        let old = self.per_minute.swap(new, Ordering::AcqRel);
        if old != UNBOUNDED && new != UNBOUNDED && old != new {
            let now = self.now();
            let resized = |full_at| Some(admission::resize(full_at, now, old, new));
            let _ = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, resized);
        }
    }

    /// Takes one, or says how long to wait.
    fn take(&self) -> Result<(), std::time::Duration> {
        let per_minute = self.per_minute.load(Ordering::Acquire);
        if per_minute == UNBOUNDED {
            return Ok(());
        }
        let (now, mut refused) = (self.now(), None);
        let taken = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |full_at| {
            admission::take(full_at, now, 1, per_minute).map_err(|wait| refused = Some(wait)).ok()
        });
        match (taken, refused) {
            (Err(_), Some(wait)) => Err(wait),
            (Ok(_) | Err(_), _) => Ok(()),
        }
    }

    /// Says how long to wait until there is something; takes nothing.
    fn look(&self) -> Result<(), std::time::Duration> {
        let per_minute = self.per_minute.load(Ordering::Acquire);
        if per_minute == UNBOUNDED {
            return Ok(());
        }
        admission::take(self.full_at.load(Ordering::Acquire), self.now(), 1, per_minute).map(drop)
    }

    /// Takes what was used, there or not.
    fn charge(&self, used: u64) {
        let per_minute = self.per_minute.load(Ordering::Acquire);
        if per_minute != UNBOUNDED {
            let now = self.now();
            let charged = |full_at| Some(admission::charge(full_at, now, used, per_minute));
            let _ = self.full_at.fetch_update(Ordering::AcqRel, Ordering::Acquire, charged);
        }
    }
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tenant({})", self.id)
    }
}

/// One prompt's place between admission and answer, with the bytes it takes; freed on drop, also when a mailbox is thrown away.
#[derive(Debug)]
pub struct Seat {
    tenant: Arc<Tenant>,
    bytes: u64,
}

impl Seat {
    /// Takes the bytes of the prompt, and of what is kept of it meanwhile. `events` tells the bytes of the tenant's events; it is asked
    /// where they count.
    ///
    /// # Errors
    /// [`NotAdmitted::Memory`] or [`NotAdmitted::HostMemory`].
    pub fn weigh(&mut self, bytes: usize, events: impl FnOnce() -> usize) -> Result<(), NotAdmitted> {
        let bytes = PROMPT_KEPT_BYTES.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        let (own, host) = (&self.tenant.memory, &self.tenant.host_memory);
        let is_bounded = own.max.load(Ordering::Acquire) != UNBOUNDED;
        let events = if is_bounded { u64::try_from(events()).unwrap_or(u64::MAX) } else { 0 };
        if !own.take(bytes, events) {
            return self.tenant.refuse(NotAdmitted::Memory);
        }
        if !host.take(bytes, 0) {
            own.give_back(bytes);
            return self.tenant.refuse(NotAdmitted::HostMemory);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.tenant.memory.give_back(self.bytes);
        self.tenant.host_memory.give_back(self.bytes);
        self.tenant.seats.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tenant {
    /// Which tenant.
    pub fn id(&self) -> &TenantId {
        &self.id
    }

    /// What it may use.
    pub fn quotas(&self) -> Quotas {
        *self.quotas.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Configures it anew, and puts it in service.
    pub fn configure(&self, quotas: Quotas, budget: Budget) {
        // Bounds change under the lock, so that those of two callers are not mixed.
        let mut configured = self.quotas.write().unwrap_or_else(PoisonError::into_inner);
        *configured = quotas;
        self.seats_max.store(quotas.prompts_max.unwrap_or(self.usual.seats_max), Ordering::Release);
        self.turns.resize(quotas.turns_max.unwrap_or(self.usual.turns_max));
        self.requests.set(quotas.requests_per_minute.map(u64::from));
        self.tokens.set(quotas.tokens_per_minute);
        self.memory.max.store(quotas.memory_bytes_max.unwrap_or(UNBOUNDED), Ordering::Release);
        self.places.bound(quotas.conversations_max);
        self.stored.bound(quotas.stored_bytes_max.unwrap_or(self.usual.stored_bytes_max));
        self.budget.set(budget);
        self.is_removed.store(false, Ordering::Release);
    }

    /// What its tool calls share.
    pub fn tools(&self) -> &Arc<TenantTools> {
        &self.tools
    }

    /// What all its conversations together may spend, and have since this host began.
    pub fn budget(&self) -> &Arc<BudgetCounter> {
        &self.budget
    }

    /// What a conversation and its subagents spend together: `budget` bounds it, `None` where that bounds neither tokens nor money.
    pub(crate) fn family(&self, conversation: &ConversationId, budget: Budget) -> Option<Arc<Family>> {
        let is_bounded = budget.tokens.is_some() || budget.micro_usd.is_some();
        is_bounded.then(|| self.families.of(conversation, &self.budget, budget))
    }

    /// Prompts between admission and answer.
    pub fn seats_taken(&self) -> usize {
        self.seats.load(Ordering::Acquire)
    }

    /// How many conversations it has.
    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// How many bytes it has stored.
    pub(crate) fn stored(&self) -> &Arc<Stored> {
        &self.stored
    }

    /// Takes a place in the minute's prompts for a change that is none: a history set from outside, a message injected, a fork, a
    /// compaction. They write as much as prompts do.
    ///
    /// # Errors
    /// [`NotAdmitted`] for a tenant that is out of service or has used up its minute.
    pub fn admit_change(&self) -> Result<(), NotAdmitted> {
        self.in_service()?;
        self.requests.take().or_else(|after| self.refuse(NotAdmitted::Requests { after }))
    }

    /// Lets no round begin and no prompt in, or both again.
    pub fn pause(&self, paused: bool) {
        self.turns.pause(paused);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        self.turns.is_paused()
    }

    /// Takes it out of service; tells whether it was in.
    fn remove(&self) -> bool {
        !self.is_removed.swap(true, Ordering::AcqRel)
    }

    /// Says whether the tenant is in service.
    ///
    /// # Errors
    /// [`NotAdmitted::Removed`]; [`NotAdmitted::Paused`] while it is being erased.
    pub fn in_service(&self) -> Result<(), NotAdmitted> {
        if self.is_removed.load(Ordering::Acquire) {
            self.refuse(NotAdmitted::Removed)
        } else if self.is_erased.load(Ordering::Acquire) {
            self.refuse(NotAdmitted::Paused)
        } else {
            Ok(())
        }
    }

    /// Lets nothing new begin, for good: another takes the place of this one when all is erased ([`Tenants::renew`]).
    pub(crate) fn begin_erasure(&self) {
        self.is_erased.store(true, Ordering::Release);
    }

    /// Lets a prompt in: a few atomics, no wait.
    ///
    /// # Errors
    /// [`NotAdmitted`] names the first bound that is hit; nothing is taken then.
    pub fn admit(self: &Arc<Self>) -> Result<Seat, NotAdmitted> {
        self.in_service()?;
        if self.is_paused() {
            return self.refuse(NotAdmitted::Paused);
        }
        self.tokens.look().or_else(|after| self.refuse(NotAdmitted::Tokens { after }))?;
        let max = self.seats_max.load(Ordering::Acquire);
        if self.seats.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < max).then_some(n + 1)).is_err() {
            return self.refuse(NotAdmitted::Prompts);
        }
        let seat = Seat { tenant: self.clone(), bytes: 0 };
        // Last: who is refused for something else has not used up a request.
        self.requests.take().or_else(|after| self.refuse(NotAdmitted::Requests { after }))?;
        self.sums.admitted.add(1);
        Ok(seat)
    }

    /// Lets a subagent's prompt in. It came with the prompt of its parent, which was let in: no rate and no number of seats refuses it, and
    /// a pause lets it wait for its permit (DESIGN §4.7: queue, never fail).
    ///
    /// # Errors
    /// [`NotAdmitted`] for a tenant that is out of service.
    pub(crate) fn admit_child(self: &Arc<Self>) -> Result<Seat, NotAdmitted> {
        self.in_service()?;
        self.seats.fetch_add(1, Ordering::AcqRel);
        self.sums.admitted.add(1);
        Ok(Seat { tenant: self.clone(), bytes: 0 })
    }

    /// Counts a refusal.
    pub(crate) fn refuse<T>(&self, why: NotAdmitted) -> Result<T, NotAdmitted> {
        self.sums.refuse(&why);
        Err(why)
    }

    /// Counts the tokens of a model call.
    pub fn charge_tokens(&self, tokens: u64) {
        self.sums.tokens.add(tokens);
        self.tokens.charge(tokens);
    }

    /// Waits for the right to run a turn; `None` once the host closed it.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub async fn round_permit(self: Arc<Self>) -> Option<RoundPermit> {
        self.turns.clone().take().await
    }

    /// What the host counts of its conversations.
    pub fn figures(&self) -> &Arc<TenantFigures> {
        &self.figures
    }

    /// Its figures.
    pub fn usage(&self) -> TenantUsage {
        TenantUsage {
            paused: self.is_paused(),
            conversations: self.places.count(),
            stored_bytes: self.stored.known(),
            prompts: self.seats_taken(),
            turns_running: self.turns.running(),
            turns_waiting: self.turns.waiting(),
            memory_bytes: self.memory.bytes.load(Ordering::Acquire),
            prompts_admitted: self.sums.admitted.get(),
            tokens: self.sums.tokens.get(),
            spent: self.budget.spent(),
            refused: self.sums.refused(),
        }
    }
}
