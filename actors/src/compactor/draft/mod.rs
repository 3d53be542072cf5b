//! The working copy of a history while the ladder runs: which units are dropped, which results are
//! cleared, and the resulting size. Each step costs time in proportion to what it changes.
//!
//! Pure.

mod finished;

use std::collections::BTreeSet;

use crate::chat::{ContentBlock, Message, MessageList, Role, ToolResultContent, span_hash};

use super::{
    importance::{CLEARED, has_error},
    plan::{CompactionStep, Problem},
    summary_pair::SummaryPair,
    units::{Cut, Unit, UnitKind, cut},
};

/// Upper bound of a summary pair in tokens, pinned lines excluded. The pair is also limited to a
/// quarter of the target.
const PAIR_TOKENS_MAX: u64 = 4000;

struct Slot {
    unit: Unit,
    /// Tokens of the unit in its current form.
    tokens: u64,
    /// The results after clearing; `None` if none was cleared.
    cleared: Option<Cleared>,
    /// The step that dropped the unit; `None` if it is kept.
    dropped: Option<CompactionStep>,
}

struct Cleared {
    /// The message with cleared or shortened results, or the short form of a message.
    message: Message,
    /// Number of results that were cleared.
    results: u32,
    step: CompactionStep,
}

/// The summary pair of an earlier compaction.
struct Earlier {
    pair: SummaryPair,
    tokens: u64,
}

/// A history that is being compacted; see the module.
pub(super) struct Draft<'a> {
    pub(super) problem: &'a Problem<'a>,
    messages: &'a MessageList,
    cut: Cut,
    slots: Vec<Slot>,
    /// Tokens of all kept units.
    body: u64,
    /// Number of dropped units.
    dropped: usize,
    earlier: Option<Earlier>,
    /// Maximum size of the new summary pair, in tokens.
    pair_max: u64,
    pinned: u64,
    /// The summary in use, and the index of the earlier pair's pointer that it belongs to.
    summary: Option<(usize, String)>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(problem: &'a Problem<'a>) -> Self {
        let messages = problem.history.messages();
        let cut = cut(messages, problem.round_starts);
        let tokens = |range: std::ops::Range<usize>| {
            messages
                .range(range)
                .map(|message| (problem.count)(message))
                .sum::<u64>()
        };
        let slots: Vec<Slot> = cut
            .units
            .iter()
            .map(|unit| Slot {
                unit: *unit,
                tokens: tokens(unit.messages()),
                cleared: None,
                dropped: None,
            })
            .collect();
        let earlier = messages
            .get(0)
            .filter(|_| cut.has_pair)
            .map(|pair| Earlier {
                pair: SummaryPair::read(pair),
                tokens: tokens(0..2),
            });
        let pinned = if problem.pinned.is_empty() {
            0
        } else {
            (problem.count)(&Message::user(problem.pinned.join("\n- ")))
        };
        let share = (problem.window.target(problem.settings) / 4)
            .min(PAIR_TOKENS_MAX)
            .saturating_add(pinned);
        Self {
            problem,
            messages,
            body: slots.iter().map(|slot| slot.tokens).sum(),
            dropped: 0,
            cut,
            slots,
            earlier,
            pair_max: share.max(SummaryPair::least_tokens(problem.pinned, problem.count)),
            pinned,
            summary: None,
        }
    }

    /// Tokens of the request in its current state. A pair that is not written yet counts at its
    /// maximum size.
    pub(super) fn tokens(&self) -> u64 {
        let pair = if self.is_rewritten() {
            self.pair_max
        } else {
            self.earlier_tokens()
        };
        self.fixed().saturating_add(self.body).saturating_add(pair)
    }

    /// Tokens of the request if results were cleared but nothing was dropped.
    pub(super) fn tokens_if_nothing_were_dropped(&self) -> u64 {
        let all: u64 = self.slots.iter().map(|slot| slot.tokens).sum();
        self.fixed()
            .saturating_add(all)
            .saturating_add(self.earlier_tokens())
    }

    fn fixed(&self) -> u64 {
        let fixed = &self.problem.fixed;
        fixed
            .system
            .saturating_add(fixed.tools)
            .saturating_add(fixed.pinned)
    }

    fn earlier_tokens(&self) -> u64 {
        self.earlier.as_ref().map_or(0, |earlier| earlier.tokens)
    }

    fn is_rewritten(&self) -> bool {
        self.summary.is_some() || self.dropped > 0
    }

    /// Number of rounds.
    pub(super) fn rounds(&self) -> usize {
        self.cut.rounds.len()
    }

    /// The kept units of the first `rounds` rounds, with their indices.
    pub(super) fn kept_units(&self, rounds: usize) -> impl Iterator<Item = (usize, Unit)> {
        let kept = self
            .slots
            .iter()
            .enumerate()
            .take_while(move |(_, slot)| slot.unit.round < rounds);
        kept.filter(|(_, slot)| slot.dropped.is_none())
            .map(|(index, slot)| (index, slot.unit))
    }

    /// The original blocks of a message.
    pub(super) fn original(&self, message: usize) -> Vec<ContentBlock> {
        self.messages
            .get(message)
            .map(Message::blocks)
            .unwrap_or_default()
    }

    /// Drops a unit.
    pub(super) fn drop_unit(&mut self, index: usize, step: CompactionStep) {
        if let Some(slot) = self
            .slots
            .get_mut(index)
            .filter(|slot| slot.dropped.is_none())
        {
            slot.dropped = Some(step);
            self.dropped += 1;
            self.body = self.body.saturating_sub(slot.tokens);
        }
    }

    /// A message of the history.
    pub(super) fn message(&self, index: usize) -> Option<&Message> {
        self.messages.get(index)
    }

    /// Replaces the message of a unit without calls by its short form, if that is smaller.
    pub(super) fn shorten_message(&mut self, index: usize, short: impl Fn(&Message) -> Message) {
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        let Some(message) = self.messages.get(slot.unit.start).map(short) else {
            return;
        };
        let tokens = (self.problem.count)(&message);
        if tokens < slot.tokens {
            self.body = self.body.saturating_sub(slot.tokens).saturating_add(tokens);
            slot.tokens = tokens;
            slot.cleared = Some(Cleared {
                message,
                results: 0,
                step: CompactionStep::Importance,
            });
        }
    }

    /// Restores everything that was dropped. Cleared results stay cleared.
    pub(super) fn keep_everything(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.dropped = None);
        self.body = self.slots.iter().map(|slot| slot.tokens).sum();
        self.dropped = 0;
        self.summary = None;
    }

    /// Step 1: clears the successful results of the first `old` rounds.
    pub(super) fn clear_results(&mut self, old: usize) {
        let exchanges: Vec<usize> = self.exchanges(0, old);
        exchanges
            .into_iter()
            .for_each(|index| self.clear(index, CompactionStep::ToolResults, false));
    }

    /// Step 5: clears results of the last round, oldest first, until `target` is reached. Failed
    /// results are cleared only while the request is above `limit`. The last batch is kept, since
    /// the model has not read it yet.
    pub(super) fn clear_last_round(&mut self, target: u64, limit: u64) {
        let Some(last) = self.rounds().checked_sub(1) else {
            return;
        };
        let mut exchanges = self.exchanges(last, last + 1);
        exchanges.pop();
        for (errors, goal) in [(false, target), (true, limit)] {
            for index in &exchanges {
                if self.tokens() <= goal {
                    break;
                }
                self.clear(*index, CompactionStep::CurrentRound, errors);
            }
        }
    }

    fn exchanges(&self, from: usize, to: usize) -> Vec<usize> {
        let kept = self
            .kept_units(to)
            .filter(|(_, unit)| unit.round >= from && unit.kind == UnitKind::Exchange);
        kept.map(|(index, _)| index).collect()
    }

    fn clear(&mut self, index: usize, step: CompactionStep, errors: bool) {
        self.replace_results(index, step, errors, |_| CLEARED.to_owned());
    }

    /// Replaces the results of a unit by another form of them, where that makes the unit smaller.
    pub(super) fn replace_results(
        &mut self,
        index: usize,
        step: CompactionStep,
        errors: bool,
        form: impl Fn(&str) -> String,
    ) {
        let Some(slot) = self.slots.get(index) else {
            return;
        };
        let calls = slot.unit.start;
        let results = slot.unit.start + 1;
        let mut changed = false;
        let mut blocks = match &slot.cleared {
            Some(cleared) => cleared.message.blocks(),
            None => self.original(results),
        };
        for block in &mut blocks {
            if let ContentBlock::ToolResult(result) = block
                && (errors || !result.is_error)
                && let form = form(&result.content.text())
                && is_longer(&result.content, &form)
            {
                result.content = ToolResultContent::Text(form);
                changed = true;
            }
        }
        let Some(message) = changed
            .then(|| Message::new(Role::User, &blocks).ok())
            .flatten()
        else {
            return;
        };
        // Results that were changed before and now count once.
        let original = self.original(results);
        let changed_results = blocks.iter().zip(&original).filter(|(is, was)| is != was);
        let changed_results = u32::try_from(changed_results.count()).unwrap_or(u32::MAX);
        let tokens = self
            .messages
            .get(calls)
            .map_or(0, self.problem.count)
            .saturating_add((self.problem.count)(&message));
        if let Some(slot) = self
            .slots
            .get_mut(index)
            .filter(|slot| tokens < slot.tokens)
        {
            self.body = self.body.saturating_sub(slot.tokens).saturating_add(tokens);
            slot.tokens = tokens;
            slot.cleared = Some(Cleared {
                message,
                results: changed_results,
                step,
            });
        }
    }

    /// Step 2: uses the newest summary that is ready for a span of an earlier compaction. The
    /// summary covers everything before the span's end, including messages that were kept. Those
    /// are dropped now, if they are unchanged; rounds with an error keep theirs.
    pub(super) fn use_ready_summary(&mut self, old: usize) {
        let Some(earlier) = &self.earlier else { return };
        let ready = earlier
            .pair
            .pointers
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, pointer)| {
                let pending = pointer.pending.clone()?;
                Some((at, (self.problem.summary)(&pending.hash)?, pending))
            });
        let Some((at, text, pending)) = ready else {
            return;
        };
        self.summary = Some((at, text));
        let end = 2 + pending.left as usize;
        if span_hash(self.messages.range(2..end)) == pending.left_hash {
            self.drop_left(end, old);
        }
    }

    /// Drops the units before message `end` in the first `rounds` rounds, for a summary that covers
    /// them. A round that continues after `end` keeps its request.
    fn drop_left(&mut self, end: usize, rounds: usize) {
        let kept: Vec<(usize, Unit)> = self.kept_units(rounds).collect();
        let (left, behind) =
            kept.split_at(kept.partition_point(|(_, unit)| unit.messages().end <= end));
        let goes_on = behind.first().map(|(_, unit)| unit.round);
        let failed = |unit: &Unit| {
            unit.kind == UnitKind::Exchange && has_error(&self.original(unit.start + 1))
        };
        let with_error: BTreeSet<usize> = left
            .iter()
            .filter(|(_, unit)| failed(unit))
            .map(|(_, unit)| unit.round)
            .collect();
        for (index, unit) in left {
            let asks = unit.kind == UnitKind::User && goes_on == Some(unit.round);
            if !asks && !with_error.contains(&unit.round) {
                self.drop_unit(*index, CompactionStep::Summary);
            }
        }
    }

    /// Step 4: drops whole rounds, oldest first, until `goal` is reached or one round is left.
    pub(super) fn drop_oldest_rounds(&mut self, goal: u64) {
        let rounds: Vec<std::ops::Range<usize>> = self
            .cut
            .rounds
            .iter()
            .map(|round| round.units.clone())
            .collect();
        for units in rounds.iter().take(rounds.len().saturating_sub(1)) {
            if self.tokens() <= goal {
                break;
            }
            units
                .clone()
                .for_each(|index| self.drop_unit(index, CompactionStep::OldestRounds));
        }
    }

    /// The largest part that no step can reduce, and its tokens.
    pub(super) fn largest_part(&self) -> (&'static str, u64) {
        let fixed = &self.problem.fixed;
        let last = self.rounds().saturating_sub(1);
        let kept = self
            .slots
            .iter()
            .filter(|slot| slot.dropped.is_none() && slot.unit.round == last);
        let pinned = if self.is_rewritten() || self.earlier.is_some() {
            self.pinned
        } else {
            0
        };
        let parts = [
            ("system prompt", fixed.system),
            ("tools", fixed.tools),
            ("pinned", fixed.pinned.saturating_add(pinned)),
            ("current round", kept.map(|slot| slot.tokens).sum()),
        ];
        parts
            .into_iter()
            .fold(("current round", 0), |largest, part| {
                if part.1 > largest.1 { part } else { largest }
            })
    }
}

fn is_longer(content: &ToolResultContent, form: &str) -> bool {
    match content {
        ToolResultContent::Text(text) => text.len() > form.len(),
        ToolResultContent::Blocks(raw) => raw.as_str().len() > form.len(),
    }
}
