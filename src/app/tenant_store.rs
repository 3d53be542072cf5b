//! Where an operator's changes are stored: `tenants.json` in the data folder, or the PostgreSQL
//! database of the sessions, which all its hosts share.

use std::sync::Arc;

use callboard_actors::ports::StoreError;

use super::{
    Sessions,
    stored_tenants::{DataFolder, StoredTenant, StoredTenants, StoredTenantsError},
};
use crate::storage::{PostgresControl, TenantChanges};

/// The changes as they are stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Written {
    pub(super) tenants: StoredTenants,
    /// The revision in the database; 0 for a file.
    pub(super) revision: u64,
}

/// The store of an operator's changes.
pub(super) struct TenantStore {
    /// Locked for this process, whatever it holds.
    folder: Arc<DataFolder>,
    shared: Option<PostgresControl>,
}

fn away(error: StoreError) -> StoredTenantsError {
    StoredTenantsError::Database(match error {
        StoreError::Unavailable { message } => message,
        other => other.to_string(),
    })
}

impl TenantStore {
    pub(super) fn new(folder: DataFolder, sessions: &Sessions) -> Self {
        let shared = match sessions {
            Sessions::Postgres(store, _) => Some(store.control()),
            Sessions::Sqlite(..) | Sessions::Memory(_) => None,
        };
        Self {
            folder: Arc::new(folder),
            shared,
        }
    }

    /// Whether other hosts may change what is stored.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Reads everything. A database that no operator has changed yet takes over the file.
    pub(super) async fn open(&self) -> Result<Written, StoredTenantsError> {
        let Some(shared) = &self.shared else {
            return Ok(Written {
                tenants: self.folder.read()?,
                revision: 0,
            });
        };
        let nothing = Written {
            tenants: StoredTenants::default(),
            revision: 0,
        };
        let changes = shared.changes(0).await.map_err(away)?;
        let of_file = self.folder.read()?;
        if changes.revision > 0 || of_file.tenants.is_empty() {
            return applied(&nothing, changes);
        }
        match self.write(&nothing, &of_file).await {
            Ok(written) => {
                tracing::info!("the tenants of tenants.json were copied to the database");
                Ok(written)
            }
            // Another host was first: its tenants hold.
            Err(StoredTenantsError::Changed) => {
                applied(&nothing, shared.changes(0).await.map_err(away)?)
            }
            Err(error) => Err(error),
        }
    }

    /// What other hosts have changed since; `None` if nothing.
    pub(super) async fn newer(
        &self,
        known: &Written,
    ) -> Result<Option<Written>, StoredTenantsError> {
        let Some(shared) = &self.shared else {
            return Ok(None);
        };
        let changes = shared.changes(known.revision).await.map_err(away)?;
        if changes.revision == known.revision {
            return Ok(None);
        }
        applied(known, changes).map(Some)
    }

    /// Stores the differences to what is known to be stored, and returns when they are durable.
    ///
    /// # Errors
    /// `Changed` if another host has stored something since.
    pub(super) async fn write(
        &self,
        known: &Written,
        tenants: &StoredTenants,
    ) -> Result<Written, StoredTenantsError> {
        let mut written = Written {
            tenants: tenants.clone(),
            revision: known.revision,
        };
        let Some(shared) = &self.shared else {
            let folder = Arc::clone(&self.folder);
            let tenants = tenants.clone();
            let writing = tokio::task::spawn_blocking(move || folder.write(&tenants));
            let stopping = |_| StoredTenantsError::Database("the host is stopping".to_owned());
            writing.await.map_err(stopping)??;
            return Ok(written);
        };
        let changes = differences(&known.tenants, tenants)?;
        if changes.is_empty() {
            return Ok(written);
        }
        let changed = shared.change(known.revision, changes).await;
        written.revision = changed.map_err(away)?.ok_or(StoredTenantsError::Changed)?;
        Ok(written)
    }
}

/// The tenants of `after` that differ, and those that it has no more.
fn differences(
    before: &StoredTenants,
    after: &StoredTenants,
) -> Result<Vec<crate::storage::TenantChange>, StoredTenantsError> {
    let mut changes = Vec::new();
    for (id, tenant) in &after.tenants {
        if before.tenants.get(id) != Some(tenant) {
            let body = serde_json::to_string(tenant)
                .map_err(|error| StoredTenantsError::Database(error.to_string()))?;
            changes.push((id.clone(), Some(body)));
        }
    }
    let gone = before
        .tenants
        .keys()
        .filter(|id| !after.tenants.contains_key(*id));
    changes.extend(gone.map(|id| (id.clone(), None)));
    Ok(changes)
}

fn applied(known: &Written, changes: TenantChanges) -> Result<Written, StoredTenantsError> {
    let mut tenants = known.tenants.clone();
    for (id, body) in changes.tenants {
        let tenant: Option<StoredTenant> = body
            .map(|body| serde_json::from_str(&body))
            .transpose()
            .map_err(|error| {
                StoredTenantsError::Database(format!("tenant `{id}` cannot be read: {error}"))
            })?;
        match tenant {
            Some(tenant) => drop(tenants.tenants.insert(id, tenant)),
            None => drop(tenants.tenants.remove(&id)),
        }
    }
    Ok(Written {
        tenants,
        revision: changes.revision,
    })
}
