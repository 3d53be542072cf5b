//! Why a change was not stored.

use callboard_actors::{
    ids::Scope,
    ports::{AppendError, StoreError},
};

/// The error of a store that cannot be reached or does not work.
pub(in crate::storage) fn unavailable(message: impl Into<String>) -> StoreError {
    StoreError::Unavailable {
        message: message.into(),
    }
}

/// The error of a conversation whose stored rows are not what was stored.
pub(in crate::storage) fn damaged(scope: &Scope, message: impl Into<String>) -> StoreError {
    StoreError::Damaged {
        scope: scope.clone(),
        message: message.into(),
    }
}

/// Why one member of a commit was not stored.
#[derive(Debug, Clone)]
pub(in crate::storage) enum WriteError {
    /// The append's guards refused it.
    Append(AppendError),
    /// The conversation does not exist.
    NotFound,
    /// The database failed; a text for people.
    Store(String),
}

impl From<WriteError> for AppendError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Append(error) => error,
            WriteError::NotFound => Self::Unavailable {
                message: "conversation not found".into(),
            },
            WriteError::Store(message) => Self::Unavailable { message },
        }
    }
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Append(error) => unavailable(error.to_string()),
            WriteError::NotFound => Self::NotFound,
            WriteError::Store(message) => unavailable(message),
        }
    }
}
