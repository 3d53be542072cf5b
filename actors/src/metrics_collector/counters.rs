//! Counters that many threads increment without contention.

use std::sync::atomic::{AtomicU64, Ordering};

use super::shards::{SHARDS, shard};

/// One number, spread over several cache lines.
#[derive(Debug, Default)]
pub struct Counter([Shard; SHARDS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub(crate) fn add(&self, n: u64) {
        if let Some(shard) = self.0.get(shard()) {
            shard.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The sum over all cache lines.
    pub(crate) fn get(&self) -> u64 {
        self.0
            .iter()
            .map(|shard| shard.0.load(Ordering::Relaxed))
            .sum()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// All counters of a host.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// How long things took.
            pub latencies: super::Latencies,
        }

        /// The values of all counters at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Reading { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// Reads all counters.
            pub(crate) fn read(&self) -> Reading {
                Reading { $($name: self.$name.get()),* }
            }
        }

        impl Reading {
            /// The increase since `earlier`.
            #[must_use]
            pub(crate) fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }
    };
}

counters! {
    /// Prompts that were accepted.
    prompts,
    /// Prompts and other messages that were refused.
    refusals,
    /// Rounds that ended, for whatever reason.
    rounds,
    /// Rounds that ended in an error.
    rounds_failed,
    /// Model calls that conversations requested, without retries.
    model_calls,
    /// Attempts of model calls after the first.
    model_retries,
    /// Input tokens, of all classes.
    input_tokens,
    /// Input tokens read from a provider's cache.
    cache_read_tokens,
    /// Output tokens.
    output_tokens,
    /// Cost of model calls, in millionths of a US dollar; calls of models without a price are not
    /// included.
    cost_micro_usd,
    /// Tool calls that ended, successfully or not.
    tool_calls,
    /// Tool calls that failed.
    tool_calls_failed,
    /// Attempts of tool calls after the first.
    tool_retries,
    /// Tool calls answered from the result of an earlier call.
    tool_cache_hits,
    /// Tool calls that joined the run of an identical call.
    tool_runs_shared,
    /// Attempts that a tool's open breaker refused.
    tool_breaker_refusals,
    /// Skills activated.
    skill_activations,
    /// Messages that woke the actor of a conversation or of a tool executor.
    wake_ups,
    /// Activations of conversations.
    lives,
    /// Activations that ended in a crash.
    crashes,
    /// Activations that ended with the conversation asleep.
    hibernations,
    /// Times that a conversation waited for an unavailable store.
    store_pauses,
    /// Token counts that a provider made because the configuration asks for exact counts.
    exact_counts,
    /// Exact counts that a provider did not give.
    exact_counts_failed,
    /// Compactions that were applied.
    compactions,
    /// Compactions that were discarded, because the history had changed meanwhile.
    compactions_dropped,
    /// Background summaries that succeeded.
    summaries,
    /// Background summaries that failed, were refused or were too expensive.
    summaries_failed,
    /// Model calls that missed the provider's prompt cache because the history was compacted.
    prefix_breaks_compaction,
    /// Model calls that missed the provider's prompt cache because a skill was activated or ended.
    prefix_breaks_skill,
    /// Model calls that missed the provider's prompt cache because the history was imported,
    /// rewound, withdrawn or reset.
    prefix_breaks_edit,
    /// Model calls that missed the provider's prompt cache because the system prompt, the tools or
    /// the model changed.
    prefix_breaks_configuration,
    /// Model calls that missed the provider's prompt cache for an unknown reason.
    prefix_breaks_unknown,
    /// Input tokens billed again because of those cache misses, estimated.
    rebilled_tokens,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_addition_is_lost() {
        let counters = Counters::default();

        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10_000).for_each(|_| counters.tool_calls.add(1)));
            }
        });

        assert_eq!(counters.read().tool_calls, 80_000);
    }
}
