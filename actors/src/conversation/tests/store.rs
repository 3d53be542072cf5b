//! An in-memory journal that keeps the promises of the port, and injects faults.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{
    conversation::commit::append_queue::AppendBatch,
    ids::Seq,
    journal::{Head, Loaded, StoredEntry},
};

/// What goes wrong with an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Reported as unavailable, and not stored.
    Lost,
    /// Reported as unavailable, but stored.
    StoredButFailed,
}

/// What the store reports to an activation about an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    Stored(Seq),
    /// Unavailable, or a conflict.
    Failed,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) entries: Vec<StoredEntry>,
    pub(super) head: Head,
    /// Appends under way, each with the number of the activation that sent it.
    pub(super) queue: VecDeque<(u64, AppendBatch)>,
    pub(super) snapshot: Option<(Seq, Bytes)>,
}

impl Store {
    /// Handles the next append. Returns the activation to notify, and the notice.
    pub(super) fn work(&mut self, fault: Fault) -> Option<(u64, Notice)> {
        let (activation, batch) = self.queue.pop_front()?;
        let end = batch.entries.last().expect("a parcel is not empty").seq;
        let follows = batch
            .entries
            .iter()
            .zip(batch.expected.seq.0 + 1..)
            .all(|(entry, seq)| entry.seq.0 == seq);
        assert!(follows, "the seqs of a parcel follow its head");
        if batch.expected != self.head || fault == Fault::Lost {
            return Some((activation, Notice::Failed));
        }
        assert!(batch.epoch == self.head.epoch || batch.epoch == self.head.epoch.next());
        self.entries.extend(batch.entries);
        self.head = Head {
            epoch: batch.epoch,
            seq: end,
        };
        Some((
            activation,
            if fault == Fault::StoredButFailed {
                Notice::Failed
            } else {
                Notice::Stored(end)
            },
        ))
    }

    pub(super) fn load(&self, with_snapshot: bool) -> Loaded {
        let snapshot = self.snapshot.clone().filter(|_| with_snapshot);
        let after = snapshot.as_ref().map_or(0, |(upto, _)| upto.0 as usize);
        Loaded {
            head: self.head,
            snapshot,
            entries: self.entries[after..].to_vec(),
        }
    }
}
