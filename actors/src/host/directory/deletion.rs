//! A conversation's place while it is deleted: its life is ended, its held mail refused, and no other life begins before the deletion is
//! over.

use std::{sync::Arc, time::Duration};

use dashmap::mapref::entry::Entry;
use ractor::ActorCell;
use tokio::{sync::Notify, time::timeout};

use super::{Directory, Slot};
use crate::{
    conversation::{ConversationError, ConversationMsg, refuse},
    ids::Scope,
    limits::CANCEL_GRACE,
};

/// How long a life may take to end beyond the grace of its cancel, before it is killed; and then to die.
const END_MAX: Duration = Duration::from_secs(1);

/// A deletion under way. Its drop makes room for the next conversation of this id.
pub(crate) struct Deletion {
    directory: Arc<Directory>,
    scope: Scope,
    life: Option<ActorCell>,
    over: Arc<Notify>,
}

impl Drop for Deletion {
    fn drop(&mut self) {
        let gone = self.directory.slots.remove_if(&self.scope, |_, slot| matches!(slot, Slot::Deleting { .. }));
        drop(gone);
        self.directory.emptied.notify_waiters();
    }
}

impl Directory {
    /// Begins to delete a conversation: what is held is refused, what lives is told. Waits for another deletion of it.
    pub(crate) async fn delete(self: &Arc<Self>, scope: &Scope) -> Deletion {
        loop {
            let other = match self.begin_deletion(scope) {
                Ok(deletion) => return deletion,
                Err(other) => other,
            };
            // Its end has a bell for all, so this one is looked at now and then.
            let _ = timeout(Duration::from_millis(50), other.notified()).await;
        }
    }

    fn begin_deletion(self: &Arc<Self>, scope: &Scope) -> Result<Deletion, Arc<Notify>> {
        let over = Arc::new(Notify::new());
        let (mut held, mut life) = (Vec::new(), None);
        match self.slots.entry(scope.clone()) {
            Entry::Vacant(place) => drop(place.insert(Slot::Deleting { life: None, over: over.clone() })),
            Entry::Occupied(mut place) => {
                let generation = match place.get() {
                    Slot::Deleting { over, .. } => return Err(over.clone()),
                    Slot::Starting { generation, .. } | Slot::Closing { generation, .. } => Some(*generation),
                    Slot::Live { generation, actor, .. } => {
                        let _ = actor.cast(ConversationMsg::Delete);
                        Some(*generation)
                    }
                    Slot::Backoff { .. } | Slot::Failed { .. } => None,
                };
                let slot = place.insert(Slot::Deleting { life: generation, over: over.clone() });
                (held, _, life) = slot.into_parts();
            }
        }
        held.into_iter().for_each(|mail| refuse(mail, &ConversationError::Deleted));
        let life = life.map(|actor| actor.get_cell());
        Ok(Deletion { directory: self.clone(), scope: scope.clone(), life, over })
    }
}

impl Deletion {
    /// Waits until the conversation's life is over, at most the grace of a cancel and a second; then it is killed. Tells whether there was
    /// one.
    pub(crate) async fn life_over(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        if timeout(CANCEL_GRACE + END_MAX, self.ended()).await.is_err() {
            tracing::warn!(conversation = %self.scope.conversation, "a conversation that is deleted did not end in time and is killed");
            if let Some(life) = self.life.take() {
                life.kill();
            }
            // What it may still append the store refuses: its journal is gone.
            let _ = timeout(END_MAX, self.ended()).await;
        }
        self.life = None;
        true
    }

    async fn ended(&self) {
        loop {
            let mut told = std::pin::pin!(self.over.notified());
            told.as_mut().enable();
            if self.is_over() {
                return;
            }
            told.await;
        }
    }

    fn is_over(&self) -> bool {
        let slot = self.directory.slots.get(&self.scope);
        slot.is_none_or(|slot| !matches!(slot.value(), Slot::Deleting { life: Some(_), .. }))
    }

    /// Ends the streams of the rounds that no life told of, so that nobody waits for them. Tells whether there were any.
    pub(crate) async fn end_streams(&self) -> bool {
        super::end_streams(&self.directory.ports_of(&self.scope), &self.scope, &ConversationError::Deleted).await
    }
}
