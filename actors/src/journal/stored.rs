//! The stored form of a journal: encoded entries, the head, and what a load returns.
//!
//! Pure.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Seq};

/// The end of a journal. Both fields are 0 for an unknown conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Head {
    /// Epoch of the activation that wrote the last entry.
    pub epoch: Epoch,
    /// Position of the last entry.
    pub seq: Seq,
}

/// One encoded entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// Position in the journal.
    pub seq: Seq,
    /// Envelope and body as JSON (see [`EntryBody`](super::EntryBody)).
    pub bytes: Bytes,
}

/// What a journal holds after its last snapshot, which the next activation reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// Number of entries.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Growth {
    /// What these entries add.
    pub(crate) fn of(entries: &[StoredEntry]) -> Self {
        Self {
            entries: entries.len() as u64,
            bytes: entries.iter().map(|entry| entry.bytes.len() as u64).sum(),
        }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.entries += more.entries;
        self.bytes += more.bytes;
    }
}

/// A stored conversation, read in one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The end of the journal.
    pub head: Head,
    /// The newest snapshot and the seq of the last entry it includes. `None` without a snapshot.
    pub snapshot: Option<(Seq, Bytes)>,
    /// The entries after the snapshot, in order; all entries if there is no snapshot.
    pub entries: Vec<StoredEntry>,
}
