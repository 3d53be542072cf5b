//! Digests that find damage: each stored entry has one that covers its bytes and its seq, and in
//! SQLite the digest of the entry before it, under a key that is made from the conversation's name.
//!
//! They find what a failing medium does. They keep no one from forging a history, since the key is
//! no secret (`docs/decisions/023-a-digest-for-each-entry.md`).
//!
//! Pure.

use std::hash::Hasher;

use callboard_actors::ids::{Scope, Seq};
use siphasher::sip128::{Hasher128, SipHasher13};

/// A stored digest.
pub(in crate::storage) type Digest = [u8; 16];

/// Key under which names are hashed; the result is the key of the conversation's digests.
const NAMES: &[u8; 16] = b"callboard names.";

/// What a digest is for, so that none stands in for another.
const ENTRY: u8 = 1;
const SNAPSHOT: u8 = 2;

/// Computes the digests of one conversation.
#[derive(Debug, Clone, Copy)]
pub(in crate::storage) struct Digests {
    key: Digest,
}

impl Digests {
    pub(in crate::storage) fn of(scope: &Scope) -> Self {
        let tenant = scope.tenant.as_str().as_bytes();
        let mut hasher = SipHasher13::new_with_key(NAMES);
        hasher.write(&(tenant.len() as u64).to_le_bytes());
        hasher.write(tenant);
        hasher.write(scope.conversation.as_str().as_bytes());
        Self {
            key: hasher.finish128().as_bytes(),
        }
    }

    /// The digest of the conversation's name.
    #[cfg(feature = "sqlite")]
    pub(in crate::storage) fn name(&self) -> &Digest {
        &self.key
    }

    /// The digest of an entry; `before` is that of the entry before it, if it has one.
    pub(in crate::storage) fn entry(
        &self,
        before: Option<&Digest>,
        seq: Seq,
        body: &[u8],
    ) -> Digest {
        self.compute(ENTRY, before, seq, body)
    }

    /// The digest of a snapshot; `at` is that of the last entry it includes, if it has one.
    pub(in crate::storage) fn snapshot(
        &self,
        at: Option<&Digest>,
        upto: Seq,
        body: &[u8],
    ) -> Digest {
        self.compute(SNAPSHOT, at, upto, body)
    }

    fn compute(&self, purpose: u8, before: Option<&Digest>, seq: Seq, body: &[u8]) -> Digest {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(&[purpose, u8::from(before.is_some())]);
        hasher.write(&seq.0.to_le_bytes());
        hasher.write(before.unwrap_or(&[0; 16]));
        hasher.write(body);
        hasher.finish128().as_bytes()
    }
}

/// The text for a gap in a journal.
pub(in crate::storage) fn missing(seq: Seq) -> String {
    format!("entry {seq} is missing or out of order")
}
