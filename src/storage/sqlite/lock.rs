//! Session locks: one process per session, by a lock file next to the database.
//!
//! The epoch already prevents a second process from writing. The lock reports the conflict earlier,
//! before a user has typed anything.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use callboard_actors::{
    ids::{ConversationId, Scope},
    journal::digest,
};

/// An exclusive claim on a session. Released on drop, and by the operating system when the process
/// dies.
#[derive(Debug)]
#[must_use = "the session is free again when this is dropped"]
pub struct SessionLock {
    path: PathBuf,
    /// The open file holds the operating system's lock.
    file: Option<File>,
}

/// Why a session could not be locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another holder has the lock, in this or another process.
    #[error(
        "session in use: {conversation} is open in another process; end that one, or use another session"
    )]
    SessionInUse {
        /// The locked conversation.
        conversation: ConversationId,
    },
    /// The lock file could not be created or locked.
    #[error("the session cannot be locked: {message}")]
    Unavailable {
        /// The cause, without paths.
        message: String,
    },
}

impl LockError {
    /// The stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SessionInUse { .. } => "session_in_use",
            Self::Unavailable { .. } => "store_unavailable",
        }
    }
}

/// Attempts if the file is removed between opening and locking; each means that another holder has
/// just released it.
const TRIES: usize = 16;

impl SessionLock {
    pub(super) fn take(database: &Path, scope: &Scope) -> Result<Self, LockError> {
        let failed = |error: io::Error| LockError::Unavailable {
            message: crate::os_error::words(&error),
        };
        let path = place(database, scope);
        for _ in 0..TRIES {
            let file = open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => {
                    return Ok(Self {
                        path,
                        file: Some(file),
                    });
                }
                // The previous holder removed the file between our open and our lock.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => break,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(LockError::SessionInUse {
            conversation: scope.conversation.clone(),
        })
    }

    /// Whether a process holds the lock. Takes it for a moment only where a killed process left its
    /// file.
    pub(super) fn is_held(database: &Path, scope: &Scope) -> bool {
        place(database, scope).exists()
            && matches!(
                Self::take(database, scope),
                Err(LockError::SessionInUse { .. })
            )
    }
}

/// The lock file of a session and its subagents, whose rounds run in the same process.
fn place(database: &Path, scope: &Scope) -> PathBuf {
    // Digests, because two ids may exceed the length of a file name. Separate ones, because a
    // tenant chooses only the second id.
    let tenant = digest(scope.tenant.as_str().as_bytes());
    let id = digest(scope.conversation.family().as_str().as_bytes());
    super::open::beside(database, &format!("-lock-{tenant:016x}{id:016x}"))
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Whether the path still refers to the opened file.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |data: fs::Metadata| (data.dev(), data.ino());
        file.metadata().ok().map(id) == fs::metadata(path).ok().map(id)
    }
    #[cfg(not(unix))]
    {
        let _ = (file, path);
        true
    }
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        // Removed while locked, so that no other process can hold the removed file. Non-Unix
        // systems cannot remove an open file; it stays.
        #[cfg(unix)]
        drop(fs::remove_file(&self.path));
        self.file = None;
    }
}
