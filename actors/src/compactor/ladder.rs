//! Decides how a history is made to fit: one ladder (REQUIREMENTS, ruling on C-24..C-45). Pure; linear in the history.
//!
//! Nothing is done below the trigger. From there on, each step is taken only if the one before did not reach the target:
//! 1. older tool results are cleared (C-40);
//! 2. a ready summary takes the place of what it was made of (C-42);
//! 3. old rounds are thinned by priority (C-12), or cut off (C-20);
//! 4. whole oldest rounds go, down to one;
//! 5. in the round that is left, older tool results are cleared, but never those of its last batch.
//!
//! What is above the limit even then is [`Verdict::TooLarge`]. A plan always makes the history smaller, so it cannot go in circles.

use serde::{Deserialize, Serialize};

use crate::chat::{Edit, History, Message, span_hash};

use super::{
    CompactionSettings, CompressionMode,
    draft::Draft,
    extract::extract,
    keep::{KEEP_ROUNDS, Recent, keep_rounds},
    prompt,
    truncate::truncate,
};

/// Messages below which old rounds stay as they are while the history fits (C-05, CON-28, BUG-46).
pub(super) const MESSAGES_MIN: usize = 20;

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

/// Climbs the ladder.
pub fn plan(problem: &Problem<'_>) -> Verdict {
    let (window, settings) = (problem.window, problem.settings);
    let (limit, target) = (window.limit(), window.target(settings));
    let mut draft = Draft::new(problem);
    let before = draft.tokens();
    if !problem.force && !window.is_due(before, settings) {
        return Verdict::Fits { tokens: before };
    }
    // Who asks for it gets old rounds as small as they may become; the last steps are for who needs the room.
    let goal = if problem.force { 0 } else { target };
    // Who asks for it wants less than the formula would keep, but never fewer rounds than its floor.
    let explicit = settings.keep_rounds.or(problem.force.then_some(*KEEP_ROUNDS.start()));
    let keep = keep_rounds(explicit, &Recent::of(problem.history.messages(), problem.skill_activations));
    let old = draft.rounds().saturating_sub(keep as usize);

    draft.clear_results(old);
    if draft.tokens() > goal {
        draft.use_ready_summary(old);
    }
    let few = problem.history.messages().len() < MESSAGES_MIN && !problem.force && draft.tokens() <= limit;
    if draft.tokens() > goal && !few {
        match settings.strategy {
            CompressionMode::Truncate => truncate(&mut draft),
            CompressionMode::Extract | CompressionMode::Summarize => extract(&mut draft, old, goal),
        }
        draft.drop_oldest_rounds(target);
        draft.clear_last_round(target, limit);
    }
    verdict(draft, before)
}

fn verdict(mut draft: Draft<'_>, before: u64) -> Verdict {
    let problem = draft.problem;
    let limit = problem.window.limit();
    let mut finished = draft.finish();
    if finished.as_ref().is_some_and(|finished| finished.tokens >= draft.tokens_if_nothing_were_dropped()) {
        // The pair would be larger than what it stands for.
        draft.keep_everything();
        finished = draft.finish();
    }
    let tokens = finished.as_ref().map_or(draft.tokens(), |finished| finished.tokens);
    if tokens > limit {
        let (part, part_tokens) = draft.largest_part();
        return Verdict::TooLarge { part, part_tokens, tokens, limit };
    }
    match finished {
        Some(finished) if tokens < before => Verdict::Compacted(Plan {
            edits: finished.edits,
            steps: finished.steps,
            before_tokens: before,
            after_tokens: tokens,
            round_starts: finished.round_starts,
            dropped: finished.dropped,
            summarise: finished.summarise,
            summary_used: finished.summary_used,
            cleared_results: finished.cleared_results,
        }),
        Some(_) | None => Verdict::Fits { tokens: before },
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
