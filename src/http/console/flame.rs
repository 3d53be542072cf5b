//! Where the bars of tasks stand, those that ran at once below each other, and how costs are coloured.
//!
//! Pure.

use callboard_actors::time::Timestamp;

/// When something ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

/// Gives each bar a row, so that none lies on another. `bars` are in the order of their begin. Returns
/// the number of rows as well.
pub(super) fn rows(bars: &[Ran]) -> (Vec<usize>, usize) {
    let mut ends: Vec<Timestamp> = Vec::new();
    let mut rows = Vec::new();
    for bar in bars {
        let free = ends.iter().position(|end| *end <= bar.from);
        let row = free.unwrap_or(ends.len());
        match ends.get_mut(row) {
            Some(end) => *end = bar.to,
            None => ends.push(bar.to),
        }
        rows.push(row);
    }
    (rows, ends.len())
}

/// Colours, from the least cost to the most.
pub(super) const HEATS: u64 = 6;

/// The colour of a cost, where the largest of all is `most`.
pub(super) fn heat(cost: u64, most: u64) -> u64 {
    let most = u128::from(most.max(1));
    let heat = (u128::from(cost) * u128::from(HEATS)).saturating_sub(1) / most;
    u64::try_from(heat).unwrap_or(HEATS).min(HEATS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(from: u64, to: u64) -> Ran {
        Ran {
            from: Timestamp(from),
            to: Timestamp(to),
        }
    }

    #[test]
    fn tasks_that_run_at_once_stand_below_each_other_and_others_share_a_row() {
        let bars = [ran(0, 10), ran(1, 5), ran(2, 3), ran(5, 9), ran(10, 12)];

        assert_eq!(rows(&bars), (vec![0, 1, 2, 1, 0], 3));
    }

    #[test]
    fn the_costliest_has_the_last_colour_and_what_costs_nothing_the_first() {
        let heats = [0, 1, 100, 101, 599, 600].map(|cost| heat(cost, 600));

        assert_eq!(heats, [0, 0, 0, 1, 5, 5]);
        assert_eq!((heat(0, 0), heat(u64::MAX, u64::MAX)), (0, 5));
    }
}
