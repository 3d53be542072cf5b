//! All messages of a conversation, also those that a compaction dropped. The fold keeps only what a
//! model is sent.
//!
//! Pure.

use std::collections::HashMap;

use super::{ApplyError, Durable, Entry, EntryBody};
use crate::{
    chat::{Message, MessageList},
    ids::RoundId,
};

/// Reads a journal from its first entry and keeps every message. A rewind takes its rounds back; an
/// import or a reset replaces all.
#[derive(Debug, Default)]
pub(crate) struct TranscriptReader {
    state: Durable,
    messages: Vec<Message>,
    /// Where each round begins in `messages`.
    starts: HashMap<RoundId, usize>,
}

impl TranscriptReader {
    /// Applies the next entry.
    ///
    /// # Errors
    /// [`ApplyError`] when the entry cannot follow. Do not use the reader after an error.
    pub(crate) fn take(&mut self, entry: &Entry) -> Result<(), ApplyError> {
        let before = self.state.history.messages().len();
        self.state.apply(entry)?;
        let history = self.state.history.messages();
        match &entry.body {
            EntryBody::Compacted { .. } => return Ok(()),
            EntryBody::Imported { .. } | EntryBody::Reset {} => {
                self.messages = history.iter().cloned().collect();
                self.starts.clear();
            }
            EntryBody::Rewound { round_id, .. } if self.starts.contains_key(round_id) => {
                let start = self.starts.get(round_id).copied().unwrap_or_default();
                self.messages.truncate(start);
                self.starts.retain(|_, at| *at < start);
            }
            _ => {
                let gone = before.saturating_sub(history.len());
                self.messages
                    .truncate(self.messages.len().saturating_sub(gone));
                self.messages
                    .extend(history.range(before..history.len()).cloned());
            }
        }
        // A mark counts from the start of the compacted history, so its distance from the end is
        // what both have in common.
        let (all, len) = (self.messages.len(), history.len());
        let marks = self.state.rounds.as_slice().iter().rev();
        for mark in marks {
            if self.starts.contains_key(&mark.id) {
                break;
            }
            let from_end = len.saturating_sub(mark.start as usize);
            self.starts.insert(mark.id, all.saturating_sub(from_end));
        }
        Ok(())
    }

    /// Returns the messages, oldest first.
    pub(crate) fn finish(self) -> MessageList {
        self.messages.into_iter().collect()
    }
}
