//! What the conversations of fan-outs are made of while they run: their own model, journal, events and budget. By family, so that a life
//! finds it by its conversation's id alone.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use crate::{
    conversation::{Ports, Setup},
    id_hash::IdHash,
    ids::{Scope, TenantId},
    tenant::Family,
};

/// One fan-out's.
#[derive(Clone)]
pub(crate) struct FanOutContext {
    pub(crate) setup: Arc<Setup>,
    pub(crate) ports: Ports,
    /// What they spend together, where that is bounded.
    pub(crate) family: Option<Arc<Family>>,
}

/// Those whose conversations' ids start alike: one a tenant at most.
type Alike = Vec<(TenantId, Arc<FanOutContext>)>;

/// Those of a host, by what their conversations' ids start with: each life looks here, and makes no text for that. Tenants may name
/// theirs alike.
#[derive(Default)]
pub(crate) struct FanOutContexts(RwLock<HashMap<Box<str>, Alike, IdHash>>);

/// A fan-out that is among them until this is dropped.
pub(crate) struct Joined {
    fan_outs: Arc<FanOutContexts>,
    root: Scope,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let gone = self.fan_outs.leave(&self.root);
        drop(gone); // Its ports after the lock.
    }
}

impl FanOutContexts {
    /// Adds the one whose conversations have `root` for a parent; `None` while there is one.
    pub(crate) fn join(self: &Arc<Self>, root: &Scope, context: FanOutContext) -> Option<Joined> {
        let mut fan_outs = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let alike = fan_outs.entry(root.conversation.family().as_str().into()).or_default();
        if alike.iter().any(|(tenant, _)| *tenant == root.tenant) {
            return None;
        }
        alike.push((root.tenant.clone(), Arc::new(context)));
        Some(Joined { fan_outs: self.clone(), root: root.clone() })
    }

    fn leave(&self, root: &Scope) -> Option<Arc<FanOutContext>> {
        let family = root.conversation.family();
        let mut fan_outs = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let alike = fan_outs.get_mut(family.as_str())?;
        let place = alike.iter().position(|(tenant, _)| *tenant == root.tenant)?;
        let (_, gone) = alike.swap_remove(place);
        if alike.is_empty() {
            fan_outs.remove(family.as_str());
        }
        Some(gone)
    }

    /// Whether there is one for the children of `root`.
    pub(crate) fn has(&self, root: &Scope) -> bool {
        self.find(root.conversation.family().as_str(), &root.tenant).is_some()
    }

    /// The one that a conversation belongs to.
    pub(crate) fn of(&self, scope: &Scope) -> Option<Arc<FanOutContext>> {
        self.find(scope.conversation.siblings()?, &scope.tenant)
    }

    fn find(&self, family: &str, tenant: &TenantId) -> Option<Arc<FanOutContext>> {
        let fan_outs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        fan_outs.get(family)?.iter().find(|(whose, _)| whose == tenant).map(|(_, context)| context.clone())
    }
}
