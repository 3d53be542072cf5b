//! Metrics of the host and of a tenant, in Prometheus' text format.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use crate::{
    http::{
        WebhookShown,
        auth::{Admin, Caller, no_route},
        error::Problem,
        shared::App,
    },
    observe::{PROMETHEUS_CONTENT_TYPE, View, prometheus_text, webhook_text},
};

/// Returns the host's metrics.
#[utoipa::path(get, path = "/metrics", tag = "operator", responses((status = 200, description = "Metrics of the host and of every tenant", body = String, content_type = "text/plain")))]
pub(in crate::http) async fn host(State(app): State<App>, _: Admin) -> Result<Response, Problem> {
    show(&app, View::Operator).await
}

/// Returns the tenant's metrics.
#[utoipa::path(get, path = "/v1/metrics", tag = "conversations", responses((status = 200, description = "Metrics of this tenant only", body = String, content_type = "text/plain")))]
pub(in crate::http) async fn tenant(
    State(app): State<App>,
    Caller(tenant): Caller,
) -> Result<Response, Problem> {
    show(&app, View::Tenant(&tenant)).await
}

/// Renders the metrics; 404 when the configuration switches them off.
async fn show(app: &App, view: View<'_>) -> Result<Response, Problem> {
    if !app.config.metrics {
        return Err(no_route());
    }
    let mut text = prometheus_text(&app.host, view).await;
    if let (View::Operator, Some(operator)) = (view, &app.config.operator) {
        let webhooks = operator.webhooks();
        let counts = webhooks.iter().map(|(tenant, shown)| {
            let WebhookShown {
                delivered,
                failed,
                given_up,
                pending,
                failing: _,
            } = *shown;
            (tenant.as_str(), [delivered, failed, given_up, pending])
        });
        text += &webhook_text(counts);
    }
    Ok(([(header::CONTENT_TYPE, PROMETHEUS_CONTENT_TYPE)], text).into_response())
}
