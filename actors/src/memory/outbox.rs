//! The outbox of journals in memory, lost with the process.

use std::{collections::BTreeMap, future::ready, time::Duration};

use parking_lot::Mutex;

use super::lock;
use crate::{
    ids::{Scope, TenantId},
    ports::{BoxFuture, Outbox, OutboxMessage, StoreError},
    time::Timestamp,
};

/// The messages of each tenant, in the order in which they were stored.
#[derive(Debug, Default)]
pub(super) struct MemoryOutbox(Mutex<BTreeMap<TenantId, Vec<Waiting>>>);

#[derive(Debug)]
struct Waiting {
    message: OutboxMessage,
    due_at: Timestamp,
}

impl MemoryOutbox {
    pub(super) fn put(&self, messages: Vec<OutboxMessage>) {
        if messages.is_empty() {
            return;
        }
        let mut tenants = lock(&self.0);
        for message in messages {
            let due_at = Timestamp(0);
            let waiting = tenants.entry(message.scope.tenant.clone()).or_default();
            waiting.push(Waiting { message, due_at });
        }
    }

    pub(super) fn remove(&self, scope: &Scope) {
        self.retain(&scope.tenant, |waiting| waiting.message.scope != *scope);
    }

    /// Keeps some messages of a tenant; returns how many are left.
    fn retain(&self, tenant: &TenantId, keeps: impl FnMut(&Waiting) -> bool) -> usize {
        let mut tenants = lock(&self.0);
        let Some(waiting) = tenants.get_mut(tenant) else {
            return 0;
        };
        waiting.retain(keeps);
        let left = waiting.len();
        if left == 0 {
            tenants.remove(tenant);
        }
        left
    }
}

impl Outbox for MemoryOutbox {
    fn tenants(&self, now: Timestamp) -> BoxFuture<'_, Result<Vec<(TenantId, bool)>, StoreError>> {
        let found = lock(&self.0)
            .iter()
            .map(|(tenant, all)| (tenant.clone(), all.iter().any(|one| one.due_at <= now)))
            .collect();
        Box::pin(ready(Ok(found)))
    }

    fn claim<'a>(
        &'a self,
        tenant: &'a TenantId,
        now: Timestamp,
        lease: Duration,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<OutboxMessage>, StoreError>> {
        let mut tenants = lock(&self.0);
        let mut due: Vec<&mut Waiting> = tenants
            .get_mut(tenant)
            .into_iter()
            .flatten()
            .filter(|waiting| waiting.due_at <= now)
            .collect();
        due.sort_by_key(|waiting| waiting.due_at);
        let claimed = due
            .into_iter()
            .take(count)
            .map(|waiting| {
                waiting.due_at = after(now, lease);
                waiting.message.tries = waiting.message.tries.saturating_add(1);
                waiting.message.clone()
            })
            .collect();
        Box::pin(ready(Ok(claimed)))
    }

    fn settle<'a>(
        &'a self,
        message: &'a OutboxMessage,
        now: Timestamp,
        again: Option<Duration>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut tenants = lock(&self.0);
        let tenant = &message.scope.tenant;
        if let Some(all) = tenants.get_mut(tenant) {
            match again {
                Some(wait) => all
                    .iter_mut()
                    .filter(|waiting| waiting.message.id == message.id)
                    .for_each(|waiting| waiting.due_at = after(now, wait)),
                None => all.retain(|waiting| waiting.message.id != message.id),
            }
            if all.is_empty() {
                tenants.remove(tenant);
            }
        }
        Box::pin(ready(Ok(())))
    }

    fn trim<'a>(
        &'a self,
        tenant: &'a TenantId,
        before: Timestamp,
        keep: usize,
    ) -> BoxFuture<'a, Result<(u64, u64), StoreError>> {
        let had = lock(&self.0).get(tenant).map_or(0, Vec::len);
        let mut beyond = had.saturating_sub(keep);
        let left = self.retain(tenant, |waiting| {
            let is_beyond = beyond > 0;
            beyond = beyond.saturating_sub(1);
            !is_beyond && waiting.message.at >= before
        });
        Box::pin(ready(Ok((had.saturating_sub(left) as u64, left as u64))))
    }
}

fn after(now: Timestamp, wait: Duration) -> Timestamp {
    now.plus_ms(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}
