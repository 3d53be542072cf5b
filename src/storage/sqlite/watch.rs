//! Watches that the database and its log are still the files that were opened.
//!
//! A file that was deleted or replaced stays open and takes every write, and all of them are gone
//! after the next start. The writer therefore looks before each commit, the checkpoint thread before
//! each checkpoint, and while nothing is written the writer looks once a second. After a file is
//! lost, the store refuses everything until it is opened again.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{
    error::unavailable,
    open::{beside, name},
};
use callboard_actors::ports::StoreError;

/// Bytes of the log's header and of a frame's, beside its page.
const LOG_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;

/// What identifies a file, whatever its name: device and inode. Empty where the system has none.
type Identity = (u64, u64);

fn identity(data: &fs::Metadata) -> Identity {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (data.dev(), data.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = data;
        (0, 0)
    }
}

/// The files of an open store.
#[derive(Debug)]
pub(super) struct Files {
    database: PathBuf,
    log: PathBuf,
    opened: Mutex<Opened>,
    lost: OnceLock<Lost>,
}

#[derive(Debug)]
struct Opened {
    database: Identity,
    /// `None` until the log was first seen.
    log: Option<Identity>,
    /// Length of the log when it was last seen.
    log_bytes: u64,
}

/// A lost file.
#[derive(Debug, Clone)]
pub(super) struct Lost {
    why: String,
    /// Whether the log still holds what was committed, so that a checkpoint may rescue it into the
    /// database, which is in its place.
    pub(super) is_log_whole: bool,
}

impl Lost {
    pub(super) fn why(&self) -> &str {
        &self.why
    }
}

impl Files {
    /// The files of a store that was just opened.
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        let found =
            fs::metadata(path).map_err(|error| unavailable(crate::os_error::words(&error)))?;
        Ok(Self {
            database: path.to_owned(),
            log: beside(path, "-wal"),
            opened: Mutex::new(Opened {
                database: identity(&found),
                log: None,
                log_bytes: 0,
            }),
            lost: OnceLock::new(),
        })
    }

    /// What was lost, as of the last look.
    pub(super) fn lost(&self) -> Option<&Lost> {
        self.lost.get()
    }

    /// The error for a read or a change of a store that lost a file.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match self.lost() {
            Some(lost) => Err(unavailable(lost.why.clone())),
            None => Ok(()),
        }
    }

    /// Looks at both files. `conn` is any connection to them, outside of a transaction.
    ///
    /// # Errors
    /// What was lost, now or earlier.
    pub(super) fn look(&self, conn: &Connection) -> Result<(), Lost> {
        if let Some(lost) = self.lost() {
            return Err(lost.clone());
        }
        let Some(lost) = self.find(conn) else {
            return Ok(());
        };
        if self.lost.set(lost.clone()).is_ok() {
            tracing::error!(why = lost.why, "the session store refuses everything");
        }
        Err(lost)
    }

    fn find(&self, conn: &Connection) -> Option<Lost> {
        let mut opened = self.opened.lock();
        let lost = |path: &Path, what: &str, is_log_whole| {
            let file = name(path);
            Some(Lost {
                why: format!("{file} was {what} while it was in use; restore it, then restart"),
                is_log_whole,
            })
        };
        match fs::metadata(&self.database) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return lost(&self.database, "deleted", false);
            }
            Ok(found) if identity(&found) != opened.database => {
                return lost(&self.database, "replaced", false);
            }
            // A failing look proves nothing; the writes themselves will fail if they must.
            Ok(_) | Err(_) => {}
        }
        match fs::metadata(&self.log) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match opened.log {
                Some(_) => lost(&self.log, "deleted", true),
                None => None,
            },
            Ok(found) if opened.log.is_some_and(|log| log != identity(&found)) => {
                lost(&self.log, "replaced", true)
            }
            Ok(found) => {
                opened.log = Some(identity(&found));
                let before = std::mem::replace(&mut opened.log_bytes, found.len());
                // A checkpoint may empty the log, also one by another process. Then the log's index
                // says so.
                match found.len() < before && self.is_cut(conn) {
                    true => lost(&self.log, "cut", false),
                    false => None,
                }
            }
            Err(_) => None,
        }
    }

    /// Whether the log is shorter than its index says.
    fn is_cut(&self, conn: &Connection) -> bool {
        let expected = || -> rusqlite::Result<u64> {
            let frames: i64 =
                conn.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1))?;
            let page: i64 = conn.query_row("PRAGMA page_size", [], |row| row.get(0))?;
            let (Ok(frames), Ok(page)) = (u64::try_from(frames), u64::try_from(page)) else {
                return Ok(0);
            };
            Ok(match frames {
                0 => 0,
                _ => LOG_HEADER + frames * (FRAME_HEADER + page),
            })
        };
        // Read in this order: a checkpoint in between empties the index before the file.
        let is_short = || {
            let expected = expected().unwrap_or_default();
            fs::metadata(&self.log).is_ok_and(|log| log.len() < expected)
        };
        // Twice, since another process may empty the log between the two looks.
        is_short() && is_short()
    }
}
