//! Decides how a history is made to fit its window: the ladder. Takes linear time in the history.
//!
//! Below the trigger nothing is done. Above it, each step is taken only if the steps before did not
//! reach the target:
//! 1. older tool results are cleared; by the strategy `importance`, older answers and results are
//!    shortened before that;
//! 2. a finished summary replaces the messages that it covers;
//! 3. old rounds are thinned by priority, or cut off;
//! 4. whole rounds are dropped, oldest first, down to one;
//! 5. in the remaining round, older tool results are cleared, except those of its last batch.
//!
//! A history that is still above the limit gives [`CompactionOutcome::TooLarge`]. A plan always
//! makes the history smaller, so compaction cannot loop.
//!
//! Pure.

use super::{
    CompactionOutcome, CompressionMode, Plan, Problem, by_age,
    draft::Draft,
    extract::extract,
    keep::{KEEP_ROUNDS_ON_REQUEST, Recent, keep_rounds},
    truncate::truncate,
};

/// Below this number of messages old rounds are kept, as long as the history fits.
pub(super) const MESSAGES_MIN: usize = 20;

/// Runs the ladder.
pub fn plan(problem: &Problem<'_>) -> CompactionOutcome {
    let window = problem.window;
    let settings = problem.settings;
    let limit = window.limit();
    let target = window.target(settings);
    let mut draft = Draft::new(problem);
    let before = draft.tokens();
    if !problem.force && !window.is_due(before, settings) {
        return CompactionOutcome::Fits { tokens: before };
    }
    // A forced compaction makes old rounds as small as allowed; the last steps run only if room is
    // needed.
    let goal = if problem.force { 0 } else { target };
    // A forced compaction keeps a fixed number of rounds, whatever the recent activity was.
    let explicit = settings
        .keep_rounds
        .or(problem.force.then_some(KEEP_ROUNDS_ON_REQUEST));
    let keep = keep_rounds(explicit, &Recent::of(problem.history.messages()));
    let old = draft.rounds().saturating_sub(keep as usize);

    let by_importance = settings.strategy == CompressionMode::Importance;
    if by_importance {
        by_age::shorten(&mut draft, old, goal);
    }
    if !by_importance || draft.tokens() > goal {
        draft.clear_results(old);
    }
    if draft.tokens() > goal {
        draft.use_ready_summary(old);
    }
    let few = problem.history.messages().len() < MESSAGES_MIN
        && !problem.force
        && draft.tokens() <= limit;
    if draft.tokens() > goal && !few {
        match settings.strategy {
            CompressionMode::Truncate => truncate(&mut draft),
            CompressionMode::Extract | CompressionMode::Importance | CompressionMode::Summarize => {
                extract(&mut draft, old, goal)
            }
        }
        draft.drop_oldest_rounds(target);
        draft.clear_last_round(target, limit);
    }
    outcome(draft, before)
}

fn outcome(mut draft: Draft<'_>, before: u64) -> CompactionOutcome {
    let problem = draft.problem;
    let limit = problem.window.limit();
    let mut finished = draft.finish();
    if finished
        .as_ref()
        .is_some_and(|finished| finished.tokens >= draft.tokens_if_nothing_were_dropped())
    {
        // The pair would be larger than the messages that it replaces.
        draft.keep_everything();
        finished = draft.finish();
    }
    let tokens = finished
        .as_ref()
        .map_or(draft.tokens(), |finished| finished.tokens);
    if tokens > limit {
        let (part, part_tokens) = draft.largest_part();
        return CompactionOutcome::TooLarge {
            part,
            part_tokens,
            tokens,
            limit,
        };
    }
    match finished {
        Some(finished) if tokens < before => CompactionOutcome::Compacted(Plan {
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
        Some(_) | None => CompactionOutcome::Fits { tokens: before },
    }
}
