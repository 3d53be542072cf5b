//! PostgreSQL's errors as texts for people, without addresses, names or passwords.

use callboard_actors::ports::StoreError;
use tokio_postgres::{Error, error::SqlState};

pub(super) use crate::storage::commit::error::{WriteError, damaged, unavailable};

/// Describes an error as a clause.
pub(super) fn describe(error: &Error) -> String {
    let Some(refusal) = error.as_db_error() else {
        return match error.is_closed() {
            true => "the connection to the database was lost".into(),
            false => match io_of(error) {
                Some(error) => format!(
                    "the database cannot be reached: {}",
                    crate::os_error::words(error)
                ),
                // The driver's words hold no address and no password.
                None => format!("the database cannot be used: {error}"),
            },
        };
    };
    let code = refusal.code();
    let text = if *code == SqlState::DISK_FULL {
        "the disk of the database is full"
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        "the database is read-only: it is a standby"
    } else if *code == SqlState::TOO_MANY_CONNECTIONS {
        "the database has no connection left for this host"
    } else if *code == SqlState::INVALID_PASSWORD
        || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
    {
        "the database refused user or password"
    } else if *code == SqlState::INVALID_CATALOG_NAME {
        "the database does not exist"
    } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        "the database user may not do this"
    } else if *code == SqlState::ADMIN_SHUTDOWN
        || *code == SqlState::CRASH_SHUTDOWN
        || *code == SqlState::CANNOT_CONNECT_NOW
    {
        "the database is starting or stopping"
    } else {
        return format!("PostgreSQL code {}", code.code());
    };
    text.into()
}

fn io_of(error: &Error) -> Option<&std::io::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Whether the transaction was rolled back because another one was in its way, so that the same one
/// may be tried again.
pub(super) fn is_in_the_way(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        *code == SqlState::T_R_DEADLOCK_DETECTED || *code == SqlState::T_R_SERIALIZATION_FAILURE
    })
}

/// Whether the connection is of no more use, or leads to a server that takes no writes.
pub(super) fn is_fatal(error: &Error) -> bool {
    error.as_db_error().is_none()
        || error.code().is_some_and(|code| {
            code.code().starts_with("57P")
                || *code == SqlState::READ_ONLY_SQL_TRANSACTION
                || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
        })
}

pub(super) fn failed_read(error: &Error) -> StoreError {
    unavailable(describe(error))
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        Self::Store(describe(&error))
    }
}
