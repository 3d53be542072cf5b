//! Where results go that are too large to show (REQUIREMENTS area A). Ids, never paths; owned by a conversation of a tenant.
//!
//! An artifact is named by its content, so that two owners can have the same one: each holds it by itself, and what one gives up
//! the other keeps. What an owner does not have is [`ArtifactError::NotFound`], whoever else has it.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::BoxFuture;
use crate::ids::{ArtifactId, ConversationId, Scope, TenantId};

/// Why an artifact could not be kept or read. No message holds a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// The owner has no such artifact: never had, gave up, or it expired. Also the answer for another owner's.
    #[error("there is no artifact {0}: it never was, or it expired")]
    NotFound(ArtifactId),
    /// The tenant's share is used up, and cleaning did not help.
    #[error("the tenant's room for artifacts is used up ({used} of {quota} bytes)")]
    OverQuota {
        /// Bytes in use.
        used: u64,
        /// Bytes allowed.
        quota: u64,
    },
    /// One artifact holds at most [`ARTIFACT_BYTES_MAX`](crate::limits::ARTIFACT_BYTES_MAX) bytes.
    #[error("an artifact holds at most {max} bytes, not {size}")]
    TooLarge {
        /// Bytes given.
        size: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// Another content already has the name: the hash in it is short. Neither is ever served as the other.
    #[error("another content has the name {0}")]
    Collision(ArtifactId),
    /// The place is away.
    #[error("artifacts cannot be kept or read now: {0}")]
    Unavailable(String),
}

impl ArtifactError {
    /// Stable name of the class.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not_found",
            Self::OverQuota { .. } => "over_quota",
            Self::TooLarge { .. } => "too_large",
            Self::Collision(_) => "collision",
            Self::Unavailable(_) => "unavailable",
        }
    }

    /// Whether the same call may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) => true,
            Self::NotFound(_) | Self::OverQuota { .. } | Self::TooLarge { .. } | Self::Collision(_) => false,
        }
    }
}

/// What is known of an artifact (REQUIREMENTS A-17).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactMeta {
    /// Its name.
    pub id: ArtifactId,
    /// Its bytes.
    pub size_bytes: u64,
    /// The call that it came from.
    pub tool_call_id: String,
    /// The conversation that owns it.
    pub conversation_id: ConversationId,
    /// When it was last stored, in milliseconds since 1970; its age counts from here.
    pub created_at: crate::time::Timestamp,
    /// When it was last stored or read.
    pub accessed_at: crate::time::Timestamp,
}

/// What [`ArtifactStore::cleanup`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Artifacts that were really removed; of one that several owners have, each counts.
    pub removed: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Keeps artifacts. One contract suite: `testing::contract::artifact_store`.
///
/// # Cancel safety
/// A verb whose future is dropped may still take place as a whole; never in part.
pub trait ArtifactStore: Send + Sync + 'static {
    /// Keeps `content` for `owner` and names it. Storing what is there only renews it: its age begins anew, and it is then this call's.
    /// Atomic: a reader sees all of it or nothing. Over the tenant's quota what is too old goes first, then what was not used for
    /// longest.
    ///
    /// # Errors
    /// [`ArtifactError::TooLarge`], [`ArtifactError::OverQuota`] when the content alone is above the quota,
    /// [`ArtifactError::Collision`], [`ArtifactError::Unavailable`].
    fn store(&self, owner: Scope, tool_call_id: String, content: Bytes) -> BoxFuture<'_, Result<ArtifactId, ArtifactError>>;

    /// All bytes of an artifact, checked against its name; touches it. What is older than the store keeps things is not found, also
    /// before it is cleaned away.
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn retrieve(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<Bytes, ArtifactError>>;

    /// Some bytes of an artifact, fewer at its end; touches it. A range behind the end is empty.
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn read_range(&self, owner: Scope, id: ArtifactId, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ArtifactError>>;

    /// What is known of an artifact; does not touch it.
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn meta(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<ArtifactMeta, ArtifactError>>;

    /// Renews the time of last use (REQUIREMENTS A-19).
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn touch(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<(), ArtifactError>>;

    /// Gives up all that a conversation has (REQUIREMENTS A-11), or, without one, all that a tenant has.
    ///
    /// # Errors
    /// [`ArtifactError::Unavailable`].
    fn release(&self, tenant: TenantId, conversation: Option<ConversationId>) -> BoxFuture<'_, Result<(), ArtifactError>>;

    /// Bounds the bytes of one tenant anew, or without a bound of its own as the store bounds all. A lower one takes hold when the tenant
    /// next stores something. Not stored: whoever opens the store says it again. A store without such bounds ignores it.
    fn bound(&self, _tenant: &TenantId, _bytes_max: Option<u64>) {}

    /// Removes what is older than `max_age`, then, above the size limit, what was not used for longest until 80 % of it are left
    /// (REQUIREMENTS ). Spares what is being written or read.
    ///
    /// # Errors
    /// [`ArtifactError::Unavailable`].
    fn cleanup(&self, max_age: Duration) -> BoxFuture<'_, Result<Cleaned, ArtifactError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn ArtifactStore) {}
        let _ = takes;
    }
}
