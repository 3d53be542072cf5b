//! The working copy of a history while the ladder runs: which units are dropped, which results are
//! cleared, and the resulting size. Each step costs time in proportion to what it changes.
//!
//! Pure.

use std::collections::BTreeSet;

use crate::chat::{ContentBlock, Edit, Message, MessageList, Role, ToolResultContent, span_hash};

use super::{
    importance::{CLEARED, has_error},
    plan::{CompactionStep, DroppedSpan, Problem, hash_to, wants_summary},
    rules::{RoundLines, decisions, one_line, outcomes, text_of},
    summary_pair::{Pending, Pointer, REQUEST_CHARS, SummaryPair, label},
    units::{Cut, Unit, UnitKind, cut},
};

/// Upper bound of a summary pair in tokens, pinned lines excluded. The pair is also limited to a
/// quarter of the target.
const PAIR_TOKENS_MAX: u64 = 4000;

/// Characters shown of an observation.
const OBSERVED_CHARS: usize = 100;

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

/// The result of [`Draft::finish`].
pub(super) struct Finished {
    pub(super) edits: Vec<Edit>,
    pub(super) steps: Vec<CompactionStep>,
    pub(super) tokens: u64,
    pub(super) round_starts: Vec<usize>,
    pub(super) dropped: Option<DroppedSpan>,
    pub(super) summarise: bool,
    pub(super) summary_used: bool,
    pub(super) cleared_results: u32,
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

    /// Writes the plan; `None` if nothing changed.
    pub(super) fn finish(&mut self) -> Option<Finished> {
        if !self.is_rewritten() && self.slots.iter().all(|slot| slot.cleared.is_none()) {
            return None;
        }
        self.drop_answers_at_the_head();
        // A summary of exactly this span may be cached already. It replaces the rule summary, and
        // kept messages that it covers are dropped too, so the span's figures are computed again.
        // Without one, a background summary is requested if it is worth its cost.
        let lost = self.slots.iter().any(|slot| {
            slot.dropped
                .is_some_and(|step| step != CompactionStep::Summary)
        });
        let mut dropped = self.dropped_span();
        let ready = dropped
            .as_ref()
            .filter(|_| lost)
            .and_then(|span| (self.problem.summary)(&span.hash));
        if let (Some(span), Some(_)) = (&dropped, &ready) {
            self.drop_left(span.to, self.rounds().saturating_sub(1));
            dropped = self.dropped_span();
        }
        let summarise = lost
            && ready.is_none()
            && dropped
                .as_ref()
                .is_some_and(|span| wants_summary(self.problem, span.to));
        let pair = self
            .is_rewritten()
            .then(|| self.pair(dropped.as_ref(), ready.as_deref(), summarise));
        let pair_tokens = match &pair {
            Some((summary, answer)) => {
                (self.problem.count)(summary).saturating_add((self.problem.count)(answer))
            }
            None => self.earlier_tokens(),
        };
        let kept = || self.slots.iter().filter(|slot| slot.dropped.is_none());
        let mut steps: BTreeSet<CompactionStep> =
            self.slots.iter().filter_map(|slot| slot.dropped).collect();
        steps.extend(kept().filter_map(|slot| slot.cleared.as_ref().map(|cleared| cleared.step)));
        let summary_used = self.summary.is_some() || ready.is_some();
        steps.extend(summary_used.then_some(CompactionStep::Summary));
        Some(Finished {
            tokens: self
                .fixed()
                .saturating_add(self.body)
                .saturating_add(pair_tokens),
            round_starts: self.round_starts(pair.is_some()),
            edits: self.edits(pair),
            steps: steps.into_iter().collect(),
            dropped,
            summarise,
            summary_used,
            cleared_results: kept()
                .filter_map(|slot| slot.cleared.as_ref())
                .map(|cleared| cleared.results)
                .sum(),
        })
    }

    /// Drops leading units that are not from a user, since a user message must follow the pair.
    /// Imported histories may begin otherwise.
    fn drop_answers_at_the_head(&mut self) {
        if !self.is_rewritten() {
            return;
        }
        let last = self.rounds().saturating_sub(1);
        let head: Vec<usize> = self
            .kept_units(last)
            .take_while(|(_, unit)| unit.kind != UnitKind::User)
            .map(|(index, _)| index)
            .collect();
        head.into_iter()
            .for_each(|index| self.drop_unit(index, CompactionStep::Extract));
    }

    fn dropped_span(&self) -> Option<DroppedSpan> {
        let dropped = || self.slots.iter().filter(|slot| slot.dropped.is_some());
        let to = dropped().next_back()?.unit.messages().end;
        let rounds: BTreeSet<usize> = dropped().map(|slot| slot.unit.round).collect();
        Some(DroppedSpan {
            from: 0,
            to,
            hash: hash_to(self.problem, to),
            messages: dropped()
                .map(|slot| slot.unit.messages().len() as u32)
                .sum(),
            rounds: rounds.len() as u32,
        })
    }

    /// The new summary pair: the earlier one, extended by what is removed now.
    fn pair(
        &self,
        dropped: Option<&DroppedSpan>,
        ready: Option<&str>,
        summarise: bool,
    ) -> (Message, Message) {
        let mut pair = self
            .earlier
            .as_ref()
            .map(|earlier| earlier.pair.clone())
            .unwrap_or_default();
        let base = pair.rounds_gone + 1;
        if let Some((at, text)) = &self.summary {
            pair.use_summary(*at, text);
        }
        let mut newer = self.removed(base);
        let last_round = self
            .slots
            .iter()
            .rev()
            .find(|slot| slot.dropped.is_some())
            .map_or(0, |slot| slot.unit.round);
        newer.pointers.extend(dropped.map(|span| Pointer {
            span: format!(
                "{}:{}-{}",
                label(self.problem.seq_label),
                span.from,
                span.to
            ),
            messages: span.messages,
            last_round: base + last_round as u64,
            pending: summarise.then(|| self.pending(span)),
        }));
        pair.fold(newer);
        if let Some(text) = ready {
            pair.use_summary(pair.pointers.len().saturating_sub(1), text);
        }
        pair.messages(self.problem.pinned, self.pair_max, self.problem.count)
    }

    fn pending(&self, span: &DroppedSpan) -> Pending {
        let kept = self
            .slots
            .iter()
            .filter(|slot| slot.dropped.is_none() && slot.unit.start < span.to);
        let left: Vec<&Message> = kept.flat_map(|slot| self.as_it_stays(slot)).collect();
        Pending {
            hash: span.hash.clone(),
            left: left.len() as u32,
            left_hash: span_hash(left.iter().copied()),
        }
    }

    fn as_it_stays<'s>(&'s self, slot: &'s Slot) -> impl Iterator<Item = &'s Message> {
        let cleared = slot.cleared.as_ref().map(|cleared| &cleared.message);
        let untouched =
            slot.unit.messages().start..slot.unit.messages().end - usize::from(cleared.is_some());
        self.messages.range(untouched).chain(cleared)
    }

    /// The rule summary of everything that is dropped. `base` is the number of the first round.
    fn removed(&self, base: u64) -> SummaryPair {
        let mut removed = SummaryPair::default();
        let mut texts: Vec<String> = Vec::new();
        for (index, round) in self.cut.rounds.iter().enumerate() {
            let slots = self.slots.get(round.units.clone()).unwrap_or_default();
            if slots.iter().all(|slot| slot.dropped.is_none()) {
                continue;
            }
            removed.rounds_gone += u64::from(slots.iter().all(|slot| slot.dropped.is_some()));
            let mut lines = RoundLines {
                round: (base + index as u64).to_string(),
                ..RoundLines::default()
            };
            for slot in slots
                .iter()
                .filter(|slot| slot.dropped.is_some() || slot.unit.kind == UnitKind::User)
            {
                let blocks: Vec<Vec<ContentBlock>> = slot
                    .unit
                    .messages()
                    .map(|message| self.original(message))
                    .collect();
                for (message, blocks) in slot.unit.messages().zip(&blocks) {
                    lines.add(
                        self.messages.get(message).map_or(Role::User, Message::role),
                        blocks,
                        OBSERVED_CHARS,
                    );
                }
                if slot.dropped.is_none() {
                    continue;
                }
                if let [calls, results] = blocks.as_slice() {
                    removed.outcomes.extend(outcomes(calls, results));
                }
                // A message of results may also contain text of a user.
                let by_person = blocks
                    .last()
                    .filter(|_| slot.unit.kind != UnitKind::Assistant);
                let request = by_person.map(|blocks| one_line(&asked(blocks), REQUEST_CHARS));
                removed
                    .requests
                    .extend(request.filter(|request| !request.is_empty()));
                texts.extend(blocks.iter().map(|blocks| text_of(blocks)));
            }
            removed.rounds.push(lines);
        }
        removed.decisions = decisions(texts.iter().map(String::as_str));
        removed
    }

    fn round_starts(&self, has_new_pair: bool) -> Vec<usize> {
        let mut starts = Vec::new();
        let mut at = if has_new_pair || self.cut.has_pair {
            2
        } else {
            0
        };
        for round in &self.cut.rounds {
            let slots = self.slots.get(round.units.clone()).unwrap_or_default();
            let kept: usize = slots
                .iter()
                .filter(|slot| slot.dropped.is_none())
                .map(|slot| slot.unit.messages().len())
                .sum();
            if round.own && kept > 0 {
                starts.push(at);
            }
            at += kept;
        }
        starts
    }

    fn edits(&self, pair: Option<(Message, Message)>) -> Vec<Edit> {
        let mut edits = Edits::default();
        match pair {
            Some((summary, answer)) => {
                edits.drop(if self.cut.has_pair { 2 } else { 0 });
                edits.0.extend([Edit::Put(summary), Edit::Put(answer)]);
            }
            None => edits.keep(if self.cut.has_pair { 2 } else { 0 }),
        }
        for slot in &self.slots {
            let messages = slot.unit.messages().len() as u32;
            match (&slot.dropped, &slot.cleared) {
                (Some(_), _) => edits.drop(messages),
                (None, None) => edits.keep(messages),
                (None, Some(cleared)) if messages == 1 => {
                    edits.0.push(Edit::Replace(cleared.message.clone()));
                }
                (None, Some(cleared)) => {
                    edits.keep(1);
                    edits.drop(1);
                    edits.0.push(Edit::Put(cleared.message.clone()));
                }
            }
        }
        if matches!(edits.0.last(), Some(Edit::Keep(_))) {
            edits.0.pop();
        }
        edits.0
    }
}

/// Edits, with adjacent ones of the same kind merged.
#[derive(Default)]
struct Edits(Vec<Edit>);

impl Edits {
    fn keep(&mut self, messages: u32) {
        match self.0.last_mut() {
            Some(Edit::Keep(count)) => *count += messages,
            _ if messages > 0 => self.0.push(Edit::Keep(messages)),
            _ => {}
        }
    }

    fn drop(&mut self, messages: u32) {
        match self.0.last_mut() {
            Some(Edit::Drop(count)) => *count += messages,
            _ if messages > 0 => self.0.push(Edit::Drop(messages)),
            _ => {}
        }
    }
}

/// The user's request in a message; for a message without text, the kinds of its blocks.
fn asked(blocks: &[ContentBlock]) -> String {
    let text = text_of(blocks);
    if !text.trim().is_empty() {
        return text;
    }
    let kinds = blocks.iter().filter_map(|block| {
        if let ContentBlock::Other { kind, .. } = block {
            Some(format!("[{kind}]"))
        } else {
            None
        }
    });
    kinds.collect::<Vec<_>>().join(" ")
}

fn is_longer(content: &ToolResultContent, form: &str) -> bool {
    match content {
        ToolResultContent::Text(text) => text.len() > form.len(),
        ToolResultContent::Blocks(raw) => raw.as_str().len() > form.len(),
    }
}
