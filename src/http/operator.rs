//! What the operator's routes ask of the program that serves: it alone knows the configuration file and how tenants are made of it.

use std::collections::BTreeMap;

use callboard_actors::{ids::TenantId, ports::BoxFuture};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::KeyHash;

/// Why the program did not do what the operator asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// There is no such tenant.
    #[error("there is no such tenant")]
    UnknownTenant,
    /// The body, or the configuration, says something wrong.
    #[error("{message}")]
    Invalid {
        /// Where in the body, as a JSON pointer (RFC 6901); none for what is not in the body.
        pointer: Option<String>,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// This program cannot do it: without a configuration file there is nothing to reload.
    #[error("{0}")]
    Unsupported(String),
    /// It did not work now.
    #[error("{0}")]
    Unavailable(String),
}

/// What became of a tenant's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantPut {
    /// It is new.
    Created,
    /// It was there.
    Changed,
}

/// A key that was just made. The program has put its hash into [`super::Keys`].
#[derive(Clone, PartialEq, Eq)]
pub struct MadeKey {
    /// The key itself; shown once, in the answer.
    pub key: String,
    /// Its hash.
    pub hash: KeyHash,
}

impl std::fmt::Debug for MadeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MadeKey({:?})", self.hash)
    }
}

/// What a reload changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
pub struct Reloaded {
    /// Tenants that are new.
    pub added: Vec<String>,
    /// Tenants that were configured anew.
    pub changed: Vec<String>,
    /// Tenants that are no longer in the configuration; their keys open nothing now, their data stays.
    pub removed: Vec<String>,
    /// What changed in the file and needs a restart to hold, a line each.
    pub needs_restart: Vec<String>,
}

/// What the workspace of a tenant holds, whoever made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct WorkspaceShown {
    /// Files and folders, a file once for each of its names.
    pub files: u64,
    /// Bytes on the disk; absent where they have no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The program behind the operator's routes. Each verb answers when what it did holds for the next request.
pub trait Operator: Send + Sync + 'static {
    /// Reads the configuration again, as on SIGHUP. On an error nothing has changed.
    ///
    /// # Errors
    /// `Invalid` for a configuration that is wrong, `Unsupported` without one.
    fn reload(&self) -> BoxFuture<'_, Result<Reloaded, OperatorError>>;

    /// Sets a tenant up, or changes it: `config` has the keys of a `[[tenant]]` of the configuration but `id`.
    ///
    /// # Errors
    /// `Invalid` with the pointer of the wrong field.
    fn put_tenant(&self, id: TenantId, config: Value) -> BoxFuture<'_, Result<TenantPut, OperatorError>>;

    /// Changes a tenant's quotas: the keys of `quotas`; what is left out has no bound of its own.
    ///
    /// # Errors
    /// `UnknownTenant`; `Invalid` with the pointer of the wrong field.
    fn put_quota(&self, id: TenantId, quota: Value) -> BoxFuture<'_, Result<(), OperatorError>>;

    /// Makes a key for a tenant; with `replace` its other keys open nothing from now on.
    ///
    /// # Errors
    /// `UnknownTenant`.
    fn new_key(&self, id: TenantId, replace: bool) -> BoxFuture<'_, Result<MadeKey, OperatorError>>;

    /// Pauses a tenant, or lets it go on, so that a restart keeps it.
    ///
    /// # Errors
    /// `UnknownTenant`; `Unsupported`: the route asks the host itself then.
    fn pause(&self, id: TenantId, paused: bool) -> BoxFuture<'_, Result<(), OperatorError>> {
        let _ = (id, paused);
        Box::pin(async { Err(OperatorError::Unsupported("this program keeps no pauses".into())) })
    }

    /// Erases all that a tenant stored, what lies outside of the host included; it stays in service, as it is configured. Returns how
    /// many conversations there were.
    ///
    /// # Errors
    /// `UnknownTenant`; `Unavailable` when the store did not erase all; `Unsupported`: the route asks the host itself then.
    fn erase(&self, id: TenantId) -> BoxFuture<'_, Result<u64, OperatorError>> {
        let _ = id;
        Box::pin(async { Err(OperatorError::Unsupported("this program keeps nothing beside the host".into())) })
    }

    /// What the tenants' workspaces hold, as far as they were counted: a workspace with a quota is counted before and after each command,
    /// and when a file tool makes a file. None by default.
    fn workspaces(&self) -> BoxFuture<'_, BTreeMap<TenantId, WorkspaceShown>> {
        Box::pin(async { BTreeMap::new() })
    }

    /// Tells the program that the operator asked for the end by the route; the host begins to drain now.
    fn draining(&self) {}

    /// Forgets a tenant: its keys, its configuration, and all that it stored.
    ///
    /// # Errors
    /// `UnknownTenant`; `Unavailable` when the store did not erase all.
    fn remove_tenant(&self, id: TenantId) -> BoxFuture<'_, Result<(), OperatorError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_dyn_compatible() {
        fn takes(_: &dyn Operator) {}
        let _ = takes;
    }
}
