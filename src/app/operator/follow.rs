//! Follows what other hosts of the same database change.

use std::time::{Duration, Instant};

use tokio::{sync::MutexGuard, time::MissedTickBehavior};

use super::{AppError, State, StoredTenants, TenantOperator, add, section_of};
use crate::config::TenantSection;

/// How often a host looks for changes.
const LOOK: Duration = Duration::from_secs(1);

/// How long a host waits before it tries again to apply changes that it could not apply, such as a
/// tenant whose workspace is missing here.
const TRY_AGAIN: Duration = Duration::from_secs(30);

impl TenantOperator {
    /// Applies what other hosts change, until it is dropped.
    pub(crate) async fn follow(&self) {
        if !self.0.store.is_shared() {
            return std::future::pending().await;
        }
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.current().await {
                // A database that is away is reported with the sessions.
                tracing::debug!(%error, "changes of other hosts could not be read");
            }
        }
    }

    /// The state with all that other hosts have changed, locked.
    ///
    /// # Errors
    /// The store's. A change that cannot be applied here is logged.
    pub(super) async fn current(&self) -> Result<MutexGuard<'_, State>, AppError> {
        let mut state = self.0.state.lock().await;
        match self.0.store.newer(&state.written).await? {
            Some(written) => {
                state.written = written;
                self.restrict(&mut state);
            }
            None if state.try_again.is_some_and(|at| at <= Instant::now()) => {}
            None => return Ok(state),
        }
        let config = state.config.clone();
        let stored = state.written.tenants.clone();
        state.try_again = None;
        if let Err(error) = self.apply(&mut state, config, stored).await {
            tracing::error!(%error, "a change that another host made cannot be applied here; keys and pauses hold");
            state.try_again = Some(Instant::now() + TRY_AGAIN);
        }
        Ok(state)
    }

    /// Applies keys and pauses to the tenants that are served, which cannot fail. The keys of a
    /// tenant that was removed open nothing any more.
    fn restrict(&self, state: &mut State) {
        let State {
            config,
            written,
            served,
            ..
        } = state;
        for (id, served_tenant) in served {
            let stored = &written.tenants;
            let section = match served_tenant.from_file {
                true => config
                    .tenants
                    .iter()
                    .find(|section| section.id == *id)
                    .cloned(),
                false => match stored
                    .tenants
                    .get(id)
                    .map(|known| section_of(config, id, known))
                {
                    Some(Ok(section)) => section,
                    Some(Err(_)) => continue, // Reported when it is applied.
                    None => None,
                },
            };
            let Some(mut section) = section else {
                served_tenant.section.key_sha256.clear();
                continue;
            };
            overlay(&mut section, stored);
            served_tenant.section.key_sha256 = section.key_sha256;
            served_tenant.section.paused = section.paused;
            let paused = section.paused.unwrap_or_default();
            if let Err(error) = self.0.host.tenant(id).pause(paused) {
                tracing::error!(%error, tenant = %id, "a tenant could not be paused or resumed");
            }
        }
        self.publish_keys(state);
    }
}

/// Adds what was changed at run time to a section.
pub(super) fn overlay(section: &mut TenantSection, stored: &StoredTenants) {
    if let Some(known) = stored.tenants.get(&section.id) {
        section
            .key_sha256
            .retain(|hash| !known.replaced_sha256.contains(hash));
        add(section, known);
    }
}
