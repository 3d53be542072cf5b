//! What a fork takes: a conversation as it stood when a round of it was over. Read from its journal alone, so that it may run meanwhile.
//!
//! Pure.

use super::{ApplyError, ConversationRound, Entry, EntryBody, RoundsReader};
use crate::{
    chat::Message,
    ids::{ConversationId, RoundId, Seq},
};

/// A conversation at the border of two rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Fork {
    /// The last entry that counts.
    pub upto: Seq,
    /// The history.
    pub messages: Vec<Message>,
    /// Records of its rounds, all of them over.
    pub rounds: Vec<ConversationRound>,
    /// Digests of calls whose effect is in doubt. The doubt is about the world, so what is known at the journal's end holds.
    pub in_doubt: Vec<u64>,
}

/// Reads a journal to find a fork.
///
/// Without a round it is the conversation at its last border: of an open round nothing is taken. With one it is the conversation as it
/// stood when that round ended, also if it was compacted or taken back since. What was before a reset or an import is no part of the
/// conversation any more.
#[derive(Debug)]
pub struct ForkReader {
    reader: RoundsReader,
    at: Option<RoundId>,
    found: Option<Fork>,
    /// The entry before the open round.
    border: Seq,
}

impl ForkReader {
    /// A reader of this conversation's journal, before its first entry.
    pub fn new(id: ConversationId, at: Option<RoundId>) -> Self {
        Self { reader: RoundsReader::new(id), at, found: None, border: Seq(0) }
    }

    /// Takes the next entry.
    ///
    /// # Errors
    /// [`ApplyError`] when it cannot follow; the reader is then not to be used.
    pub fn take(&mut self, entry: &Entry) -> Result<(), ApplyError> {
        let ends = matches!(entry.body, EntryBody::RoundFinished { .. });
        let ended = self.reader.state().round.as_ref().map(|round| round.id).filter(|_| ends);
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

    /// The fork; none when the round is unknown or not over.
    pub fn finish(self) -> Option<Fork> {
        let fork = if self.at.is_some() { self.found.clone() } else { Some(self.latest()) };
        fork.map(|fork| Fork { in_doubt: self.reader.state().in_doubt.clone(), ..fork })
    }

    fn until(&self, at: RoundId) -> Option<Fork> {
        let mut rounds = self.reader.records();
        let place = rounds.iter().rposition(|round| round.round_id == at)?;
        rounds.truncate(place + 1);
        let state = self.reader.state();
        let len = state.history.messages().len();
        let end = u32::try_from(len).ok().and_then(|len| state.rounds.end(at, len));
        Some(self.fork(state.head, end.map_or(len, |end| end as usize), rounds))
    }

    fn latest(&self) -> Fork {
        let (state, mut rounds) = (self.reader.state(), self.reader.records());
        let len = state.history.messages().len();
        let Some(open) = &state.round else { return self.fork(state.head, len, rounds) };
        rounds.retain(|round| round.round_id != open.id);
        let start = state.rounds.start(open.id);
        self.fork(self.border, start.map_or(len, |start| start as usize), rounds)
    }

    fn fork(&self, upto: Seq, keep: usize, rounds: Vec<ConversationRound>) -> Fork {
        let messages = self.reader.state().history.messages().iter().take(keep).cloned().collect();
        Fork { upto, messages, rounds, in_doubt: Vec::new() }
    }
}
