//! Configuration of running fan-outs (model, stores, budget), looked up by the id prefix that the
//! conversations of one fan-out share. An activation finds its fan-out from its conversation's id
//! alone.

use std::{collections::HashMap, sync::Arc};

use parking_lot::RwLock;

use crate::{
    conversation::{Ports, Setup},
    ids::{Scope, TenantId},
    tenant::Family,
};

/// What the conversations of one fan-out are configured with.
#[derive(Clone)]
pub(crate) struct FanOutContext {
    pub(crate) setup: Arc<Setup>,
    pub(crate) ports: Ports,
    /// The budget that they share; `None` without a bound.
    pub(crate) family: Option<Arc<Family>>,
}

/// The fan-outs of different tenants that chose the same name: at most one per tenant.
type Alike = Vec<(TenantId, Arc<FanOutContext>)>;

/// The running fan-outs of a host, by the id prefix of their conversations. The key is the prefix
/// alone, so that a look-up borrows it from the id and allocates nothing; tenants may use the same
/// name.
#[derive(Default)]
pub(crate) struct FanOutContexts(RwLock<HashMap<Box<str>, Alike>>);

/// The registration of a running fan-out. Dropping it removes the fan-out.
pub(crate) struct Joined {
    fan_outs: Arc<FanOutContexts>,
    root: Scope,
}

impl Drop for Joined {
    fn drop(&mut self) {
        let gone = self.fan_outs.leave(&self.root);
        drop(gone); // After the lock: dropping the ports may call out.
    }
}

impl FanOutContexts {
    /// Registers a fan-out whose conversations have `root` as their parent. Returns `None` while a
    /// fan-out of this root is registered.
    pub(crate) fn join(self: &Arc<Self>, root: &Scope, context: FanOutContext) -> Option<Joined> {
        let mut fan_outs = self.0.write();
        let alike = fan_outs
            .entry(root.conversation.family().as_str().into())
            .or_default();
        if alike.iter().any(|(tenant, _)| *tenant == root.tenant) {
            return None;
        }
        alike.push((root.tenant.clone(), Arc::new(context)));
        Some(Joined {
            fan_outs: self.clone(),
            root: root.clone(),
        })
    }

    fn leave(&self, root: &Scope) -> Option<Arc<FanOutContext>> {
        let family = root.conversation.family();
        let mut fan_outs = self.0.write();
        let alike = fan_outs.get_mut(family.as_str())?;
        let place = alike
            .iter()
            .position(|(tenant, _)| *tenant == root.tenant)?;
        let (_, gone) = alike.swap_remove(place);
        if alike.is_empty() {
            fan_outs.remove(family.as_str());
        }
        Some(gone)
    }

    /// Whether a fan-out of this root is registered.
    pub(crate) fn has(&self, root: &Scope) -> bool {
        self.find(root.conversation.family().as_str(), &root.tenant)
            .is_some()
    }

    /// The fan-out that a conversation belongs to; `None` for any other conversation.
    pub(crate) fn get(&self, scope: &Scope) -> Option<Arc<FanOutContext>> {
        self.find(scope.conversation.siblings()?, &scope.tenant)
    }

    fn find(&self, family: &str, tenant: &TenantId) -> Option<Arc<FanOutContext>> {
        let fan_outs = self.0.read();
        fan_outs
            .get(family)?
            .iter()
            .find(|(whose, _)| whose == tenant)
            .map(|(_, context)| context.clone())
    }
}
