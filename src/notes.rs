//! The port through which the tool `memory` keeps notes in a store that hosts share. It lies below
//! the tools and the stores; notes in files need no port ([`Memory`](crate::tools::memory::Memory)).

use callboard_actors::{
    ids::{ConversationId, TenantId},
    ports::BoxFuture,
};

/// Whose notes they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteOwner {
    /// The tenant.
    pub tenant: TenantId,
    /// The conversation, which shares its notes with its subagents; `None` for notes that all
    /// conversations of the tenant share.
    pub conversation: Option<ConversationId>,
}

/// The bounds of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoteBounds {
    /// Bytes of the owner's values together.
    pub bytes: u64,
    /// The owner's keys.
    pub keys: u64,
    /// Conversations of one tenant that may keep notes.
    pub conversations: u64,
}

/// What an owner's notes take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoteUsage {
    /// Bytes of the values.
    pub bytes: u64,
    /// Number of keys.
    pub keys: u64,
}

/// What is found under a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    /// The path is a key: its value.
    Value(String),
    /// The path is a folder: the keys below it, sorted, with the bytes of their values.
    Keys(Vec<(String, u64)>),
}

/// Why notes could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// The write would exceed a bound; nothing was written.
    #[error("the memory is full")]
    Full(NoteUsage),
    /// Too many conversations of the tenant keep notes; nothing was written.
    #[error("too many conversations of this tenant keep notes")]
    TooManyConversations,
    /// A key lies below another key, or is the folder of one; nothing was written.
    #[error("{0:?} is a key already, and a key is no folder")]
    IsKey(String),
    /// The store cannot be reached.
    #[error("notes cannot be kept or read now: {0}")]
    Unavailable(String),
}

/// A store of notes. Keys are paths with `/`, checked by the caller; the path `.` is the folder of all keys.
///
/// A write is applied completely or not at all, and bounds hold over all hosts.
pub trait NoteStore: Send + Sync + 'static {
    /// Reads a value, or lists the keys below a folder; `None` if neither is there.
    ///
    /// # Errors
    /// [`NoteError::Unavailable`].
    fn view(
        &self,
        owner: NoteOwner,
        path: String,
    ) -> BoxFuture<'_, Result<Option<Noted>, NoteError>>;

    /// Stores a value, replacing the one that is there. Returns what the owner's notes take.
    ///
    /// # Errors
    /// All of [`NoteError`].
    fn write(
        &self,
        owner: NoteOwner,
        key: String,
        value: String,
        bounds: NoteBounds,
    ) -> BoxFuture<'_, Result<NoteUsage, NoteError>>;

    /// Removes a value; `false` if there is none.
    ///
    /// # Errors
    /// [`NoteError::Unavailable`].
    fn delete(&self, owner: NoteOwner, key: String) -> BoxFuture<'_, Result<bool, NoteError>>;

    /// Removes the notes of an owner.
    ///
    /// # Errors
    /// [`NoteError::Unavailable`].
    fn forget(&self, owner: NoteOwner) -> BoxFuture<'_, Result<(), NoteError>>;

    /// Removes all notes of a tenant, also those of its conversations.
    ///
    /// # Errors
    /// [`NoteError::Unavailable`].
    fn forget_tenant(&self, tenant: TenantId) -> BoxFuture<'_, Result<(), NoteError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn NoteStore) {}
        let _ = takes;
    }
}
