//! Lists, activates and deactivates skills of a conversation.

use axum::{Json, extract::State, http::StatusCode};

use super::{Path, Query};
use crate::http::{
    api::{Activated, SkillLevel, SkillShown, Skills},
    auth::Caller,
    error::Problem,
    shared::App,
};

/// Lists the skills that the conversation can activate.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/skills", tag = "control",
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 200, description = "The skills, and which are active", body = Skills)),
)]
pub(in crate::http) async fn list(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Skills>, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    let shown = conversation
        .skills()
        .await?
        .into_iter()
        .map(|skill| SkillShown {
            name: skill.metadata.name.to_string(),
            description: skill.metadata.description,
            active: skill.active.is_some(),
        });
    Ok(Json(Skills {
        skills: shown.collect(),
    }))
}

/// Activates a skill until it is deactivated.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/skills/{name}", tag = "control",
    params(("id" = String, Path, description = "The conversation"), ("name" = String, Path, description = "Name of the skill"), SkillLevel),
    responses((status = 200, description = "The skill is active", body = Activated)),
)]
pub(in crate::http) async fn activate(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path((id, name)): Path<(String, String)>,
    Query(SkillLevel { level }): Query<SkillLevel>,
) -> Result<Json<Activated>, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).admit_change()?;
    let loaded = conversation.activate_skill_at(name, level).await?;
    Ok(Json(Activated {
        name: loaded.skill_name,
        level: loaded.level,
        messages: loaded.messages,
    }))
}

/// Deactivates a skill, and the skills above it in the stack of active skills.
#[utoipa::path(
    delete, path = "/v1/conversations/{id}/skills/{name}", tag = "control",
    params(("id" = String, Path, description = "The conversation"), ("name" = String, Path, description = "Name of the skill")),
    responses((status = 204, description = "The skill is not active")),
)]
pub(in crate::http) async fn deactivate(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path((id, name)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).admit_change()?;
    conversation.deactivate_skill(name).await?;
    Ok(StatusCode::NO_CONTENT)
}
