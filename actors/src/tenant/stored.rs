//! The stored bytes of a tenant, compared with its quota. The store counts; this module keeps the
//! last count, the growth since then, and the bytes that are admitted but not stored yet.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::UNBOUNDED;

/// The stored bytes of one tenant.
#[derive(Debug)]
pub(crate) struct Stored {
    max: AtomicU64,
    known: AtomicU64,
    pending: AtomicU64,
}

/// Bytes that were admitted and may not be stored yet. Released on drop, when the store counts them
/// or never will.
#[derive(Debug)]
pub(crate) struct PendingBytes {
    stored: Arc<Stored>,
    bytes: u64,
}

impl Stored {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicU64::new(max),
            known: AtomicU64::new(0),
            pending: AtomicU64::new(0),
        })
    }

    pub(super) fn bound(&self, max: u64) {
        self.max.store(max, Ordering::Release);
    }

    /// Whether there is a quota.
    pub(crate) fn is_bounded(&self) -> bool {
        self.max.load(Ordering::Acquire) != UNBOUNDED
    }

    /// Records a count of the store.
    pub(crate) fn note(&self, bytes: u64) {
        self.known.store(bytes, Ordering::Release);
    }

    /// Adds bytes that a running round appends, until the next count.
    pub(crate) fn grew(&self, bytes: u64) {
        self.known.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Stored bytes: the last count plus the growth since.
    pub(super) fn known(&self) -> u64 {
        self.known.load(Ordering::Acquire)
    }

    /// Whether the quota is used up.
    pub(crate) fn is_full(&self) -> bool {
        self.known() >= self.max.load(Ordering::Acquire)
    }

    /// Admits bytes if they fit beside the stored and the admitted ones. At least one byte must be
    /// free, even for zero bytes.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64) -> Option<PendingBytes> {
        let known = self.known();
        let max = self.max.load(Ordering::Acquire);
        let fits = |pending: u64| {
            pending
                .checked_add(bytes)
                .filter(|sum| known.saturating_add((*sum).max(1)) <= max)
        };
        self.pending
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .ok()?;
        Some(PendingBytes {
            stored: self.clone(),
            bytes,
        })
    }
}

impl Drop for PendingBytes {
    fn drop(&mut self) {
        self.stored.pending.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_bytes_count_until_they_are_stored_or_dropped() {
        let stored = Stored::new(100);
        stored.note(40);

        let first = stored.admit(50);
        assert!(first.is_some() && stored.admit(11).is_none());
        let second = stored.admit(10);
        assert!(second.is_some() && stored.admit(0).is_some());
        drop(first);
        assert!(stored.admit(50).is_some() && stored.admit(51).is_none());

        stored.note(100);
        assert!(stored.is_full() && stored.admit(0).is_none());
        stored.note(99);
        drop(second);
        assert!(!stored.is_full() && stored.admit(0).is_some() && stored.admit(1).is_some());
        stored.grew(1);
        assert!(stored.is_full());
        stored.bound(UNBOUNDED);
        assert!(!stored.is_full() && !stored.is_bounded());
    }
}
