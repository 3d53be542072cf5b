//! What the host asks of its store every second: whether one that failed can be written, and to keep
//! what tenants have spent.

use std::sync::Arc;

use super::Directory;
use crate::{conversation::UNATTENDED, ports::StoreError};

impl Directory {
    /// Stores what tenants with a budget have spent, in a task. A task that has not ended is left to
    /// its work.
    pub(crate) fn store_spending(self: &Arc<Self>) {
        let Ok(place) = self.stores_spending.clone().try_acquire_owned() else {
            return;
        };
        let (tenants, stopped) = (self.tenants.clone(), self.stopped.clone());
        self.runtime.spawn(async move {
            stopped.run_until_cancelled(tenants.store_spending()).await;
            drop(place);
        });
    }

    /// In an outage for whose end no conversation waits, tries the store until a write succeeds or a
    /// conversation waits. One task at a time does.
    pub(crate) fn attend_store(self: &Arc<Self>) {
        if !self.ports.store_health.is_unattended() {
            return;
        }
        let Ok(place) = self.tries_store.clone().try_acquire_owned() else {
            return;
        };
        let (ports, stopped) = (self.ports.clone(), self.stopped.clone());
        self.runtime.spawn(async move {
            let health = &ports.store_health;
            let tries = async {
                while health.is_unattended() {
                    match ports.sessions.try_write().await {
                        Ok(()) => health.written(),
                        Err(StoreError::Unavailable { message }) => health.failed(&message),
                        Err(error) => health.failed(&error.to_string()),
                    }
                    tokio::time::sleep(UNATTENDED).await;
                }
            };
            stopped.run_until_cancelled(tries).await;
            drop(place);
        });
    }
}
