//! One live process a session: a lock file for each, next to the database.
//!
//! The epoch already keeps a second process from writing; the lock tells a person so before anything was typed.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use callboard_actors::{
    ids::{ConversationId, Scope},
    journal::digest,
};

/// Keeps a session for this holder. Let go on drop, and by the operating system when the process dies.
#[derive(Debug)]
#[must_use = "the session is free again when this is dropped"]
pub struct SessionLock {
    path: PathBuf,
    /// Holds the lock by being open.
    file: Option<File>,
}

/// Why a session cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else has it, here or in another process.
    #[error("session in use: {conversation} is open in another process; end that one, or use another session")]
    SessionInUse {
        /// Which one.
        conversation: ConversationId,
    },
    /// The folder of the database does not take lock files.
    #[error("the session cannot be locked: {message}")]
    Unavailable {
        /// What happened, without paths.
        message: String,
    },
}

impl LockError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::SessionInUse { .. } => "session_in_use",
            Self::Unavailable { .. } => "store_unavailable",
        }
    }
}

/// Times to try again when the file was taken away in between; each means that somebody else just let go.
const TRIES: usize = 16;

impl SessionLock {
    pub(super) fn take(database: &Path, scope: &Scope) -> Result<Self, LockError> {
        let failed = |error: io::Error| LockError::Unavailable { message: error.kind().to_string() };
        // Digests, since two ids and a suffix may be longer than a file name. Of both apart: a tenant chooses only the second.
        let (tenant, id) = (digest(scope.tenant.as_str().as_bytes()), digest(scope.conversation.as_str().as_bytes()));
        let path = super::open::beside(database, &format!("-lock-{tenant:016x}{id:016x}"));
        for _ in 0..TRIES {
            let file = open(&path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Self { path, file: Some(file) }),
                // Its last holder removed it between our opening and our locking.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => break,
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        Err(LockError::SessionInUse { conversation: scope.conversation.clone() })
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.read(true).write(true).create(true).truncate(false).open(path)
}

/// Whether the file that was opened is still the one of that name.
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
        // Removed while still locked: nobody else can have it then. Elsewhere an open file cannot be removed, and stays.
        #[cfg(unix)]
        drop(fs::remove_file(&self.path));
        self.file = None;
    }
}
