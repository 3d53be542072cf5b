//! Conversations as resources: create, list, read their state, reset and delete.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use callboard_actors::{host::SendError, ids::ConversationId, journal::Head, ports::ListQuery};

use super::{Path, Query, messages::limit};
use crate::http::{
    api::{Configure, ConversationState, Conversations, Listed, Made, Page},
    auth::Caller,
    body::Messages,
    error::Problem,
    shared::{App, scope},
};

/// Conversations on a page if the client sets no limit.
const PAGE: usize = 100;

/// Creates or configures a conversation.
///
/// Idempotent: repeating the request changes nothing. A history can only be set while no round is
/// open. What a provider would refuse in it is 422, with a pointer to the message and the block.
#[utoipa::path(
    put, path = "/v1/conversations/{id}", tag = "conversations", request_body = Configure,
    params(("id" = String, Path, description = "Id of the conversation: 1 to 128 of A-Z a-z 0-9 . _ : - without a leading dot")),
    responses((status = 200, description = "The conversation existed", body = Made), (status = 201, description = "The conversation was created", body = Made)),
)]
pub(in crate::http) async fn put(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    Messages(wanted, _room): Messages<Configure>,
) -> Result<Response, Problem> {
    let scope = scope(&tenant, &id)?;
    for (index, message) in wanted.messages.iter().flatten().enumerate() {
        app.check_attachment(
            message.first_remote_block(),
            format_args!("/messages/{index}/content"),
        )?;
    }
    app.host.tenant(&tenant).admit_change()?;
    let conversation = app.conversation(&scope);
    let is_new = app.host.ports().sessions.head(&scope).await? == Head::default();
    match wanted.messages {
        Some(messages) => conversation
            .import(messages)
            .await
            .map_err(|error| at(error, "/messages"))?,
        // A conversation exists once something is stored: `reset` stores an empty history.
        None if is_new => conversation.reset().await?,
        None => {}
    }
    for (index, line) in wanted.pinned.into_iter().enumerate() {
        conversation
            .pin(line)
            .await
            .map_err(|error| at(error, &format!("/pinned/{index}")))?;
    }
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((
        status,
        Json(Made {
            conversation_id: scope.conversation,
        }),
    )
        .into_response())
}

/// Converts an error about the body's content, with a pointer to the field.
fn at(error: SendError, pointer: &str) -> Problem {
    if let SendError::InvalidHistory(_) = error {
        return error.into(); // It points to the place within the messages.
    }
    let problem = Problem::from(error);
    if problem.status == StatusCode::UNPROCESSABLE_ENTITY.as_u16() {
        problem.at(pointer)
    } else {
        problem
    }
}

/// Lists the tenant's conversations.
///
/// In order of id, in pages. Activates no conversation.
#[utoipa::path(
    get, path = "/v1/conversations", tag = "conversations", params(Page),
    responses((status = 200, description = "A page of conversations", body = Conversations)),
)]
pub(in crate::http) async fn list(
    State(app): State<App>,
    Caller(tenant): Caller,
    Query(page): Query<Page>,
) -> Result<Json<Conversations>, Problem> {
    let after = page
        .after
        .map(|id| ConversationId::new(id).map_err(|error| Problem::bad_parameter("after", error)))
        .transpose()?;
    let limit = limit(page.limit, PAGE)?;
    let mut rows = app
        .host
        .tenant(&tenant)
        .conversations(ListQuery {
            after,
            count: limit + 1,
            open: None,
            subagents: page.subagents,
        })
        .await?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows
        .last()
        .filter(|_| has_more)
        .map(|row| row.conversation.to_string());
    let mut conversations: Vec<_> = rows.into_iter().map(Listed::from).collect();
    if page.titles {
        let handle = app.host.tenant(&tenant);
        for listed in &mut conversations {
            let conversation = handle.conversation(&listed.conversation_id);
            // A damaged conversation is listed without a title.
            listed.title = conversation.title().await.ok().flatten();
        }
    }
    Ok(Json(Conversations {
        conversations,
        next,
    }))
}

/// Returns the state of a conversation, and what it waits for.
///
/// Includes tokens, budget and queue. Does not activate the conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}", tag = "conversations",
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 200, description = "The state", body = ConversationState)),
)]
pub(in crate::http) async fn get(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<ConversationState>, Problem> {
    let (scope, conversation) = app.known(&tenant, &id).await?;
    let head = app.host.ports().sessions.head(&scope).await?;
    Ok(Json(ConversationState {
        status: conversation.status().await?,
        entries: head.seq,
        epoch: head.epoch,
    }))
}

/// Erases a conversation.
///
/// Deletes its journal, artifacts and events. An open round is ended first.
#[utoipa::path(
    delete, path = "/v1/conversations/{id}", tag = "conversations",
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 204, description = "The conversation is erased")),
)]
pub(in crate::http) async fn delete(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let (scope, conversation) = app.known(&tenant, &id).await?;
    app.fan_outs.erase(&tenant, &scope.conversation);
    match conversation.delete().await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("conversation")),
    }
}

/// Empties a conversation.
///
/// Only while no round is open.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/reset", tag = "conversations",
    params(("id" = String, Path, description = "The conversation")),
    responses((status = 204, description = "The history is empty")),
)]
pub(in crate::http) async fn reset(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    app.host.tenant(&tenant).admit_change()?;
    conversation.reset().await?;
    Ok(StatusCode::NO_CONTENT)
}
