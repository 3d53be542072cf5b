//! Writes the result of a draft: the edits, the new summary pair, and the figures of the plan.
//!
//! Pure.

use std::collections::BTreeSet;

use crate::{
    chat::{ContentBlock, Edit, Message, Role, span_hash},
    compactor::{
        draft::{Draft, Slot},
        plan::{CompactionStep, DroppedSpan, hash_to, wants_summary},
        rules::{RoundLines, decisions, one_line, outcomes, text_of},
        summary_pair::{Pending, Pointer, REQUEST_CHARS, SummaryPair, label},
        units::UnitKind,
    },
};

/// Characters shown of an observation.
const OBSERVED_CHARS: usize = 100;

/// The result of [`Draft::finish`].
pub(in crate::compactor) struct Finished {
    pub(in crate::compactor) edits: Vec<Edit>,
    pub(in crate::compactor) steps: Vec<CompactionStep>,
    pub(in crate::compactor) tokens: u64,
    pub(in crate::compactor) round_starts: Vec<usize>,
    pub(in crate::compactor) dropped: Option<DroppedSpan>,
    pub(in crate::compactor) summarise: bool,
    pub(in crate::compactor) summary_used: bool,
    pub(in crate::compactor) cleared_results: u32,
}

impl Draft<'_> {
    /// Writes the plan; `None` if nothing changed.
    pub(in crate::compactor) fn finish(&mut self) -> Option<Finished> {
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
        let _ = block.raw()?;
        Some(format!("[{}]", block.kind()))
    });
    kinds.collect::<Vec<_>>().join(" ")
}
