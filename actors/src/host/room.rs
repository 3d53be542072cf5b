//! Admission by a tenant's quotas of stored bytes and conversations, for a change that is about to
//! be stored.

use crate::{
    conversation::Ports,
    ids::{ConversationId, Scope},
    journal::Head,
    tenant::{Coming, NotAdmitted, Place, Taken, Tenant},
};

use super::SendError;

/// Reserves room for `bytes` that are about to be stored. The guard is held until they are stored;
/// `None` when the tenant's stored bytes are not bounded.
///
/// # Errors
/// `Overloaded` when they do not fit; [`SendError`] of a failing store.
pub(super) async fn room(ports: &Ports, tenant: &Tenant, bytes: usize) -> Result<Option<Coming>, SendError> {
    let stored = tenant.stored();
    if !stored.is_bounded() {
        return Ok(None);
    }
    stored.note(ports.sessions.stored_bytes(tenant.id()).await?);
    match stored.admit(u64::try_from(bytes).unwrap_or(u64::MAX)) {
        Some(coming) => Ok(Some(coming)),
        None => Ok(tenant.refuse(NotAdmitted::StoredBytes).inspect_err(|_: &NotAdmitted| ports.counters.refusals.add(1))?),
    }
}

/// As [`HostInner::place`], for callers that hold no host. A conversation that exists already needs
/// no place. The count of stored conversations is read from the store only when the quota does not
/// know it yet, hence the second `take`.
pub(super) async fn place(ports: &Ports, tenant: &Tenant, conversation: &ConversationId) -> Result<Option<Place>, SendError> {
    let places = tenant.places();
    if !places.is_bounded() || places.has_seen(conversation) {
        return Ok(None);
    }
    let place = places.enter(conversation.clone());
    let scope = Scope::new(tenant.id().clone(), conversation.clone());
    if ports.sessions.head(&scope).await? != Head::default() {
        places.note_stored(conversation);
        return Ok(None);
    }
    let mut taken = place.take();
    if taken == Taken::CountFirst {
        places.counted(ports.sessions.count(tenant.id()).await?);
        taken = place.take();
    }
    match taken {
        Taken::Yes => Ok(Some(place)),
        Taken::No | Taken::CountFirst => {
            Ok(tenant.refuse(NotAdmitted::Conversations).inspect_err(|_: &NotAdmitted| ports.counters.refusals.add(1))?)
        }
    }
}
