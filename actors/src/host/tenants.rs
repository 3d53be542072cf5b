//! What a host's tenants are told and asked while it runs: pause, figures, erasure.

use serde::Serialize;

use super::{ConversationHandle, Host, HostInner, SendError, TenantHandle};
use crate::{
    conversation::ConversationError,
    ids::{ConversationId, Scope, TenantId},
    ports::Head,
    tenant::{NotAdmitted, Place, Taken, Tenant, TenantUsage},
};

/// What [`TenantHandle::erase`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Erased {
    /// Conversations that were stored.
    pub conversations: u64,
}

impl Host {
    /// The tenants that this host knows: those that were configured or named since it began, in order of id. Removed ones are not among
    /// them.
    pub fn tenant_ids(&self) -> Vec<TenantId> {
        self.0.tenants.ids()
    }

    /// Takes a tenant out of service: its prompts are refused from now on (`tenant_removed`), what runs goes on, what is stored stays.
    /// [`Host::configure_tenant`] brings it back. Tells whether it was in service.
    pub fn remove_tenant(&self, id: &TenantId) -> bool {
        self.0.tenants.remove(id)
    }
}

impl TenantHandle {
    /// Pauses the tenant, or lets it go on. While it is paused new prompts are refused (`tenant_paused`); rounds that run go on; what was
    /// accepted and has not begun waits, and begins when the tenant goes on. Not stored: a new host begins without pauses.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn pause(&self, paused: bool) -> Result<(), SendError> {
        self.tenant()?.pause(paused);
        Ok(())
    }

    /// Whether it is paused.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn is_paused(&self) -> Result<bool, SendError> {
        Ok(self.tenant()?.is_paused())
    }

    /// What the tenant uses now, and has used since this host began.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn usage(&self) -> Result<TenantUsage, SendError> {
        Ok(self.tenant()?.usage())
    }

    /// Erases the tenant: its conversations with all that belongs to them, its artifacts, its caches and counters. Prompts are refused
    /// meanwhile. Afterwards the tenant is one that was never named; how it was configured is forgotten too.
    ///
    /// # Errors
    /// [`SendError`] of a failing store: then some of it is left, and asking again erases the rest.
    ///
    /// # Cancel safety
    /// What was begun is not undone; asking again erases the rest.
    pub async fn erase(&self) -> Result<Erased, SendError> {
        let mut erased = Erased::default();
        for summary in self.conversations(crate::ports::ListQuery::default()).await? {
            erased.conversations += u64::from(self.conversation(summary.conversation).delete().await?);
        }
        Ok(erased)
    }
}

impl ConversationHandle {
    /// Deletes the conversation with all that belongs to it: journal, events, artifacts, cached results. What runs is cancelled, what
    /// waits is refused (`deleted`), and its watchers' streams end with an `error` of that code. Tells whether something was there
    /// (REQUIREMENTS H-04). A prompt that comes meanwhile is refused; one that comes afterwards begins a new conversation.
    ///
    /// # Errors
    /// [`SendError`] of a failing store: then the journal may still be there.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a deletion that began.
    pub async fn delete(&self) -> Result<bool, SendError> {
        let scope = self.scope.clone()?;
        Ok(self.host.ports.sessions.delete(&scope).await?)
    }
}

impl From<NotAdmitted> for SendError {
    fn from(why: NotAdmitted) -> Self {
        let error = match why.bound() {
            Some((what, retry_after_ms)) => ConversationError::Overloaded { what, retry_after_ms },
            None if why == NotAdmitted::Paused => ConversationError::TenantPaused,
            None => ConversationError::TenantRemoved,
        };
        Self::Conversation(error)
    }
}

impl HostInner {
    /// Counts what was not let in.
    pub(super) fn admitted<T>(&self, admitted: Result<T, NotAdmitted>) -> Result<T, SendError> {
        Ok(admitted.inspect_err(|_| self.ports.counters.refusals.add(1))?)
    }

    /// A place for what may begin a conversation, where their number is bounded; `None` where nothing needs counting. The place is
    /// to be kept once the conversation is stored.
    ///
    /// # Errors
    /// `Overloaded` when the tenant has as many as it may have; [`SendError`] of a failing store.
    pub(super) async fn place(&self, tenant: &Tenant, conversation: &ConversationId) -> Result<Option<Place>, SendError> {
        let places = tenant.places();
        if !places.is_bounded() || places.has_seen(conversation) {
            return Ok(None);
        }
        let place = places.enter(conversation.clone());
        let scope = Scope::new(tenant.id().clone(), conversation.clone());
        if self.ports.sessions.head(&scope).await? != Head::default() {
            places.note_stored(conversation);
            return Ok(None);
        }
        let mut taken = place.take();
        if taken == Taken::CountFirst {
            places.counted(self.ports.sessions.count(tenant.id()).await?);
            taken = place.take();
        }
        match taken {
            Taken::Yes => Ok(Some(place)),
            Taken::No | Taken::CountFirst => self.admitted(tenant.refuse(NotAdmitted::Conversations)),
        }
    }
}
