//! A cache with a time to live for each entry and hard limits on entries and bytes. Callers pass a
//! monotonic time, as a duration since any fixed instant.
//!
//! Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};

/// The limits of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TtlCacheConfig {
    /// Time to live of entries that are stored without one.
    pub ttl: Duration,
    /// Most entries that are kept.
    pub entries_max: usize,
    /// Most bytes that are kept, as weighed by the caller.
    pub bytes_max: usize,
}

/// Keys and values with a time to live. The cache never exceeds its limits, not even during an
/// insertion: expired entries are removed first, then those that were set longest ago.
#[derive(Debug, Clone)]
pub(crate) struct TtlCache<K, V> {
    config: TtlCacheConfig,
    entries: HashMap<K, Slot<V>>,
    by_age: BTreeMap<u64, K>,
    by_end: BTreeSet<(Duration, u64)>,
    sets: u64,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Slot<V> {
    value: V,
    bytes: usize,
    ends: Duration,
    /// The number of the insertion; smaller is older.
    set: u64,
}

impl<K: Hash + Eq + Clone, V> TtlCache<K, V> {
    /// An empty cache.
    pub(crate) fn new(config: TtlCacheConfig) -> Self {
        Self {
            config,
            entries: HashMap::new(),
            by_age: BTreeMap::new(),
            by_end: BTreeSet::new(),
            sets: 0,
            bytes: 0,
        }
    }

    /// The value of a key. An entry whose age has reached its time to live is removed and not
    /// returned.
    pub(crate) fn get(&mut self, key: &K, now: Duration) -> Option<&V> {
        if self.entries.get(key)?.ends <= now {
            self.remove(key);
        }
        self.entries.get(key).map(|slot| &slot.value)
    }

    /// Whether [`TtlCache::get`] would return a value.
    #[cfg(test)]
    pub(crate) fn contains(&self, key: &K, now: Duration) -> bool {
        self.entries.get(key).is_some_and(|slot| now < slot.ends)
    }

    /// Stores a value of `bytes` for `ttl`, or for the default time, in place of the key's earlier
    /// value. Returns whether it was stored: a value heavier than the whole cache, or with a time
    /// to live of zero, is not, and the key's earlier value is removed all the same.
    pub(crate) fn set(
        &mut self,
        key: K,
        value: V,
        bytes: usize,
        ttl: Option<Duration>,
        now: Duration,
    ) -> bool {
        self.remove(&key);
        let ttl = ttl.unwrap_or(self.config.ttl);
        if bytes > self.config.bytes_max || self.config.entries_max == 0 || ttl.is_zero() {
            return false;
        }
        if !self.has_room(bytes) {
            self.expire(now);
        }
        while !self.has_room(bytes) {
            let Some((_, oldest)) = self.by_age.first_key_value() else {
                break;
            };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
        self.sets += 1;
        let set = self.sets;
        let ends = now.saturating_add(ttl);
        self.bytes += bytes;
        self.by_age.insert(set, key.clone());
        self.by_end.insert((ends, set));
        self.entries.insert(
            key,
            Slot {
                value,
                bytes,
                ends,
                set,
            },
        );
        true
    }

    /// Removes a value and returns it.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.entries.remove(key)?;
        self.by_age.remove(&slot.set);
        self.by_end.remove(&(slot.ends, slot.set));
        self.bytes -= slot.bytes;
        Some(slot.value)
    }

    /// Removes expired entries and returns their number.
    pub(crate) fn expire(&mut self, now: Duration) -> usize {
        let before = self.entries.len();
        while let Some((ends, set)) = self.by_end.first().copied()
            && ends <= now
        {
            match self.by_age.get(&set).cloned() {
                Some(key) => drop(self.remove(&key)),
                None => drop(self.by_end.remove(&(ends, set))),
            }
        }
        before - self.entries.len()
    }

    /// Keeps only the entries for whose key `stays` returns true.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(&K) -> bool) {
        let gone: Vec<K> = self
            .entries
            .keys()
            .filter(|key| !stays(key))
            .cloned()
            .collect();
        gone.iter().for_each(|key| drop(self.remove(key)));
    }

    /// The stored entries, including expired ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, slot)| (key, &slot.value))
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.config.clone());
    }

    /// Number of stored entries, including expired ones.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of stored entries, including expired ones.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.entries.len() < self.config.entries_max && self.bytes <= self.config.bytes_max - bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn cache(entries_max: usize, bytes_max: usize) -> TtlCache<u32, u32> {
        TtlCache::new(TtlCacheConfig {
            ttl: at(10),
            entries_max,
            bytes_max,
        })
    }

    #[test]
    fn an_entry_of_exactly_its_time_to_live_is_expired_and_removed() {
        let mut cache = cache(9, 99);
        cache.set(1, 11, 1, None, at(0));
        cache.set(2, 22, 1, Some(at(20)), at(0));

        let just_before = at(10) - Duration::from_nanos(1);
        assert_eq!(
            (
                cache.get(&1, just_before).copied(),
                cache.contains(&1, just_before)
            ),
            (Some(11), true)
        );
        assert!(!cache.contains(&1, at(10)));
        assert_eq!((cache.get(&1, at(10)).copied(), cache.size()), (None, 1));
        assert_eq!(
            (
                cache.get(&2, at(19)).copied(),
                cache.get(&2, at(20)).copied(),
                cache.size()
            ),
            (Some(22), None, 0)
        );
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn over_a_bound_the_expired_go_first_then_the_oldest() {
        let mut by_count = cache(3, 99);
        by_count.set(1, 1, 1, Some(at(100)), at(0));
        by_count.set(2, 2, 1, Some(at(5)), at(1));
        by_count.set(3, 3, 1, Some(at(100)), at(2));

        by_count.set(4, 4, 1, None, at(6));
        assert_eq!(
            [1, 2, 3, 4].map(|key| by_count.contains(&key, at(6))),
            [true, false, true, true]
        );
        by_count.set(5, 5, 1, None, at(6));
        assert_eq!(
            [1, 3, 4, 5].map(|key| by_count.contains(&key, at(6))),
            [false, true, true, true]
        );
        by_count.set(3, 33, 1, None, at(7));
        by_count.set(6, 6, 1, None, at(7));
        assert_eq!(
            [3, 4, 5, 6].map(|key| by_count.contains(&key, at(7))),
            [true, false, true, true],
            "setting again renews the age"
        );

        let mut by_bytes = cache(99, 10);
        by_bytes.set(1, 1, 6, None, at(0));
        by_bytes.set(2, 2, 4, None, at(0));
        assert_eq!(by_bytes.size(), 2);
        by_bytes.set(3, 3, 5, None, at(0));
        assert_eq!((by_bytes.size(), by_bytes.bytes()), (2, 9));
        assert!(!by_bytes.contains(&1, at(0)));
        assert!(
            !by_bytes.set(3, 4, 11, None, at(0)),
            "heavier than the cache"
        );
        assert_eq!(
            (by_bytes.get(&3, at(0)).copied(), by_bytes.bytes()),
            (None, 4),
            "and the old value is not served either"
        );
    }

    #[test]
    fn it_clears_and_keeps_nothing_that_lives_no_time() {
        let mut cache = cache(3, 99);
        cache.set(1, 1, 1, None, at(0));
        assert!(!cache.set(2, 2, 1, Some(Duration::ZERO), at(0)));

        cache.clear();

        assert_eq!(
            (cache.size(), cache.bytes(), cache.get(&1, at(0))),
            (0, 0, None)
        );
        assert!(cache.set(1, 1, 1, Some(Duration::MAX), at(5)));
        assert_eq!(cache.expire(at(1_000_000)), 0);
    }

    #[test]
    fn it_never_outgrows_its_bounds_and_holds_what_a_plain_list_would() {
        let seed = std::env::var("CALLBOARD_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0x00c0_ffee_u64);
        println!("ttl_cache: CALLBOARD_SEED={seed}");
        let chance = crate::testing::SeededEntropy::new(seed);
        for _ in 0..50 {
            let mut cache = cache(5, 20);
            // Ordered by insertion, oldest first: key, value, bytes, end.
            let mut model: Vec<(u32, u32, usize, Duration)> = Vec::new();
            let mut now = Duration::ZERO;
            for step in 0..200 {
                let [a, b, c, d, ..] = crate::ports::Entropy::bytes(&chance);
                now += Duration::from_secs(u64::from(d % 3));
                let key = u32::from(a % 8);
                if b % 3 == 0 {
                    let found = model
                        .iter()
                        .find(|slot| slot.0 == key && now < slot.3)
                        .map(|slot| slot.1);
                    assert_eq!(cache.get(&key, now).copied(), found);
                    model.retain(|slot| slot.0 != key || now < slot.3);
                } else {
                    let bytes = usize::from(c % 12);
                    let ttl = Duration::from_secs(u64::from(b % 9));
                    cache.set(key, step, bytes, Some(ttl), now);
                    model.retain(|slot| slot.0 != key);
                    let fits = |model: &[(u32, u32, usize, Duration)]| {
                        model.len() < 5
                            && model.iter().map(|slot| slot.2).sum::<usize>() + bytes <= 20
                    };
                    if !ttl.is_zero() {
                        if !fits(&model) {
                            model.retain(|slot| now < slot.3);
                        }
                        while !fits(&model) {
                            model.remove(0);
                        }
                        model.push((key, step, bytes, now + ttl));
                    }
                }
                assert!(cache.size() <= 5 && cache.bytes() <= 20);
                assert_eq!(
                    cache.bytes(),
                    model.iter().map(|slot| slot.2).sum::<usize>()
                );
                assert_eq!(
                    (cache.size(), cache.by_age.len(), cache.by_end.len()),
                    (model.len(), model.len(), model.len())
                );
            }
        }
    }
}
