//! Where the bars of a fan-out stand: tasks that ran at once below each other, and the subagents of
//! a task below it.
//!
//! Pure.

use callboard_actors::time::Timestamp;

/// When something ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

/// A task, and the subagents below it, each behind its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) task: Ran,
    /// With their depth: 1 for a subagent of the task.
    pub(super) below: Vec<(usize, Ran)>,
}

/// The row of a task, and those of the subagents below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) task: usize,
    pub(super) below: Vec<usize>,
}

/// Gives each bar a row, so that none lies on another. `trees` are in the order of their begin.
/// Returns the number of rows as well.
pub(super) fn rows(trees: &[Tree]) -> (Vec<Rows>, usize) {
    let mut ends: Vec<Timestamp> = Vec::new();
    let mut all = Vec::new();
    for tree in trees {
        let (below, height) = rows_below(tree);
        let over = tree.below.iter().map(|(_, ran)| ran.to).max();
        let end = tree.task.to.max(over.unwrap_or_default());
        let is_free = |row: &usize| {
            let mut taken = ends.iter().skip(*row).take(height);
            taken.all(|end| *end <= tree.task.from)
        };
        let task = (0..ends.len()).find(is_free).unwrap_or(ends.len());
        ends.resize(ends.len().max(task + height), Timestamp::default());
        ends.iter_mut()
            .skip(task)
            .take(height)
            .for_each(|row| *row = end);
        let below = below.into_iter().map(|row| task + row).collect();
        all.push(Rows { task, below });
    }
    (all, ends.len())
}

/// The rows of the subagents of a task, counted from its own, and how many rows all have.
fn rows_below(tree: &Tree) -> (Vec<usize>, usize) {
    let mut taken: Vec<Vec<Ran>> = vec![vec![tree.task]];
    let mut rows = Vec::new();
    for (depth, ran) in &tree.below {
        let overlaps = |other: &Ran| other.from < ran.to && ran.from < other.to;
        let is_free = |row: &usize| {
            taken
                .get(*row)
                .is_none_or(|bars| !bars.iter().any(overlaps))
        };
        let row = (*depth..).find(is_free).unwrap_or(*depth);
        taken.resize(taken.len().max(row + 1), Vec::new());
        if let Some(bars) = taken.get_mut(row) {
            bars.push(*ran);
        }
        rows.push(row);
    }
    (rows, taken.len())
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

    fn task(from: u64, to: u64, below: &[(usize, u64, u64)]) -> Tree {
        let below = below.iter();
        Tree {
            task: ran(from, to),
            below: below
                .map(|(depth, from, to)| (*depth, ran(*from, *to)))
                .collect(),
        }
    }

    #[test]
    fn tasks_that_run_at_once_stand_below_each_other_and_others_share_a_row() {
        let (placed, count) = rows(&[
            task(0, 10, &[]),
            task(1, 5, &[]),
            task(5, 9, &[]),
            task(10, 12, &[]),
        ]);

        let tasks: Vec<usize> = placed.iter().map(|rows| rows.task).collect();
        assert_eq!((tasks, count), (vec![0, 1, 1, 0], 2));
    }

    #[test]
    fn subagents_stand_below_their_task_and_no_bar_lies_on_another() {
        let first = task(0, 10, &[(1, 1, 4), (2, 2, 3), (1, 2, 6), (1, 5, 8)]);
        let (placed, count) = rows(&[first, task(3, 20, &[]), task(12, 20, &[(1, 13, 14)])]);

        let below: Vec<&[usize]> = placed.iter().map(|rows| rows.below.as_slice()).collect();
        assert_eq!(below, [&[1, 2, 3, 1][..], &[], &[1]]);
        let tasks: Vec<usize> = placed.iter().map(|rows| rows.task).collect();
        assert_eq!((tasks, count), (vec![0, 4, 0], 5));
    }

    #[test]
    fn the_costliest_has_the_last_colour_and_what_costs_nothing_the_first() {
        let heats = [0, 1, 100, 101, 599, 600].map(|cost| heat(cost, 600));

        assert_eq!(heats, [0, 0, 0, 1, 5, 5]);
        assert_eq!((heat(0, 0), heat(u64::MAX, u64::MAX)), (0, 5));
    }
}
