//! All messages of a conversation, also those that a compaction dropped. The fold keeps only what a
//! model is sent.
//!
//! Pure.

use std::collections::HashMap;

use super::{ApplyError, Durable, Entry, EntryBody, digest};
use crate::{
    chat::{Message, MessageList, StandardMessage},
    ids::{RoundId, Scope},
    time::Timestamp,
};

/// Reads a journal from its first entry and keeps every message. A rewind takes its rounds back; an
/// import or a reset replaces all.
#[derive(Debug, Default)]
pub(crate) struct TranscriptReader {
    state: Durable,
    messages: Vec<Message>,
    /// When each of `messages` was stored.
    times: Vec<Timestamp>,
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
                self.times.clear();
                self.starts.clear();
            }
            EntryBody::Rewound { round_id, .. } if self.starts.contains_key(round_id) => {
                let start = self.starts.get(round_id).copied().unwrap_or_default();
                self.messages.truncate(start);
                self.times.truncate(start);
                self.starts.retain(|_, at| *at < start);
            }
            _ => {
                let gone = before.saturating_sub(history.len());
                self.messages
                    .truncate(self.messages.len().saturating_sub(gone));
                self.times.truncate(self.messages.len());
                self.messages
                    .extend(history.range(before..history.len()).cloned());
            }
        }
        self.times.truncate(self.messages.len());
        self.times.resize(self.messages.len(), entry.at);
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

    /// Returns the messages in their debug form, oldest first.
    pub(crate) fn debug(self, scope: &Scope) -> Vec<StandardMessage> {
        let placed = self.messages.iter().zip(&self.times).enumerate();
        placed
            .map(|(index, (message, at))| {
                let message_id = message_id(scope, index, message);
                StandardMessage::new(message, *at, message_id).of(scope)
            })
            .collect()
    }
}

/// Reads all messages of a journal in their debug form, up to the first entry that cannot follow:
/// also those that a compaction dropped.
pub fn debug_form<'a>(
    scope: &Scope,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> Vec<StandardMessage> {
    let mut reader = TranscriptReader::default();
    for entry in entries {
        if reader.take(entry).is_err() {
            break;
        }
    }
    reader.debug(scope)
}

/// The id of a message: the same at every reading, since journals store none. Made from where the
/// message stands and what it says.
fn message_id(scope: &Scope, index: usize, message: &Message) -> [u8; 16] {
    let place = format!("{}/{}/{index}", scope.tenant, scope.conversation);
    let halves = [digest(place.as_bytes()), digest(message.wire())];
    let mut id = [0; 16];
    for (byte, value) in id
        .iter_mut()
        .zip(halves.iter().flat_map(|half| half.to_be_bytes()))
    {
        *byte = value;
    }
    id
}
