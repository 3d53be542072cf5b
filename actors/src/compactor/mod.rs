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
#[cfg(test)]
mod testing;
#[cfg(test)]
mod properties;

pub use importance::{CLEARED, MessageImportance, MessagePriority};
pub use keep::{Recent, keep_rounds};
pub use ladder::{CompactionStep, DroppedSpan, Fixed, Plan, Problem, Verdict, Window, plan};
pub use mode::CompressionMode;
pub use prompt::{FOCUS_AREAS, merge_prompt, summary_prompts};
pub use rules::{RoundLines, fallback_summary};
pub use settings::{CompactionSettings, CompactionSettingsError};
