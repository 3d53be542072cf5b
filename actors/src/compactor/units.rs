//! Splits a history into rounds and units. A unit is kept or dropped as a whole, so a call is never
//! separated from its result.
//!
//! Pure.

use std::ops::Range;

use crate::chat::{MessageList, Role};

use super::summary_pair;

/// The kind of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnitKind {
    /// A user message without tool results.
    User,
    /// An assistant message with calls, and the message with their results.
    Exchange,
    /// An assistant message without calls.
    Assistant,
}

/// Messages that are kept or dropped together: a message, or a call with its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// What the unit consists of.
    pub kind: UnitKind,
    /// Index of its first message.
    pub start: usize,
    /// Index of its round in [`Cut::rounds`].
    pub round: usize,
}

impl Unit {
    /// The indices of its messages.
    pub(super) fn messages(&self) -> Range<usize> {
        let count = match self.kind {
            UnitKind::User | UnitKind::Assistant => 1,
            UnitKind::Exchange => 2,
        };
        self.start..self.start + count
    }
}

/// The units from one prompt to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    /// Its units, as indices into [`Cut::units`].
    pub units: Range<usize>,
    /// Whether the conversation started the round. The others are imported messages, split before
    /// user messages.
    pub own: bool,
}

/// A history split into rounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cut {
    /// Whether the first two messages are the summary pair of an earlier compaction; they belong to
    /// no unit.
    pub has_pair: bool,
    /// All units, in order.
    pub units: Vec<Unit>,
    /// All rounds, in order; none is empty.
    pub rounds: Vec<Round>,
}

/// Splits a history. `round_starts` are the indices of the messages that begin the conversation's
/// rounds, ascending. An index between a call and its result takes effect at the next unit.
pub(super) fn cut(messages: &MessageList, round_starts: &[usize]) -> Cut {
    let first_start = round_starts.first().copied().unwrap_or(usize::MAX);
    let has_pair = first_start >= 2
        && match (messages.get(0), messages.get(1)) {
            (Some(summary), Some(answer)) => summary_pair::is_pair(summary, answer),
            _ => false,
        };
    let mut cut = Cut {
        has_pair,
        ..Cut::default()
    };
    let mut starts = round_starts.iter().copied().peekable();
    let mut messages = messages
        .iter()
        .enumerate()
        .skip(if has_pair { 2 } else { 0 });
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
        if !own
            && kind == UnitKind::User
            && cut
                .units
                .last()
                .is_some_and(|unit| unit.kind != UnitKind::User)
        {
            begins = true;
        }
        if begins {
            cut.rounds.push(Round {
                units: cut.units.len()..cut.units.len(),
                own,
            });
        }
        if let Some(round) = cut.rounds.last_mut() {
            round.units.end += 1;
        }
        cut.units.push(Unit {
            kind,
            start,
            round: cut.rounds.len() - 1,
        });
    }
    cut
}
