//! The operator's routes: tenants, quotas, keys, erasure, reload and drain. With a tenant's key
//! they answer 404.

use std::collections::BTreeMap;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use callboard_actors::{ids::TenantId, tenant::TenantUsage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Path;
use crate::http::{
    MadeKey, Operator, OperatorError, Reloaded, TenantPut, WebhookShown, WorkspaceShown,
    auth::Admin,
    body::{AdminJson, optional},
    error::Problem,
    shared::App,
};

/// A tenant and its usage.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct TenantShown {
    /// The tenant's id.
    #[schema(value_type = String)]
    pub(in crate::http) id: TenantId,
    /// Whether new prompts of the tenant are refused.
    pub(in crate::http) paused: bool,
    /// Current and total usage since the host started: prompts, rounds, bytes, tokens, refusals by
    /// reason. `tokens` counts every model call; `spent` is what counts against a budget, and 0
    /// without one.
    #[schema(value_type = Object)]
    pub(in crate::http) usage: TenantUsage,
    /// What its workspace holds; absent until it was counted, at the first command or the first new file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) workspace: Option<WorkspaceShown>,
    /// What became of its webhooks; absent before the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::http) webhooks: Option<WebhookShown>,
}

/// All tenants of the host.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Tenants {
    /// The tenants, in order of id.
    pub(in crate::http) tenants: Vec<TenantShown>,
}

/// Whether to pause or resume the tenant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Pause {
    /// `true` (the default) refuses new prompts of the tenant, `false` accepts them again.
    #[serde(default = "yes")]
    paused: bool,
}

impl Default for Pause {
    fn default() -> Self {
        Self { paused: true }
    }
}

fn yes() -> bool {
    true
}

/// Options of a new key.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct NewKey {
    /// Whether to remove the tenant's other keys.
    #[serde(default)]
    replace: bool,
}

/// A generated key.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct KeyShown {
    /// The key. No other response ever contains it.
    key: String,
    /// SHA-256 of the key, for `key_sha256` in the configuration.
    key_sha256: String,
}

/// Result of an erasure.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ErasedShown {
    /// Number of erased conversations.
    conversations: u64,
}

/// Parses the tenant of the path; 404 for a tenant that the host does not have.
fn tenant(app: &App, id: &str) -> Result<TenantId, Problem> {
    let id = TenantId::new(id).map_err(|error| Problem::bad_parameter("tenant", error))?;
    // `Host::tenant` creates an unknown tenant, so check first.
    if app.host.tenant_ids().contains(&id) {
        Ok(id)
    } else {
        Err(Problem::not_found("tenant"))
    }
}

fn operator(app: &App) -> Result<&dyn Operator, Problem> {
    let missing = || {
        Problem::new(
            StatusCode::NOT_IMPLEMENTED,
            "unsupported",
            "this server was started without support for operator routes",
        )
    };
    app.config.operator.as_deref().ok_or_else(missing)
}

/// Lists all tenants with their usage.
#[utoipa::path(get, path = "/v1/admin/tenants", tag = "operator", responses((status = 200, description = "All tenants", body = Tenants)))]
pub(in crate::http) async fn list(
    State(app): State<App>,
    _: Admin,
) -> Result<Json<Tenants>, Problem> {
    let mut workspaces = match &app.config.operator {
        Some(operator) => operator.workspaces().await,
        None => BTreeMap::new(),
    };
    let mut webhooks = match &app.config.operator {
        Some(operator) => operator.webhooks(),
        None => BTreeMap::new(),
    };
    let shown = app.host.tenant_ids().into_iter().map(|id| {
        let usage = app.host.tenant(&id).usage()?;
        Ok(TenantShown {
            paused: usage.paused,
            usage,
            workspace: workspaces.remove(&id),
            webhooks: webhooks.remove(&id),
            id,
        })
    });
    Ok(Json(Tenants {
        tenants: shown.collect::<Result<_, Problem>>()?,
    }))
}

/// Creates or updates a tenant.
///
/// The body has the keys of a `[[tenant]]` section of the configuration, except `id`.
#[utoipa::path(
    put, path = "/v1/admin/tenants/{tenant}", tag = "operator", request_body = Object,
    params(("tenant" = String, Path, description = "Id of the tenant")),
    responses((status = 201, description = "The tenant was created"), (status = 204, description = "The tenant was updated")),
)]
pub(in crate::http) async fn put(
    State(app): State<App>,
    Path(id): Path<String>,
    AdminJson(config): AdminJson<Value>,
) -> Result<StatusCode, Problem> {
    let id = TenantId::new(id).map_err(|error| Problem::bad_parameter("tenant", error))?;
    match operator(&app)?.put_tenant(id, config).await? {
        TenantPut::Created => Ok(StatusCode::CREATED),
        TenantPut::Changed => Ok(StatusCode::NO_CONTENT),
    }
}

/// Removes a tenant and erases its data.
#[utoipa::path(
    delete, path = "/v1/admin/tenants/{tenant}", tag = "operator",
    params(("tenant" = String, Path, description = "Id of the tenant")),
    responses((status = 204, description = "The tenant and its data are erased")),
)]
pub(in crate::http) async fn remove(
    State(app): State<App>,
    _: Admin,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let id = tenant(&app, &id)?;
    operator(&app)?.remove_tenant(id.clone()).await?;
    app.fan_outs.forget_all(&id);
    Ok(StatusCode::NO_CONTENT)
}

/// Replaces a tenant's quotas, from the next prompt on.
#[utoipa::path(
    put, path = "/v1/admin/tenants/{tenant}/quota", tag = "operator", request_body = Object,
    params(("tenant" = String, Path, description = "Id of the tenant")),
    responses((status = 204, description = "The quotas are in effect")),
)]
pub(in crate::http) async fn quota(
    State(app): State<App>,
    Path(id): Path<String>,
    AdminJson(quota): AdminJson<Value>,
) -> Result<StatusCode, Problem> {
    let id = tenant(&app, &id)?;
    operator(&app)?.put_quota(id, quota).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses or resumes a tenant.
///
/// New prompts of a paused tenant are refused with `tenant_paused`; running rounds continue.
/// Without a body the tenant is paused.
#[utoipa::path(
    post, path = "/v1/admin/tenants/{tenant}/pause", tag = "operator", request_body = Pause,
    params(("tenant" = String, Path, description = "Id of the tenant")),
    responses((status = 204, description = "The tenant is paused or resumed")),
)]
pub(in crate::http) async fn pause(
    State(app): State<App>,
    _: Admin,
    Path(id): Path<String>,
    request: Request,
) -> Result<StatusCode, Problem> {
    let id = tenant(&app, &id)?;
    let Pause { paused } = optional(request, &app).await?;
    let kept = match &app.config.operator {
        Some(operator) => operator.pause(id.clone(), paused).await,
        None => Err(OperatorError::Unsupported(String::new())),
    };
    match kept {
        Err(OperatorError::Unsupported(_)) => app.host.tenant(&id).pause(paused)?,
        other => other?,
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Generates a key for a tenant.
///
/// The key is shown only in this response.
#[utoipa::path(
    post, path = "/v1/admin/tenants/{tenant}/keys", tag = "operator", request_body = NewKey,
    params(("tenant" = String, Path, description = "Id of the tenant")),
    responses((status = 201, description = "The new key", body = KeyShown)),
)]
pub(in crate::http) async fn key(
    State(app): State<App>,
    _: Admin,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let id = tenant(&app, &id)?;
    let NewKey { replace } = optional(request, &app).await?;
    let MadeKey { key, hash } = operator(&app)?.new_key(id, replace).await?;
    let shown = KeyShown {
        key,
        key_sha256: hash.to_string(),
    };
    Ok((
        StatusCode::CREATED,
        [(axum::http::header::CACHE_CONTROL, "no-store")],
        Json(shown),
    )
        .into_response())
}

/// Erases all data of a tenant; the tenant stays in service.
#[utoipa::path(
    delete, path = "/v1/admin/tenants/{tenant}/data", tag = "operator",
    params(("tenant" = String, Path, description = "Id of the tenant")),
    responses((status = 200, description = "The number of erased conversations", body = ErasedShown)),
)]
pub(in crate::http) async fn erase(
    State(app): State<App>,
    _: Admin,
    Path(id): Path<String>,
) -> Result<Json<ErasedShown>, Problem> {
    let id = tenant(&app, &id)?;
    let erased = match &app.config.operator {
        Some(operator) => operator.erase(id.clone()).await,
        None => Err(OperatorError::Unsupported(String::new())),
    };
    let conversations = match erased {
        Err(OperatorError::Unsupported(_)) => app.host.tenant(&id).erase().await?.conversations,
        other => other?,
    };
    app.fan_outs.forget_all(&id);
    Ok(Json(ErasedShown { conversations }))
}

/// Reloads the configuration, as SIGHUP does.
#[utoipa::path(post, path = "/v1/admin/reload", tag = "operator", responses((status = 200, description = "The differences to the previous configuration", body = Reloaded)))]
pub(in crate::http) async fn reload(
    State(app): State<App>,
    _: Admin,
) -> Result<Json<Reloaded>, Problem> {
    Ok(Json(operator(&app)?.reload().await?))
}

/// Shuts the host down gracefully, as SIGTERM does.
#[utoipa::path(post, path = "/v1/admin/drain", tag = "operator", responses((status = 202, description = "The drain has started; `/readyz` answers 503 from now on")))]
pub(in crate::http) async fn drain(State(app): State<App>, _: Admin) -> StatusCode {
    app.drain.cancel();
    if let Some(operator) = &app.config.operator {
        operator.draining();
    }
    StatusCode::ACCEPTED
}
