//! Which cache line of a sharded number a thread adds to.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Cache lines that one number is spread over.
pub(super) const SHARDS: usize = 8;

/// Spreads threads over the shards, so that adding is mostly one uncontended atomic.
pub(super) fn shard() -> usize {
    thread_local!(static MINE: usize = {
        let mut hasher = DefaultHasher::new();
        std::thread::current().id().hash(&mut hasher);
        usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)
    });
    MINE.try_with(|mine| *mine).unwrap_or(0)
}
