//! Who is next when many wait: keys in turn, first come first served within a key. Pure; holds waiters of any kind.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
};

/// Waiters by key.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    lanes: HashMap<K, VecDeque<T>>,
    turns: VecDeque<K>,
    len: usize,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self { lanes: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }
}

impl<K: Eq + Hash + Clone, T> FairQueue<K, T> {
    /// Number of waiters.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a waiter.
    pub fn push(&mut self, key: K, waiter: T) {
        let lane = self.lanes.entry(key.clone()).or_default();
        if lane.is_empty() {
            self.turns.push_back(key);
        }
        lane.push_back(waiter);
        self.len += 1;
    }

    /// Takes the next waiter: one of each key in turn.
    pub fn pop(&mut self) -> Option<T> {
        let key = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&key)?;
        let waiter = lane.pop_front();
        if lane.is_empty() {
            self.lanes.remove(&key);
        } else {
            self.turns.push_back(key);
        }
        self.len -= usize::from(waiter.is_some());
        waiter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flooding_key_gets_every_other_turn() {
        let mut queue = FairQueue::default();
        (0..5).for_each(|n| queue.push("flood", n));
        queue.push("quiet", 100);
        queue.push("quiet", 101);

        let order: Vec<i32> = std::iter::from_fn(|| queue.pop()).collect();

        assert_eq!(order, [0, 100, 1, 101, 2, 3, 4]);
        assert!(queue.is_empty());
    }
}
