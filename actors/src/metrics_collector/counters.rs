//! Counters that many threads add to without waiting for one another.

use std::sync::atomic::{AtomicU64, Ordering};

use super::shards::{SHARDS, shard};

/// One number, spread over cache lines.
#[derive(Debug, Default)]
pub struct Counter([Shard; SHARDS]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        if let Some(shard) = self.0.get(shard()) {
            shard.0.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The sum.
    pub fn get(&self) -> u64 {
        self.0.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
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

        /// What the counters said at one moment.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Reading { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// Reads all of them.
            pub fn read(&self) -> Reading {
                Reading { $($name: self.$name.get()),* }
            }
        }

        impl Reading {
            /// What came since `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name)),* }
            }
        }
    };
}

counters! {
    /// Prompts accepted.
    prompts,
    /// Prompts and other mail refused.
    refusals,
    /// Rounds finished.
    rounds,
    /// Rounds that ended in an error.
    rounds_failed,
    /// Model calls ordered.
    model_calls,
    /// Attempts of model calls after the first.
    model_retries,
    /// Input tokens, of all classes.
    input_tokens,
    /// Input tokens read from a provider's cache.
    cache_read_tokens,
    /// Output tokens.
    output_tokens,
    /// What model calls cost, in millionths of a US dollar, where their model has a price.
    cost_micro_usd,
    /// Tool calls finished.
    tool_calls,
    /// Tool calls that failed.
    tool_calls_failed,
    /// Attempts of tool calls after the first.
    tool_retries,
    /// Tool calls that an earlier result answered.
    tool_cache_hits,
    /// Tool calls that joined the run of an identical one.
    tool_runs_shared,
    /// Attempts that a tool's open breaker refused.
    tool_breaker_refusals,
    /// Skills activated.
    skill_activations,
    /// Times a conversation's actor or an executor was woken by mail.
    wake_ups,
    /// Conversations that began a life.
    lives,
    /// Lives that ended in a crash.
    crashes,
    /// Conversations that went to sleep.
    hibernations,
    /// Pauses for a store that was away.
    store_pauses,
    /// Compactions applied.
    compactions,
    /// Compactions that came too late for what they were made of.
    compactions_dropped,
    /// Background summaries made.
    summaries,
    /// Background summaries that failed, were refused or too dear.
    summaries_failed,
    /// Model calls whose prefix was not that of the call before: compacted.
    prefix_breaks_compaction,
    /// The same: a skill began or ended.
    prefix_breaks_skill,
    /// The same: history was imported, cut back, withdrawn or reset.
    prefix_breaks_edit,
    /// The same: another system prompt, other tools, another model.
    prefix_breaks_configuration,
    /// The same, and nobody announced it.
    prefix_breaks_unknown,
    /// Input tokens that those breaks made a provider's cache miss, estimated.
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
