//! Stores of journals, events and artifacts: in memory, in a SQLite file (feature `sqlite`), in a
//! PostgreSQL database (feature `postgres`), or in a folder of files.
//!
//! Each adapter passes the contract suite of its port (`callboard_actors::testing::contract`).

mod artifacts;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod commit;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

pub use artifacts::{ArtifactSettings, FileArtifacts};
pub use callboard_actors::memory::{
    MemoryArtifacts, MemoryArtifactsConfig, MemoryEvents, MemorySessions, MemorySkills,
};
#[cfg(feature = "postgres")]
pub use postgres::{
    DatabaseHost, DatabaseInfo, HeadTable, Orphan, Postgres, PostgresArtifacts, PostgresControl,
    PostgresNotes, PostgresOptions, ServingLease, TenantChange, TenantChanges,
};
#[cfg(feature = "evals")]
pub(crate) use sqlite::harden;
#[cfg(feature = "cli")]
pub(crate) use sqlite::is_of_another;
#[cfg(feature = "sqlite")]
pub use sqlite::{
    Check, CommitMode, LockError, SessionLock, Sqlite, SqliteOptions, SqliteStats, Verified,
};
