//! Bytes of memory that the work of tenants takes: a bound of each tenant, and one of the host.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{NotAdmitted, Tenant, UNBOUNDED};

/// Bytes in use, and their limit.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: AtomicU64,
    max: AtomicU64,
    /// Bytes by which histories have grown since they were last asked for.
    grown: AtomicU64,
}

impl Memory {
    pub(super) fn new(max: u64) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            max: AtomicU64::new(max),
            grown: AtomicU64::new(0),
        }
    }

    /// Whether histories have grown by `bytes` or more since this last returned `true`.
    pub(super) fn has_grown(&self, bytes: u64) -> bool {
        let has = self.grown.load(Ordering::Relaxed) >= bytes;
        if has {
            self.grown.store(0, Ordering::Relaxed);
        }
        has
    }

    /// The bytes in use.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Sets the limit.
    pub(super) fn bound(&self, max: u64) {
        self.max.store(max, Ordering::Release);
    }

    /// Whether `bytes` fit beside those in use and `others`. They always fit if `own` is all that
    /// is in use: a limit below the size of one prompt, or of one conversation, would otherwise
    /// refuse it for ever.
    fn fits(&self, taken: u64, bytes: u64, own: u64, others: u64) -> bool {
        let max = self.max.load(Ordering::Acquire);
        let sum = taken.saturating_add(bytes).saturating_add(others);
        sum <= max || (taken <= own && max > 0)
    }

    pub(super) fn take(&self, bytes: u64, own: u64, others: u64) -> bool {
        self.bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
                self.fits(taken, bytes, own, others)
                    .then(|| taken.saturating_add(bytes))
            })
            .is_ok()
    }

    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl Tenant {
    /// Takes memory of the tenant and of the host. `own` are bytes that the same work has taken
    /// already; `events` returns the bytes of the tenant's events and is called only for a tenant
    /// with a limit of its own.
    ///
    /// What a tenant has counts twice against the host: it gets more only while others find as much.
    ///
    /// # Errors
    /// [`NotAdmitted::Memory`] or [`NotAdmitted::HostMemory`]; nothing is taken then.
    pub(super) fn take_memory(
        &self,
        bytes: u64,
        own: u64,
        events: impl FnOnce() -> usize,
    ) -> Result<(), NotAdmitted> {
        if !self.memory.take(bytes, own, self.weight_of(events)) {
            return self.refuse(NotAdmitted::Memory);
        }
        let before = self.memory.bytes().saturating_sub(bytes);
        if !self.host_memory.take(bytes, own, before) {
            self.memory.give_back(bytes);
            return self.refuse(NotAdmitted::HostMemory);
        }
        Ok(())
    }

    /// Notes that a history has grown by `bytes`.
    pub(crate) fn note_growth(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.host_memory.grown.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes memory for an answer that waits, of a conversation that has taken `own` already. `None`
    /// if there is none.
    pub(crate) fn hold_memory(self: &Arc<Self>, bytes: usize, own: u64) -> Option<HeldMemory> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.take_memory(bytes, own, || 0).ok()?;
        Some(HeldMemory {
            tenant: self.clone(),
            bytes,
        })
    }

    /// Whether a conversation would get these bytes for its history now.
    pub(crate) fn has_memory_for(&self, history: u64) -> bool {
        let own = self.memory.bytes();
        self.memory.fits(own, history, 0, 0)
            && self
                .host_memory
                .fits(self.host_memory.bytes(), history, 0, own)
    }

    fn weight_of(&self, events: impl FnOnce() -> usize) -> u64 {
        let is_bounded = self.memory.max.load(Ordering::Acquire) != UNBOUNDED;
        match is_bounded {
            true => u64::try_from(events()).unwrap_or(u64::MAX),
            false => 0,
        }
    }
}

/// Memory that dropping the value gives back.
#[derive(Debug)]
pub(crate) struct HeldMemory {
    tenant: Arc<Tenant>,
    bytes: u64,
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        for memory in [&self.tenant.memory, &self.tenant.host_memory] {
            memory.give_back(self.bytes);
        }
    }
}

/// What a tenant may still take for the histories of open rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryLeft {
    /// Some.
    Some,
    /// None: calls of tools do not start, and a long answer ends its round. Short answers go beyond the
    /// limit.
    None,
    /// The limit is passed by a quarter: rounds end before their next model call.
    Exceeded,
}

impl MemoryLeft {
    /// Whether there is none.
    pub(crate) fn is_none(self) -> bool {
        self != Self::Some
    }
}

/// The bytes that the history of one conversation takes while it works: they count from the first
/// prompt to the end of the last round. Dropping the value gives them back.
#[derive(Debug)]
pub(crate) struct HistoryBytes {
    tenant: Arc<Tenant>,
    bytes: u64,
    /// Those that its prompts have taken.
    prompts: u64,
}

impl HistoryBytes {
    /// None yet.
    pub(crate) fn new(tenant: Arc<Tenant>) -> Self {
        Self {
            tenant,
            bytes: 0,
            prompts: 0,
        }
    }

    /// Takes the bytes of a history, unless some are taken already. `prompt` are the bytes that
    /// its prompt has taken.
    ///
    /// # Errors
    /// [`NotAdmitted::Memory`] or [`NotAdmitted::HostMemory`]; nothing is taken then.
    pub(crate) fn take(
        &mut self,
        bytes: usize,
        prompt: u64,
        events: impl FnOnce() -> usize,
    ) -> Result<(), NotAdmitted> {
        if self.bytes > 0 || bytes == 0 {
            return Ok(());
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.tenant.take_memory(bytes, prompt, events)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Whether the conversation may take these bytes more.
    ///
    /// # Errors
    /// [`NotAdmitted::Memory`] or [`NotAdmitted::HostMemory`].
    pub(crate) fn has_room_for(
        &self,
        added: usize,
        events: impl FnOnce() -> usize,
    ) -> Result<(), NotAdmitted> {
        let added = u64::try_from(added).unwrap_or(u64::MAX);
        self.tenant
            .take_memory(added, self.bytes + self.prompts, events)?;
        for memory in [&self.tenant.memory, &self.tenant.host_memory] {
            memory.give_back(added);
        }
        Ok(())
    }

    /// The bytes that the conversation and its prompts have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.bytes + self.prompts
    }

    /// What the tenant may still take. There is always some for a conversation that has taken all
    /// that is in use.
    pub(crate) fn left(&self) -> MemoryLeft {
        let own = self.taken();
        let of_tenant = self.tenant.memory.bytes();
        let of_host = &self.tenant.host_memory;
        let fits = |tolerated: fn(u64) -> u64| {
            self.tenant.memory.fits(tolerated(of_tenant), 0, own, 0)
                && of_host.fits(tolerated(of_host.bytes()), 0, own, tolerated(of_tenant))
        };
        match (fits(|bytes| bytes), fits(|bytes| bytes / 5 * 4)) {
            (true, _) => MemoryLeft::Some,
            (false, true) => MemoryLeft::None,
            (false, false) => MemoryLeft::Exceeded,
        }
    }

    /// Sets the bytes of a conversation that works already, also beyond the limits: its round is not
    /// ended for them. `prompts` are those among them that its prompts have taken.
    pub(crate) fn set(&mut self, bytes: usize, prompts: u64) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let bytes = bytes.saturating_sub(prompts);
        let more = bytes.saturating_sub(self.bytes);
        let less = self.bytes.saturating_sub(bytes);
        for memory in [&self.tenant.memory, &self.tenant.host_memory] {
            memory.add(more);
            memory.give_back(less);
        }
        (self.bytes, self.prompts) = (bytes, prompts);
    }
}

impl Drop for HistoryBytes {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}
