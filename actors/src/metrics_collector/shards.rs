//! Chooses the cache line of a sharded number that a thread increments.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Number of cache lines that one number is spread over.
pub(super) const SHARDS: usize = 8;

/// The shard of this thread. Threads are spread by a hash of their id, so most increments are one
/// uncontended atomic.
pub(super) fn shard() -> usize {
    thread_local!(static MINE: usize = {
        let mut hasher = DefaultHasher::new();
        std::thread::current().id().hash(&mut hasher);
        usize::try_from(hasher.finish() % SHARDS as u64).unwrap_or(0)
    });
    MINE.try_with(|mine| *mine).unwrap_or(0)
}
