//! The stored bytes of a tenant, compared with its quota. The store counts; this module keeps the
//! last count, the growth since then, the bytes that are admitted but not stored yet, and what open
//! rounds are taken to store.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;

use super::UNBOUNDED;

/// What a round is taken to store beside its prompt. A round of a few short answers stores less.
pub(crate) const ROUND_BYTES: u64 = 8 * 1024;

/// The stored bytes of one tenant.
#[derive(Debug)]
pub(crate) struct Stored {
    max: AtomicU64,
    known: AtomicU64,
    reserved: Mutex<Reserved>,
}

#[derive(Debug, Default)]
struct Reserved {
    /// All reserved bytes, also those of rounds.
    bytes: u64,
    /// Rounds with a reservation.
    rounds: u64,
}

/// Bytes that were admitted and may not be stored yet. Released on drop, when the store counts them
/// or never will.
#[derive(Debug)]
pub(crate) struct PendingBytes {
    stored: Arc<Stored>,
    bytes: u64,
}

/// What an open round is taken to store. Released on drop, when the round has ended.
#[derive(Debug)]
pub(crate) struct RoundBytes(PendingBytes);

/// Why a round may not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The quota is used up, or the prompt is too large for what is left.
    Full,
    /// Open rounds may need what is left. It is known again when they have ended.
    OpenRounds,
}

impl Stored {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self {
            max: AtomicU64::new(max),
            known: AtomicU64::new(0),
            reserved: Mutex::default(),
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
        self.left(0) == 0
    }

    /// The bytes that are free beside the stored and the reserved ones.
    fn left(&self, reserved: u64) -> u64 {
        let used = self.known().saturating_add(reserved);
        self.max.load(Ordering::Acquire).saturating_sub(used)
    }

    /// Admits bytes if they fit beside the stored and the reserved ones. At least one byte must be
    /// free, even for zero bytes.
    pub(crate) fn admit(self: &Arc<Self>, bytes: u64) -> Option<PendingBytes> {
        let mut reserved = self.reserved.lock();
        (!self.is_full() && self.left(reserved.bytes) >= bytes)
            .then(|| self.reserve(&mut reserved, bytes))
    }

    /// Admits a round with a prompt of `bytes`. Returns the reservation of the prompt and that of
    /// the round, for which [`ROUND_BYTES`] must be free too; the only round of the tenant takes
    /// what is left.
    pub(crate) fn admit_round(
        self: &Arc<Self>,
        bytes: u64,
    ) -> Result<(PendingBytes, RoundBytes), NoRoom> {
        let mut reserved = self.reserved.lock();
        let left = self.left(reserved.bytes);
        let round = if reserved.rounds == 0 {
            ROUND_BYTES.min(left.saturating_sub(bytes))
        } else {
            ROUND_BYTES
        };
        if self.is_full() || left < bytes.saturating_add(round) {
            return Err(if reserved.rounds == 0 {
                NoRoom::Full
            } else {
                NoRoom::OpenRounds
            });
        }
        reserved.rounds += 1;
        let prompt = self.reserve(&mut reserved, bytes);
        Ok((prompt, RoundBytes(self.reserve(&mut reserved, round))))
    }

    fn reserve(self: &Arc<Self>, reserved: &mut Reserved, bytes: u64) -> PendingBytes {
        reserved.bytes = reserved.bytes.saturating_add(bytes);
        PendingBytes {
            stored: self.clone(),
            bytes,
        }
    }
}

impl Drop for PendingBytes {
    fn drop(&mut self) {
        self.stored.reserved.lock().bytes -= self.bytes;
    }
}

impl Drop for RoundBytes {
    fn drop(&mut self) {
        self.0.stored.reserved.lock().rounds -= 1;
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

    #[test]
    fn rounds_at_once_do_not_pass_the_quota_together_and_one_alone_takes_what_is_left() {
        let stored = Stored::new(3 * ROUND_BYTES);
        stored.note(100);

        let first = stored.admit_round(10).unwrap();
        let second = stored.admit_round(10).unwrap();
        assert_eq!(stored.admit_round(0).unwrap_err(), NoRoom::OpenRounds);
        assert!(stored.admit(ROUND_BYTES).is_none(), "other writes leave it");
        assert!(stored.admit(ROUND_BYTES - 120).is_some());
        drop(first);
        assert!(stored.admit_round(0).is_ok());
        drop(second);

        stored.note(3 * ROUND_BYTES - 5);
        assert_eq!(stored.admit_round(6).unwrap_err(), NoRoom::Full);
        let alone = stored.admit_round(5).unwrap();
        assert_eq!(stored.admit_round(0).unwrap_err(), NoRoom::OpenRounds);
        drop(alone);
        stored.note(3 * ROUND_BYTES);
        assert_eq!(stored.admit_round(0).unwrap_err(), NoRoom::Full);
    }
}
