//! The stored form of a journal: encoded entries, the head, and what a load returns.
//!
//! Pure.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Seq};

/// The end of a journal. Both fields are 0 for an unknown conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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
