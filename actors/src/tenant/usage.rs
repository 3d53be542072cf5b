//! The usage figures of a tenant: what it uses now, and what it was refused.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::admission::NotAdmitted;
use crate::policy::Amount;

/// A tenant's figures at one moment. Totals count from the start of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TenantUsage {
    /// Whether the tenant is paused.
    pub paused: bool,
    /// Stored conversations; `None` until they are counted, which only happens under a limit.
    pub conversations: Option<u64>,
    /// Bytes of stored entries and snapshots. 0 until they are counted, at the first prompt under a
    /// quota.
    pub stored_bytes: u64,
    /// Prompts between admission and the end of their rounds.
    pub prompts: usize,
    /// Rounds that hold a permit.
    pub turns_running: usize,
    /// Rounds that wait for a permit.
    pub turns_waiting: usize,
    /// Bytes that the prompts under way take.
    pub memory_bytes: u64,
    /// Prompts admitted so far.
    pub prompts_admitted: u64,
    /// Input and output tokens of all model calls since the start of this host.
    pub tokens: u64,
    /// What counts against budgets: spent or reserved, also before the start of this host. 0 where
    /// no budget is set, so it is not the sum of `tokens`.
    pub spent: Amount,
    /// Refusals before a conversation was reached, by reason.
    pub refused: Refused,
}

/// Refusals before a conversation was reached, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Refused {
    /// Too many prompts between admission and the end of their rounds.
    pub prompts: u64,
    /// Too many prompts per minute.
    pub requests: u64,
    /// Too many tokens per minute.
    pub tokens: u64,
    /// Too many bytes of prompts under way, of the tenant or of the host.
    pub memory: u64,
    /// Too many stored conversations.
    pub conversations: u64,
    /// Too many stored bytes.
    pub stored: u64,
    /// The tenant was paused, removed or being erased.
    pub closed: u64,
}

impl Refused {
    /// The sum of all reasons.
    pub fn total(&self) -> u64 {
        let Self {
            prompts,
            requests,
            tokens,
            memory,
            conversations,
            stored,
            closed,
        } = self;
        prompts + requests + tokens + memory + conversations + stored + closed
    }
}

/// A total that only grows.
#[derive(Debug, Default)]
pub(super) struct Sum(AtomicU64);

impl Sum {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The totals behind [`TenantUsage`].
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) admitted: Sum,
    pub(super) tokens: Sum,
    refused: [Sum; 7],
}

impl Sums {
    /// Counts a refusal by its reason.
    pub(super) fn refuse(&self, why: &NotAdmitted) {
        let [
            prompts,
            requests,
            tokens,
            memory,
            conversations,
            stored,
            closed,
        ] = &self.refused;
        match why {
            NotAdmitted::Prompts => prompts,
            NotAdmitted::Requests { .. } => requests,
            NotAdmitted::Tokens { .. } => tokens,
            NotAdmitted::Memory | NotAdmitted::HostMemory => memory,
            NotAdmitted::Conversations => conversations,
            NotAdmitted::StoredBytes => stored,
            NotAdmitted::Paused | NotAdmitted::Removed => closed,
        }
        .add(1);
    }

    pub(super) fn refused(&self) -> Refused {
        let [
            prompts,
            requests,
            tokens,
            memory,
            conversations,
            stored,
            closed,
        ] = self.refused.each_ref().map(Sum::get);
        Refused {
            prompts,
            requests,
            tokens,
            memory,
            conversations,
            stored,
            closed,
        }
    }
}
