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
//!
//! Pure.

use super::{
    CompressionMode, Plan, Problem, Verdict,
    draft::Draft,
    extract::extract,
    keep::{KEEP_ROUNDS, Recent, keep_rounds},
    truncate::truncate,
};

/// Messages below which old rounds stay as they are while the history fits (C-05, CON-28, BUG-46).
pub(super) const MESSAGES_MIN: usize = 20;

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
