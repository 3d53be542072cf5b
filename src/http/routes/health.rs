//! Liveness and readiness, and the OpenAPI document. No key is needed.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use callboard_actors::ids::{ConversationId, Scope, TenantId};
use serde::Serialize;
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::http::{error::Problem, shared::App};

/// Longest wait for the store's answer in a readiness check.
const STORE_WITHIN: Duration = Duration::from_secs(1);

/// Tenant and conversation that the readiness check looks up. Nothing is stored under this id.
const LOOKED_UP: &str = "readyz";

/// A positive health check.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Well)]
pub(in crate::http) struct Health {
    /// Always `ok`; a failed check is a problem document.
    status: &'static str,
}

/// Reports that the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "Alive", body = Health)))]
pub(in crate::http) async fn alive() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Reports whether the host accepts requests.
///
/// 503 while the host is shutting down (`draining`), or its store does not answer or cannot be
/// written (`store_unavailable`; `detail` has the reason).
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, description = "Ready", body = Health)))]
pub(in crate::http) async fn ready(State(app): State<App>) -> Result<Json<Health>, Problem> {
    if app.is_draining() {
        return Err(Problem::draining());
    }
    let away = |why: String| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", why).after(Some(1000))
    };
    // A store that can be read may still refuse every append, so a successful read proves nothing.
    if let Some(outage) = app.host.store_outage() {
        return Err(away(format!(
            "the store cannot be written: {}",
            outage.message
        )));
    }
    let (Ok(tenant), Ok(conversation)) = (TenantId::new(LOOKED_UP), ConversationId::new(LOOKED_UP))
    else {
        return Err(Problem::internal());
    };
    match timeout(
        STORE_WITHIN,
        app.host
            .ports()
            .sessions
            .head(&Scope::new(tenant, conversation)),
    )
    .await
    {
        Ok(Ok(_)) => Ok(Json(Health { status: "ok" })),
        Ok(Err(error)) => Err(away(error.to_string())),
        Err(_) => Err(away("the store does not answer".into())),
    }
}

/// Returns the OpenAPI 3.1 document of this API.
#[utoipa::path(get, path = "/openapi.json", tag = "health", responses((status = 200, description = "The OpenAPI document", body = Object)))]
pub(in crate::http) async fn openapi(State(app): State<App>) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        app.openapi.clone(),
    )
        .into_response()
}
