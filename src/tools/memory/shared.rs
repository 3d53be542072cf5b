//! Notes in a store that hosts share.

use std::{fmt, sync::Arc};

use callboard_actors::{
    ids::Scope,
    tool::{ToolError, ToolErrorType},
};

use super::{
    Action, MEMORIES_MAX, MemoryArgs, Quota, failed_to_forget, full, listed, missing, shown,
    spelled, stored, too_many,
};
use crate::notes::{NoteBounds, NoteError, NoteOwner, NoteStore, Noted};

/// A store, and how its notes are divided.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn NoteStore>,
    /// Whether each conversation has its own notes.
    pub(super) per_conversation: bool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("per_conversation", &self.per_conversation)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn owner(&self, scope: &Scope) -> NoteOwner {
        NoteOwner {
            tenant: scope.tenant.clone(),
            conversation: self.per_conversation.then(|| scope.conversation.clone()),
        }
    }

    /// Performs a checked call.
    pub(super) async fn call(
        &self,
        scope: &Scope,
        args: MemoryArgs,
        quota: Quota,
    ) -> Result<String, ToolError> {
        let owner = self.owner(scope);
        let path = args.path.as_deref().map_or_else(|| ".".to_owned(), spelled);
        let nothing = || missing(&path, ToolError::not_found(""));
        match args.action {
            Action::View => {
                let found = self.store.view(owner, path.clone()).await;
                match found.map_err(|error| refused(error, quota))? {
                    Some(Noted::Value(text)) => Ok(shown(&path, &text)),
                    Some(Noted::Keys(keys)) => Ok(listed(
                        keys.iter().map(|(key, bytes)| (key.as_ref(), *bytes)),
                    )),
                    None => Err(nothing()),
                }
            }
            Action::Write => {
                let value = args.content.unwrap_or_default();
                let bytes = value.len();
                let bounds = NoteBounds {
                    bytes: quota.bytes,
                    keys: quota.files as u64,
                    conversations: MEMORIES_MAX as u64,
                };
                let written = self.store.write(owner, path.clone(), value, bounds).await;
                let usage = written.map_err(|error| refused(error, quota))?;
                Ok(stored(&path, bytes, usage.keys, usage.bytes, quota))
            }
            Action::Delete => {
                let deleted = self.store.delete(owner, path.clone()).await;
                match deleted.map_err(|error| refused(error, quota))? {
                    true => Ok(format!("forgot {path:?}")),
                    false => Err(nothing()),
                }
            }
        }
    }

    /// Removes a conversation's notes, unless the tenant shares them.
    pub(super) async fn forget_conversation(&self, scope: &Scope) -> Result<(), ToolError> {
        if !self.per_conversation {
            return Ok(());
        }
        let forgotten = self.store.forget(self.owner(scope)).await;
        forgotten.map_err(|error| failed_to_forget(&error.to_string()))
    }
}

fn refused(error: NoteError, quota: Quota) -> ToolError {
    match error {
        NoteError::Full(usage) => full(usage.keys, usage.bytes, quota),
        NoteError::TooManyConversations => too_many(),
        NoteError::IsKey(_) => ToolError::invalid(error.to_string()),
        NoteError::Unavailable(_) => {
            ToolError::new(ToolErrorType::TransientError, error.to_string())
        }
    }
}
