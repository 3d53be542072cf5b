//! What a host's tenants are told and asked while it runs: pause, figures, erasure.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use serde::Serialize;

use super::{ConversationHandle, Host, HostInner, SendError, TenantHandle, directory::Deletion};
use crate::{
    conversation::{ConversationError, Toolset},
    ids::{ConversationId, Scope, Seq, TenantId},
    ports::{ArtifactError, ListQuery, StoreError},
    tenant::{NotAdmitted, Place, Tenant, TenantUsage},
    tool::ToolError,
};

/// Conversations that an erasure deletes at once: each may have to wait for what runs in it.
const DELETIONS_MAX: usize = 64;

/// How long the watchers of a round that a deletion ended have to read that, before its events go.
const WATCHERS_READ: Duration = Duration::from_millis(100);

/// How often an erasure looks for prompts that were let in before it.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

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

    /// Takes a place in the tenant's prompts of this minute for a change that is no prompt but writes as much: a history set from
    /// outside, an injected message, a fork, a compaction. For a server to ask before it makes such a change for a caller it does not
    /// trust; whether the change fits what the tenant may store is asked by the change itself.
    ///
    /// # Errors
    /// `Overloaded` when the minute is used up, `TenantRemoved`; [`SendError::InvalidId`].
    pub fn admit_change(&self) -> Result<(), SendError> {
        let tenant = self.tenant()?;
        self.host.admitted(tenant.admit_change())
    }

    /// Erases the tenant's data: its conversations with all that belongs to them, its artifacts, what its tools keep
    /// of it, what is cached, its counters.
    /// Prompts are refused meanwhile (`tenant_paused`), what runs is cancelled. How it is configured stays, and so does a pause.
    ///
    /// # Errors
    /// [`SendError`] of a failing store: then some of it is left and the tenant stays closed; asking again erases the rest.
    ///
    /// # Cancel safety
    /// What was begun is not undone; asking again erases the rest.
    pub async fn erase(&self) -> Result<Erased, SendError> {
        let tenant = self.tenant()?;
        tenant.begin_erasure();
        let host = &self.host;
        let mut erased = Erased::default();
        loop {
            let stored = host.ports.sessions.list(tenant.id(), ListQuery { subagents: true, ..ListQuery::default() }).await?;
            let stored = stored.into_iter().map(|summary| Scope::new(tenant.id().clone(), summary.conversation));
            let mut scopes = host.directory.awake_of(tenant.id());
            scopes.extend(stored);
            scopes.sort();
            scopes.dedup();
            if scopes.is_empty() {
                if tenant.seats_taken() == 0 {
                    break;
                }
                // Let in before the erasure began, and not yet with its conversation.
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            let deletions = scopes.into_iter().map(|scope| host.clone().delete(scope));
            let mut deletions = stream::iter(deletions).buffer_unordered(DELETIONS_MAX);
            while let Some(deleted) = deletions.next().await {
                erased.conversations += u64::from(deleted?);
            }
        }
        host.ports.sessions.erase(tenant.id()).await?;
        host.resolver.artifacts.release(tenant.id().clone(), None).await.map_err(not_released)?;
        host.resolver.compactor.forget(tenant.id(), None);
        let tools = host.directory.setup_of(tenant.id()).tools.clone();
        for tool in tools.names().filter_map(|name| tools.get(name)) {
            let kept = |error: ToolError| StoreError::Unavailable { message: format!("{}: {}", tool.spec().name(), error.message) };
            tool.forget(tenant.id()).await.map_err(kept)?;
        }
        if let Err(error) = host.ports.sessions.scrub().await {
            tracing::warn!(%error, "what was erased can be read in the store's files until their next upkeep");
        }
        host.tenants.renew(&tenant);
        Ok(erased)
    }
}

impl ConversationHandle {
    /// Deletes the conversation with all that belongs to it: journal, events, artifacts, cached results. What runs is cancelled, what
    /// waits is refused (`deleted`), and its watchers' streams end with an `error` of that code. Tells whether something was stored
    /// (REQUIREMENTS H-04). What comes meanwhile is refused; what comes afterwards finds, or begins, a new conversation.
    ///
    /// # Errors
    /// [`SendError`] of a failing store: then something of it may still be there, and asking again deletes the rest.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a deletion that began.
    pub async fn delete(&self) -> Result<bool, SendError> {
        let scope = self.scope.clone()?;
        self.host.clone().delete(scope).await
    }
}

/// The store of artifacts is a store like the other, to whoever asked for a deletion.
fn not_released(error: ArtifactError) -> SendError {
    StoreError::Unavailable { message: error.to_string() }.into()
}

impl HostInner {
    /// Deletes a conversation, in a task of its own.
    pub(super) async fn delete(self: Arc<Self>, scope: Scope) -> Result<bool, SendError> {
        let runtime = self.directory.runtime().clone();
        let deleted = runtime.spawn(async move { self.delete_here(&scope).await }).await;
        deleted.unwrap_or(Err(SendError::Conversation(ConversationError::Gone)))
    }

    async fn delete_here(&self, scope: &Scope) -> Result<bool, SendError> {
        let mut deletion = self.directory.delete(scope).await;
        let lived = deletion.life_over().await;
        // Before its journal: a deletion that fails here is asked for again, and finds them.
        for child in self.children(scope).await? {
            self.delete_one(&child).await?;
        }
        self.delete_rest(scope, deletion, lived).await
    }

    async fn delete_one(&self, scope: &Scope) -> Result<bool, SendError> {
        let mut deletion = self.directory.delete(scope).await;
        let lived = deletion.life_over().await;
        self.delete_rest(scope, deletion, lived).await
    }

    /// The conversations that this one began, stored or in memory.
    pub(super) async fn children(&self, parent: &Scope) -> Result<BTreeSet<Scope>, SendError> {
        let prefix = parent.conversation.children();
        let of_parent = |id: &ConversationId| id.as_str().starts_with(prefix.as_str());
        let mut children: BTreeSet<Scope> = if parent.conversation.is_subagent() {
            return Ok(BTreeSet::new()); // They have none.
        } else {
            self.directory.awake_of(&parent.tenant).into_iter().filter(|scope| of_parent(&scope.conversation)).collect()
        };
        let mut after = prefix.clone();
        loop {
            let query = ListQuery { after: Some(after.clone()), subagents: true, ..ListQuery::default() };
            let page = self.ports.sessions.list(&parent.tenant, query).await?;
            let Some(last) = page.last().map(|row| row.conversation.clone()) else { break };
            let found = page.into_iter().map(|row| row.conversation).filter(of_parent);
            children.extend(found.map(|id| Scope::new(parent.tenant.clone(), id)));
            if !of_parent(&last) {
                break;
            }
            after = last;
        }
        Ok(children)
    }

    async fn delete_rest(&self, scope: &Scope, deletion: Deletion, lived: bool) -> Result<bool, SendError> {
        let told = deletion.end_streams().await; // For whoever watches a round that is parked, or whose life could not tell.
        let was_stored = self.ports.sessions.delete(scope).await?;
        let (tenant, conversation) = (&scope.tenant, &scope.conversation);
        self.resolver.artifacts.release(tenant.clone(), Some(conversation.clone())).await.map_err(not_released)?;
        let counters = self.tenants.get(tenant);
        counters.tools().forget_results();
        forget(&self.directory.setup_of(tenant).tools, scope).await?;
        if was_stored {
            counters.places().note_deleted(conversation);
        }
        self.resolver.compactor.forget(tenant, Some(conversation));
        if lived || told {
            tokio::time::sleep(WATCHERS_READ).await;
        }
        self.ports.events.forget(scope);
        drop(deletion);
        Ok(was_stored)
    }

    /// Erases what a reset left behind: the entries before it, what its subagents stored, artifacts, summaries and notes. In a task of its own.
    pub(super) async fn empty(self: Arc<Self>, scope: Scope, reset_at: Seq, children: BTreeSet<Scope>) -> Result<(), SendError> {
        let runtime = self.directory.runtime().clone();
        let emptied = runtime.spawn(async move {
            for child in children {
                self.delete_one(&child).await?;
            }
            let before = Seq(reset_at.0.saturating_sub(1));
            self.ports.sessions.empty(&scope, before).await?;
            let (tenant, conversation) = (&scope.tenant, &scope.conversation);
            self.resolver.artifacts.release(tenant.clone(), Some(conversation.clone())).await.map_err(not_released)?;
            let counters = self.tenants.get(tenant);
            counters.tools().forget_results();
            forget(&self.directory.setup_of(tenant).tools, &scope).await?;
            self.resolver.compactor.forget(tenant, Some(conversation));
            Ok(())
        });
        emptied.await.unwrap_or(Err(SendError::Conversation(ConversationError::Gone)))
    }

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
        super::room::place(&self.ports, tenant, conversation).await
    }
}

/// Has a tenant's tools take away what they keep of a conversation.
async fn forget(tools: &Toolset, scope: &Scope) -> Result<(), SendError> {
    for tool in tools.names().filter_map(|name| tools.get(name)) {
        let kept = |error: ToolError| StoreError::Unavailable { message: format!("{}: {}", tool.spec().name(), error.message) };
        tool.forget_conversation(scope).await.map_err(kept)?;
    }
    Ok(())
}
