//! Admission by a tenant's quotas of stored bytes and conversations, for a change that is about to
//! be stored.

use tokio::time::sleep_until;

use crate::{
    conversation::Ports,
    ids::{ConversationId, Scope},
    journal::Head,
    tenant::{NotAdmitted, PendingBytes, PendingConversation, Taken, Tenant},
};

use super::SendError;

/// Admits `bytes` that are about to be stored. The guard is held until they are stored;
/// `None` when the tenant's stored bytes are not bounded.
///
/// # Errors
/// `Overloaded` when they do not fit; [`SendError`] of a failing store.
pub(super) async fn admit_bytes(
    ports: &Ports,
    tenant: &Tenant,
    bytes: usize,
) -> Result<Option<PendingBytes>, SendError> {
    let stored = tenant.stored();
    if !stored.is_bounded() {
        return Ok(None);
    }
    stored.note(ports.sessions.stored_bytes(tenant.id()).await?);
    match stored.admit(u64::try_from(bytes).unwrap_or(u64::MAX)) {
        Some(pending) => Ok(Some(pending)),
        None => Ok(tenant
            .refuse(NotAdmitted::StoredBytes)
            .inspect_err(|_: &NotAdmitted| ports.counters.refusals.add(1))?),
    }
}

/// What a task of a subagent or a fan-out may store, until its conversation has accepted it.
#[derive(Debug)]
pub(super) struct PendingTask {
    conversation: Option<PendingConversation>,
    _bytes: Option<PendingBytes>,
}

impl PendingTask {
    /// The conversation has accepted the task.
    pub(super) fn keep(self) {
        if let Some(conversation) = self.conversation {
            conversation.keep();
        }
    }
}

/// Admits a task of `bytes` that begins a conversation.
///
/// # Errors
/// As [`admit_bytes`] and [`admit_conversation`].
pub(super) async fn admit_task(
    ports: &Ports,
    tenant: &Tenant,
    conversation: &ConversationId,
    bytes: usize,
) -> Result<PendingTask, SendError> {
    Ok(PendingTask {
        _bytes: admit_bytes(ports, tenant, bytes).await?,
        conversation: admit_conversation(ports, tenant, conversation).await?,
    })
}

/// As [`HostInner::admit_conversation`], for callers that hold no host. A conversation that exists
/// already is counted and needs no admission. The count of stored conversations is read from the
/// store only when the quota does not know it yet, hence the second `take`. Where several hosts create
/// conversations, one that is near the quota may have to wait for a second.
pub(super) async fn admit_conversation(
    ports: &Ports,
    tenant: &Tenant,
    conversation: &ConversationId,
) -> Result<Option<PendingConversation>, SendError> {
    let count = tenant.conversation_count();
    if !count.is_bounded() || count.has_seen(conversation) {
        return Ok(None);
    }
    let pending = count.announce(conversation.clone());
    let scope = Scope::new(tenant.id().clone(), conversation.clone());
    if ports.sessions.head(&scope).await? != Head::default() {
        count.note_stored(conversation);
        return Ok(None);
    }
    let mut taken = pending.take();
    if let Taken::Later(then) = taken {
        sleep_until(then).await;
        taken = pending.take();
    }
    if taken == Taken::CountFirst {
        let begun = count.begin_count();
        count.counted(begun, ports.sessions.count(tenant.id()).await?);
        taken = pending.take();
    }
    match taken {
        Taken::Yes => Ok(Some(pending)),
        Taken::No | Taken::CountFirst | Taken::Later(_) => Ok(tenant
            .refuse(NotAdmitted::Conversations)
            .inspect_err(|_: &NotAdmitted| ports.counters.refusals.add(1))?),
    }
}
