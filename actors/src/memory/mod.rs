//! In-memory implementations of the storage ports, for tests, benchmarks and hosts without a disk.
//!
//! Every future is ready at once, except those of
//! [`EventStore::changed`](crate::ports::EventStore::changed) and
//! [`EventStore::watch`](crate::ports::EventStore::watch).

mod artifacts;
mod events;
mod index;
mod outbox;
mod ring;
mod sessions;
mod skills;

pub use artifacts::{MemoryArtifacts, MemoryArtifactsConfig};
pub use events::MemoryEvents;
pub use sessions::MemorySessions;
pub use skills::MemorySkills;

use parking_lot::{Mutex, MutexGuard};

/// Locks, ignoring poison: every change under these locks is a single step, so a panic leaves no
/// half-made state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
