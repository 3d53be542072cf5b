//! A history cut into rounds and units. A unit is what may go or stay as a whole: no unit tears a call from its result
//! (REQUIREMENTS C-13, C-43; BUG-27).
//!
//! Pure.

use std::ops::Range;

use crate::chat::{MessageList, Role};

use super::stub;

/// What a unit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitKind {
    /// A user message that answers no call.
    User,
    /// An assistant message with calls and the message with their results.
    Exchange,
    /// An assistant message without calls.
    Assistant,
}

/// One unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// What it is.
    pub kind: UnitKind,
    /// Index of its first message.
    pub start: usize,
    /// Index of its round in [`Cut::rounds`].
    pub round: usize,
}

impl Unit {
    /// Its messages.
    pub(super) fn messages(&self) -> Range<usize> {
        let count = match self.kind {
            UnitKind::User | UnitKind::Assistant => 1,
            UnitKind::Exchange => 2,
        };
        self.start..self.start + count
    }
}

/// One round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    /// Its units, as indices into [`Cut::units`].
    pub units: Range<usize>,
    /// Whether the conversation began it; the others are imported messages, cut where a person speaks.
    pub own: bool,
}

/// A history in rounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cut {
    /// Whether the first two messages are the summary pair of an earlier compaction; they belong to no unit.
    pub stub: bool,
    /// All units, in order.
    pub units: Vec<Unit>,
    /// All rounds, in order; none is empty.
    pub rounds: Vec<Round>,
}

/// Cuts a history. `round_starts` are the indices of the messages with which the conversation's rounds begin, ascending; one that
/// points between a call and its result counts from the next unit on.
pub(super) fn cut(messages: &MessageList, round_starts: &[usize]) -> Cut {
    let first_start = round_starts.first().copied().unwrap_or(usize::MAX);
    let stub = first_start >= 2
        && match (messages.get(0), messages.get(1)) {
            (Some(summary), Some(answer)) => stub::is_pair(summary, answer),
            _ => false,
        };
    let mut cut = Cut { stub, ..Cut::default() };
    let mut starts = round_starts.iter().copied().peekable();
    let mut messages = messages.iter().enumerate().skip(if stub { 2 } else { 0 });
    let mut own = false;
    while let Some((start, message)) = messages.next() {
        let kind = match message.role() {
            Role::Assistant if !message.tool_use_ids().is_empty() => {
                messages.next();
                UnitKind::Exchange
            }
            Role::Assistant => UnitKind::Assistant,
            Role::User | Role::System => UnitKind::User,
        };
        let mut begins = cut.rounds.is_empty();
        while starts.next_if(|round| *round <= start).is_some() {
            (begins, own) = (true, true);
        }
        if !own && kind == UnitKind::User && cut.units.last().is_some_and(|unit| unit.kind != UnitKind::User) {
            begins = true;
        }
        if begins {
            cut.rounds.push(Round { units: cut.units.len()..cut.units.len(), own });
        }
        if let Some(round) = cut.rounds.last_mut() {
            round.units.end += 1;
        }
        cut.units.push(Unit { kind, start, round: cut.rounds.len() - 1 });
    }
    cut
}
