//! What the ladder works on and what comes of it: the problem, its steps, the plan.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{CompactionSettings, CompressionMode, prompt};
use crate::chat::{Edit, History, Message, span_hash};

/// Messages below which no summary is asked for (C-24).
const SUMMARY_MESSAGES_MIN: usize = 30;

/// What a model can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Tokens of the context window, answer included.
    pub tokens: u64,
    /// Longest answer.
    pub max_tokens: u64,
}

impl Window {
    /// What a request may hold: the window less the longest answer.
    pub const fn limit(&self) -> u64 {
        self.tokens.saturating_sub(self.max_tokens)
    }

    /// Whether this many tokens ask for compaction: from 80 % of the window on, 80 % included (C-02, CON-24), and in any case
    /// when no room is left for the longest answer.
    pub fn is_due(&self, tokens: u64, settings: &CompactionSettings) -> bool {
        // The slack absorbs what a share like 0.8 cannot say exactly.
        tokens >= self.limit() || tokens as f64 + 1e-6 >= self.tokens as f64 * settings.trigger
    }

    /// What compaction aims at: half of the limit (C-10, CON-45).
    pub fn target(&self, settings: &CompactionSettings) -> u64 {
        (self.limit() as f64 * settings.target) as u64
    }
}

/// Tokens that a request holds beside its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fixed {
    /// The system prompt.
    pub system: u64,
    /// The definitions of tools.
    pub tools: u64,
    /// What is pinned and sent beside the messages; pinned lines of the summary pair are counted with it.
    pub pinned: u64,
}

/// Everything the ladder looks at.
pub struct Problem<'a> {
    /// The history; no call is open.
    pub history: &'a History,
    /// Indices of the messages with which rounds begin, ascending. What stands before the first was imported, or is a summary pair.
    pub round_starts: &'a [usize],
    /// What is counted beside the messages.
    pub fixed: Fixed,
    /// The model's room.
    pub window: Window,
    /// The host's settings.
    pub settings: &'a CompactionSettings,
    /// Lines that every summary pair must hold, uncut.
    pub pinned: &'a [String],
    /// Skills activated of late (C-47).
    pub skill_activations: u32,
    /// Tokens of a message.
    pub count: &'a dyn Fn(&Message) -> u64,
    /// The summary of the span with this hash, if one is ready.
    pub summary: &'a dyn Fn(&str) -> Option<String>,
    /// Whether a summary of about this many tokens may be paid for (C-27); `None` when nobody can write one (C-25).
    pub may_summarize: Option<&'a dyn Fn(u64) -> bool>,
    /// What stands before the colon of the spans that `recall` takes.
    pub seq_label: &'a str,
    /// Goes on though usage is low (`/compact`): old rounds are thinned as far as they may be.
    pub force: bool,
}

/// A step that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionStep {
    /// Older tool results were cleared.
    ToolResults,
    /// A summary took the place of what it was made of.
    Summary,
    /// Old rounds were thinned.
    Extract,
    /// Old rounds were cut off.
    Truncate,
    /// Whole oldest rounds went.
    OldestRounds,
    /// Tool results of the last round were cleared.
    CurrentRound,
}

/// What comes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to do, or nothing that would help, and the request fits.
    Fits {
        /// Its tokens.
        tokens: u64,
    },
    /// The history after the plan fits.
    Compacted(Plan),
    /// No plan makes the request fit.
    TooLarge {
        /// The largest part of it: `system prompt`, `tools`, `pinned` or `current round`.
        part: &'static str,
        /// Tokens of that part.
        part_tokens: u64,
        /// Fewest tokens that the request could come to.
        tokens: u64,
        /// What it may hold.
        limit: u64,
    },
}

/// The messages that a plan removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedSpan {
    /// Index of the first message of the span in the old history: always its beginning, so that a summary is made of everything
    /// that came before.
    pub from: usize,
    /// One past the last message that was removed. Messages of the span that stay are part of it: they tell what was asked.
    pub to: usize,
    /// [`span_hash`] of the span.
    pub hash: String,
    /// Messages removed, the pair of an earlier compaction not counted.
    pub messages: u32,
    /// Rounds that lost something.
    pub rounds: u32,
}

/// How a history is rewritten, and what that brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// For [`History::edited`].
    pub edits: Vec<Edit>,
    /// Steps that left a trace, in the order of the ladder.
    pub steps: Vec<CompactionStep>,
    /// Tokens of the request as it was.
    pub before_tokens: u64,
    /// Tokens of the request as it will be.
    pub after_tokens: u64,
    /// Where rounds begin in the new history.
    pub round_starts: Vec<usize>,
    /// What is removed, if anything.
    pub dropped: Option<DroppedSpan>,
    /// Whether a summary of the dropped span should be made in the background (C-24, C-25, C-27).
    pub summarise: bool,
    /// Whether a summary that was ready is now part of the history.
    pub summary_used: bool,
    /// Tool results that are cleared by this plan and still in the history.
    pub cleared_results: u32,
}

impl Plan {
    /// The one word for what was done, for events and metrics.
    pub fn mode(&self) -> CompressionMode {
        if self.summary_used {
            CompressionMode::Summarize
        } else if self.steps.contains(&CompactionStep::Truncate) {
            CompressionMode::Truncate
        } else {
            CompressionMode::Extract
        }
    }
}

/// Whether a summary of the first `to` messages should be made (C-24, C-25, C-27).
pub(super) fn wants_summary(problem: &Problem<'_>, to: usize) -> bool {
    let settings = problem.settings;
    let count = problem.history.messages().len();
    let by_mode = match settings.strategy {
        CompressionMode::Truncate => false,
        CompressionMode::Summarize => true,
        CompressionMode::Extract => count >= SUMMARY_MESSAGES_MIN && count as u64 >= settings.llm_threshold,
    };
    by_mode
        && settings.enable_llm_summarization
        && problem.may_summarize.is_some_and(|may| may(prompt::estimate_tokens(problem.history.messages().range(0..to))))
}

/// The hash of the first `to` messages.
pub(super) fn hash_to(problem: &Problem<'_>, to: usize) -> String {
    span_hash(problem.history.messages().range(0..to))
}
