//! An index of one tenant's artifacts by owner: size, age and last use. It decides which artifacts
//! expire and which make room for a new one; the store itself holds the contents.
//!
//! Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{ids::ArtifactId, time::Timestamp};

/// The record of one artifact of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedArtifact {
    /// Size of the content, in bytes.
    pub size_bytes: u64,
    /// The tool call that stored the artifact most recently.
    pub tool_call_id: String,
    /// When the artifact was last stored. Reading it does not change this time.
    pub created_at: Timestamp,
    /// When it was last stored or read.
    pub accessed_at: Timestamp,
}

impl IndexedArtifact {
    /// Whether the artifact is older than `max_age`. An artifact of exactly that age is not
    /// expired.
    pub fn is_expired(&self, max_age: Duration, now: Timestamp) -> bool {
        u128::from(now.ms_since(self.created_at)) > max_age.as_millis()
    }
}

/// The key of the index: an owner and the id of an artifact that it stored.
pub type IndexPlace<O> = (O, ArtifactId);

/// The artifacts of a tenant. Every single-artifact operation takes logarithmic time.
#[derive(Debug, Clone)]
pub struct ArtifactIndex<O> {
    kept: BTreeMap<IndexPlace<O>, (IndexedArtifact, u64)>,
    /// Places by last use. The number orders artifacts that were used in the same millisecond.
    by_use: BTreeSet<(Timestamp, u64, IndexPlace<O>)>,
    uses: u64,
    bytes: u64,
}

impl<O> Default for ArtifactIndex<O> {
    fn default() -> Self {
        Self {
            kept: BTreeMap::new(),
            by_use: BTreeSet::new(),
            uses: 0,
            bytes: 0,
        }
    }
}

impl<O: Ord + Clone> ArtifactIndex<O> {
    /// Total size of all artifacts, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of artifacts.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether the index holds no artifact.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The record of one artifact.
    pub fn get(&self, place: &IndexPlace<O>) -> Option<&IndexedArtifact> {
        self.kept.get(place).map(|(shelved, _)| shelved)
    }

    /// All artifacts, ordered by owner, then by id.
    pub fn iter(&self) -> impl Iterator<Item = (&IndexPlace<O>, &IndexedArtifact)> {
        self.kept
            .iter()
            .map(|(place, (shelved, _))| (place, shelved))
    }

    /// Inserts a record, or replaces the one at this place.
    pub fn put(&mut self, place: IndexPlace<O>, shelved: IndexedArtifact) {
        self.remove(&place);
        self.uses += 1;
        self.bytes = self.bytes.saturating_add(shelved.size_bytes);
        self.by_use
            .insert((shelved.accessed_at, self.uses, place.clone()));
        self.kept.insert(place, (shelved, self.uses));
    }

    /// Records a use at `now`. Returns `None` when the index has no such artifact.
    pub fn touch(&mut self, place: &IndexPlace<O>, now: Timestamp) -> Option<&IndexedArtifact> {
        let mut shelved = self.remove(place)?;
        shelved.accessed_at = now;
        self.put(place.clone(), shelved);
        self.get(place)
    }

    /// Removes a record and returns it.
    pub fn remove(&mut self, place: &IndexPlace<O>) -> Option<IndexedArtifact> {
        let (shelved, used) = self.kept.remove(place)?;
        self.by_use
            .remove(&(shelved.accessed_at, used, place.clone()));
        self.bytes = self.bytes.saturating_sub(shelved.size_bytes);
        Some(shelved)
    }

    /// The places of one owner.
    pub(crate) fn owned_by(&self, owner: &O) -> Vec<IndexPlace<O>> {
        self.kept
            .keys()
            .filter(|(of, _)| of == owner)
            .cloned()
            .collect()
    }

    /// The places of all artifacts older than `max_age`.
    pub fn expired(&self, max_age: Duration, now: Timestamp) -> Vec<IndexPlace<O>> {
        self.iter()
            .filter(|(_, shelved)| shelved.is_expired(max_age, now))
            .map(|(place, _)| place.clone())
            .collect()
    }

    /// Which artifacts must be removed so that `bytes` more fit into `bytes_max`, and one more
    /// artifact into `count_max`: least recently used first. `None` when removing all of them would
    /// not be enough.
    pub fn room_for(
        &self,
        bytes: u64,
        bytes_max: u64,
        count_max: usize,
    ) -> Option<Vec<IndexPlace<O>>> {
        if bytes > bytes_max || count_max == 0 {
            return None;
        }
        let mut left = self.bytes;
        let mut count = self.len();
        let mut go = Vec::new();
        for (_, _, place) in &self.by_use {
            if left <= bytes_max - bytes && count < count_max {
                break;
            }
            left = left.saturating_sub(self.get(place).map_or(0, |shelved| shelved.size_bytes));
            count -= 1;
            go.push(place.clone());
        }
        Some(go)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ArtifactId {
        ArtifactId::from_content(&[n])
    }

    fn put(
        index: &mut ArtifactIndex<&'static str>,
        owner: &'static str,
        n: u8,
        size_bytes: u64,
        at: u64,
    ) {
        let at = Timestamp(at);
        index.put(
            (owner, id(n)),
            IndexedArtifact {
                size_bytes,
                tool_call_id: "t".into(),
                created_at: at,
                accessed_at: at,
            },
        );
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first_and_no_more_than_needed() {
        let mut index = ArtifactIndex::default();
        put(&mut index, "a", 1, 10, 5);
        put(&mut index, "b", 1, 10, 5);
        put(&mut index, "a", 2, 10, 6);

        index.touch(&("a", id(1)), Timestamp(7));

        assert_eq!((index.bytes(), index.len()), (30, 3));
        assert_eq!(index.room_for(10, 40, 9), Some(vec![]));
        assert_eq!(index.room_for(11, 40, 9), Some(vec![("b", id(1))]));
        assert_eq!(
            index.room_for(21, 40, 9),
            Some(vec![("b", id(1)), ("a", id(2))])
        );
        assert_eq!(
            index.room_for(40, 40, 9),
            Some(vec![("b", id(1)), ("a", id(2)), ("a", id(1))])
        );
        assert_eq!(index.room_for(41, 40, 9), None);
        assert_eq!(index.room_for(0, 40, 3), Some(vec![("b", id(1))]));
    }

    #[test]
    fn an_age_is_over_when_it_is_exceeded() {
        let mut index = ArtifactIndex::default();
        put(&mut index, "a", 1, 10, 1000);
        index.touch(&("a", id(1)), Timestamp(9000));

        assert_eq!(index.expired(Duration::from_secs(1), Timestamp(2000)), []);
        assert_eq!(
            index.expired(Duration::from_secs(1), Timestamp(2001)),
            [("a", id(1))]
        );
        assert_eq!(
            index.expired(Duration::from_secs(1), Timestamp(0)),
            [],
            "a clock that went back"
        );
    }

    #[test]
    fn putting_again_and_removing_keep_the_sums_right() {
        let mut index = ArtifactIndex::default();
        put(&mut index, "a", 1, 10, 1);
        put(&mut index, "a", 1, 12, 2);
        put(&mut index, "b", 1, 3, 2);

        assert_eq!(
            (index.bytes(), index.len(), index.owned_by(&"a")),
            (15, 2, vec![("a", id(1))])
        );
        assert!(index.remove(&("a", id(1))).is_some() && index.remove(&("a", id(1))).is_none());
        assert_eq!((index.bytes(), index.len()), (3, 1));
        index.remove(&("b", id(1)));
        assert!(index.is_empty() && index.by_use.is_empty());
    }
}
