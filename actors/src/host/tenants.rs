//! Operations on tenants of a running host (pause, removal, usage, erasure) and the deletion of
//! conversations.
//!
//! A deletion runs in a separate task: it completes even if the caller stops waiting.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use serde::Serialize;
use tokio::task::JoinHandle;

use super::{ConversationHandle, Host, HostInner, SendError, TenantHandle, directory::Deletion};
use crate::{
    conversation::{ConversationError, Toolset},
    ids::{ConversationId, Scope, Seq, TenantId},
    metrics_collector::Figure,
    policy::names_model,
    ports::{ArtifactError, ListQuery, StoreError},
    tenant::{NotAdmitted, PendingConversation, Tenant, TenantUsage},
    tool::ToolError,
};

/// Conversations that an erasure deletes concurrently. Each deletion may wait for running work to
/// end.
const DELETIONS_MAX: usize = 64;

/// How long the watchers of a deleted conversation have to read its last events before they are
/// dropped.
const WATCHERS_READ: Duration = Duration::from_millis(100);

/// How often an erasure checks for prompts that were admitted before it began.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What [`TenantHandle::erase`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Erased {
    /// The number of stored conversations that were deleted.
    pub conversations: u64,
}

impl Host {
    /// The tenants that were configured or used since the host started, in the order of their ids.
    /// Removed tenants are not included.
    pub fn tenant_ids(&self) -> Vec<TenantId> {
        self.0.tenants.ids()
    }

    /// Takes a tenant out of service. Its prompts are refused from now on (`tenant_removed`);
    /// running rounds continue and stored data stays. [`Host::configure_tenant`] restores the
    /// tenant. Returns whether it was in service.
    pub fn remove_tenant(&self, id: &TenantId) -> bool {
        self.0.tenants.remove(id)
    }
}

impl TenantHandle {
    /// Pauses the tenant, or ends its pause. A paused tenant's new prompts are refused
    /// (`tenant_paused`), and changes by [`TenantHandle::admit_change`] and
    /// [`TenantHandle::check_open`]; its running rounds continue, and its queued prompts wait until the pause
    /// ends. Pauses are not stored: a new host starts without any.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn pause(&self, paused: bool) -> Result<(), SendError> {
        self.tenant()?.pause(paused);
        Ok(())
    }

    /// Whether the tenant is paused.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn is_paused(&self) -> Result<bool, SendError> {
        Ok(self.tenant()?.is_paused())
    }

    /// What the tenant uses now, and what it has used since this host started.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn usage(&self) -> Result<TenantUsage, SendError> {
        Ok(self.tenant()?.usage())
    }

    /// Counts a change against the tenant's prompts per minute. For a server whose callers are not
    /// trusted: it calls this before a change that is not a prompt but costs as much, such as an
    /// import, an injected message, a fork or a compaction. The change itself checks the tenant's
    /// stored bytes.
    ///
    /// # Errors
    /// `Overloaded` when the prompts of this minute are used up, `TenantPaused`, `TenantRemoved`;
    /// [`SendError::InvalidId`].
    pub fn admit_change(&self) -> Result<(), SendError> {
        let tenant = self.tenant()?;
        self.host.admitted(tenant.admit_change())
    }

    /// Checks that the tenant may change something now, without counting it. For changes that are
    /// bounded otherwise, such as the answer to a question of a round.
    ///
    /// # Errors
    /// `TenantPaused`, `TenantRemoved`; [`SendError::InvalidId`].
    pub fn check_open(&self) -> Result<(), SendError> {
        let tenant = self.tenant()?;
        self.host.admitted(tenant.check_open())
    }

    /// Whether the operator lets this tenant choose a model: its own, or one that its skills may
    /// choose ([`super::HostBuilder::skill_models`]). For a server whose callers are not trusted.
    ///
    /// # Errors
    /// [`SendError::InvalidId`].
    pub fn may_choose(&self, model: &str) -> Result<bool, SendError> {
        let setup = self.host.directory.setup_of(self.tenant()?.id());
        Ok(*setup.model == *model || names_model(&setup.pricing.skill_models, model))
    }

    /// Erases the tenant's data: its conversations and everything that belongs to them, its
    /// artifacts, its data in tools, its cached results and its counters. Running rounds are
    /// cancelled, and prompts are refused meanwhile (`tenant_paused`). The tenant's configuration
    /// and pause stay.
    ///
    /// # Errors
    /// [`SendError`] of a failing store. The tenant then stays closed with part of its data;
    /// another call erases the rest.
    ///
    /// # Cancel safety
    /// Deletions that have begun complete; another call erases the rest.
    pub async fn erase(&self) -> Result<Erased, SendError> {
        let tenant = self.tenant()?;
        tenant.begin_erasure();
        let host = &self.host;
        let mut erased = Erased::default();
        loop {
            // Repeat until nothing is stored or active and no seat is taken: a prompt that was
            // admitted before the erasure may still create a conversation.
            let stored = host
                .ports
                .sessions
                .list(
                    tenant.id(),
                    ListQuery {
                        subagents: true,
                        ..ListQuery::default()
                    },
                )
                .await?;
            let stored = stored
                .into_iter()
                .map(|summary| Scope::new(tenant.id().clone(), summary.conversation));
            let mut scopes = host.directory.awake_of(tenant.id());
            scopes.extend(stored);
            scopes.sort();
            scopes.dedup();
            if scopes.is_empty() {
                if tenant.seats_taken() == 0 {
                    break;
                }
                // A prompt that was admitted before the erasure has not reached its conversation
                // yet.
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
        host.resolver
            .artifacts
            .release(tenant.id().clone(), None)
            .await
            .map_err(not_released)?;
        host.resolver.compactor.forget(tenant.id(), None);
        let tools = host.directory.setup_of(tenant.id()).tools.clone();
        for tool in tools.names().filter_map(|name| tools.get(name)) {
            let kept = |error: ToolError| StoreError::Unavailable {
                message: format!("{}: {}", tool.spec().name(), error.message),
            };
            tool.forget(tenant.id()).await.map_err(kept)?;
        }
        if let Err(error) = host.ports.sessions.scrub().await {
            tracing::warn!(%error, "what was erased can be read in the store's files until their next upkeep");
        }
        host.tenants.renew(&tenant);
        host.ports.collector.forget(tenant.id());
        Ok(erased)
    }
}

impl ConversationHandle {
    /// Deletes the conversation and everything that belongs to it: journal, events, artifacts,
    /// cached results, and the conversations of its subagents. The open round is cancelled, queued
    /// prompts are refused (`deleted`), and the streams of its watchers end with an `error` of that
    /// code. Messages during the deletion are refused; the id is free for a new conversation
    /// afterwards. Returns whether anything was stored.
    ///
    /// # Errors
    /// [`SendError`] of a failing store. Some data may then remain; another call deletes the rest.
    ///
    /// # Cancel safety
    /// The deletion begins with this call. Dropping the future does not stop it, and the shutdown of
    /// the host waits for it.
    pub fn delete(&self) -> impl Future<Output = Result<bool, SendError>> + Send + use<> {
        let begun = self.scope.clone();
        let begun = begun.map(|scope| self.host.clone().begin_delete(scope));
        async move { ended(begun?).await }
    }
}

async fn ended(deletion: JoinHandle<Result<bool, SendError>>) -> Result<bool, SendError> {
    let deleted = deletion.await;
    deleted.unwrap_or(Err(SendError::Conversation(ConversationError::Gone)))
}

/// Reports an error of the artifact store like one of the journal store.
fn not_released(error: ArtifactError) -> SendError {
    StoreError::Unavailable {
        message: error.to_string(),
    }
    .into()
}

impl HostInner {
    /// Deletes a conversation, in a separate task.
    pub(super) async fn delete(self: Arc<Self>, scope: Scope) -> Result<bool, SendError> {
        ended(self.begin_delete(scope)).await
    }

    fn begin_delete(self: Arc<Self>, scope: Scope) -> JoinHandle<Result<bool, SendError>> {
        let runtime = self.directory.runtime().clone();
        let deletions = self.deletions.clone();
        let deletion = async move {
            let deleted = self.delete_here(&scope).await;
            if let Err(error) = &deleted {
                let conversation = &scope.conversation;
                tracing::debug!(%conversation, %error, "the conversation was not deleted");
            }
            deleted
        };
        runtime.spawn(deletions.track_future(deletion))
    }

    /// Bills the model call of a conversation that no activation has taken up since its host ended.
    async fn bill_lost_call(&self, scope: &Scope) {
        let tenant = self.tenants.get(&scope.tenant);
        if !tenant.stores_spending() {
            return;
        }
        // A journal that cannot be read is deleted all the same.
        if let Ok(state) = self.read_stored(scope).await
            && let Some(reserved) = state.spent.reserved
        {
            tenant.charge_lost_call(reserved);
        }
    }

    async fn delete_here(&self, scope: &Scope) -> Result<bool, SendError> {
        let mut deletion = self.directory.delete(scope).await;
        let lived = deletion.actor_ended().await;
        // Children before the journal: a deletion that fails here can be repeated, and finds the
        // remaining children.
        for child in self.children(scope).await? {
            self.delete_one(&child).await?;
        }
        self.delete_rest(scope, deletion, lived).await
    }

    async fn delete_one(&self, scope: &Scope) -> Result<bool, SendError> {
        let mut deletion = self.directory.delete(scope).await;
        let lived = deletion.actor_ended().await;
        self.delete_rest(scope, deletion, lived).await
    }

    /// The conversations of the subagents that this one started, stored or active. Paged by id,
    /// since children share the parent's id as a prefix.
    pub(super) async fn children(&self, parent: &Scope) -> Result<BTreeSet<Scope>, SendError> {
        let prefix = parent.conversation.children();
        let of_parent = |id: &ConversationId| id.as_str().starts_with(prefix.as_str());
        let mut children: BTreeSet<Scope> = if parent.conversation.is_subagent() {
            return Ok(BTreeSet::new()); // Subagents have no children.
        } else {
            self.directory
                .awake_of(&parent.tenant)
                .into_iter()
                .filter(|scope| of_parent(&scope.conversation))
                .collect()
        };
        let mut after = prefix.clone();
        loop {
            let query = ListQuery {
                after: Some(after.clone()),
                subagents: true,
                ..ListQuery::default()
            };
            let page = self.ports.sessions.list(&parent.tenant, query).await?;
            let Some(last) = page.last().map(|row| row.conversation.clone()) else {
                break;
            };
            let found = page
                .into_iter()
                .map(|row| row.conversation)
                .filter(of_parent);
            children.extend(found.map(|id| Scope::new(parent.tenant.clone(), id)));
            if !of_parent(&last) {
                break;
            }
            after = last;
        }
        Ok(children)
    }

    async fn delete_rest(
        &self,
        scope: &Scope,
        deletion: Deletion,
        lived: bool,
    ) -> Result<bool, SendError> {
        if !lived {
            self.bill_lost_call(scope).await;
        }
        // The streams end before the journal is deleted, so that watchers get `deleted`. The events
        // are dropped last, after the watchers had time to read them. `deletion` blocks the id
        // until then.
        let ended_streams = deletion.end_streams().await; // Rounds that no activation ended.
        let was_stored = self.ports.sessions.delete(scope).await?;
        let tenant = &scope.tenant;
        let conversation = &scope.conversation;
        self.resolver
            .artifacts
            .release(tenant.clone(), Some(conversation.clone()))
            .await
            .map_err(not_released)?;
        let counters = self.tenants.get(tenant);
        counters.tools().forget_results();
        forget(&self.directory.setup_of(tenant).tools, scope).await?;
        if was_stored {
            counters.conversation_count().note_deleted(conversation);
        }
        self.resolver.compactor.forget(tenant, Some(conversation));
        if lived || ended_streams {
            tokio::time::sleep(WATCHERS_READ).await;
        }
        self.ports.events.forget(scope);
        drop(deletion);
        Ok(was_stored)
    }

    /// Erases what precedes a reset: the entries before it, the conversations of its subagents,
    /// artifacts, summaries and the data of tools. Runs in a separate task.
    pub(super) async fn empty(
        self: Arc<Self>,
        scope: Scope,
        reset_at: Seq,
        children: BTreeSet<Scope>,
    ) -> Result<(), SendError> {
        let runtime = self.directory.runtime().clone();
        let emptied = runtime.spawn(async move {
            for child in children {
                self.delete_one(&child).await?;
            }
            let before = Seq(reset_at.0.saturating_sub(1));
            self.ports.sessions.empty(&scope, before).await?;
            let tenant = &scope.tenant;
            let conversation = &scope.conversation;
            self.resolver
                .artifacts
                .release(tenant.clone(), Some(conversation.clone()))
                .await
                .map_err(not_released)?;
            let counters = self.tenants.get(tenant);
            counters.tools().forget_results();
            forget(&self.directory.setup_of(tenant).tools, &scope).await?;
            self.resolver.compactor.forget(tenant, Some(conversation));
            Ok(())
        });
        emptied
            .await
            .unwrap_or(Err(SendError::Conversation(ConversationError::Gone)))
    }

    /// Counts a refusal in the host's metrics and converts it.
    pub(super) fn admitted<T>(&self, admitted: Result<T, NotAdmitted>) -> Result<T, SendError> {
        Ok(admitted.inspect_err(|_| self.ports.collector.count(None, Figure::NotAdmitted))?)
    }

    /// Admits a conversation that may be new; `None` where nothing needs counting. Call `keep` once
    /// the conversation is stored: dropping the guard earlier has the store counted again.
    ///
    /// # Errors
    /// `Overloaded` when the tenant has as many conversations as it may have; [`SendError`] of a
    /// failing store.
    pub(super) async fn admit_conversation(
        &self,
        tenant: &Tenant,
        conversation: &ConversationId,
    ) -> Result<Option<PendingConversation>, SendError> {
        super::store_admission::admit_conversation(&self.ports, tenant, conversation).await
    }
}

/// Asks a tenant's tools to delete their data of a conversation.
async fn forget(tools: &Toolset, scope: &Scope) -> Result<(), SendError> {
    for tool in tools.names().filter_map(|name| tools.get(name)) {
        let kept = |error: ToolError| StoreError::Unavailable {
            message: format!("{}: {}", tool.spec().name(), error.message),
        };
        tool.forget_conversation(scope).await.map_err(kept)?;
    }
    Ok(())
}
