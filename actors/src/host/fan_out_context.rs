//! Configuration of running fan-outs (model, stores, budget), looked up by the id prefix that the
//! conversations of one fan-out share. An activation finds its fan-out from its conversation's id
//! alone.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

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

/// How far a registered fan-out has come.
struct Progress {
    /// Tasks without a result.
    left: AtomicUsize,
    /// Cancelled when the fan-out is no longer registered.
    gone: CancellationToken,
}

/// A registered fan-out of a tenant.
struct Registered {
    tenant: TenantId,
    context: Arc<FanOutContext>,
    progress: Arc<Progress>,
}

/// The fan-outs of different tenants that chose the same name: at most one per tenant.
type Alike = Vec<Registered>;

/// The running fan-outs of a host, by the id prefix of their conversations. The key is the prefix
/// alone, so that a look-up borrows it from the id and allocates nothing; tenants may use the same
/// name.
#[derive(Default)]
pub(crate) struct FanOutContexts(RwLock<HashMap<Box<str>, Alike>>);

/// The registration of a running fan-out. Dropping it removes the fan-out.
pub(crate) struct Joined {
    fan_outs: Arc<FanOutContexts>,
    root: Scope,
    progress: Arc<Progress>,
}

impl Joined {
    /// Counts a result. Call it before the result is sent: whoever has read the last one may delete
    /// the fan-out or start it again.
    pub(crate) fn ends_a_task(&self) {
        self.progress.left.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let gone = self.fan_outs.leave(&self.root);
        drop(gone); // After the lock: dropping the ports may call out.
        self.progress.gone.cancel();
    }
}

impl FanOutContexts {
    /// Registers a fan-out of `tasks` tasks whose conversations have `root` as their parent. Returns
    /// `None` while a fan-out of this root is registered.
    pub(crate) fn join(
        self: &Arc<Self>,
        root: &Scope,
        tasks: usize,
        context: FanOutContext,
    ) -> Option<Joined> {
        let mut fan_outs = self.0.write();
        let alike = fan_outs
            .entry(root.conversation.family().as_str().into())
            .or_default();
        if alike.iter().any(|other| other.tenant == root.tenant) {
            return None;
        }
        let progress = Arc::new(Progress {
            left: AtomicUsize::new(tasks),
            gone: CancellationToken::new(),
        });
        alike.push(Registered {
            tenant: root.tenant.clone(),
            context: Arc::new(context),
            progress: progress.clone(),
        });
        Some(Joined {
            fan_outs: self.clone(),
            root: root.clone(),
            progress,
        })
    }

    fn leave(&self, root: &Scope) -> Option<Arc<FanOutContext>> {
        let family = root.conversation.family();
        let mut fan_outs = self.0.write();
        let alike = fan_outs.get_mut(family.as_str())?;
        let place = alike.iter().position(|other| other.tenant == root.tenant)?;
        let gone = alike.swap_remove(place);
        if alike.is_empty() {
            fan_outs.remove(family.as_str());
        }
        Some(gone.context)
    }

    /// Waits until a fan-out whose tasks have all ended is no longer registered, which takes as long
    /// as its conversations need to fall asleep. Returns at once if tasks of it run. Cancel safe.
    pub(crate) async fn rested(&self, root: &Scope) {
        let family = root.conversation.family();
        let progress = self.look(family.as_str(), &root.tenant, |found| {
            found.progress.clone()
        });
        if let Some(progress) = progress
            && progress.left.load(Ordering::Acquire) == 0
        {
            progress.gone.cancelled().await;
        }
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
        self.look(family, tenant, |found| found.context.clone())
    }

    fn look<T>(
        &self,
        family: &str,
        tenant: &TenantId,
        take: impl FnOnce(&Registered) -> T,
    ) -> Option<T> {
        let fan_outs = self.0.read();
        let mut alike = fan_outs.get(family)?.iter();
        alike.find(|other| other.tenant == *tenant).map(take)
    }
}
