//! Options of a SQLite store.

use std::time::Duration;

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CommitMode {
    /// The disk (`synchronous = FULL`): committed appends survive a power cut.
    #[default]
    Sync,
    /// The operating system (`synchronous = NORMAL`): committed appends survive the death of the
    /// process. A power cut may lose the newest ones, never their order or integrity.
    Batched,
}

/// When opening checks the file for damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// If the file was not closed cleanly and has at most 64 MiB: the check reads the whole file,
    /// and a start must be quick. Damage in a larger file is found on reading, and reported for
    /// that conversation.
    #[default]
    AfterCrash,
    /// At every start.
    Always,
    /// Never; for reading the intact part of a damaged file.
    Never,
}

/// Options of [`Sqlite`](super::Sqlite). The default suits a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteOptions {
    /// What a commit waits for.
    pub durability: CommitMode,
    /// When the file is checked for damage.
    pub check: Check,
    /// Whether a damaged log is accepted: the commits behind the damage are lost. The log is first
    /// copied to a new file beside the database. Without this, opening such a store fails.
    pub accept_log_loss: bool,
    /// Bytes of appends that may wait for the writer; further ones are refused at once. One tenant
    /// may use half.
    pub queue_bytes_max: usize,
    /// Number of reader threads; each has its own connection.
    pub readers: usize,
    /// How long a commit waits for another process that is writing the file.
    pub busy: Duration,
    /// Pause before each commit, inside of its transaction; simulates a slow disk in tests.
    pub commit_delay: Duration,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            durability: CommitMode::Sync,
            check: Check::AfterCrash,
            accept_log_loss: false,
            queue_bytes_max: 64 * 1024 * 1024, // a few seconds of a busy host; a disk that lags further counts as unavailable
            readers: 3,
            busy: Duration::from_secs(5),
            commit_delay: Duration::ZERO,
        }
    }
}
