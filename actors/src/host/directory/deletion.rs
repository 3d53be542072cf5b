//! The deletion of a conversation, as the directory sees it: its activation is ended, its held
//! messages are refused, and no other activation starts until the deletion is over.

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

/// How long an actor may take to end beyond the grace period of a cancel before it is killed, and
/// how long a killed actor may take to end.
const END_MAX: Duration = Duration::from_secs(1);

/// A running deletion. Dropping it removes the slot, so that a new conversation of this id can
/// start.
pub(crate) struct Deletion {
    directory: Arc<Directory>,
    scope: Scope,
    actor: Option<ActorCell>,
    over: Arc<Notify>,
}

impl Drop for Deletion {
    fn drop(&mut self) {
        let gone = self
            .directory
            .slots
            .remove_if(&self.scope, |_, slot| matches!(slot, Slot::Deleting { .. }));
        drop(gone);
        self.directory.emptied.notify_waiters();
    }
}

impl Directory {
    /// Begins the deletion of a conversation: refuses held messages and asks an active conversation
    /// to end. Waits for another deletion of the same conversation first.
    pub(crate) async fn delete(self: &Arc<Self>, scope: &Scope) -> Deletion {
        loop {
            let other = match self.begin_deletion(scope) {
                Ok(deletion) => return deletion,
                Err(other) => other,
            };
            // The other deletion's `Notify` reports the end of its actor, not of the deletion, so
            // poll.
            let _ = timeout(Duration::from_millis(50), other.notified()).await;
        }
    }

    fn begin_deletion(self: &Arc<Self>, scope: &Scope) -> Result<Deletion, Arc<Notify>> {
        let over = Arc::new(Notify::new());
        let mut held = Vec::new();
        let mut actor = None;
        match self.slots.entry(scope.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(Slot::Deleting {
                ending: None,
                over: over.clone(),
            })),
            Entry::Occupied(mut entry) => {
                let generation = match entry.get() {
                    Slot::Deleting { over, .. } => return Err(over.clone()),
                    Slot::Starting { generation, .. } | Slot::Closing { generation, .. } => {
                        Some(*generation)
                    }
                    Slot::Live {
                        generation, actor, ..
                    } => {
                        let _ = actor.cast(ConversationMsg::Delete);
                        Some(*generation)
                    }
                    Slot::Backoff { .. } | Slot::Failed { .. } => None,
                };
                let slot = entry.insert(Slot::Deleting {
                    ending: generation,
                    over: over.clone(),
                });
                (held, _, actor) = slot.into_parts();
            }
        }
        held.into_iter()
            .for_each(|mail| refuse(mail, &ConversationError::Deleted));
        let actor = actor.map(|actor| actor.get_cell());
        Ok(Deletion {
            directory: self.clone(),
            scope: scope.clone(),
            actor,
            over,
        })
    }
}

impl Deletion {
    /// Waits until the conversation's actor has ended, for at most the grace period of a cancel and
    /// one second; then kills it. Returns whether there was an actor.
    pub(crate) async fn actor_ended(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        if timeout(CANCEL_GRACE + END_MAX, self.ended()).await.is_err() {
            tracing::warn!(conversation = %self.scope.conversation, "a conversation that is deleted did not end in time and is killed");
            if let Some(actor) = self.actor.take() {
                actor.kill();
            }
            // The store refuses whatever a killed actor still appends, since its journal is deleted
            // next.
            let _ = timeout(END_MAX, self.ended()).await;
        }
        self.actor = None;
        true
    }

    async fn ended(&self) {
        loop {
            let mut over = std::pin::pin!(self.over.notified());
            over.as_mut().enable();
            if self.is_over() {
                return;
            }
            over.await;
        }
    }

    fn is_over(&self) -> bool {
        let slot = self.directory.slots.get(&self.scope);
        slot.is_none_or(|slot| {
            !matches!(
                slot.value(),
                Slot::Deleting {
                    ending: Some(_),
                    ..
                }
            )
        })
    }

    /// Ends the event streams of rounds that no activation has ended, so that their watchers do not
    /// wait. Returns whether there were any.
    pub(crate) async fn end_streams(&self) -> bool {
        super::end_streams(
            &self.directory.ports_of(&self.scope),
            &self.scope,
            &ConversationError::Deleted,
        )
        .await
    }
}
