//! A journal as a store holds it: encoded entries, where it ends, and what a load returns.
//!
//! Pure.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Seq};

/// Where a journal ends: the epoch of its last life and the seq of its last entry. Both 0 for an unknown conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Head {
    /// Epoch of the life that wrote last.
    pub epoch: Epoch,
    /// Its last entry.
    pub seq: Seq,
}

/// One encoded entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its place.
    pub seq: Seq,
    /// Its envelope and body as JSON (see [`EntryBody`](super::EntryBody)).
    pub bytes: Bytes,
}

/// A conversation as stored: read in one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Where the journal ends.
    pub head: Head,
    /// A snapshot and the seq it includes.
    pub snapshot: Option<(Seq, Bytes)>,
    /// The entries after the snapshot, in order; all of them without one.
    pub entries: Vec<StoredEntry>,
}
