//! Finds the command that keeps something of which nearly nothing is left, where no table of open
//! files shows it: files whose descriptors were closed are kept by threads that wait for them, and by
//! messages that were not received.
//!
//! A command may give all back and take it again some hundred times a second, so a look at a free
//! moment proves nothing. **All commands are paused.** A pause ends every wait, so what is kept then
//! is in a table or in a message, and does not change while it is searched for. Otherwise commands
//! are let run, half of them at a time: the one is found with which alone it is gone again.

use std::time::{Duration, Instant};

use callboard_actors::ids::TenantId;

use super::{
    processes::{Paused, system_ticks},
    scarce::{self, Kind},
};

/// Looks while some commands run, and the least time for them.
const LOOKS: u32 = 6;
const LOOK: Duration = Duration::from_millis(1);

/// Looks after which what is still gone is kept: a paused process gives back what it waits for when
/// it gets a processor.
const LOOKS_UNTIL_KEPT: u32 = 20;

/// Open files that are looked at in one search, those of commands with few of them first.
const READS_MAX: u64 = 32 * 1024;

/// A running command, as it was before the search.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) id: u64,
    pub(super) tenant: Option<TenantId>,
    /// The process above its others.
    pub(super) root: i32,
    pub(super) tree: Vec<i32>,
    /// Number of its open files.
    pub(super) files: u64,
}

/// What a search shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Something keeps it while no command runs.
    Kept,
    /// This one takes it while no other runs.
    Taker(usize),
    Nothing,
}

/// The command that keeps, or takes again and again, what is gone; none if no command is proven to. If
/// it hides it in messages, those of its tenant that do so as well.
pub(super) fn keepers(kind: Kind, candidates: &[Candidate]) -> Vec<u64> {
    // Those of descriptors that are open are counted, and no command has to stand still for it. Others
    // may hide more of them than half.
    if kind == Kind::Marks {
        let counts = candidates
            .iter()
            .map(|one| (scarce::count_of(kind, &one.tree), one.id));
        let most = counts.max();
        if let Some((_, id)) = most.filter(|(count, _)| scarce::is_most(kind, *count)) {
            return vec![id];
        }
    }
    // Before the pause, which ends the waits.
    let awaited: Vec<_> = candidates
        .iter()
        .map(|one| scarce::awaited_files(&one.tree).saturating_sub(one.files))
        .collect();
    let pause = |one: &Candidate| Paused::below(std::iter::once(one.root));
    let mut paused: Vec<_> = candidates.iter().map(|one| Some(pause(one))).collect();
    let is_gone = || scarce::gone() == Some(kind);
    let runs = |from: usize, to: usize| {
        let part = || from..to.min(candidates.len());
        for at in part() {
            if let Some(one) = paused.get_mut(at) {
                *one = None;
            }
        }
        let begun = Instant::now();
        let mut takes = false;
        let mut looks = 0;
        while !takes && (looks < LOOKS || begun.elapsed() < LOOK * LOOKS) {
            std::thread::sleep(LOOK);
            takes = is_gone();
            looks += 1;
        }
        for at in part() {
            if let (Some(one), Some(candidate)) = (paused.get_mut(at), candidates.get(at)) {
                *one = Some(pause(candidate));
            }
        }
        takes
    };
    let id = |at: usize| candidates.get(at).map(|one| one.id);
    let is_kept = || {
        (0..LOOKS_UNTIL_KEPT).all(|_| {
            std::thread::sleep(LOOK);
            is_gone()
        })
    };
    match find(candidates.len(), is_kept, runs) {
        Found::Kept => kept_by(kind, candidates),
        Found::Taker(at) => id(at).into_iter().collect(),
        // Several that wait for a part each. Who waits for more files than it has open waits for
        // closed ones.
        Found::Nothing => {
            let most = awaited.iter().enumerate().max_by_key(|(_, count)| **count);
            most.filter(|(_, count)| scarce::is_blamed(kind, **count))
                .and_then(|(at, _)| id(at))
                .into_iter()
                .collect()
        }
    }
}

/// Searches among `count` paused commands. `runs` lets a range of them run and returns whether it is
/// gone meanwhile.
fn find(
    count: usize,
    is_kept: impl Fn() -> bool,
    mut runs: impl FnMut(usize, usize) -> bool,
) -> Found {
    let (mut from, mut to) = (0, count);
    loop {
        // One that was let run may have kept it when it was paused again.
        if is_kept() {
            return Found::Kept;
        }
        if to.saturating_sub(from) <= 1 {
            return match from < to && runs(from, to) {
                true => Found::Taker(from),
                false => Found::Nothing,
            };
        }
        let half = from + (to - from) / 2;
        (from, to) = match runs(from, half) {
            true => (from, half),
            false => (half, to),
        };
    }
}

/// What is known of a command that stands still. The later fields decide among equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Evidence {
    is_blamed: bool,
    /// Files in messages that were not received.
    in_messages: u64,
    count: u64,
}

/// The commands that keep it while none runs: the one that has most files in messages, or else most of
/// what is visible. Of epoll watches the one that has taken the most kernel time: without a watch the
/// host accepts no connection. What there was no time to look at counts as the most that it could be.
fn kept_by(kind: Kind, candidates: &[Candidate]) -> Vec<u64> {
    let mut left = READS_MAX;
    let mut order: Vec<_> = candidates.iter().collect();
    order.sort_by_key(|one| one.files);
    let mut of = |one: &Candidate| {
        let is_read = one.files <= left;
        left -= if is_read { one.files } else { 0 };
        let in_messages = match is_read {
            true => scarce::files_in_flight(&one.tree),
            false => 0,
        };
        let (is_blamed, count) = match kind {
            Kind::Watches => (true, system_ticks(&one.tree)),
            // Those of a descriptor in a message are not shown.
            Kind::Marks if in_messages > 0 => (true, system_ticks(&one.tree)),
            Kind::Notifiers | Kind::Marks | Kind::Terminals => {
                let count = match is_read {
                    true => scarce::count_of(kind, &one.tree),
                    false => one.files,
                };
                (scarce::is_blamed(kind, count), count)
            }
        };
        Evidence {
            is_blamed: is_blamed || in_messages > 0,
            in_messages,
            count,
        }
    };
    let kept: Vec<_> = order.iter().map(|one| (of(one), *one)).collect();
    blamed(&kept)
}

/// The command with most, and the other commands of its tenant that have files in messages if it has
/// some. A message can hold a socket that has messages of its own, so a command with few files in
/// messages may hide the most; ended one by one, such commands would cover for one another.
fn blamed(kept: &[(Evidence, &Candidate)]) -> Vec<u64> {
    let most = kept.iter().max_by_key(|(kept, one)| (*kept, one.id));
    let Some((most, of)) = most.filter(|(most, _)| most.is_blamed) else {
        return Vec::new();
    };
    let too = |(kept, one): &&(Evidence, &Candidate)| {
        one.id == of.id || most.in_messages > 0 && kept.in_messages > 0 && one.tenant == of.tenant
    };
    kept.iter().filter(too).map(|(_, one)| one.id).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Eleven commands, of which `taker` takes all when it runs and gives it back when it is paused.
    #[test]
    fn the_command_is_found_with_which_alone_it_is_gone() {
        for taker in 0..11 {
            let found = find(11, || false, |from, to| (from..to).contains(&taker));
            assert_eq!(found, Found::Taker(taker));
        }
        assert_eq!(find(11, || false, |_, _| false), Found::Nothing);
        assert_eq!(find(0, || false, |_, _| true), Found::Nothing);
    }

    #[test]
    fn no_command_is_found_that_was_let_run_with_another_and_takes_nothing_alone() {
        // Gone once while the first half ran, by something else, and not again.
        let mut looks = 0;
        let found = find(
            4,
            || false,
            |_, _| {
                looks += 1;
                looks == 1
            },
        );

        assert_eq!(found, Found::Nothing);
    }

    #[test]
    fn what_a_paused_command_keeps_is_searched_for_while_it_is_paused() {
        assert_eq!(find(3, || true, |_, _| unreachable!()), Found::Kept);
        let kept = Cell::new(false);
        let runs = |_, _| {
            kept.set(true);
            true
        };
        assert_eq!(find(3, || kept.get(), runs), Found::Kept);
    }

    #[test]
    fn who_hides_most_in_messages_goes_with_all_of_its_tenant_that_hide_and_no_other_one() {
        let candidate = |id, tenant: &str| Candidate {
            id,
            tenant: tenant.parse().ok(),
            root: 0,
            tree: Vec::new(),
            files: 1,
        };
        let all = [
            candidate(1, "hides"),
            candidate(2, "hides"),
            candidate(3, "hides"),
            candidate(4, "calm"),
        ];
        let of = |in_messages, count| Evidence {
            is_blamed: in_messages > 0,
            in_messages,
            count,
        };
        let blamed = |kept: [Evidence; 4]| {
            let kept: Vec<_> = kept.into_iter().zip(&all).collect();
            blamed(&kept)
        };

        // A decoy does not keep the others, and another tenant's file in a message is its own matter.
        assert_eq!(blamed([of(140, 0), of(1, 0), of(0, 9), of(1, 0)]), [1, 2]);
        // As many files each: the one that took kernel time.
        assert_eq!(blamed([of(1, 50), of(0, 0), of(0, 0), of(1, 2)]), [1]);
        assert_eq!(
            blamed([of(0, 1), of(0, 2), of(0, 3), of(0, 4)]),
            [] as [u64; 0]
        );
    }
}
