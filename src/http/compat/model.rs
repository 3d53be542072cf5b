//! The model that a request names, and what clients may know of it.

use axum::http::StatusCode;
use callboard_actors::ids::TenantId;

use crate::http::{error::Problem, shared::App};

/// Alias of the tenant's configured model; stays valid when the model changes.
const DEFAULT: &str = "default";

/// A model that the tenant can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) struct Model {
    /// The configured name, or the alias.
    pub(in crate::http) id: String,
    /// The context window, in tokens.
    pub(in crate::http) window: u64,
    /// The longest answer, in tokens.
    pub(in crate::http) output_max: u32,
}

/// The configured model and its alias.
pub(in crate::http) fn models(app: &App, tenant: &TenantId) -> [Model; 2] {
    let setup = app.host.setup_of(tenant);
    [setup.model.to_string(), DEFAULT.to_owned()].map(|id| Model {
        id,
        window: setup.window_tokens,
        output_max: setup.output_max,
    })
}

/// The model of that name.
///
/// # Errors
/// 404 `model_not_found`.
pub(in crate::http) fn model(app: &App, tenant: &TenantId, id: &str) -> Result<Model, Problem> {
    let found = models(app, tenant).into_iter().find(|model| model.id == id);
    found.ok_or_else(|| {
        let detail = "there is no such model; `GET` of the models lists those of this key";
        Problem::new(StatusCode::NOT_FOUND, "model_not_found", detail)
    })
}

/// The tenant's configured model, if a request names it or its alias.
///
/// # Errors
/// 404 `model_not_found`.
pub(in crate::http) fn check_model(
    app: &App,
    tenant: &TenantId,
    asked: &str,
) -> Result<String, Problem> {
    model(app, tenant, asked).map_err(|problem| problem.at("/model"))?;
    Ok(app.host.setup_of(tenant).model.to_string())
}
