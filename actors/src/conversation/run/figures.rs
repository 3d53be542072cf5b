//! The figures that follow from entries.

use std::time::Duration;

use crate::{
    chat::Usage,
    conversation::run::{Live, trace},
    journal::{Entry, EntryBody},
    metrics_collector::Figure,
};

impl Live {
    /// Counts what an entry records.
    pub(super) fn count(&mut self, entry: &Entry) {
        match &entry.body {
            EntryBody::Assistant {
                usage,
                failed_usage,
                cost_micro_usd,
                ..
            } => self.count_usage(usage.plus(failed_usage), *cost_micro_usd),
            EntryBody::FellBack {
                failed_usage,
                cost_micro_usd,
                ..
            } => self.count_usage(*failed_usage, *cost_micro_usd),
            EntryBody::Compacted { .. } => self.tally.add(Figure::Compacted),
            EntryBody::ToolFinished { outcome, .. } => self.tally.add(Figure::ToolCallEnded {
                failed: outcome.is_error,
                took: Duration::from_millis(outcome.duration_ms),
            }),
            EntryBody::SkillActivated { .. } => self.tally.add(Figure::SkillActivated),
            EntryBody::RoundFinished {
                stop_reason,
                latency_ms,
                error,
            } => {
                self.tally.add(Figure::RoundEnded {
                    failed: !stop_reason.is_done(),
                    took: Duration::from_millis(*latency_ms),
                });
                let span = self
                    .resources
                    .as_ref()
                    .map(|(_, resources)| &resources.span);
                let error = error.as_ref().map(|error| error.code.as_str());
                trace::turn_ended(span, *latency_ms, stop_reason.code(), error);
            }
            _ => {}
        }
    }

    /// Counts what a model call used.
    fn count_usage(&mut self, usage: Usage, cost_micro_usd: Option<u64>) {
        self.tally.add(Figure::Spent {
            usage,
            cost_micro_usd: cost_micro_usd.unwrap_or(0),
        });
        self.tenant
            .charge_tokens(usage.input().saturating_add(usage.output));
    }
}
