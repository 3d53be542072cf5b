//! Digests that find damage: each stored entry has one that covers its bytes, its seq and the
//! digest of the entry before it, under a key that is made from the conversation's name.
//!
//! They find what a failing medium does. They keep no one from forging a history, since the key is
//! no secret (`docs/decisions/023-a-digest-for-each-entry.md`).
//!
//! Pure.

use std::hash::Hasher;

use bytes::Bytes;
use callboard_actors::ids::{Scope, Seq};
use siphasher::sip128::{Hasher128, SipHasher13};

/// A stored digest.
pub(super) type Digest = [u8; 16];

/// Key under which names are hashed; the result is the key of the conversation's digests.
const NAMES: &[u8; 16] = b"callboard names.";

/// What a digest is for, so that none stands in for another.
const ENTRY: u8 = 1;
const SNAPSHOT: u8 = 2;

/// A digest column as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// NULL: the row was written before there were digests.
    Absent,
    Whole(Digest),
    /// Neither NULL nor of a digest's length.
    Broken,
}

impl Kept {
    pub(super) fn of(bytes: Option<&[u8]>) -> Self {
        match bytes {
            None => Self::Absent,
            Some(bytes) => bytes.try_into().map_or(Self::Broken, Self::Whole),
        }
    }
}

/// A stored row of a journal, as far as it could be read.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) seq: Seq,
    /// `None` if the column holds no bytes at all.
    pub(super) body: Option<Bytes>,
    pub(super) digest: Kept,
}

/// Computes the digests of one conversation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digests {
    key: Digest,
}

impl Digests {
    pub(super) fn of(scope: &Scope) -> Self {
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
    pub(super) fn name(&self) -> &Digest {
        &self.key
    }

    /// The digest of an entry; `before` is that of the entry before it, if it has one.
    pub(super) fn entry(&self, before: Option<&Digest>, seq: Seq, body: &[u8]) -> Digest {
        self.compute(ENTRY, before, seq, body)
    }

    /// The digest of a snapshot; `at` is that of the last entry it includes, if it has one.
    pub(super) fn snapshot(&self, at: Option<&Digest>, upto: Seq, body: &[u8]) -> Digest {
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

/// Follows a journal row by row, and names the first that is not what was stored.
#[derive(Debug)]
pub(super) struct Chain {
    digests: Digests,
    last: Seq,
    before: Option<Digest>,
}

impl Chain {
    /// A chain that goes on after entry `last`, whose digest is `before`.
    pub(super) fn after(digests: Digests, last: Seq, before: Option<Digest>) -> Self {
        Self {
            digests,
            last,
            before,
        }
    }

    /// The digest of the last entry that was taken.
    pub(super) fn end(&self) -> Option<Digest> {
        self.before
    }

    pub(super) fn last(&self) -> Seq {
        self.last
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// What is wrong with it. The chain then goes on behind it, trusting its digest.
    pub(super) fn take(&mut self, row: &Row) -> Result<(), String> {
        let Row { seq, digest, .. } = row;
        let next = self.last.next();
        let before = self.before;
        self.last = *seq;
        self.before = match digest {
            Kept::Whole(digest) => Some(*digest),
            Kept::Absent | Kept::Broken => None,
        };
        if *seq != next {
            return Err(missing(next));
        }
        let Some(body) = &row.body else {
            return Err(format!("entry {seq} has an unexpected form"));
        };
        let is_whole = match digest {
            Kept::Whole(_) if body.is_empty() => true, // Emptied: only its digest was kept.
            Kept::Whole(digest) => *digest == self.digests.entry(before.as_ref(), *seq, body),
            Kept::Absent => before.is_none(),
            Kept::Broken => false,
        };
        if is_whole {
            Ok(())
        } else {
            Err(format!(
                "entry {seq} is not what was stored: its digest differs"
            ))
        }
    }
}

/// The text for a gap in a journal.
pub(super) fn missing(seq: Seq) -> String {
    format!("entry {seq} is missing or out of order")
}

#[cfg(test)]
mod tests {
    use callboard_actors::ids::{ConversationId, TenantId};

    use super::*;

    fn digests(tenant: &str, id: &str) -> Digests {
        Digests::of(&Scope::new(
            TenantId::new(tenant).unwrap(),
            ConversationId::new(id).unwrap(),
        ))
    }

    fn rows(digests: Digests, bodies: &[&'static str]) -> Vec<Row> {
        let mut before = None;
        let row = |(seq, body): (u64, &&'static str)| {
            let digest = digests.entry(before.as_ref(), Seq(seq), body.as_bytes());
            before = Some(digest);
            Row {
                seq: Seq(seq),
                body: Some(Bytes::from_static(body.as_bytes())),
                digest: Kept::Whole(digest),
            }
        };
        (1..).zip(bodies).map(row).collect()
    }

    fn first_fault(digests: Digests, rows: &[Row]) -> Option<String> {
        let mut chain = Chain::after(digests, Seq(0), None);
        rows.iter().find_map(|row| chain.take(row).err())
    }

    #[test]
    fn an_intact_chain_has_no_fault_and_each_change_is_named() {
        let one = digests("t", "c");
        let make = || rows(one, &["first", "second", "third"]);
        assert_eq!(first_fault(one, &make()), None);

        let mut changed = make();
        changed[1].body = Some(Bytes::from_static(b"secend"));
        let mut lost = make();
        lost[2].digest = Kept::Absent;
        let mut swapped = make();
        swapped.swap(0, 1);
        let mut gone = make();
        gone.remove(1);
        let mut cut = make();
        cut[0].digest = Kept::of(Some(b"short"));

        let differs = |seq| {
            Some(format!(
                "entry {seq} is not what was stored: its digest differs"
            ))
        };
        assert_eq!(first_fault(one, &changed), differs(2));
        assert_eq!(first_fault(one, &lost), differs(3));
        assert_eq!(first_fault(one, &swapped), Some(missing(Seq(1))));
        assert_eq!(first_fault(one, &gone), Some(missing(Seq(2))));
        assert_eq!(first_fault(one, &cut), differs(1));
    }

    #[test]
    fn rows_of_one_conversation_cannot_stand_in_another() {
        let one = digests("t", "c");

        for other in [digests("t", "d"), digests("u", "c"), digests("tc", "c")] {
            assert!(first_fault(other, &rows(one, &["first"])).is_some());
        }
        assert_ne!(digests("ab", "c").name(), digests("a", "bc").name());
    }

    #[test]
    fn rows_without_a_digest_are_taken_until_the_first_that_has_one() {
        let one = digests("t", "c");
        let old = |seq| Row {
            seq: Seq(seq),
            body: Some(Bytes::from_static(b"old")),
            digest: Kept::Absent,
        };
        let new = |seq, before: Option<&Digest>| Row {
            seq: Seq(seq),
            body: Some(Bytes::from_static(b"new")),
            digest: Kept::Whole(one.entry(before, Seq(seq), b"new")),
        };

        assert_eq!(first_fault(one, &[old(1), old(2), new(3, None)]), None);
        assert!(first_fault(one, &[old(1), new(2, None), old(3)]).is_some());
    }

    #[test]
    fn an_emptied_entry_keeps_its_place_in_the_chain() {
        let one = digests("t", "c");
        let mut rows = rows(one, &["first", "second", "third"]);
        rows[0].body = Some(Bytes::new());
        rows[1].body = Some(Bytes::new());
        assert_eq!(first_fault(one, &rows), None);

        rows[1].digest = Kept::Whole([7; 16]);

        assert!(first_fault(one, &rows).is_some(), "the next entry shows it");
    }
}
