//! From stored entries, or a snapshot and the entries after it, to the state of a conversation.
//!
//! Pure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{ApplyError, Durable, SNAPSHOT_VERSION};
use crate::{
    ids::Seq,
    journal::{DecodeError, Entry, Loaded},
};

/// Applies stored entries to a state. A panic inside counts as an error, because a damaged journal
/// must not end the host.
///
/// # Errors
/// The message of the first entry that does not decode or apply.
pub fn fold<'a>(
    mut state: Durable,
    entries: impl IntoIterator<Item = &'a crate::journal::StoredEntry>,
) -> Result<Durable, FoldError> {
    catch_unwind(AssertUnwindSafe(move || {
        for stored in entries {
            let entry = Entry::decode(stored)?;
            state.apply(&entry)?;
        }
        Ok(state)
    }))
    .unwrap_or_else(|_| Err(FoldError::Unreadable("reading the journal panicked".into())))
}

/// Why a journal has no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// A newer program wrote an entry; that program can read the journal.
    #[error("{0}")]
    NeedsNewerVersion(String),
    /// An entry does not decode or does not apply.
    #[error("{0}")]
    Unreadable(String),
}

impl From<DecodeError> for FoldError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::NeedsNewerVersion { .. } => Self::NeedsNewerVersion(error.to_string()),
            DecodeError::Damaged { .. } => Self::Unreadable(error.to_string()),
        }
    }
}

impl From<ApplyError> for FoldError {
    fn from(error: ApplyError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

#[derive(Serialize, Deserialize)]
struct Snapshot<D> {
    version: u32,
    state: D,
}

impl Durable {
    /// Encodes a snapshot. A snapshot is a cache: the reader ignores one that it cannot decode.
    pub(crate) fn snapshot(&self) -> Bytes {
        Bytes::from(
            serde_json::to_vec(&Snapshot {
                version: SNAPSHOT_VERSION,
                state: self,
            })
            .unwrap_or_default(),
        )
    }

    fn from_snapshot(upto: Seq, bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let snapshot: Snapshot<Self> = serde_json::from_str(text).ok()?;
        (snapshot.version == SNAPSHOT_VERSION && snapshot.state.head == upto)
            .then_some(snapshot.state)
    }
}

/// Builds the state from a loaded journal. Returns `None` when the snapshot is unusable, so the
/// caller must load all entries.
///
/// # Errors
/// [`FoldError`] of the first entry that does not decode or apply.
pub fn restore(loaded: &Loaded) -> Option<Result<Durable, FoldError>> {
    let base = match &loaded.snapshot {
        Some((upto, bytes)) => Durable::from_snapshot(*upto, bytes)?,
        None => Durable::default(),
    };
    let folded = fold(base, &loaded.entries);
    if folded.is_err() && loaded.snapshot.is_some() {
        return None;
    }
    Some(folded)
}
