//! The step EXTRACT: drops units of old rounds, lowest priority first and oldest first among
//! equals.
//!
//! Pure.

use super::{
    draft::Draft,
    importance::{MessagePriority, exchange_priority, has_error},
    plan::CompactionStep,
    units::UnitKind,
};

/// Drops units of the first `old` rounds until `goal` is reached. User messages, and calls with a
/// failed result, are kept in this step.
pub(super) fn extract(draft: &mut Draft<'_>, old: usize, goal: u64) {
    let mut candidates: Vec<(MessagePriority, usize)> = draft
        .kept_units(old)
        .filter_map(|(index, unit)| match unit.kind {
            UnitKind::User => None,
            UnitKind::Assistant => Some((MessagePriority::Medium, index)),
            UnitKind::Exchange => {
                let results = draft.original(unit.start + 1);
                (!has_error(&results)).then(|| (exchange_priority(&results), index))
            }
        })
        .collect();
    candidates.sort_unstable();
    for (_, index) in candidates {
        if draft.tokens() <= goal {
            break;
        }
        draft.drop_unit(index, CompactionStep::Extract);
    }
}
