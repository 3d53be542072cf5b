//! The chain of a journal's digests: each covers that of the entry before it, so an entry that is
//! missing or replaced is found too.
//!
//! Pure.

use bytes::Bytes;
use callboard_actors::ids::Seq;

use crate::storage::commit::digest::{Digest, Digests, missing};

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

#[cfg(test)]
mod tests {
    use callboard_actors::ids::{ConversationId, Scope, TenantId};

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
