//! Makes a history that has grown too large smaller, and keeps it valid (REQUIREMENTS C-01..C-52). Everything below is pure: counts,
//! summaries and the time come in, a [`Plan`] goes out.

mod mode;
mod settings;
mod units;
mod importance;
mod keep;
mod rules;
mod stub;
mod prompt;
mod ladder;
mod draft;
mod extract;
mod truncate;
mod ledger;
mod cache;
mod refocus;
mod compressed;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod ladder_tests;
#[cfg(test)]
mod properties;

pub use cache::{CachedSummary, SummaryCache, summary_key};
pub use compressed::{MarkedMessage, MessageRecord, MessageRecords, RoundView, VIEW_ROUNDS, compressed_text, round_views, should_compress};
pub use importance::{CLEARED, MessageImportance, MessagePriority};
pub use keep::{Recent, keep_rounds};
pub use ladder::{CompactionStep, DroppedSpan, Fixed, Plan, Problem, Verdict, Window, plan};
pub use ledger::SummaryLedger;
pub use mode::CompressionMode;
pub use prompt::{FOCUS_AREAS, merge_prompt, summary_prompts};
pub use refocus::{REFOCUS_ROUNDS, RefocusContext, SYSTEM_CONTEXT_BYTES_MAX, SystemContextFull};
pub use rules::{RoundLines, fallback_summary};
pub use settings::{CompactionSettings, CompactionSettingsError};
