//! What the operator asks: tenants, quotas, keys, erasure, reload, drain. A tenant's key sees none of it.

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
    MadeKey, Operator, OperatorError, Reloaded, TenantPut, WorkspaceShown,
    auth::Admin,
    body::{AdminJson, optional},
    error::Problem,
    shared::App,
};

/// A tenant and its figures.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct TenantShown {
    /// The tenant.
    #[schema(value_type = String)]
    id: TenantId,
    /// Whether its prompts are refused.
    paused: bool,
    /// What it uses now and has used since the host began: prompts, turns, bytes, tokens, refusals by reason.
    #[schema(value_type = Object)]
    usage: TenantUsage,
    /// What its workspace holds; absent until it was counted, at the first command or the first new file.
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<WorkspaceShown>,
}

/// The tenants.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct Tenants {
    /// In order of their ids.
    tenants: Vec<TenantShown>,
}

/// Whether to pause.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Pause {
    /// `true` refuses its prompts from now on, `false` lets them in again.
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

/// Which keys the new one replaces.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct NewKey {
    /// Whether the tenant's other keys open nothing from now on.
    #[serde(default)]
    replace: bool,
}

/// A key that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct KeyShown {
    /// The key. It is shown this once.
    key: String,
    /// Its SHA-256, for `key_sha256` in the configuration.
    key_sha256: String,
}

/// What was erased.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct ErasedShown {
    /// Conversations.
    conversations: u64,
}

/// A tenant of the path that the host knows.
fn tenant(app: &App, id: &str) -> Result<TenantId, Problem> {
    let id = TenantId::new(id).map_err(|error| Problem::bad_parameter("tenant", error))?;
    // To name one is to make one: look first.
    if app.host.tenant_ids().contains(&id) { Ok(id) } else { Err(Problem::not_found("tenant")) }
}

fn operator(app: &App) -> Result<&dyn Operator, Problem> {
    let missing = || Problem::new(StatusCode::NOT_IMPLEMENTED, "unsupported", "the program that serves has no operator's side");
    app.config.operator.as_deref().ok_or_else(missing)
}

/// Lists the tenants with their figures.
#[utoipa::path(get, path = "/v1/admin/tenants", tag = "operator", responses((status = 200, description = "The tenants", body = Tenants)))]
pub(in crate::http) async fn list(State(app): State<App>, _: Admin) -> Result<Json<Tenants>, Problem> {
    let mut workspaces = match &app.config.operator {
        Some(operator) => operator.workspaces().await,
        None => BTreeMap::new(),
    };
    let shown = app.host.tenant_ids().into_iter().map(|id| {
        let usage = app.host.tenant(&id).usage()?;
        Ok(TenantShown { paused: usage.paused, usage, workspace: workspaces.remove(&id), id })
    });
    Ok(Json(Tenants { tenants: shown.collect::<Result<_, Problem>>()? }))
}

/// Sets a tenant up, or changes it.
///
/// The body has the keys of a `[[tenant]]` of the configuration but `id`.
#[utoipa::path(
    put, path = "/v1/admin/tenants/{tenant}", tag = "operator", request_body = Object,
    params(("tenant" = String, Path, description = "The tenant")),
    responses((status = 201, description = "It is new"), (status = 204, description = "It is changed")),
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

/// Takes a tenant out of service and erases it.
#[utoipa::path(
    delete, path = "/v1/admin/tenants/{tenant}", tag = "operator",
    params(("tenant" = String, Path, description = "The tenant")),
    responses((status = 204, description = "Nothing of it is left")),
)]
pub(in crate::http) async fn remove(State(app): State<App>, _: Admin, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    let id = tenant(&app, &id)?;
    operator(&app)?.remove_tenant(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes a tenant's quotas; they hold from the next prompt on.
#[utoipa::path(
    put, path = "/v1/admin/tenants/{tenant}/quota", tag = "operator", request_body = Object,
    params(("tenant" = String, Path, description = "The tenant")),
    responses((status = 204, description = "They hold")),
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

/// Pauses a tenant, or lets it go on.
///
/// New prompts are refused with `tenant_paused`; rounds that run go on. Without a body it pauses.
#[utoipa::path(
    post, path = "/v1/admin/tenants/{tenant}/pause", tag = "operator", request_body = Pause,
    params(("tenant" = String, Path, description = "The tenant")),
    responses((status = 204, description = "Done")),
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

/// Makes a key for a tenant.
///
/// The answer is the only place where it is ever shown.
#[utoipa::path(
    post, path = "/v1/admin/tenants/{tenant}/keys", tag = "operator", request_body = NewKey,
    params(("tenant" = String, Path, description = "The tenant")),
    responses((status = 201, description = "The key", body = KeyShown)),
)]
pub(in crate::http) async fn key(State(app): State<App>, _: Admin, Path(id): Path<String>, request: Request) -> Result<Response, Problem> {
    let id = tenant(&app, &id)?;
    let NewKey { replace } = optional(request, &app).await?;
    let MadeKey { key, hash } = operator(&app)?.new_key(id, replace).await?;
    let shown = KeyShown { key, key_sha256: hash.to_string() };
    Ok((StatusCode::CREATED, [(axum::http::header::CACHE_CONTROL, "no-store")], Json(shown)).into_response())
}

/// Erases all that a tenant has stored; it stays in service.
#[utoipa::path(
    delete, path = "/v1/admin/tenants/{tenant}/data", tag = "operator",
    params(("tenant" = String, Path, description = "The tenant")),
    responses((status = 200, description = "What was erased", body = ErasedShown)),
)]
pub(in crate::http) async fn erase(State(app): State<App>, _: Admin, Path(id): Path<String>) -> Result<Json<ErasedShown>, Problem> {
    let id = tenant(&app, &id)?;
    let erased = match &app.config.operator {
        Some(operator) => operator.erase(id.clone()).await,
        None => Err(OperatorError::Unsupported(String::new())),
    };
    let conversations = match erased {
        Err(OperatorError::Unsupported(_)) => app.host.tenant(&id).erase().await?.conversations,
        other => other?,
    };
    Ok(Json(ErasedShown { conversations }))
}

/// Reads the configuration again, as SIGHUP does.
#[utoipa::path(post, path = "/v1/admin/reload", tag = "operator", responses((status = 200, description = "What changed", body = Reloaded)))]
pub(in crate::http) async fn reload(State(app): State<App>, _: Admin) -> Result<Json<Reloaded>, Problem> {
    Ok(Json(operator(&app)?.reload().await?))
}

/// Ends the host in the order of SIGTERM.
#[utoipa::path(post, path = "/v1/admin/drain", tag = "operator", responses((status = 202, description = "It has begun; `/readyz` says 503 from now on")))]
pub(in crate::http) async fn drain(State(app): State<App>, _: Admin) -> StatusCode {
    app.drain.cancel();
    if let Some(operator) = &app.config.operator {
        operator.draining();
    }
    StatusCode::ACCEPTED
}
