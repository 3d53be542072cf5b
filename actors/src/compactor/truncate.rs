//! The step TRUNCATE: keeps the most recent rounds and drops all others as a whole.
//!
//! Pure.

use super::{draft::Draft, plan::CompactionStep};

/// Number of rounds that are kept.
pub(super) const TRUNCATE_ROUNDS: usize = 5;

/// Drops all rounds but the last five.
pub(super) fn truncate(draft: &mut Draft<'_>) {
    let old = draft.rounds().saturating_sub(TRUNCATE_ROUNDS);
    let units: Vec<usize> = draft.kept_units(old).map(|(index, _)| index).collect();
    units
        .into_iter()
        .for_each(|index| draft.drop_unit(index, CompactionStep::Truncate));
}
