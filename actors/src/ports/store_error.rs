//! Why a store of journals or of messages did not answer.

use crate::ids::Scope;

/// Why a read failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store cannot be reached or is broken.
    #[error("the store is not available: {message}")]
    Unavailable {
        /// What happened, without paths.
        message: String,
    },
    /// A stored row cannot be read.
    #[error("the stored data of {scope} is damaged: {message}")]
    Damaged {
        /// The conversation of the row.
        scope: Scope,
        /// What is wrong with the row.
        message: String,
    },
    /// The store as a whole is damaged, and opening it as it is would lose conversations or parts of
    /// them.
    #[error("the store is damaged: {message}")]
    Corrupt {
        /// What is damaged and what to do, without paths.
        message: String,
    },
    /// A newer program wrote the store.
    #[error(
        "the store was written by a newer version of callboard (schema {found}, this one knows {known}); use that version"
    )]
    NewerSchema {
        /// Schema version of the store.
        found: u32,
        /// Newest schema version that this program knows.
        known: u32,
    },
    /// The conversation does not exist.
    #[error("conversation not found")]
    NotFound,
    /// Another host owns the conversation: ask that one.
    #[error("another host owns this conversation")]
    Elsewhere {
        /// The address under which the other hosts reach that one; empty if it has none.
        host: String,
    },
}

impl StoreError {
    /// Returns the stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "store_unavailable",
            Self::Damaged { .. } | Self::Corrupt { .. } => "store_damaged",
            Self::NewerSchema { .. } => "store_newer_schema",
            Self::NotFound => "not_found",
            Self::Elsewhere { .. } => "owned_elsewhere",
        }
    }

    /// Whether a retry can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Elsewhere { .. })
    }
}
