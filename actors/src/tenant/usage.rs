//! What a tenant uses, and what it was refused: its figures.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::admission::NotAdmitted;
use crate::policy::Amount;

/// A tenant's figures at one moment. Sums count since this host began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TenantUsage {
    /// Whether it is paused.
    pub paused: bool,
    /// Conversations that are stored, as far as they were counted: only a bound has them counted.
    pub conversations: Option<u64>,
    /// Bytes of entries and snapshots that are stored, as far as it is known: counted at the first prompt where they are bounded.
    pub stored_bytes: u64,
    /// Prompts between admission and the end of their rounds.
    pub prompts: usize,
    /// Turns that have the right to run.
    pub turns_running: usize,
    /// Turns that wait for the right to run.
    pub turns_waiting: usize,
    /// Bytes that its prompts under way take.
    pub memory_bytes: u64,
    /// Prompts that were admitted.
    pub prompts_admitted: u64,
    /// Tokens of its conversations' model calls, input and output.
    pub tokens: u64,
    /// What was spent or reserved, as far as budgets were counted.
    pub spent: Amount,
    /// What was refused before it reached a conversation, by reason.
    pub refused: Refused,
}

/// What was refused before it reached a conversation, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Refused {
    /// Too many prompts between admission and answer.
    pub prompts: u64,
    /// Too many prompts in a minute.
    pub requests: u64,
    /// Too many tokens in a minute.
    pub tokens: u64,
    /// Too many bytes under way, of the tenant or of the host.
    pub memory: u64,
    /// A conversation more than may be stored.
    pub conversations: u64,
    /// More bytes than may be stored.
    pub stored: u64,
    /// Paused, removed or being erased.
    pub closed: u64,
}

impl Refused {
    /// All of them.
    pub fn total(&self) -> u64 {
        let Self { prompts, requests, tokens, memory, conversations, stored, closed } = self;
        prompts + requests + tokens + memory + conversations + stored + closed
    }
}

/// A sum that only grows.
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

/// The sums behind [`TenantUsage`].
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) admitted: Sum,
    pub(super) tokens: Sum,
    refused: [Sum; 7],
}

impl Sums {
    /// Counts a refusal.
    pub(super) fn refuse(&self, why: &NotAdmitted) {
        let [prompts, requests, tokens, memory, conversations, stored, closed] = &self.refused;
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
        let [prompts, requests, tokens, memory, conversations, stored, closed] = self.refused.each_ref().map(Sum::get);
        Refused { prompts, requests, tokens, memory, conversations, stored, closed }
    }
}
