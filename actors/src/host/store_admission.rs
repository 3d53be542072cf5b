//! Admission by a tenant's quotas of stored bytes and conversations, for a change that is about to
//! be stored.

use tokio::time::sleep_until;

use crate::{
    conversation::Ports,
    ids::{ConversationId, Scope},
    journal::Head,
    metrics_collector::Figure,
    tenant::{
        NoRoom, NotAdmitted, PendingBytes, PendingConversation, RoundBytes, Seat, Taken, Tenant,
    },
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
            .inspect_err(|_: &NotAdmitted| ports.collector.count(None, Figure::NotAdmitted))?),
    }
}

/// As [`admit_bytes`], for a prompt of `bytes` that may begin a round: `seat` then holds what the
/// round is taken to store until it ends, so that rounds at once do not pass the quota together.
///
/// # Errors
/// As [`admit_bytes`].
pub(super) async fn admit_round(
    ports: &Ports,
    tenant: &Tenant,
    seat: &mut Seat,
    bytes: usize,
) -> Result<Option<PendingBytes>, SendError> {
    match room_for_round(ports, tenant, bytes).await? {
        Ok(Some((prompt, round))) => {
            seat.keep_for_round(round);
            Ok(Some(prompt))
        }
        Ok(None) => Ok(None),
        Err(NoRoom::Full | NoRoom::OpenRounds) => Ok(tenant
            .refuse(NotAdmitted::StoredBytes)
            .inspect_err(|_: &NotAdmitted| ports.collector.count(None, Figure::NotAdmitted))?),
    }
}

/// Room in the tenant's stored bytes for a prompt of `bytes` and its round; `Ok(Ok(None))` when they
/// are not bounded.
///
/// # Errors
/// [`SendError`] of a failing store.
pub(super) async fn room_for_round(
    ports: &Ports,
    tenant: &Tenant,
    bytes: usize,
) -> Result<Result<Option<(PendingBytes, RoundBytes)>, NoRoom>, SendError> {
    let stored = tenant.stored();
    if !stored.is_bounded() {
        return Ok(Ok(None));
    }
    stored.note(ports.sessions.stored_bytes(tenant.id()).await?);
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    Ok(stored.admit_round(bytes).map(Some))
}

/// The bytes and the conversation of a task of a subagent or a fan-out, until its conversation has
/// accepted it.
#[derive(Debug)]
pub(super) struct PendingTask {
    pub(super) bytes: Option<PendingBytes>,
    pub(super) conversation: Option<PendingConversation>,
}

impl PendingTask {
    /// The conversation has accepted the task.
    pub(super) fn keep(self) {
        drop(self.bytes);
        if let Some(conversation) = self.conversation {
            conversation.keep();
        }
    }
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
            .inspect_err(|_: &NotAdmitted| ports.collector.count(None, Figure::NotAdmitted))?),
    }
}
