//! Where each round begins in the history. The marks are part of the fold: an edit of the history
//! moves them. A history without marks (from an import or an earlier version) gets round ids that
//! every fold derives alike.
//!
//! Pure.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::ConversationRound;
use crate::{
    chat::{Message, MessageList, Role},
    ids::{RoundId, Seq},
};

/// The start of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub(crate) struct RoundMark {
    pub id: RoundId,
    /// Index in the history of the first message of the round.
    pub start: u32,
}

/// The starts of all rounds in a history, oldest first. The indices strictly increase, and no id
/// occurs twice.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RoundMarks(Vec<RoundMark>);

impl RoundMarks {
    /// Returns the marks, oldest first.
    pub(crate) fn as_slice(&self) -> &[RoundMark] {
        &self.0
    }

    /// Returns the round that began last, as far as the history has it.
    pub fn last(&self) -> Option<RoundId> {
        self.0.last().map(|mark| mark.id)
    }

    /// Returns the index at which a round begins. `None` for a round without a mark.
    pub(crate) fn start(&self, id: RoundId) -> Option<u32> {
        self.0
            .iter()
            .rev()
            .find(|mark| mark.id == id)
            .map(|mark| mark.start)
    }

    /// Returns the index at which a round ends: the start of the next round, or `len` for the last
    /// one.
    pub(crate) fn end(&self, id: RoundId, len: u32) -> Option<u32> {
        let place = self.0.iter().rposition(|mark| mark.id == id)?;
        Some(self.0.get(place + 1).map_or(len, |next| next.start))
    }

    /// Marks a round that begins with the next message. `len` is the current number of messages.
    pub(crate) fn begin(&mut self, id: RoundId, len: usize) {
        self.cut(len);
        self.0.push(RoundMark {
            id,
            start: index(len),
        });
    }

    /// Removes the marks of rounds that begin at message `len` or later, because the history no
    /// longer has those messages.
    pub(crate) fn cut(&mut self, len: usize) {
        let kept = self.0.partition_point(|mark| (mark.start as usize) < len);
        self.0.truncate(kept);
    }

    /// Replaces all marks. Skips marks whose index does not increase or whose round already has a
    /// mark.
    pub(crate) fn replace(&mut self, marks: impl IntoIterator<Item = RoundMark>) {
        self.0.clear();
        let mut ids = HashSet::new();
        for mark in marks {
            if self.0.last().is_none_or(|last| last.start < mark.start) && ids.insert(mark.id) {
                self.0.push(mark);
            }
        }
        self.0.shrink_to_fit();
    }

    /// Moves the marks after an edit of a history that had `len` messages. `map` returns the new
    /// index of a message, or `None` if the edit removed the message. A round begins with the first
    /// of its messages that is left; a round without any message left loses its mark.
    pub(crate) fn edited(&mut self, len: usize, map: impl Fn(u32) -> Option<u32>) {
        let old = std::mem::take(&mut self.0);
        let ends = old
            .iter()
            .skip(1)
            .map(|next| next.start)
            .chain([index(len)]);
        let moved: Vec<RoundMark> = old
            .iter()
            .zip(ends)
            .filter_map(|(mark, end)| {
                Some(RoundMark {
                    id: mark.id,
                    start: (mark.start..end).find_map(&map)?,
                })
            })
            .collect();
        self.replace(moved);
    }

    /// Derives marks for a history that came without any: each message of a person begins a round.
    /// The round ids follow from `seq`, the entry with the history, and from the index, so that
    /// every fold derives the same ids.
    pub(super) fn derive(seq: Seq, messages: &MessageList) -> Self {
        Self(
            plain_user_starts(messages)
                .map(|start| RoundMark {
                    id: derived_id(seq, start),
                    start: index(start),
                })
                .collect(),
        )
    }

    /// Returns the marks in the records of an imported history.
    ///
    /// # Errors
    /// As [`records_fit`].
    pub(super) fn from_records(
        records: &[ConversationRound],
        messages: &MessageList,
    ) -> Result<Self, String> {
        let may_begin: Vec<bool> = messages
            .iter()
            .map(|message| message.tool_result_ids().is_empty())
            .collect();
        let mut ids = HashSet::new();
        let mut marks: Vec<RoundMark> = Vec::new();
        for record in records {
            let id = record.round_id;
            if !ids.insert(id) {
                return Err(format!("round {id} is there twice"));
            }
            let Some(start) = record.start else { continue };
            let rises = marks.last().is_none_or(|last| last.start < start);
            if !rises || !may_begin.get(start as usize).is_some_and(|may| *may) {
                return Err(format!("round {id} cannot begin at message {start}"));
            }
            marks.push(RoundMark { id, start });
        }
        Ok(Self(marks))
    }
}

/// Returns the indices of messages that a person wrote: user messages that hold neither tool
/// results nor only reminders.
pub(crate) fn plain_user_starts(messages: &MessageList) -> impl Iterator<Item = usize> {
    messages
        .iter()
        .enumerate()
        .filter(|(_, message)| is_from_a_person(message))
        .map(|(index, _)| index)
}

fn is_from_a_person(message: &Message) -> bool {
    message.role() == Role::User && message.tool_result_ids().is_empty() && !message.is_reminders()
}

/// Checks that records of rounds fit a history.
///
/// # Errors
/// Names the record that does not fit. Starts must increase, lie within the history and not
/// separate a call from its result; ids must be unique.
pub fn records_fit(records: &[ConversationRound], messages: &MessageList) -> Result<(), String> {
    RoundMarks::from_records(records, messages).map(drop)
}

fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Derives a round id from two digests, so that the ids spread over the whole range of random ids.
fn derived_id(seq: Seq, start: usize) -> RoundId {
    let half = |salt: u8| {
        let mut bytes = seq.0.to_le_bytes().to_vec();
        bytes.extend_from_slice(&(start as u64).to_le_bytes());
        bytes.push(salt);
        super::digest(&bytes)
    };
    RoundId::from_random(((u128::from(half(1)) << 64) | u128::from(half(2))).to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Durable;

    fn id(n: u8) -> RoundId {
        RoundId::from_random([n; 16])
    }

    fn marks(starts: &[u32]) -> RoundMarks {
        let mut marks = RoundMarks::default();
        marks.replace(starts.iter().enumerate().map(|(n, start)| RoundMark {
            id: id(n as u8),
            start: *start,
        }));
        marks
    }

    fn starts(marks: &RoundMarks) -> Vec<(u8, u32)> {
        let number = |mark: &RoundMark| (0..=255).find(|n| id(*n) == mark.id).unwrap();
        marks
            .as_slice()
            .iter()
            .map(|mark| (number(mark), mark.start))
            .collect()
    }

    #[test]
    fn a_round_ends_where_the_next_one_begins() {
        let marks = marks(&[1, 4, 9]);

        assert_eq!(
            [marks.start(id(0)), marks.start(id(2)), marks.start(id(7))],
            [Some(1), Some(9), None]
        );
        assert_eq!(
            [
                marks.end(id(0), 12),
                marks.end(id(2), 12),
                marks.end(id(7), 12)
            ],
            [Some(4), Some(12), None]
        );
    }

    #[test]
    fn marks_of_messages_that_are_gone_go_too() {
        let mut marks = marks(&[0, 4, 8]);

        marks.cut(8);
        assert_eq!(starts(&marks), [(0, 0), (1, 4)]);
        marks.begin(id(9), 4);
        assert_eq!(starts(&marks), [(0, 0), (9, 4)]);
    }

    #[test]
    fn an_edit_moves_the_marks_and_takes_those_of_rounds_that_are_gone() {
        let mut marks = marks(&[0, 4, 8, 10]);

        // A summary takes the place of messages 0 to 4; message 5 and all after it stay, but for
        // round 2.
        marks.edited(12, |old| match old {
            0..=4 | 8..=9 => None,
            _ if old < 8 => Some(old - 4),
            _ => Some(old - 6),
        });

        assert_eq!(
            starts(&marks),
            [(1, 1), (3, 4)],
            "round 1 lost its first message only"
        );
    }

    #[test]
    fn two_rounds_that_become_one_message_keep_the_first_name() {
        let mut marks = marks(&[0, 2, 4]);

        marks.edited(6, |old| Some(old.saturating_sub(3)));

        assert_eq!(starts(&marks), [(0, 0), (2, 1)]);
    }

    #[test]
    fn a_history_from_outside_gets_names_that_every_fold_derives_alike() {
        let reminder = Message::new(Role::User, &[crate::chat::reminder("c")]).unwrap();
        let list: MessageList = [
            Message::user("a"),
            Message::assistant("b"),
            reminder,
            Message::user("d"),
        ]
        .into_iter()
        .collect();
        let one = RoundMarks::derive(Seq(3), &list);
        let other = RoundMarks::derive(Seq(3), &list);
        let later = RoundMarks::derive(Seq(4), &list);

        assert_eq!(one, other);
        assert_eq!(
            one.as_slice()
                .iter()
                .map(|mark| mark.start)
                .collect::<Vec<_>>(),
            [0, 3]
        );
        assert!(
            one.as_slice()
                .iter()
                .all(|mark| later.start(mark.id).is_none())
        );
    }

    #[test]
    fn a_state_without_marks_begins_a_round_with_each_message_of_a_person() {
        let (history, _) = crate::chat::History::repair([
            Message::user("a"),
            Message::assistant("b"),
            Message::user("c"),
        ]);
        let unmarked = Durable {
            history,
            ..Durable::default()
        };
        let marked = Durable {
            rounds: marks(&[2]),
            ..unmarked.clone()
        };

        assert_eq!(
            (unmarked.round_starts(), marked.round_starts()),
            (vec![0, 2], vec![2])
        );
    }
}
