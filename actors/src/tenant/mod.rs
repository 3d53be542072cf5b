//! What a tenant may use: seats for its prompts, permits for its rounds, rates, memory, stored
//! conversations. All counters are atomics; a refusal starts no actor.
//!
//! `Tenant::admit` admits a prompt and returns a [`Seat`], which is held until the round ends.
//! Every limit can change at any time. A lower limit takes effect as work ends; running work is
//! never stopped for it.
//!
//! What counts as memory: the bytes of a prompt from admission to the end of its round, plus 1 KiB
//! per prompt for its bookkeeping, and the histories of conversations that work.
//! A tenant's own limit also counts the events that are kept for its watchers. Idle conversations
//! have a separate limit ([`crate::limits::Limits::idle_bytes_max`]) and do not count.

pub mod admission;
mod families;
mod memory;
mod quotas;
mod usage;
mod round_permits;
mod conversation_count;
mod spending;
mod stored;
mod tenants;
#[cfg(test)]
mod tests;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::RwLock;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

pub(crate) use admission::NotAdmitted;
pub(crate) use conversation_count::{ConversationCount, PendingConversation, Taken};
use families::Families;
pub(crate) use families::Family;
use memory::Memory;
pub(crate) use memory::{HeldMemory, HistoryBytes, MemoryLeft};
pub use quotas::Quotas;
pub(crate) use round_permits::RoundPermit;
use spending::StoredSpending;
pub(crate) use stored::{NoRoom, PendingBytes, RoundBytes, Stored};
pub use tenants::Tenants;
pub use usage::{Refused, TenantUsage};

use crate::{
    ids::{ConversationId, TenantId},
    policy::{Budget, BudgetCounter, HostShare},
    tool_executor::TenantTools,
};
use round_permits::RoundPermits;
use usage::Sums;

/// Bookkeeping of a prompt under way, in addition to its own bytes.
const PROMPT_KEPT_BYTES: u64 = 1024;

/// The value of a rate or an amount without a limit.
const UNBOUNDED: u64 = u64::MAX;

/// The limits and counters of one tenant.
pub struct Tenant {
    id: TenantId,
    /// With this host's part of those that hosts keep together.
    quotas: RwLock<(Quotas, HostShare)>,
    /// The host's limits, which apply where a quota is `None`.
    defaults: HostDefaults,
    is_removed: AtomicBool,
    is_erased: AtomicBool,
    seats: AtomicUsize,
    seats_max: AtomicUsize,
    memory: Memory,
    host_memory: Arc<Memory>,
    requests: Rate,
    tokens: Rate,
    turns: Arc<RoundPermits>,
    conversations: Arc<ConversationCount>,
    stored: Arc<Stored>,
    tools: Arc<TenantTools>,
    budget: Arc<BudgetCounter>,
    spending: StoredSpending,
    families: Families,
    sums: Sums,
    /// Conversations with a running actor.
    awake: AtomicUsize,
    /// A permit for each read of a stored conversation.
    reads: Arc<Semaphore>,
    /// A permit for each conversation that loads.
    loads: Arc<Semaphore>,
    /// A permit for each computation on a history.
    measurements: Arc<Semaphore>,
    /// A permit for each long answer that is written into a history: the tenant's, and the host's.
    long_answers: [Arc<Semaphore>; 2],
}

/// The place of a long answer that is written into a history.
#[derive(Debug)]
pub(crate) struct LongAnswerPlace {
    _permits: [OwnedSemaphorePermit; 2],
}

/// The host's limits for tenants without quotas.
#[derive(Debug, Clone, Copy)]
struct HostDefaults {
    seats_max: usize,
    turns_max: usize,
    stored_bytes_max: u64,
}

/// A rate limit; see [`admission`].
#[derive(Debug)]
struct Rate {
    per_minute: AtomicU64,
    full_at: AtomicU64,
    since: Instant,
}

impl Rate {
    fn new(since: Instant) -> Self {
        Self {
            per_minute: AtomicU64::new(UNBOUNDED),
            full_at: AtomicU64::new(0),
            since,
        }
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
            let _ = self
                .full_at
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, resized);
        }
    }

    /// Takes one unit. The error is the time until one is available.
    fn take(&self) -> Result<(), std::time::Duration> {
        let per_minute = self.per_minute.load(Ordering::Acquire);
        if per_minute == UNBOUNDED {
            return Ok(());
        }
        let now = self.now();
        let mut refused = None;
        let taken = self
            .full_at
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |full_at| {
                admission::take(full_at, now, 1, per_minute)
                    .map_err(|wait| refused = Some(wait))
                    .ok()
            });
        match (taken, refused) {
            (Err(_), Some(wait)) => Err(wait),
            (Ok(_) | Err(_), _) => Ok(()),
        }
    }

    /// Takes one unit, if a tenth of a minute's worth is left after it. The error is the time until
    /// that is so.
    fn take_leaving_some(&self) -> Result<(), std::time::Duration> {
        let per_minute = self.per_minute.load(Ordering::Acquire);
        if per_minute == UNBOUNDED {
            return Ok(());
        }
        let now = self.now();
        let mut refused = None;
        let taken = self
            .full_at
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |full_at| {
                admission::take(full_at, now, 1 + per_minute / 10, per_minute)
                    .map_err(|wait| refused = Some(wait))
                    .ok()
                    .map(|_| admission::charge(full_at, now, 1, per_minute))
            });
        match (taken, refused) {
            (Err(_), Some(wait)) => Err(wait),
            (Ok(_) | Err(_), _) => Ok(()),
        }
    }

    /// Checks whether a unit is available without taking it. The error is the time until one is.
    fn look(&self) -> Result<(), std::time::Duration> {
        let per_minute = self.per_minute.load(Ordering::Acquire);
        if per_minute == UNBOUNDED {
            return Ok(());
        }
        admission::take(
            self.full_at.load(Ordering::Acquire),
            self.now(),
            1,
            per_minute,
        )
        .map(drop)
    }

    /// Takes what was used, even if the bucket goes into debt.
    fn charge(&self, used: u64) {
        let per_minute = self.per_minute.load(Ordering::Acquire);
        if per_minute != UNBOUNDED {
            let now = self.now();
            let charged = |full_at| Some(admission::charge(full_at, now, used, per_minute));
            let _ = self
                .full_at
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, charged);
        }
    }
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tenant({})", self.id)
    }
}

/// The admission of one prompt, with the bytes that it takes. Dropping the seat frees both, also
/// when the mailbox that holds it is dropped.
#[derive(Debug)]
pub struct Seat {
    tenant: Arc<Tenant>,
    bytes: u64,
    /// What its round is taken to store.
    round: Option<RoundBytes>,
}

impl Seat {
    /// The bytes of the prompt and of its bookkeeping.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps the stored bytes of the prompt's round until the seat is dropped.
    pub(crate) fn keep_for_round(&mut self, bytes: RoundBytes) {
        self.round = Some(bytes);
    }

    /// Takes the bytes of the prompt and of its bookkeeping. `events` returns the bytes of the
    /// tenant's events; it is called only for a tenant with a memory limit.
    ///
    /// # Errors
    /// [`NotAdmitted::Memory`] or [`NotAdmitted::HostMemory`].
    pub(crate) fn weigh(
        &mut self,
        bytes: usize,
        events: impl FnOnce() -> usize,
    ) -> Result<(), NotAdmitted> {
        let bytes = PROMPT_KEPT_BYTES.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        self.tenant.take_memory(bytes, 0, events)?;
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        drop(self.round.take());
        self.tenant.memory.give_back(self.bytes);
        self.tenant.host_memory.give_back(self.bytes);
        self.tenant.seats.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Tenant {
    /// The tenant's id.
    pub(crate) fn id(&self) -> &TenantId {
        &self.id
    }

    /// The configured quotas.
    pub(crate) fn quotas(&self) -> Quotas {
        self.quotas.read().0
    }

    /// Replaces quotas and budget, and puts the tenant in service.
    pub(crate) fn configure(&self, quotas: Quotas, budget: Budget) {
        // All limits change under this lock, so that two concurrent callers do not mix theirs.
        let mut configured = self.quotas.write();
        configured.0 = quotas;
        self.divide(&configured);
        self.memory
            .bound(quotas.memory_bytes_max.unwrap_or(UNBOUNDED));
        self.conversations.bound(quotas.conversations_max);
        self.stored.bound(
            quotas
                .stored_bytes_max
                .unwrap_or(self.defaults.stored_bytes_max),
        );
        self.budget.set(budget);
        self.is_removed.store(false, Ordering::Release);
    }

    /// Sets this host's part of the quotas that several hosts keep together.
    pub(super) fn share(&self, share: HostShare) {
        let mut configured = self.quotas.write();
        configured.1 = share;
        self.divide(&configured);
    }

    /// Applies the quotas that are divided between hosts. The host's own limits are not.
    fn divide(&self, (quotas, share): &(Quotas, HostShare)) {
        let own = |quota: Option<usize>, whole| quota.map_or(whole, |max| share.of_count(max));
        let seats = own(quotas.prompts_max, self.defaults.seats_max);
        self.seats_max.store(seats, Ordering::Release);
        self.turns
            .resize(own(quotas.turns_max, self.defaults.turns_max));
        self.conversations.share(share.hosts);
        let requests = quotas.requests_per_minute.map(|rate| share.of_rate(rate));
        self.requests.set(requests.map(u64::from));
        self.tokens
            .set(quotas.tokens_per_minute.map(|rate| share.of(rate)));
    }

    /// What the tool calls of all its conversations share.
    pub(crate) fn tools(&self) -> &Arc<TenantTools> {
        &self.tools
    }

    /// The budget of all its conversations together.
    pub(crate) fn budget(&self) -> &Arc<BudgetCounter> {
        &self.budget
    }

    /// The shared budget of a conversation and its subagents; `None` if `budget` limits neither
    /// tokens nor money.
    pub(crate) fn family(
        &self,
        conversation: &ConversationId,
        budget: Budget,
    ) -> Option<Arc<Family>> {
        let is_bounded = budget.tokens.is_some() || budget.micro_usd.is_some();
        is_bounded.then(|| self.families.get(conversation, &self.budget, budget))
    }

    /// Number of prompts between admission and the end of their rounds.
    pub(crate) fn seats_taken(&self) -> usize {
        self.seats.load(Ordering::Acquire)
    }

    /// The count of stored conversations.
    pub(crate) fn conversation_count(&self) -> &Arc<ConversationCount> {
        &self.conversations
    }

    /// A permit for each conversation that loads; see [`crate::limits::TENANT_LOADS_MAX`].
    pub(crate) fn loads(&self) -> &Arc<Semaphore> {
        &self.loads
    }

    /// A permit for each read of a stored conversation; see [`crate::limits::TENANT_READS_MAX`].
    pub(crate) fn reads(&self) -> &Arc<Semaphore> {
        &self.reads
    }

    /// A permit for each computation on a history; see
    /// [`crate::limits::TENANT_MEASUREMENTS_MAX`].
    pub(crate) fn measurements(&self) -> &Arc<Semaphore> {
        &self.measurements
    }

    /// Waits for the place of a long answer. `None` once the host has ended.
    pub(crate) async fn long_answer_place(&self) -> Option<LongAnswerPlace> {
        let [own, host] = &self.long_answers;
        // In this order: what waits for the tenant's own place is in no other tenant's way.
        let own = own.clone().acquire_owned().await.ok()?;
        let host = host.clone().acquire_owned().await.ok()?;
        Some(LongAnswerPlace {
            _permits: [own, host],
        })
    }

    /// The count of stored bytes.
    pub(crate) fn stored(&self) -> &Arc<Stored> {
        &self.stored
    }

    /// Admits a change that is not a prompt: an imported history, an injected message, a fork, a
    /// compaction. Each counts as one prompt of the per-minute rate, since it writes as much.
    ///
    /// # Errors
    /// [`NotAdmitted`] for a tenant that is paused, is out of service or has used up its prompts
    /// per minute.
    pub(crate) fn admit_change(&self) -> Result<(), NotAdmitted> {
        self.check_open()?;
        self.requests
            .take()
            .or_else(|after| self.refuse(NotAdmitted::Requests { after }))
    }

    /// Pauses the tenant, or resumes it. While paused, no round starts and no prompt is admitted.
    pub(crate) fn pause(&self, paused: bool) {
        self.turns.pause(paused);
    }

    /// Whether the tenant is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.turns.is_paused()
    }

    /// Takes the tenant out of service. Returns whether it was in service.
    fn remove(&self) -> bool {
        !self.is_removed.swap(true, Ordering::AcqRel)
    }

    /// Checks that the tenant is in service.
    ///
    /// # Errors
    /// [`NotAdmitted::Removed`]; [`NotAdmitted::Paused`] while the tenant is being erased.
    pub(crate) fn in_service(&self) -> Result<(), NotAdmitted> {
        if self.is_removed.load(Ordering::Acquire) {
            self.refuse(NotAdmitted::Removed)
        } else if self.is_erased.load(Ordering::Acquire) {
            self.refuse(NotAdmitted::Paused)
        } else {
            Ok(())
        }
    }

    /// Checks that the tenant is in service and not paused.
    ///
    /// # Errors
    /// As [`Tenant::in_service`]; [`NotAdmitted::Paused`] while the tenant is paused.
    pub(crate) fn check_open(&self) -> Result<(), NotAdmitted> {
        self.in_service()?;
        if self.is_paused() {
            return self.refuse(NotAdmitted::Paused);
        }
        Ok(())
    }

    /// Stops all admissions of this value for good. When the data is erased, a new value replaces
    /// it ([`Tenants::renew`]).
    pub(crate) fn begin_erasure(&self) {
        self.is_erased.store(true, Ordering::Release);
    }

    /// Admits a prompt. Takes a few atomic operations and never waits.
    ///
    /// # Errors
    /// [`NotAdmitted`] names the first limit that was hit; nothing is taken then.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Seat, NotAdmitted> {
        let seat = self.seat()?;
        // Last, so that a prompt refused for another reason does not use up a request.
        self.requests
            .take()
            .or_else(|after| self.refuse(NotAdmitted::Requests { after }))?;
        self.sums.admitted.add(1);
        Ok(seat)
    }

    /// Admits a prompt whose request was counted by [`Tenant::admit_change`] already.
    ///
    /// # Errors
    /// As [`Tenant::admit`], but for the rate of requests.
    pub(crate) fn admit_counted(self: &Arc<Self>) -> Result<Seat, NotAdmitted> {
        let seat = self.seat()?;
        self.sums.admitted.add(1);
        Ok(seat)
    }

    fn seat(self: &Arc<Self>) -> Result<Seat, NotAdmitted> {
        self.check_open()?;
        self.tokens
            .look()
            .or_else(|after| self.refuse(NotAdmitted::Tokens { after }))?;
        let max = self.seats_max.load(Ordering::Acquire);
        if self
            .seats
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < max).then_some(n + 1)
            })
            .is_err()
        {
            return self.refuse(NotAdmitted::Prompts);
        }
        Ok(Seat {
            tenant: self.clone(),
            bytes: 0,
            round: None,
        })
    }

    /// Admits a task of a fan-out. It counts against the rates like a prompt, but leaves a tenth of
    /// a minute's requests to the tenant's prompts, and waits for its permit while the tenant is
    /// paused.
    ///
    /// # Errors
    /// [`NotAdmitted::Requests`] and [`NotAdmitted::Tokens`], after which the task can be admitted;
    /// otherwise as [`Tenant::admit_child`].
    pub(crate) fn admit_task(self: &Arc<Self>) -> Result<Seat, NotAdmitted> {
        self.in_service()?;
        // A task that waits for its turn is not refused, so it is not counted as a refusal.
        self.tokens
            .look()
            .map_err(|after| NotAdmitted::Tokens { after })?;
        self.requests
            .take_leaving_some()
            .map_err(|after| NotAdmitted::Requests { after })?;
        self.admit_child()
    }

    /// Counts a task of a fan-out that is sent again as one more request, also beyond the rate:
    /// later tasks and prompts wait for it.
    pub(crate) fn charge_request(&self) {
        self.requests.charge(1);
    }

    /// Admits a subagent's prompt. It belongs to its parent's prompt, which was admitted, so
    /// neither rate nor number of seats refuses it. While the tenant is paused it waits for its
    /// permit.
    ///
    /// # Errors
    /// [`NotAdmitted`] for a tenant that is out of service.
    pub(crate) fn admit_child(self: &Arc<Self>) -> Result<Seat, NotAdmitted> {
        self.in_service()?;
        self.seats.fetch_add(1, Ordering::AcqRel);
        self.sums.admitted.add(1);
        Ok(Seat {
            tenant: self.clone(),
            bytes: 0,
            round: None,
        })
    }

    /// Counts a refusal and returns it.
    pub(crate) fn refuse<T>(&self, why: NotAdmitted) -> Result<T, NotAdmitted> {
        self.sums.refuse(&why);
        Err(why)
    }

    /// Counts the tokens of a model call, against the rate and in the totals.
    pub(crate) fn charge_tokens(&self, tokens: u64) {
        self.sums.tokens.add(tokens);
        self.tokens.charge(tokens);
    }

    /// Waits for the permit to run a round; `None` once the host has closed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue.
    pub(crate) async fn round_permit(self: Arc<Self>) -> Option<RoundPermit> {
        self.turns.clone().take().await
    }

    /// Counts an activation.
    pub(crate) fn woke(&self) {
        self.awake.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of an activation.
    pub(crate) fn slept(&self) {
        self.awake.fetch_sub(1, Ordering::Relaxed);
    }

    /// Conversations with a running actor.
    pub(crate) fn awake(&self) -> usize {
        self.awake.load(Ordering::Relaxed)
    }

    /// The tenant's usage at this moment.
    pub(crate) fn usage(&self) -> TenantUsage {
        TenantUsage {
            paused: self.is_paused(),
            conversations: self.conversations.count(),
            stored_bytes: self.stored.known(),
            prompts: self.seats_taken(),
            turns_running: self.turns.running(),
            turns_waiting: self.turns.waiting(),
            memory_bytes: self.memory.bytes(),
            prompts_admitted: self.sums.admitted.get(),
            tokens: self.sums.tokens.get(),
            spent: self.budget.spent(),
            refused: self.sums.refused(),
        }
    }
}
