//! SQLite's errors as texts for people, without paths.

use callboard_actors::{ids::Scope, ports::StoreError};
use rusqlite::{Error, ErrorCode};

pub(super) use crate::storage::commit::error::{WriteError, damaged, unavailable};

/// What [`describe`] says about a file with other content.
pub(super) const NOT_A_DATABASE: &str = "the file is not a SQLite database";

/// Describes an error as a clause.
pub(super) fn describe(error: &Error) -> String {
    let Some(code) = error.sqlite_error_code() else {
        return "a stored row has an unexpected form".into();
    };
    match code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            "another process holds the database".into()
        }
        ErrorCode::DiskFull => "the disk is full".into(),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => "the file cannot be written".into(),
        ErrorCode::CannotOpen => "the file cannot be opened".into(),
        ErrorCode::DatabaseCorrupt => "the file is damaged".into(),
        ErrorCode::NotADatabase => NOT_A_DATABASE.into(),
        ErrorCode::TooBig => "an entry is larger than SQLite allows".into(),
        ErrorCode::SystemIoFailure => format!("the disk failed (SQLite code {})", extended(error)),
        _ => format!("SQLite code {}", extended(error)),
    }
}

fn extended(error: &Error) -> i32 {
    error
        .sqlite_error()
        .map(|failure| failure.extended_code)
        .unwrap_or_default()
}

/// Whether a retry may succeed.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

pub(super) fn corrupt(message: impl Into<String>) -> StoreError {
    StoreError::Corrupt {
        message: message.into(),
    }
}

/// A failed read that concerns no single conversation.
pub(super) fn failed_read(error: &Error) -> StoreError {
    unavailable(describe(error))
}

/// A failed read of one conversation. Undecodable or corrupt data is reported as damage of that
/// conversation only.
pub(super) fn failed_read_of(scope: &Scope, error: &Error) -> StoreError {
    match error.sqlite_error_code() {
        None | Some(ErrorCode::DatabaseCorrupt) => damaged(scope, describe(error)),
        Some(_) => failed_read(error),
    }
}

/// Why a conversation was not found by its name.
#[derive(Debug)]
pub(super) enum FindError {
    Sqlite(Error),
    /// It exists, but its row and the index of the names contradict each other.
    Lost,
}

/// The text for [`FindError::Lost`].
const LOST: &str = "its head row is damaged, or the index that finds it (`sqlite3 FILE REINDEX` builds the index again)";

impl From<Error> for FindError {
    fn from(error: Error) -> Self {
        Self::Sqlite(error)
    }
}

impl FindError {
    pub(super) fn of(self, scope: &Scope) -> StoreError {
        match self {
            Self::Sqlite(error) => failed_read_of(scope, &error),
            Self::Lost => damaged(scope, LOST),
        }
    }
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        Self::Store(describe(&error))
    }
}

impl From<FindError> for WriteError {
    fn from(error: FindError) -> Self {
        match error {
            FindError::Sqlite(error) => error.into(),
            FindError::Lost => Self::Store(LOST.into()),
        }
    }
}
