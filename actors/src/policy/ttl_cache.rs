//! Stub until the store branch is merged.
use std::{collections::HashMap, hash::Hash, time::Duration};
use tokio::time::Instant;
/// Stub.
pub struct TtlCache<K, V>(HashMap<K, (V, Instant)>, usize);
impl<K: Hash + Eq, V> TtlCache<K, V> {
    /// Stub.
    pub fn new(entries: usize, _: usize) -> Self {
        Self(HashMap::new(), entries)
    }
    /// Stub.
    pub fn get(&mut self, key: &K, now: Instant) -> Option<&V> {
        self.0.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value)
    }
    /// Stub.
    pub fn insert(&mut self, key: K, value: V, _: usize, ttl: Duration, now: Instant) {
        if self.0.len() < self.1 {
            self.0.insert(key, (value, now + ttl));
        }
    }
}
