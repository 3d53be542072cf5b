//! The store for results that are too large to show a model. Artifacts are addressed by ids, never
//! by paths, and owned by a conversation of a tenant.
//!
//! An artifact's id is a hash of its content, so two owners can have the same id. Each owner's copy
//! is separate: releasing one does not affect the other. An artifact of another owner gives the
//! same [`ArtifactError::NotFound`] as an unknown id.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::BoxFuture;
use crate::ids::{ArtifactId, ConversationId, Scope, TenantId};

/// Why an artifact could not be stored or read. No message contains a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// The owner has no such artifact: it never existed, was released, expired, or belongs to
    /// another owner.
    #[error("there is no artifact {0}: it never was, or it expired")]
    NotFound(ArtifactId),
    /// The tenant's quota is used up, and removing old artifacts did not free enough.
    #[error("the tenant's room for artifacts is used up ({used} of {quota} bytes)")]
    OverQuota {
        /// Bytes in use.
        used: u64,
        /// The bytes that are allowed.
        quota: u64,
    },
    /// The content exceeds [`ARTIFACT_BYTES_MAX`](crate::limits::ARTIFACT_BYTES_MAX) bytes.
    #[error("an artifact holds at most {max} bytes, not {size}")]
    TooLarge {
        /// Bytes of the content.
        size: u64,
        /// The bytes that are allowed.
        max: u64,
    },
    /// Another content has the same id, whose hash is short. The store never returns one for the
    /// other.
    #[error("another content has the name {0}")]
    Collision(ArtifactId),
    /// The store cannot be reached.
    #[error("artifacts cannot be kept or read now: {0}")]
    Unavailable(String),
}

impl ArtifactError {
    /// Returns the stable code of the error.
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
            Self::NotFound(_)
            | Self::OverQuota { .. }
            | Self::TooLarge { .. }
            | Self::Collision(_) => false,
        }
    }
}

/// Description of an artifact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the field names say it")]
pub struct ArtifactMeta {
    pub id: ArtifactId,
    /// Size of the content.
    pub size_bytes: u64,
    /// Id of the tool call that stored it last.
    pub tool_call_id: String,
    /// The conversation that owns it.
    pub conversation_id: ConversationId,
    /// When the artifact was last stored. Its age counts from here.
    pub created_at: crate::time::Timestamp,
    /// When it was last stored or read.
    pub accessed_at: crate::time::Timestamp,
}

/// What [`ArtifactStore::cleanup`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Artifacts that were removed. An artifact of several owners counts once per owner.
    pub removed: u64,
    /// Bytes of the removed artifacts.
    pub bytes: u64,
}

/// Stores artifacts. Its contract: `testing::contract::artifact_store`.
///
/// # Cancel safety
/// An operation whose future is dropped takes place completely or not at all.
pub trait ArtifactStore: Send + Sync + 'static {
    /// Stores `content` for `owner` and returns its id. Storing an existing artifact restarts its
    /// age and assigns it to this call. Atomic: a reader sees the whole content or none. Over the
    /// tenant's quota, expired artifacts are removed first, then the least recently used ones.
    ///
    /// # Errors
    /// [`ArtifactError::TooLarge`], [`ArtifactError::OverQuota`] when the content alone is above
    /// the quota, [`ArtifactError::Collision`], [`ArtifactError::Unavailable`].
    fn store(
        &self,
        owner: Scope,
        tool_call_id: String,
        content: Bytes,
    ) -> BoxFuture<'_, Result<ArtifactId, ArtifactError>>;

    /// Returns the content, verified against its id, and updates its time of last use. An expired
    /// artifact is not found, even before it is removed.
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn retrieve(&self, owner: Scope, id: ArtifactId)
    -> BoxFuture<'_, Result<Bytes, ArtifactError>>;

    /// Returns a range of the content, cut off at its end, and updates its time of last use. A
    /// range behind the end is empty.
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn read_range(
        &self,
        owner: Scope,
        id: ArtifactId,
        range: Range<u64>,
    ) -> BoxFuture<'_, Result<Bytes, ArtifactError>>;

    /// Returns the description. Does not update the time of last use.
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn meta(
        &self,
        owner: Scope,
        id: ArtifactId,
    ) -> BoxFuture<'_, Result<ArtifactMeta, ArtifactError>>;

    /// Updates the time of last use.
    ///
    /// # Errors
    /// [`ArtifactError::NotFound`], [`ArtifactError::Unavailable`].
    fn touch(&self, owner: Scope, id: ArtifactId) -> BoxFuture<'_, Result<(), ArtifactError>>;

    /// Releases all artifacts of a conversation, or of the whole tenant if `conversation` is
    /// `None`.
    ///
    /// # Errors
    /// [`ArtifactError::Unavailable`].
    fn release(
        &self,
        tenant: TenantId,
        conversation: Option<ConversationId>,
    ) -> BoxFuture<'_, Result<(), ArtifactError>>;

    /// Sets a tenant's byte quota; `None` restores the store's default. A lower quota takes effect
    /// when the tenant next stores an artifact. The quota is not persisted, so the host sets it
    /// after each start. A store without quotas ignores it.
    fn bound(&self, _tenant: &TenantId, _bytes_max: Option<u64>) {}

    /// Removes artifacts older than `max_age`. If the store is above its size limit, it then
    /// removes the least recently used ones down to 80 % of the limit. Artifacts that are being
    /// written or read stay.
    ///
    /// # Errors
    /// [`ArtifactError::Unavailable`].
    fn cleanup(&self, max_age: Duration) -> BoxFuture<'_, Result<Cleaned, ArtifactError>>;

    /// Ends the store's own work in the background, such as its clean-up. The host calls it on
    /// shutdown and waits for a limited time. Default: there is none.
    ///
    /// # Cancel safety
    /// The future may be dropped at the end of that time.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
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
