//! Where journals and events live: in memory, or in a SQLite file (feature `sqlite`).
//!
//! Each adapter passes the contract suite of its port (`callboard_actors::testing::contract`).

#[cfg(feature = "sqlite")]
mod sqlite;

pub use callboard_actors::memory::{MemoryEvents, MemorySessions};
#[cfg(feature = "sqlite")]
pub use sqlite::{Check, CommitMode, LockError, SessionLock, Sqlite, SqliteOptions, SqliteStats};
