//! Tries a store that cannot be written and for which no conversation waits.

use std::sync::Arc;

use super::Directory;
use crate::{conversation::UNATTENDED, ports::StoreError};

impl Directory {
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
