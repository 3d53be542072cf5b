//! The input and the output of the ladder: the problem, the steps taken, the plan.
//!
//! Pure.

use serde::{Deserialize, Serialize};

use super::{CompactionSettings, CompressionMode, prompt};
use crate::chat::{Edit, History, Message, span_hash};

/// Below this number of messages no summary is requested.
const SUMMARY_MESSAGES_MIN: usize = 30;

/// The limits of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Size of the context window in tokens, including the answer.
    pub tokens: u64,
    /// Longest answer, in tokens.
    pub max_tokens: u64,
}

impl Window {
    /// The largest request: the window less the longest answer.
    pub(crate) const fn limit(&self) -> u64 {
        self.tokens.saturating_sub(self.max_tokens)
    }

    /// Whether a request of this size needs compaction: from the trigger on (80 % of the window by
    /// default), and in any case when no room is left for the longest answer.
    pub(crate) fn is_due(&self, tokens: u64, settings: &CompactionSettings) -> bool {
        // The tolerance absorbs the rounding of a share like 0.8.
        tokens >= self.limit() || tokens as f64 + 1e-6 >= self.tokens as f64 * settings.trigger
    }

    /// The size that compaction aims at: half of the limit by default.
    pub(crate) fn target(&self, settings: &CompactionSettings) -> u64 {
        (self.limit() as f64 * settings.target) as u64
    }
}

/// Tokens of a request apart from its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fixed {
    /// Tokens of the system prompt.
    pub system: u64,
    /// Tokens of the tool definitions.
    pub tools: u64,
    /// Tokens of pinned content outside of the messages. Pinned lines of the summary pair count as
    /// part of the pair.
    pub pinned: u64,
}

/// The input of the ladder.
pub struct Problem<'a> {
    /// The history, without open tool calls.
    pub history: &'a History,
    /// Indices of the messages that begin a round, ascending. Messages before the first index were
    /// imported, or are a summary pair.
    pub round_starts: &'a [usize],
    /// Tokens of the request apart from its messages.
    pub fixed: Fixed,
    /// The limits of the model.
    pub window: Window,
    /// The compaction settings of the host.
    pub settings: &'a CompactionSettings,
    /// Lines that every summary pair must contain in full.
    pub pinned: &'a [String],
    /// Returns the tokens of a message.
    pub count: &'a dyn Fn(&Message) -> u64,
    /// Returns the summary of the span with this hash, if it is finished.
    pub summary: &'a dyn Fn(&str) -> Option<String>,
    /// Returns whether a summary of this many tokens is affordable; `None` if no model can write
    /// summaries.
    pub may_summarize: Option<&'a dyn Fn(u64) -> bool>,
    /// The part before the colon in the spans that `recall` accepts.
    pub seq_label: &'a str,
    /// Compacts even below the trigger (`/compact`): old rounds are thinned as far as allowed.
    pub force: bool,
}

/// A step of the ladder that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionStep {
    /// Older messages and tool results were shortened to their first words.
    Importance,
    /// Older tool results were cleared.
    ToolResults,
    /// A summary replaced the messages that it covers.
    Summary,
    /// Old rounds were thinned by priority.
    Extract,
    /// Old rounds were cut off.
    Truncate,
    /// Whole oldest rounds were dropped.
    OldestRounds,
    /// Tool results of the last round were cleared.
    CurrentRound,
    /// Notes replaced attachments, because the request had too many bytes.
    Attachments,
}

/// The output of the ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompactionOutcome {
    /// The request fits, and compaction is not needed or would not help.
    Fits {
        /// Tokens of the request.
        tokens: u64,
    },
    /// The history fits after this plan.
    Compacted(Plan),
    /// No plan makes the request fit.
    TooLarge {
        /// The largest part of the request: `system prompt`, `tools`, `pinned` or `current round`.
        part: &'static str,
        /// Tokens of that part.
        part_tokens: u64,
        /// The smallest size that the request can reach, in tokens.
        tokens: u64,
        /// The largest allowed size, in tokens.
        limit: u64,
    },
}

/// The span of messages that a plan removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedSpan {
    /// Index of the first message of the span. Always 0, so that a summary covers everything before
    /// the end of the span.
    pub from: usize,
    /// One past the last removed message. The span may contain messages that are kept, such as
    /// requests.
    pub to: usize,
    /// `span_hash` of the span.
    pub hash: String,
    /// Number of removed messages, without the pair of an earlier compaction.
    pub messages: u32,
    /// Number of rounds that lost messages.
    pub rounds: u32,
}

/// How a history is rewritten, and the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The edits to pass to `History::edited`.
    pub edits: Vec<Edit>,
    /// The steps that changed the history, in the order of the ladder.
    pub steps: Vec<CompactionStep>,
    /// Tokens of the request before.
    pub before_tokens: u64,
    /// Tokens of the request after.
    pub after_tokens: u64,
    /// Indices of the messages that begin a round in the new history.
    pub round_starts: Vec<usize>,
    /// The removed span; `None` if no message was dropped.
    pub dropped: Option<DroppedSpan>,
    /// Whether a summary of the removed span should be made in the background.
    pub summarise: bool,
    /// Whether a finished summary is now part of the history.
    pub summary_used: bool,
    /// Number of tool results that this plan cleared and that remain in the history.
    pub cleared_results: u32,
}

impl Plan {
    /// The name of the mode, for the journal: `attachments` if only attachments were replaced.
    pub(crate) fn mode_name(&self) -> &'static str {
        if self.steps == [CompactionStep::Attachments] {
            "attachments"
        } else {
            self.mode().as_str()
        }
    }

    /// The mode that describes the plan best, for events and metrics.
    pub(crate) fn mode(&self) -> CompressionMode {
        if self.summary_used {
            CompressionMode::Summarize
        } else if self.steps.contains(&CompactionStep::Truncate) {
            CompressionMode::Truncate
        } else if self.steps.contains(&CompactionStep::Importance) {
            CompressionMode::Importance
        } else {
            CompressionMode::Extract
        }
    }
}

/// Whether a summary of the first `to` messages should be made.
pub(super) fn wants_summary(problem: &Problem<'_>, to: usize) -> bool {
    let settings = problem.settings;
    let count = problem.history.messages().len();
    let by_mode = match settings.strategy {
        CompressionMode::Truncate => false,
        CompressionMode::Summarize => true,
        CompressionMode::Extract | CompressionMode::Importance => {
            count >= SUMMARY_MESSAGES_MIN && count as u64 >= settings.llm_threshold
        }
    };
    by_mode
        && settings.enable_llm_summarization
        && problem.may_summarize.is_some_and(|may| {
            may(prompt::estimate_tokens(
                problem.history.messages().range(0..to),
            ))
        })
}

/// The hash of the first `to` messages.
pub(super) fn hash_to(problem: &Problem<'_>, to: usize) -> String {
    span_hash(problem.history.messages().range(0..to))
}
