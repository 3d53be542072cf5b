//! What a fork copies: a conversation as it stood at the end of a round. The journal is only read,
//! so the original conversation may keep running.
//!
//! Pure.

use super::{ApplyError, ConversationRound, Entry, EntryBody, RoundsReader};
use crate::{
    chat::Message,
    ids::{ConversationId, RoundId, Seq},
};

/// A conversation at the border between two rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Fork {
    /// The last entry of the original journal that the fork includes.
    pub upto: Seq,
    /// The messages that the fork begins with, oldest first.
    pub messages: Vec<Message>,
    /// Records of the rounds in `messages`, all of them over.
    pub rounds: Vec<ConversationRound>,
    /// Digests of calls whose effect is in doubt. They come from the end of the journal, not from
    /// `upto`: the doubt is about the outside world, which a fork does not turn back.
    pub in_doubt: Vec<u64>,
}

/// Reads a journal to build a fork.
///
/// Without a round id, the fork is the conversation before its open round, or at the end of its
/// last one. With a round id, the fork is the conversation at the end of that round, even if a
/// later entry compacted or rewound it. What stood before a reset or an import is no longer part of
/// the conversation.
#[derive(Debug)]
pub(crate) struct ForkReader {
    reader: RoundsReader,
    at: Option<RoundId>,
    found: Option<Fork>,
    /// The last entry before the open round.
    border: Seq,
}

impl ForkReader {
    /// Creates a reader for a journal, before its first entry. `at` names the round to fork after.
    pub(crate) fn new(id: ConversationId, at: Option<RoundId>) -> Self {
        Self {
            reader: RoundsReader::new(id),
            at,
            found: None,
            border: Seq(0),
        }
    }

    /// Applies the next entry.
    ///
    /// # Errors
    /// [`ApplyError`] when the entry cannot follow. Do not use the reader after an error.
    pub(crate) fn take(&mut self, entry: &Entry) -> Result<(), ApplyError> {
        // The end of the wanted round is a fork, and so is an import that contains the round. The
        // latest one wins. A reset or an import drops earlier finds, because the history that they
        // belong to no longer exists.
        let ends = matches!(entry.body, EntryBody::RoundFinished { .. });
        let ended = self
            .reader
            .state()
            .round
            .as_ref()
            .map(|round| round.id)
            .filter(|_| ends);
        let brought = matches!(entry.body, EntryBody::Imported { .. });
        if matches!(entry.body, EntryBody::RoundStarted { .. }) {
            self.border = self.reader.state().head;
        } else if brought || matches!(entry.body, EntryBody::Reset {}) {
            self.found = None;
        }
        self.reader.take(entry)?;
        if let Some(at) = self.at
            && (ended == Some(at) || brought)
        {
            self.found = self.until(at).or(self.found.take());
        }
        Ok(())
    }

    /// Returns the fork. `None` if the round is unknown or still open.
    pub(crate) fn finish(self) -> Option<Fork> {
        let fork = if self.at.is_some() {
            self.found.clone()
        } else {
            Some(self.latest())
        };
        fork.map(|fork| Fork {
            in_doubt: self.reader.state().in_doubt.clone(),
            ..fork
        })
    }

    fn until(&self, at: RoundId) -> Option<Fork> {
        let mut rounds = self.reader.records();
        let place = rounds.iter().rposition(|round| round.round_id == at)?;
        rounds.truncate(place + 1);
        let state = self.reader.state();
        let len = state.history.messages().len();
        let end = u32::try_from(len)
            .ok()
            .and_then(|len| state.rounds.end(at, len));
        Some(self.fork(state.head, end.map_or(len, |end| end as usize), rounds))
    }

    fn latest(&self) -> Fork {
        let state = self.reader.state();
        let mut rounds = self.reader.records();
        let len = state.history.messages().len();
        let Some(open) = &state.round else {
            return self.fork(state.head, len, rounds);
        };
        rounds.retain(|round| round.round_id != open.id);
        let start = state.rounds.start(open.id);
        self.fork(
            self.border,
            start.map_or(len, |start| start as usize),
            rounds,
        )
    }

    fn fork(&self, upto: Seq, keep: usize, rounds: Vec<ConversationRound>) -> Fork {
        let messages = self
            .reader
            .state()
            .history
            .messages()
            .iter()
            .take(keep)
            .cloned()
            .collect();
        Fork {
            upto,
            messages,
            rounds,
            in_doubt: Vec::new(),
        }
    }
}
