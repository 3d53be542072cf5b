//! The port behind the operator's routes. The program that embeds the host implements it, because
//! only the program knows its configuration file and how to build tenants from it.

use std::collections::BTreeMap;

use callboard_actors::{ids::TenantId, ports::BoxFuture};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::KeyHash;

/// Why an operator's request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// No tenant has this id.
    #[error("there is no such tenant")]
    UnknownTenant,
    /// The body or the configuration is invalid.
    #[error("{message}")]
    Invalid {
        /// The invalid field of the body, as a JSON pointer (RFC 6901); `None` when the error is
        /// not in the body.
        pointer: Option<String>,
        /// What is wrong, and what would be valid.
        message: String,
    },
    /// The program does not support the operation: without a configuration file, there is nothing
    /// to reload.
    #[error("{0}")]
    Unsupported(String),
    /// The operation failed for now; a retry may succeed.
    #[error("{0}")]
    Unavailable(String),
}

/// Outcome of storing a tenant's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantPut {
    /// The tenant is new.
    Created,
    /// The tenant existed; its configuration is now this one.
    Changed,
}

/// A generated key. The program has already registered its hash in [`super::Keys`].
#[derive(Clone, PartialEq, Eq)]
pub struct MadeKey {
    /// The key in plain text; shown once, in the response.
    pub key: String,
    /// The hash that [`super::Keys`] holds.
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
    /// Tenants that the reload added.
    pub added: Vec<String>,
    /// Tenants whose configuration changed.
    pub changed: Vec<String>,
    /// Tenants that are no longer in the configuration: their keys are removed, their data stays.
    pub removed: Vec<String>,
    /// Settings that changed in the file but take effect only after a restart, one line each.
    pub needs_restart: Vec<String>,
}

/// What a tenant's workspace holds, whoever created it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct WorkspaceShown {
    /// Files and folders; a file counts once for each of its names.
    pub files: u64,
    /// Bytes on the disk; absent where they are not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What became of a tenant's webhooks since the start of the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct WebhookShown {
    /// Calls that the receiver took.
    pub delivered: u64,
    /// Tries that failed; most are made again.
    pub failed: u64,
    /// Messages that no further try follows.
    pub given_up: u64,
    /// Messages that wait, as of the last count, which is made once a minute.
    pub pending: u64,
    /// Whether the last calls failed, so that the receiver gets one call at a time.
    pub failing: bool,
}

/// The program behind the operator's routes. When a method returns, its effect holds for the next
/// request.
pub trait Operator: Send + Sync + 'static {
    /// Reads the configuration again, as SIGHUP does. An error leaves everything unchanged.
    ///
    /// # Errors
    /// `Invalid` for an invalid configuration, `Unsupported` without a configuration file.
    fn reload(&self) -> BoxFuture<'_, Result<Reloaded, OperatorError>>;

    /// Creates or updates a tenant: `config` has the keys of a `[[tenant]]` section, except `id`.
    ///
    /// # Errors
    /// `Invalid` with the pointer of the invalid field.
    fn put_tenant(
        &self,
        id: TenantId,
        config: Value,
    ) -> BoxFuture<'_, Result<TenantPut, OperatorError>>;

    /// Replaces a tenant's quotas: the keys of `quotas`; an absent key means no tenant-specific
    /// limit.
    ///
    /// # Errors
    /// `UnknownTenant`; `Invalid` with the pointer of the invalid field.
    fn put_quota(&self, id: TenantId, quota: Value) -> BoxFuture<'_, Result<(), OperatorError>>;

    /// Generates a key for a tenant; with `replace`, its other keys are removed.
    ///
    /// # Errors
    /// `UnknownTenant` if no tenant has this id.
    fn new_key(&self, id: TenantId, replace: bool)
    -> BoxFuture<'_, Result<MadeKey, OperatorError>>;

    /// Pauses or resumes a tenant, durably: the state survives a restart.
    ///
    /// # Errors
    /// `UnknownTenant`; `Unsupported` (the default), on which the route pauses the tenant in the
    /// host, until its restart.
    fn pause(&self, id: TenantId, paused: bool) -> BoxFuture<'_, Result<(), OperatorError>> {
        let _ = (id, paused);
        Box::pin(async {
            Err(OperatorError::Unsupported(
                "this program does not store pauses".into(),
            ))
        })
    }

    /// Erases all data of a tenant, including data that the program stores outside of the host. The
    /// tenant stays configured and in service. Returns the number of erased conversations.
    ///
    /// # Errors
    /// `UnknownTenant`; `Unavailable` when the store could not erase everything; `Unsupported` (the
    /// default), on which the route erases what the host stores.
    fn erase(&self, id: TenantId) -> BoxFuture<'_, Result<u64, OperatorError>> {
        let _ = id;
        Box::pin(async {
            Err(OperatorError::Unsupported(
                "this program stores no data outside of the host".into(),
            ))
        })
    }

    /// Reports what the tenants' workspaces held at their last count: a workspace with a quota is
    /// counted before and after each command, and when a file tool creates a file. Empty by default.
    fn workspaces(&self) -> BoxFuture<'_, BTreeMap<TenantId, WorkspaceShown>> {
        Box::pin(async { BTreeMap::new() })
    }

    /// Reports the quotas in force of each tenant, in the form that [`Operator::put_quota`] takes.
    /// Empty by default.
    fn quotas(&self) -> BoxFuture<'_, BTreeMap<TenantId, Value>> {
        Box::pin(async { BTreeMap::new() })
    }

    /// Reports what became of the tenants' webhooks; a tenant without any is left out. Empty by
    /// default.
    fn webhooks(&self) -> BTreeMap<TenantId, WebhookShown> {
        BTreeMap::new()
    }

    /// Notifies the program that the operator requested a drain; the host begins to drain now.
    fn draining(&self) {}

    /// Removes a tenant: its keys, its configuration and all its data.
    ///
    /// # Errors
    /// `UnknownTenant`; `Unavailable` when the store could not erase everything.
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
