//! What a host may choose about its SQLite file.

use std::time::Duration;

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommitMode {
    /// The disk (`synchronous = FULL`): what was acknowledged survives a power cut.
    #[default]
    Sync,
    /// The operating system (`synchronous = NORMAL`): what was acknowledged survives the death of the process, but the
    /// last moments may be lost in a power cut; never the order or the form.
    Batched,
}

/// When the file is checked for damage on opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// When it was not closed cleanly and has at most 64 MiB: checking reads all of it, and a start must be quick.
    /// Damage in a larger file is found where it is read, and is then that conversation's.
    #[default]
    AfterCrash,
    /// Every time.
    Always,
    /// Never: to get at what is readable in a damaged file.
    Never,
}

/// How a [`Sqlite`](super::Sqlite) works. The default suits a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    /// What a commit waits for.
    pub durability: CommitMode,
    /// When the file is checked for damage.
    pub check: Check,
    /// Bytes of entries that may wait for the writer; beyond it appends are refused at once. One tenant may hold half.
    pub queue_bytes_max: usize,
    /// Threads that read; each has a connection.
    pub readers: usize,
    /// How long a commit waits for another process that writes the same file.
    pub busy: Duration,
    /// A pause before each commit, in which the transaction is open: a slow disk, for tests.
    pub commit_delay: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: CommitMode::Sync,
            check: Check::AfterCrash,
            queue_bytes_max: 64 * 1024 * 1024, // some seconds of a busy host's entries; a disk that is slower is away
            readers: 3,
            busy: Duration::from_secs(5),
            commit_delay: Duration::ZERO,
        }
    }
}
