//! The figures of the host and the tenant that follow from entries.

use std::time::Duration;

use crate::{
    chat::Usage,
    conversation::run::{Live, trace},
    journal::{Entry, EntryBody},
};

impl Live {
    /// Adds what an entry records.
    pub(super) fn count(&self, entry: &Entry) {
        let counters = &self.ports.counters;
        let figures = self.tenant.figures();
        match &entry.body {
            EntryBody::Assistant {
                usage,
                failed_usage,
                cost_micro_usd,
                ..
            } => self.count_usage(&usage.plus(failed_usage), *cost_micro_usd),
            EntryBody::FellBack {
                failed_usage,
                cost_micro_usd,
                ..
            } => self.count_usage(failed_usage, *cost_micro_usd),
            EntryBody::Compacted { .. } => counters.compactions.add(1),
            EntryBody::ToolFinished { outcome, .. } => {
                counters.tool_calls.add(1);
                counters.tool_calls_failed.add(u64::from(outcome.is_error));
                counters
                    .latencies
                    .tool_call
                    .record(Duration::from_millis(outcome.duration_ms));
                figures.tool_call(outcome.is_error);
            }
            EntryBody::SkillActivated { .. } => counters.skill_activations.add(1),
            EntryBody::RoundFinished {
                stop_reason,
                latency_ms,
                error,
            } => {
                counters.rounds.add(1);
                counters
                    .rounds_failed
                    .add(u64::from(!stop_reason.is_done()));
                figures.round(!stop_reason.is_done());
                let span = self
                    .resources
                    .as_ref()
                    .map(|(_, resources)| &resources.span);
                let error = error.as_ref().map(|error| error.code.as_str());
                trace::turn_ended(
                    span,
                    &counters.latencies,
                    *latency_ms,
                    stop_reason.code(),
                    error,
                );
            }
            _ => {}
        }
    }

    /// Adds what a model call used.
    fn count_usage(&self, usage: &Usage, cost_micro_usd: Option<u64>) {
        let counters = &self.ports.counters;
        counters.cost_micro_usd.add(cost_micro_usd.unwrap_or(0));
        counters.input_tokens.add(usage.input());
        counters.cache_read_tokens.add(usage.cache_read);
        counters.output_tokens.add(usage.output);
        let figures = self.tenant.figures();
        figures.spent(usage, cost_micro_usd.unwrap_or(0));
        self.tenant
            .charge_tokens(usage.input().saturating_add(usage.output));
    }
}
