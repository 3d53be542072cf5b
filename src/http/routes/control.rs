//! Control of a conversation: interrupt, approve, results of tools, inject, compact, fork.

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    chat::RawJson, conversation::Consent, host::SendError, ids::ConversationId,
};

use super::{Path, Query};
use crate::http::{
    api::{Approval, CompactQuery, Compacted, Fork, Inject, Made, ToolResults},
    auth::Caller,
    body::{self, Messages},
    error::Problem,
    shared::App,
};

/// Requests cancellation of the open round.
///
/// The model call, tools and their processes are stopped; text written until then stays. 404 when
/// no round is open.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/interrupt", tag = "control",
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 202, description = "The request is accepted; the event `round_finished` reports the end")),
)]
pub(in crate::http) async fn interrupt(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    conversation.interrupt().await?;
    Ok(StatusCode::ACCEPTED)
}

/// Approves or refuses a tool call that awaits approval.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/approvals/{tool_call_id}", tag = "control", request_body = Approval,
    params(("id" = String, Path, description = "The conversation"), ("tool_call_id" = String, Path, description = "Id of the tool call, from the event `approval_required`")),
    responses((status = 204, description = "The decision is stored")),
)]
pub(in crate::http) async fn approve(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path((id, tool_call_id)): Path<(String, String)>,
    body::Json(answer): body::Json<Approval>,
) -> Result<StatusCode, Problem> {
    if answer.always && !answer.allow {
        return Err(Problem::invalid(
            "/always",
            "needs `allow: true`; a refusal applies to one call only",
        ));
    }
    let round_id = answer.round_id;
    let consent = match answer {
        Approval {
            reason: Some(_),
            allow: true,
            ..
        } => return Err(Problem::invalid("/reason", "needs `allow: false`")),
        Approval {
            input: Some(_),
            allow,
            always,
            ..
        } if !allow || always => {
            return Err(Problem::invalid(
                "/input",
                "needs `allow: true` without `always`: it is for this call only",
            ));
        }
        Approval {
            input: Some(input), ..
        } => Consent::Changed(
            RawJson::arguments(input.as_str())
                .map_err(|fault| Problem::invalid("/input", fault.to_string()))?,
        ),
        Approval { always: true, .. } => Consent::Always,
        Approval { allow: true, .. } => Consent::Once,
        Approval { reason, .. } => Consent::Denied(reason),
    };
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).check_open()?;
    match round_id {
        Some(round) => {
            conversation
                .approve_in(round, tool_call_id, consent)
                .await?
        }
        None => conversation.approve(tool_call_id, consent).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Sends results of calls of tools that the caller brought.
///
/// The event `client_tool_call` announces such a call. Results come in any order and number: all of
/// a request are accepted, or none. When each open call of the batch has its result, the round goes
/// on. The same result may be sent again; another one, or one for a call whose time is over, is 409
/// `already_answered`, and a call that is not this conversation's or not the caller's is 404.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/tool_results", tag = "control", request_body = ToolResults,
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 204, description = "The results are stored")),
)]
pub(in crate::http) async fn tool_results(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    Messages(sent, _room): Messages<ToolResults>,
) -> Result<StatusCode, Problem> {
    if sent.results.is_empty() {
        return Err(Problem::invalid("/results", "must not be empty"));
    }
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).check_open()?;
    let results = sent.results.into_iter().map(Into::into);
    conversation.client_tool_results(results).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Adds a message that the model reads at its next call.
///
/// In an open round it follows the results of the current tool calls; otherwise it is sent with the
/// next prompt.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/inject", tag = "control", request_body = Inject,
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 202, description = "The message is stored")),
)]
pub(in crate::http) async fn inject(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    Messages(inject, _room): Messages<Inject>,
) -> Result<StatusCode, Problem> {
    if inject.text.trim().is_empty() {
        return Err(Problem::invalid("/text", "must not be empty"));
    }
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).admit_change()?;
    conversation.inject(inject.id, inject.text).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Compacts the conversation's context now.
///
/// Waits up to ten seconds for a summary of the removed messages, unless the strategy is `truncate`.
/// Only while no round is open.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/compact", tag = "control",
    params(("id" = String, Path, description = "The conversation"), CompactQuery),
    responses((status = 200, description = "What was removed", body = Compacted)),
)]
pub(in crate::http) async fn compact(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    Query(query): Query<CompactQuery>,
) -> Result<Json<Compacted>, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).admit_change()?;
    let note = match query.summary {
        true => conversation.compact_with_summary().await?,
        false => conversation.compact().await?,
    };
    Ok(Json(note.into()))
}

/// Copies the conversation, up to a round, into a new one.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/fork", tag = "control", request_body = Fork,
    params(("id" = String, Path, description = "The conversation to copy; it may have an open round")),
    responses((status = 201, description = "The copy; `Location` is its path", body = Made)),
)]
pub(in crate::http) async fn fork(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    body::Json(fork): body::Json<Fork>,
) -> Result<Response, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    let copy = ConversationId::new(&fork.conversation_id).map_err(|error| {
        Problem::invalid("/conversation_id", SendError::from(error).to_string())
    })?;
    app.host.tenant(&tenant).admit_change()?;
    conversation.fork(&copy, fork.at).await?;
    let location = HeaderValue::from_str(&format!("/v1/conversations/{copy}"))
        .ok()
        .map(|value| (header::LOCATION, value));
    let headers: axum::http::HeaderMap = location.into_iter().collect();
    Ok((
        StatusCode::CREATED,
        headers,
        Json(Made {
            conversation_id: copy,
        }),
    )
        .into_response())
}
