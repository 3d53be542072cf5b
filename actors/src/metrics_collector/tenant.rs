//! The figures that a host keeps for each tenant. They are plain atomics, since a host has many
//! tenants: under 300 bytes each, where sharded counters would take kilobytes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::chat::Usage;

/// Labels of refusals: first those before admission, by the limit that was hit, then those of
/// conversations, by error code. The last label collects all other codes, so the number of label
/// values is fixed.
pub const REFUSALS: [&str; 11] = [
    "prompts",
    "requests",
    "tokens",
    "memory",
    "conversations",
    "stored",
    "closed",
    "conversation_busy",
    "inbox_full",
    "draining",
    "other",
];

/// The number of labels that the tenant's admission counts.
const BEFORE_ADMISSION: usize = 7;

/// The figures of one tenant. They live as long as the host, and updating them wakes no actor.
#[derive(Debug, Default)]
pub(crate) struct TenantFigures {
    prompts: AtomicU64,
    refusals: [AtomicU64; REFUSALS.len()],
    rounds: AtomicU64,
    rounds_failed: AtomicU64,
    tool_calls: AtomicU64,
    tool_calls_failed: AtomicU64,
    input_uncached: AtomicU64,
    cache_read: AtomicU64,
    cache_write: AtomicU64,
    output: AtomicU64,
    cost_micro_usd: AtomicU64,
    awake: AtomicUsize,
}

/// The figures of one tenant at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantReading {
    /// Prompts that were accepted.
    pub prompts: u64,
    /// Prompts that were refused, in the order of [`REFUSALS`].
    pub refusals: [u64; REFUSALS.len()],
    /// Rounds that ended, for whatever reason.
    pub rounds: u64,
    /// Rounds that ended in an error.
    pub rounds_failed: u64,
    /// Tool calls that ended, successfully or not.
    pub tool_calls: u64,
    /// Tool calls that failed.
    pub tool_calls_failed: u64,
    /// Tokens of model calls by class: uncached input, cache reads, cache writes, output.
    pub usage: Usage,
    /// Cost of model calls, in millionths of a US dollar.
    pub cost_micro_usd: u64,
    /// Conversations with a running actor, idle ones included.
    pub awake: usize,
    /// Prompts between admission and the end of their rounds.
    pub under_way: usize,
    /// Stored bytes, as far as they were counted.
    pub stored_bytes: u64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl TenantFigures {
    /// Counts an accepted prompt.
    pub(crate) fn prompt(&self) {
        add(&self.prompts, 1);
    }

    /// Counts a refusal by a conversation, by its error code.
    pub(crate) fn refused(&self, code: &str) {
        let place = REFUSALS
            .iter()
            .skip(BEFORE_ADMISSION)
            .position(|known| *known == code)
            .map(|place| place + BEFORE_ADMISSION);
        let place = place.unwrap_or(REFUSALS.len() - 1);
        if let Some(counter) = self.refusals.get(place) {
            add(counter, 1);
        }
    }

    /// Counts a round that ended.
    pub(crate) fn round(&self, failed: bool) {
        add(&self.rounds, 1);
        add(&self.rounds_failed, u64::from(failed));
    }

    /// Counts a tool call that ended.
    pub(crate) fn tool_call(&self, failed: bool) {
        add(&self.tool_calls, 1);
        add(&self.tool_calls_failed, u64::from(failed));
    }

    /// Counts the tokens and the cost of a model call.
    pub(crate) fn spent(&self, usage: &Usage, cost_micro_usd: u64) {
        add(&self.input_uncached, usage.input_uncached);
        add(&self.cache_read, usage.cache_read);
        add(&self.cache_write, usage.cache_write);
        add(&self.output, usage.output);
        add(&self.cost_micro_usd, cost_micro_usd);
    }

    /// Counts an activation.
    pub(crate) fn woke(&self) {
        self.awake.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of an activation.
    pub(crate) fn slept(&self) {
        self.awake.fetch_sub(1, Ordering::Relaxed);
    }

    /// Reads all figures, and adds those of admission: prompts under way, stored bytes, and
    /// refusals in the order of [`REFUSALS`].
    pub(crate) fn read(
        &self,
        under_way: usize,
        stored_bytes: u64,
        refused: [u64; BEFORE_ADMISSION],
    ) -> TenantReading {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TenantReading {
            prompts: of(&self.prompts),
            refusals: std::array::from_fn(|place| {
                self.refusals.get(place).map_or(0, of) + refused.get(place).copied().unwrap_or(0)
            }),
            rounds: of(&self.rounds),
            rounds_failed: of(&self.rounds_failed),
            tool_calls: of(&self.tool_calls),
            tool_calls_failed: of(&self.tool_calls_failed),
            usage: Usage {
                input_uncached: of(&self.input_uncached),
                cache_read: of(&self.cache_read),
                cache_write: of(&self.cache_write),
                output: of(&self.output),
            },
            cost_micro_usd: of(&self.cost_micro_usd),
            awake: self.awake.load(Ordering::Relaxed),
            under_way,
            stored_bytes,
        }
    }
}

impl TenantReading {
    /// Adds another tenant's figures, as when many tenants share one label.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            prompts: self.prompts.saturating_add(other.prompts),
            refusals: std::array::from_fn(|place| {
                let of = |reading: &Self| reading.refusals.get(place).copied().unwrap_or(0);
                of(self).saturating_add(of(other))
            }),
            rounds: self.rounds.saturating_add(other.rounds),
            rounds_failed: self.rounds_failed.saturating_add(other.rounds_failed),
            tool_calls: self.tool_calls.saturating_add(other.tool_calls),
            tool_calls_failed: self
                .tool_calls_failed
                .saturating_add(other.tool_calls_failed),
            usage: self.usage.plus(&other.usage),
            cost_micro_usd: self.cost_micro_usd.saturating_add(other.cost_micro_usd),
            awake: self.awake.saturating_add(other.awake),
            under_way: self.under_way.saturating_add(other.under_way),
            stored_bytes: self.stored_bytes.saturating_add(other.stored_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_an_unknown_code_is_counted_too() {
        let figures = TenantFigures::default();

        figures.refused("inbox_full");
        figures.refused("never_heard_of");
        figures.refused("prompts");

        let refusals = figures.read(0, 0, [7, 0, 0, 0, 0, 3, 1]).refusals;
        assert_eq!(
            refusals,
            [7, 0, 0, 0, 0, 3, 1, 0, 1, 0, 2],
            "an error's code is not a reason of admission"
        );
    }

    #[test]
    fn a_tenant_costs_less_than_three_hundred_bytes() {
        assert!(size_of::<TenantFigures>() < 300);
    }
}
