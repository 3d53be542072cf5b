//! In-memory stores: plain data structures behind the storage ports. For tests, benches and hosts that need no disk.
//!
//! Nothing here waits: every future is ready at once, except [`EventStore::changed`](crate::ports::EventStore::changed).

mod artifacts;
mod events;
mod index;
mod ring;
mod sessions;
mod skills;

pub use artifacts::{MemoryArtifacts, MemoryArtifactsConfig};
pub use events::MemoryEvents;
pub use sessions::MemorySessions;
pub use skills::MemorySkills;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks even after a panic of another holder: what these locks guard is changed in single steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
