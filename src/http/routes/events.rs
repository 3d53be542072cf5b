//! The event stream of a conversation.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    host::{ConversationHandle, EventsFrom},
    ids::{EventId, RoundId, Scope},
    ports::StreamKey,
};

use super::{Path, Query, single_header};
use crate::http::{
    api::{EventFrame, WatchFrom},
    auth::Caller,
    error::Problem,
    shared::App,
    sse,
};

/// Streams the events of a conversation, or of one of its rounds.
///
/// Without a cursor, the stream starts with the beginning of the running round and continues live.
/// With a cursor, it contains every durable event after it, each once. A cursor that has expired is
/// answered with one `snapshot` event. With `round` the stream ends with that round; if the cursor
/// is already at the round's end, the answer is 204, which stops a browser from reconnecting. A
/// comment every 15 seconds keeps the connection open.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/events", tag = "conversations",
    params(
        ("id" = String, Path, description = "The conversation"), WatchFrom,
        ("Last-Event-ID" = Option<String>, Header, description = "Start after the event with this id"),
    ),
    responses(
        (status = 200, description = "The events, each with `id`, `event` (its type) and `data`", body = EventFrame, content_type = "text/event-stream"),
        (status = 204, description = "The round has ended, and the cursor is at its last event"),
    ),
)]
pub(in crate::http) async fn watch(
    State(app): State<App>,
    Caller(tenant): Caller,
    viewer: sse::Viewer,
    Path(id): Path<String>,
    Query(from): Query<WatchFrom>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let seen = single_header(&headers, "last-event-id")?
        .filter(|id| !id.is_empty())
        .map(|id| cursor("Last-Event-ID", id))
        .transpose()?;
    let after = match seen {
        Some(seen) => Some(seen),
        None => from
            .after
            .as_deref()
            .map(|id| cursor("after", id))
            .transpose()?,
    };
    let (scope, conversation) = app.known(&tenant, &id).await?;
    let watching = app.watch(&tenant)?;
    let source = match from.round.as_deref() {
        None => sse::Source::Conversation(
            conversation
                .events(after.map_or(EventsFrom::Now, EventsFrom::After))
                .await?,
        ),
        Some(round) => {
            let round: RoundId = round
                .parse()
                .map_err(|_| Problem::bad_parameter("round", "must be the id of a round"))?;
            if !has_round(&app, &scope, &conversation, round).await? {
                return Err(Problem::not_found("round"));
            }
            let mut reply = conversation.watch(round)?;
            if let Some(after) = after {
                reply = reply.after(after);
                if reply.is_over().await {
                    return Ok(StatusCode::NO_CONTENT.into_response());
                }
            }
            sse::Source::Round(reply)
        }
    };
    Ok(sse::respond(&app, source, watching, viewer))
}

fn cursor(name: &str, text: &str) -> Result<EventId, Problem> {
    text.parse()
        .map_err(|error| Problem::bad_parameter(name, error))
}

/// Whether the conversation has this round, whether it is streaming, queued or in its history.
pub(in crate::http) async fn has_round(
    app: &App,
    scope: &Scope,
    conversation: &ConversationHandle,
    round: RoundId,
) -> Result<bool, Problem> {
    let key = StreamKey {
        scope: scope.clone(),
        round,
    };
    if app
        .host
        .ports()
        .events
        .get_status(&key)
        .await
        .is_ok_and(|status| status.is_some())
    {
        return Ok(true);
    }
    let state = conversation.state().await?;
    let waits = || state.inbox.iter().any(|prompt| prompt.round_id == round);
    if state.round.as_ref().is_some_and(|open| open.id == round) || waits() {
        return Ok(true);
    }
    Ok(conversation
        .rounds()
        .await?
        .iter()
        .any(|known| known.round_id == round))
}
