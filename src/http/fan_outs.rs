//! The fan-outs that tenants started over HTTP, with their results. They are kept in memory: of a
//! named fan-out the journals remain, and starting it again under its name reads them.

use std::{collections::HashMap, sync::Arc};

use callboard_actors::{
    host::{FanOutRun, TaskEnd},
    ids::TenantId,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::Problem;

/// Fan-outs of one tenant that are kept; beyond it the oldest that has ended goes, and if all run,
/// a new one is refused.
const KEPT_MAX: usize = 32;

/// A fan-out, and what is known of it.
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) cancel: CancellationToken,
    /// The results in the order of the tasks, and how many there are.
    pub(super) results: Mutex<Results>,
    /// Changes with each result.
    changed: watch::Sender<usize>,
}

/// The results so far.
pub(super) struct Results {
    pub(super) ends: Vec<Option<Arc<TaskEnd>>>,
    pub(super) count: usize,
}

impl Kept {
    /// Whether every task has ended.
    pub(super) fn is_over(&self) -> bool {
        let results = self.results.lock();
        results.count == results.ends.len()
    }

    /// A receiver that changes with each result.
    pub(super) fn watch(&self) -> watch::Receiver<usize> {
        self.changed.subscribe()
    }

    fn take(&self, end: Arc<TaskEnd>) {
        let mut results = self.results.lock();
        if let Some(place) = results.ends.get_mut(end.index)
            && place.is_none()
        {
            *place = Some(end);
            results.count += 1;
        }
        let count = results.count;
        drop(results);
        self.changed.send_replace(count);
    }
}

/// The fan-outs of all tenants, each tenant's in the order of their start.
#[derive(Default)]
pub(super) struct FanOuts(Mutex<HashMap<TenantId, Vec<Arc<Kept>>>>);

impl FanOuts {
    /// Keeps a fan-out that was started, and collects its results.
    pub(super) fn keep(&self, tenant: &TenantId, mut run: FanOutRun) -> Arc<Kept> {
        let kept = Arc::new(Kept {
            name: run.name().to_owned(),
            cancel: run.cancel_token(),
            results: Mutex::new(Results {
                ends: vec![None; run.tasks()],
                count: 0,
            }),
            changed: watch::Sender::new(0),
        });
        let mut all = self.0.lock();
        let of_tenant = all.entry(tenant.clone()).or_default();
        of_tenant.retain(|known| known.name != kept.name);
        of_tenant.push(kept.clone());
        drop(all);
        tokio::spawn({
            let kept = kept.clone();
            async move {
                while let Some(end) = run.next().await {
                    kept.take(end);
                }
            }
        });
        kept
    }

    /// Makes room for one more fan-out of a tenant.
    ///
    /// # Errors
    /// 429 when as many run as are kept.
    pub(super) fn make_room(&self, tenant: &TenantId) -> Result<(), Problem> {
        let mut all = self.0.lock();
        let Some(of_tenant) = all.get_mut(tenant) else {
            return Ok(());
        };
        if of_tenant.len() < KEPT_MAX {
            return Ok(());
        }
        match of_tenant.iter().position(|kept| kept.is_over()) {
            Some(oldest) => {
                of_tenant.remove(oldest);
                Ok(())
            }
            None => Err(Problem::too_many(
                "too_many_fan_outs",
                "this tenant has reached its limit of running fan-outs; wait for one or cancel it",
            )),
        }
    }

    /// The fan-outs of a tenant, oldest first.
    pub(super) fn of(&self, tenant: &TenantId) -> Vec<Arc<Kept>> {
        self.0.lock().get(tenant).cloned().unwrap_or_default()
    }

    /// One fan-out of a tenant.
    ///
    /// # Errors
    /// 404.
    pub(super) fn get(&self, tenant: &TenantId, name: &str) -> Result<Arc<Kept>, Problem> {
        self.of(tenant)
            .into_iter()
            .find(|kept| kept.name == name)
            .ok_or_else(|| Problem::not_found("fan-out"))
    }

    /// Forgets a fan-out.
    pub(super) fn forget(&self, tenant: &TenantId, name: &str) {
        if let Some(of_tenant) = self.0.lock().get_mut(tenant) {
            of_tenant.retain(|kept| kept.name != name);
        }
    }
}
