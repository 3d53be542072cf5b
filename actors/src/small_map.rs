//! A sorted map for the few entries that a conversation has, usually none. The entries are one
//! sorted vector, which is several times smaller than a tree node or a hash table for one entry; a
//! host holds thousands of such maps.
//!
//! Pure.

use std::{borrow::Borrow, collections::BTreeMap};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map of few entries, sorted by key.
#[derive(Debug, Clone, PartialEq)]
pub struct SmallMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Serialize, V: Serialize> Serialize for SmallMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, K: Ord + Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for SmallMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tree = BTreeMap::<K, V>::deserialize(deserializer)?;
        Ok(Self(tree.into_iter().collect()))
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0
            .binary_search_by(|(known, _)| known.borrow().cmp(key))
    }

    /// Inserts an entry. Returns the previous value of the key.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.place(&key) {
            Ok(at) => self
                .0
                .get_mut(at)
                .map(|(_, held)| std::mem::replace(held, value)),
            Err(at) => {
                self.add(at, key, value);
                None
            }
        }
    }

    /// Adds an entry, without room for further ones: most maps never get them.
    fn add(&mut self, at: usize, key: K, value: V) {
        self.0.reserve_exact(1);
        self.0.insert(at, (key, value));
    }

    /// Returns the value of a key, which is inserted if the map does not have it.
    pub(crate) fn or_default(&mut self, key: K) -> Option<&mut V>
    where
        V: Default,
    {
        let at = match self.place(&key) {
            Ok(at) => at,
            Err(at) => {
                self.add(at, key, V::default());
                at
            }
        };
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Returns the value of a key.
    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(self.place(key).ok()?).map(|(_, value)| value)
    }

    /// Returns the value of a key.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.place(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Whether the map has the key.
    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.place(key).is_ok()
    }

    /// Removes an entry and returns its value. An empty map holds no memory.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (_, value) = self.0.remove(self.place(key).ok()?);
        self.shrink();
        Some(value)
    }

    /// Removes all entries for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
        self.shrink();
    }

    /// Removes and returns all entries.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (K, V)> + use<K, V> {
        std::mem::take(&mut self.0).into_iter()
    }

    /// Returns the entries in order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns the values in order of their keys.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Returns the values in order of their keys.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the map has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn shrink(&mut self) {
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ports::Entropy, testing::SeededEntropy};

    #[test]
    fn it_holds_what_a_tree_would_hold_in_its_order_and_nothing_when_empty() {
        const SEED: u64 = 20_261_122;
        println!("seed {SEED}");
        let chance = SeededEntropy::new(SEED);
        let mut few = SmallMap::default();
        let mut tree = BTreeMap::new();
        for step in 0..20_000 {
            let [what, key, ..] = chance.bytes();
            let key = key % 16;
            match what % 8 {
                0..=2 => assert_eq!(few.insert(key, step), tree.insert(key, step)),
                3..=5 => assert_eq!(few.remove(&key), tree.remove(&key)),
                6 if what > 200 => {
                    few.retain(|other, _| *other > key);
                    tree.retain(|other, _| *other > key);
                }
                7 if what > 250 => assert!(few.take().eq(std::mem::take(&mut tree))),
                7 if what > 100 => {
                    let held = few.or_default(key).unwrap();
                    *held += 1;
                    *tree.entry(key).or_default() += 1;
                }
                _ => assert_eq!(
                    (few.get(&key), few.contains_key(&key)),
                    (tree.get(&key), tree.contains_key(&key))
                ),
            }
            assert!(few.iter().eq(tree.iter()) && few.values().eq(tree.values()));
            assert!(few.values_mut().eq(tree.values_mut()) && few.len() == tree.len());
            assert_eq!(few.get_mut(&key), tree.get_mut(&key));
            assert_eq!(
                (few.is_empty(), few.0.capacity() == 0),
                (tree.is_empty(), tree.is_empty())
            );
        }
    }
}
