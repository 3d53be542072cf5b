//! What pages show or offer besides text: images of messages, artifacts, and the live events of a
//! conversation.

use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use callboard_actors::{
    chat::{Message, attachment::media_of},
    ids::Seq,
    journal::EntryBody,
};

use super::{
    page::Failure,
    session::{TenantSession, caller_key},
};
use crate::http::{
    answer_body::whole_answer,
    api::WatchFrom,
    auth::Caller,
    error::Problem,
    routes::{Path, Query, artifacts, events},
    shared::App,
};

/// Bytes that an image may take while it is sent.
const IMAGE_ROOM: usize = 16 * 1024 * 1024;

/// Sends an image of a message.
pub(super) async fn image(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<(String, u64, usize)>, Problem>,
) -> Result<Response, Failure> {
    let Path((id, seq, index)) = path?;
    let missing = || Problem::not_found("image");
    let (_, conversation) = app.known(&viewer.tenant, &id).await?;
    let room = app
        .answers
        .take(&viewer.tenant, &viewer.connection, IMAGE_ROOM)
        .await?;
    let before = Seq(seq.saturating_sub(1));
    let entries = conversation.entries(before, 1).await?;
    let entry = entries.first().filter(|entry| entry.seq.0 == seq);
    let message: &Message = match entry.map(|entry| &entry.body) {
        Some(
            EntryBody::PromptAccepted {
                message: Some(message),
                ..
            }
            | EntryBody::Injected { message, .. },
        ) => message,
        _ => return Err(missing().into()),
    };
    let block = message
        .blocks()
        .into_iter()
        .nth(index)
        .ok_or_else(missing)?;
    let image = media_of(&block).ok_or_else(missing)?;
    let media = match &*image.media_type {
        "image/png" => "image/png",
        "image/jpeg" => "image/jpeg",
        "image/gif" => "image/gif",
        "image/webp" => "image/webp",
        _ => return Err(missing().into()),
    };
    let bytes = image.bytes().map_err(|_| missing())?;
    let pause_max = app.config.bounds.write_pause_max;
    let mut response = whole_answer(media, bytes, room, pause_max).await?;
    // An entry never changes.
    let cached = HeaderValue::from_static("private, max-age=3600");
    response.headers_mut().insert(header::CACHE_CONTROL, cached);
    Ok(response)
}

/// Sends an artifact of a conversation, to be saved.
pub(super) async fn artifact(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<(String, String)>, Problem>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Path((conversation, id)) = path?;
    let of = Query(artifacts::Of::in_conversation(conversation));
    let caller = Caller(viewer.tenant);
    let connection = Extension(viewer.connection);
    Ok(artifacts::get(State(app), caller, connection, Path(id), of, headers).await?)
}

/// Sends the events of a conversation, as the API does.
pub(super) async fn live(
    State(app): State<App>,
    viewer: TenantSession,
    path: Result<Path<String>, Problem>,
    from: Result<Query<WatchFrom>, Problem>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let Some(key) = caller_key(&viewer.session, &app) else {
        return Err(Problem::not_found("page").into());
    };
    let caller = Caller(viewer.tenant);
    Ok(events::watch(State(app), caller, key.into(), path?, from?, headers).await?)
}
