//! The sums of all figures: plain data that the collector owns.

use std::collections::BTreeMap;

use super::{
    figure::{Batch, CallTimes, Figure, PrefixBreak},
    latency::LatencyReading,
    tenant::TenantReading,
};
use crate::ids::TenantId;

/// What was counted since the host started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    /// The sums of the host.
    pub(crate) host: Reading,
    /// How long things took.
    pub(crate) latencies: LatencyReading,
    /// The sums of each tenant that was counted. What a tenant has at this moment, such as
    /// conversations in memory, is not among them.
    pub(crate) tenants: BTreeMap<TenantId, TenantReading>,
}

impl Totals {
    /// Adds a batch.
    pub(super) fn add(&mut self, Batch { tenant, figures }: &Batch) {
        for figure in figures {
            self.host.add(figure);
            self.latencies.add(figure);
        }
        let Some(id) = tenant else {
            return;
        };
        match self.tenants.get_mut(id) {
            Some(sums) => figures.iter().for_each(|figure| sums.add(figure)),
            None => {
                let mut sums = TenantReading::default();
                figures.iter().for_each(|figure| sums.add(figure));
                self.tenants.insert(id.clone(), sums);
            }
        }
    }

    /// Adds other sums.
    pub(super) fn merge(&mut self, other: Self) {
        self.host = self.host.plus(&other.host);
        self.latencies.merge(&other.latencies);
        for (id, more) in other.tenants {
            let sums = self.tenants.entry(id).or_default();
            *sums = sums.plus(&more);
        }
    }

    /// Removes the sums of a tenant. Those of the host keep its part.
    pub(super) fn forget(&mut self, tenant: &TenantId) {
        self.tenants.remove(tenant);
    }
}

macro_rules! reading {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What was counted since the host started. A sum that would overflow stays at its largest
        /// value.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Reading { $($(#[$doc])* pub $name: u64),* }

        impl Reading {
            /// The sum of both.
            #[must_use]
            pub(super) fn plus(&self, other: &Self) -> Self {
                Self { $($name: self.$name.saturating_add(other.$name)),* }
            }
        }
    };
}

reading! {
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

impl Reading {
    fn add(&mut self, figure: &Figure) {
        let one = |sum: &mut u64| *sum = sum.saturating_add(1);
        match figure {
            Figure::PromptAccepted => one(&mut self.prompts),
            Figure::Refused { .. } | Figure::NotAdmitted => one(&mut self.refusals),
            Figure::RoundEnded { failed, .. } => {
                one(&mut self.rounds);
                if *failed {
                    one(&mut self.rounds_failed);
                }
            }
            Figure::ModelCallRequested => one(&mut self.model_calls),
            Figure::ModelCallEnded(_) | Figure::WaitedForGateway(_) => {}
            Figure::ModelRetried => one(&mut self.model_retries),
            Figure::Spent {
                usage,
                cost_micro_usd,
            } => {
                for (sum, more) in [
                    (&mut self.input_tokens, usage.input()),
                    (&mut self.cache_read_tokens, usage.cache_read),
                    (&mut self.output_tokens, usage.output),
                    (&mut self.cost_micro_usd, *cost_micro_usd),
                ] {
                    *sum = sum.saturating_add(more);
                }
            }
            Figure::PrefixBroken {
                cause,
                rebilled_tokens,
            } => {
                one(match cause {
                    PrefixBreak::Compaction => &mut self.prefix_breaks_compaction,
                    PrefixBreak::Skill => &mut self.prefix_breaks_skill,
                    PrefixBreak::Edit => &mut self.prefix_breaks_edit,
                    PrefixBreak::Configuration => &mut self.prefix_breaks_configuration,
                    PrefixBreak::Unknown => &mut self.prefix_breaks_unknown,
                });
                self.rebilled_tokens = self.rebilled_tokens.saturating_add(*rebilled_tokens);
            }
            Figure::ToolCallEnded { failed, .. } => {
                one(&mut self.tool_calls);
                if *failed {
                    one(&mut self.tool_calls_failed);
                }
            }
            Figure::ToolRetried => one(&mut self.tool_retries),
            Figure::ToolCacheHit => one(&mut self.tool_cache_hits),
            Figure::ToolRunShared => one(&mut self.tool_runs_shared),
            Figure::ToolBreakerRefusal => one(&mut self.tool_breaker_refusals),
            Figure::SkillActivated => one(&mut self.skill_activations),
            Figure::WokeUp(times) => self.wake_ups = self.wake_ups.saturating_add(*times),
            Figure::Activated => one(&mut self.lives),
            Figure::Crashed => one(&mut self.crashes),
            Figure::Hibernated => one(&mut self.hibernations),
            Figure::StorePaused => one(&mut self.store_pauses),
            Figure::CountAsked { answered: true } => one(&mut self.exact_counts),
            Figure::CountAsked { answered: false } => one(&mut self.exact_counts_failed),
            Figure::Compacted => one(&mut self.compactions),
            Figure::CompactionDropped => one(&mut self.compactions_dropped),
            Figure::SummaryEnded { succeeded: true } => one(&mut self.summaries),
            Figure::SummaryEnded { succeeded: false } => one(&mut self.summaries_failed),
        }
    }
}

impl LatencyReading {
    fn add(&mut self, figure: &Figure) {
        match figure {
            Figure::RoundEnded { took, .. } => self.round.record(*took),
            Figure::ToolCallEnded { took, .. } => self.tool_call.record(*took),
            Figure::WaitedForGateway(waited) => self.queue_wait.record(*waited),
            Figure::ModelCallEnded(CallTimes {
                took,
                queue_wait,
                first_chunk,
            }) => {
                self.model_call.record(*took);
                if let Some(waited) = queue_wait {
                    self.queue_wait.record(*waited);
                }
                if let Some(waited) = first_chunk {
                    self.first_chunk.record(*waited);
                }
            }
            _ => {}
        }
    }
}

impl TenantReading {
    fn add(&mut self, figure: &Figure) {
        let one = |sum: &mut u64| *sum = sum.saturating_add(1);
        match figure {
            Figure::PromptAccepted => one(&mut self.prompts),
            Figure::Refused { code } => self.refuse(code),
            Figure::RoundEnded { failed, .. } => {
                one(&mut self.rounds);
                if *failed {
                    one(&mut self.rounds_failed);
                }
            }
            Figure::ToolCallEnded { failed, .. } => {
                one(&mut self.tool_calls);
                if *failed {
                    one(&mut self.tool_calls_failed);
                }
            }
            Figure::Spent {
                usage,
                cost_micro_usd,
            } => {
                self.usage = self.usage.plus(usage);
                self.cost_micro_usd = self.cost_micro_usd.saturating_add(*cost_micro_usd);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{chat::Usage, ports::Entropy, testing::SeededEntropy};

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    /// A batch of a few figures of a few tenants.
    fn planted(entropy: &SeededEntropy) -> Batch {
        let pick = |n: usize| entropy.bytes()[0] as usize % n;
        let figure = || {
            let took = Duration::from_millis(pick(200) as u64);
            match pick(6) {
                0 => Figure::PromptAccepted,
                1 => Figure::Refused { code: "inbox_full" },
                2 => Figure::RoundEnded {
                    failed: pick(2) == 0,
                    took,
                },
                3 => Figure::Spent {
                    usage: Usage {
                        output: pick(100) as u64,
                        ..Usage::default()
                    },
                    cost_micro_usd: pick(100) as u64,
                },
                4 => Figure::WokeUp(pick(9) as u64),
                _ => Figure::ModelCallEnded(CallTimes {
                    took,
                    first_chunk: (pick(2) == 0).then_some(took),
                    queue_wait: None,
                }),
            }
        };
        let of = ["acme", "umbrella"].get(pick(3)).copied();
        Batch {
            tenant: of.map(tenant),
            figures: (0..pick(5)).map(|_| figure()).collect(),
        }
    }

    #[test]
    fn sums_do_not_depend_on_how_figures_are_batched_or_merged() {
        for seed in 0..200 {
            let entropy = SeededEntropy::new(seed);
            let batches: Vec<Batch> = (0..20).map(|_| planted(&entropy)).collect();

            let mut at_once = Totals::default();
            batches.iter().for_each(|batch| at_once.add(batch));

            let mut parts = [Totals::default(), Totals::default()];
            for (at, batch) in batches.iter().enumerate() {
                for figure in &batch.figures {
                    parts[at % 2].add(&Batch {
                        tenant: batch.tenant.clone(),
                        figures: vec![figure.clone()],
                    });
                }
            }
            let [mut one, other] = parts;
            one.merge(other);
            at_once
                .tenants
                .retain(|_, sums| *sums != TenantReading::default());
            one.tenants
                .retain(|_, sums| *sums != TenantReading::default());
            assert_eq!(one, at_once, "seed {seed}");
        }
    }

    #[test]
    fn absurd_figures_overflow_no_sum() {
        let spent = Figure::Spent {
            usage: Usage {
                input_uncached: u64::MAX,
                cache_read: u64::MAX,
                cache_write: u64::MAX,
                output: u64::MAX,
            },
            cost_micro_usd: u64::MAX,
        };
        let batch = Batch {
            tenant: Some(tenant("acme")),
            figures: vec![spent, Figure::WokeUp(u64::MAX)],
        };

        let mut totals = Totals::default();
        totals.add(&batch);
        totals.add(&batch);
        let twice = totals.clone();
        totals.merge(twice);

        assert_eq!(totals.host.output_tokens, u64::MAX);
        assert_eq!(totals.host.wake_ups, u64::MAX);
        assert_eq!(totals.tenants[&tenant("acme")].cost_micro_usd, u64::MAX);
    }

    #[test]
    fn a_forgotten_tenant_starts_at_zero_and_the_host_keeps_its_part() {
        let batch = Batch {
            tenant: Some(tenant("acme")),
            figures: vec![Figure::PromptAccepted],
        };
        let mut totals = Totals::default();
        totals.add(&batch);

        totals.forget(&tenant("acme"));
        totals.add(&batch);

        assert_eq!(totals.host.prompts, 2);
        assert_eq!(totals.tenants[&tenant("acme")].prompts, 1);
    }
}
