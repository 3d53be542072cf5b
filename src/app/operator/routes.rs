//! Implements the port of the operator's HTTP routes with [`TenantOperator`].

use std::collections::{BTreeMap, BTreeSet};

use callboard_actors::{
    ids::TenantId,
    ports::{BoxFuture, TypedTool},
    tenant::Quotas,
};
use serde_json::{Value, json};

use super::{
    super::tenants::workspace_quota, AppError, ServedTenant, State, StoredTenant,
    StoredTenantsError, TenantOperator, is_temporary,
};
use crate::{
    config::{ConfigError, TenantSection},
    http::{
        KeyHash, MadeKey, Operator, OperatorError, Reloaded, TenantPut, WebhookShown,
        WorkspaceShown, new_key,
    },
};

impl From<AppError> for OperatorError {
    fn from(error: AppError) -> Self {
        match error {
            AppError::StoredTenants(error @ StoredTenantsError::Changed) => {
                Self::Unavailable(error.to_string())
            }
            AppError::StoredTenants(error @ StoredTenantsError::Database(_)) => {
                tracing::error!(%error, "a change of the operator could not be stored");
                Self::Unavailable("the database cannot be used; see the log".into())
            }
            error if is_temporary(&error) => {
                // The error text contains a path of this machine, so it goes to the log only.
                tracing::error!(%error, "a change of the operator could not be stored");
                Self::Unavailable("the data folder cannot be written; see the log".into())
            }
            error => Self::Invalid {
                pointer: None,
                message: error.to_string(),
            },
        }
    }
}

fn invalid(error: &ConfigError) -> OperatorError {
    OperatorError::Invalid {
        pointer: error.pointer(),
        message: error.to_string(),
    }
}

impl Operator for TenantOperator {
    fn reload(&self) -> BoxFuture<'_, Result<Reloaded, OperatorError>> {
        Box::pin(async move { Ok(self.read_again().await?) })
    }

    fn put_tenant(
        &self,
        id: TenantId,
        config: Value,
    ) -> BoxFuture<'_, Result<TenantPut, OperatorError>> {
        Box::pin(self.put(id, config))
    }

    fn put_quota(&self, id: TenantId, quota: Value) -> BoxFuture<'_, Result<(), OperatorError>> {
        Box::pin(self.quota(id, quota))
    }

    fn new_key(
        &self,
        id: TenantId,
        replace: bool,
    ) -> BoxFuture<'_, Result<MadeKey, OperatorError>> {
        Box::pin(self.key(id, replace))
    }

    fn pause(&self, id: TenantId, paused: bool) -> BoxFuture<'_, Result<(), OperatorError>> {
        Box::pin(self.hold(id, paused))
    }

    fn erase(&self, id: TenantId) -> BoxFuture<'_, Result<u64, OperatorError>> {
        Box::pin(self.empty(id))
    }

    fn webhooks(&self) -> BTreeMap<TenantId, WebhookShown> {
        self.0.provisioner.webhooks().figures()
    }

    fn workspaces(&self) -> BoxFuture<'_, BTreeMap<TenantId, WorkspaceShown>> {
        Box::pin(async move {
            let state = self.0.state.lock().await;
            let used = |served_tenant: &ServedTenant| {
                let usage = served_tenant.setup.workspace.as_ref()?.usage()?;
                Some(WorkspaceShown {
                    files: usage.files,
                    bytes: usage.bytes,
                })
            };
            state
                .served
                .iter()
                .filter_map(|(id, served_tenant)| Some((id.clone(), used(served_tenant)?)))
                .collect()
        })
    }

    fn quotas(&self) -> BoxFuture<'_, BTreeMap<TenantId, Value>> {
        Box::pin(async move {
            let state = self.0.state.lock().await;
            let served = state.served.iter();
            served
                .map(|(id, tenant)| (id.clone(), in_force(&tenant.section.quotas)))
                .collect()
        })
    }

    fn draining(&self) {
        self.0.draining.notify_one();
    }

    fn remove_tenant(&self, id: TenantId) -> BoxFuture<'_, Result<(), OperatorError>> {
        Box::pin(self.forget(id))
    }
}

/// The quotas that are set, without those that have no limit.
fn in_force(quotas: &Quotas) -> Value {
    let mut set = json!(quotas);
    if let Value::Object(keys) = &mut set {
        keys.retain(|_, value| !value.is_null());
    }
    set
}

impl TenantOperator {
    async fn put(&self, id: TenantId, settings: Value) -> Result<TenantPut, OperatorError> {
        let section = TenantSection::from_json(&id, &settings).map_err(|error| invalid(&error))?;
        let mut state = self.current().await?;
        if let Some(ServedTenant {
            section,
            from_file: true,
            ..
        }) = state.served.get(&id)
        {
            let message = format!(
                "tenant `{id}` is configured at {}; change it there, then reload",
                section.origin()
            );
            return Err(OperatorError::Invalid {
                pointer: None,
                message,
            });
        }
        state
            .config
            .check_tenant(&section)
            .map_err(|error| invalid(&error))?;
        self.refuse_known_keys(&state, &section)?;
        let mut stored = self.with_pauses(&state);
        let known = stored.tenants.entry(id.clone()).or_default();
        // Keys that were added at run time stay valid; a key in the request belongs to the
        // settings.
        let tenant = StoredTenant {
            settings: Some(settings),
            generated: false,
            ..known.clone()
        };
        *known = StoredTenant {
            paused: section.paused.or(tenant.paused),
            ..tenant
        };
        let put = if state.served.contains_key(&id) {
            TenantPut::Changed
        } else {
            TenantPut::Created
        };
        self.change(&mut state, stored).await?;
        Ok(put)
    }

    async fn quota(&self, id: TenantId, quota: Value) -> Result<(), OperatorError> {
        let mut state = self.current().await?;
        let served_tenant = state
            .served
            .get(&id)
            .cloned()
            .ok_or(OperatorError::UnknownTenant)?;
        let Value::Object(mut quotas) = quota else {
            return Err(OperatorError::Invalid {
                pointer: None,
                message: "quotas must be an object".into(),
            });
        };
        let weight = quotas
            .remove("weight")
            .unwrap_or_else(|| json!(served_tenant.section.quotas.weight));
        let read = TenantSection::from_json(&id, &json!({"weight": weight, "quotas": quotas}))
            .map_err(|error| {
                let pointer = error.pointer().map(|pointer| {
                    pointer
                        .strip_prefix("/quotas")
                        .map(str::to_owned)
                        .unwrap_or(pointer)
                });
                OperatorError::Invalid {
                    pointer,
                    message: error.to_string(),
                }
            })?;
        if !served_tenant.from_file {
            let mut stored = self.with_pauses(&state);
            let known = stored.tenants.entry(id).or_default();
            let mut settings = known.settings.take().unwrap_or_else(|| json!({}));
            if let Value::Object(map) = &mut settings {
                map.insert("weight".into(), weight);
                map.insert("quotas".into(), Value::Object(quotas));
            }
            known.settings = Some(settings);
            return Ok(self.change(&mut state, stored).await?);
        }
        let quota = workspace_quota(&state.config, &read.quotas);
        // For a tenant of the configuration file, the change lasts until the next reload.
        let config = served_tenant.setup.config.clone().quotas(read.quotas);
        self.0
            .host
            .configure_tenant(&id, config.clone())
            .await
            .map_err(AppError::from)?;
        if let Some(served_tenant) = state.served.get_mut(&id) {
            served_tenant.section.quotas = read.quotas;
            served_tenant.setup.config = config;
            if let Some(workspace) = &served_tenant.setup.workspace {
                workspace.set_quota(quota);
            }
        }
        Ok(())
    }

    async fn key(&self, id: TenantId, replace: bool) -> Result<MadeKey, OperatorError> {
        let mut state = self.current().await?;
        let served_tenant = state
            .served
            .get(&id)
            .cloned()
            .ok_or(OperatorError::UnknownTenant)?;
        let key = new_key();
        let hash = KeyHash::from_key(&key);
        let mut stored = self.with_pauses(&state);
        let known = stored.tenants.entry(id.clone()).or_default();
        if replace {
            known.replaced_sha256.extend(
                served_tenant
                    .section
                    .key_sha256
                    .iter()
                    .filter(|old| !known.key_sha256.contains(*old))
                    .cloned(),
            );
            known.key_sha256 = BTreeSet::new();
        }
        known.key_sha256.insert(hash.to_string());
        self.write(&mut state, &stored).await?;
        state.stored = stored;
        if let Some(served_tenant) = state.served.get_mut(&id) {
            if replace {
                served_tenant.section.key_sha256.clear();
            }
            served_tenant.section.key_sha256.push(hash.to_string());
        }
        self.publish_keys(&state);
        Ok(MadeKey { key, hash })
    }

    async fn hold(&self, id: TenantId, paused: bool) -> Result<(), OperatorError> {
        let mut state = self.current().await?;
        if !state.served.contains_key(&id) {
            return Err(OperatorError::UnknownTenant);
        }
        let mut stored = state.stored.clone();
        stored.tenants.entry(id.clone()).or_default().paused = Some(paused);
        self.write(&mut state, &stored).await?;
        state.stored = stored;
        if let Some(served_tenant) = state.served.get_mut(&id) {
            served_tenant.section.paused = Some(paused);
        }
        self.0
            .host
            .tenant(&id)
            .pause(paused)
            .map_err(|_| OperatorError::UnknownTenant)
    }

    async fn empty(&self, id: TenantId) -> Result<u64, OperatorError> {
        let state = self.current().await?;
        let served_tenant = state
            .served
            .get(&id)
            .cloned()
            .ok_or(OperatorError::UnknownTenant)?;
        // Revoke the keys first: no caller may get in while the data is erased, or before the
        // tenant is configured again.
        self.0.keys.remove_tenant(&id);
        let erased = self.erase_all(&state, &id).await;
        let configured = self
            .0
            .host
            .configure_tenant(&id, served_tenant.setup.config.clone())
            .await
            .map_err(AppError::from);
        let paused = self
            .0
            .host
            .tenant(&id)
            .pause(served_tenant.section.paused.unwrap_or_default());
        self.publish_keys(&state);
        configured?;
        paused.map_err(|_| OperatorError::UnknownTenant)?;
        erased
    }

    async fn forget(&self, id: TenantId) -> Result<(), OperatorError> {
        let mut state = self.current().await?;
        let served_tenant = state
            .served
            .get(&id)
            .cloned()
            .ok_or(OperatorError::UnknownTenant)?;
        if served_tenant.from_file {
            let message = format!(
                "tenant `{id}` is configured at {}; remove it there, then reload; its data can be erased now",
                served_tenant.section.origin()
            );
            return Err(OperatorError::Invalid {
                pointer: None,
                message,
            });
        }
        self.0.keys.remove_tenant(&id);
        self.erase_all(&state, &id).await?;
        let mut stored = state.stored.clone();
        stored.tenants.remove(&id);
        self.write(&mut state, &stored).await?;
        state.stored = stored;
        state.served.remove(&id);
        self.0.host.remove_tenant(&id);
        Ok(())
    }

    /// Erases a tenant's conversations, artifacts and memory. Idempotent: a retry erases what is
    /// left.
    async fn erase_all(&self, state: &State, id: &TenantId) -> Result<u64, OperatorError> {
        let failed = |error: String| {
            tracing::error!(error, tenant = %id, "the data of a tenant was erased only in part");
            OperatorError::Unavailable("only part of the data was erased; try again".into())
        };
        let erased = self
            .0
            .host
            .tenant(id)
            .erase()
            .await
            .map_err(|error| failed(error.to_string()))?;
        // All of them, because the tenant's memory scope and the store may have changed over time.
        for memory in self.0.provisioner.memories(&state.config) {
            let forgotten = TypedTool::forget(&memory, id).await;
            forgotten.map_err(|error| failed(error.message))?;
        }
        Ok(erased.conversations)
    }

    /// Stores a change, then applies it. If applying fails, the stored change is reverted.
    async fn change(
        &self,
        state: &mut State,
        stored: super::StoredTenants,
    ) -> Result<(), AppError> {
        self.write(state, &stored).await?;
        let config = state.config.clone();
        let before = state.stored.clone();
        if let Err(error) = self.apply(state, config, stored).await {
            self.write(state, &before).await?;
            return Err(error);
        }
        Ok(())
    }

    /// Refuses a key that another tenant or the operator already uses: a key identifies one tenant.
    fn refuse_known_keys(
        &self,
        state: &State,
        section: &TenantSection,
    ) -> Result<(), OperatorError> {
        let others = state.served.iter().filter(|(id, _)| **id != section.id);
        let taken = |hash: &String| {
            state.config.admin_key_sha256.as_ref() == Some(hash)
                || others
                    .clone()
                    .any(|(_, other)| other.section.key_sha256.contains(hash))
        };
        if section.key_sha256.iter().any(taken) {
            let message = "this key already belongs to another tenant or the operator; create one with `callboard keys new`".into();
            return Err(OperatorError::Invalid {
                pointer: Some("/key_sha256".into()),
                message,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_in_force_are_those_that_are_set() {
        let quotas = Quotas {
            turns_max: Some(3),
            ..Quotas::default()
        };

        assert_eq!(in_force(&quotas), json!({"weight": 1, "turns_max": 3}));
    }
}
