//! Messages of a conversation: sending prompts and reading the history.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use callboard_actors::{
    host::{OutcomeError, Prompt, Reply},
    ids::Scope,
    stream::RoundEnd,
};

use super::{Path, Query, single_header};
use crate::http::{
    api::{Accepted, Answer, DEADLINE_MS_MAX, Event, History, MessageRequest, Page, Placed},
    auth::Caller,
    body::Messages,
    error::Problem,
    shared::{App, scope},
    sse,
};

/// Longest `Idempotency-Key`, in bytes.
const CLIENT_KEY_BYTES_MAX: usize = 255;

/// Messages on a page if the client sets no limit.
const PAGE: usize = 100;

/// Largest page of any list, in items.
pub(super) const PAGE_MAX: usize = 1000;

/// Sends a prompt.
///
/// Answers with the round's result when the round has ended. With `Accept: text/event-stream` or
/// `stream: true`, answers with the round's events. With `Prefer: respond-async`, which takes
/// precedence over both, answers at once. A client that disconnects cancels nothing. An unknown
/// conversation is created.
#[utoipa::path(
    post, path = "/v1/conversations/{id}/messages", tag = "conversations", request_body = MessageRequest,
    params(
        ("id" = String, Path, description = "The conversation"),
        ("Idempotency-Key" = Option<String>, Header, description = "Identifies the prompt within the conversation for 24 hours: a repeated request with the same body returns the same round (`Idempotency-Replayed: true`), with another body 422"),
        ("Prefer" = Option<String>, Header, description = "`respond-async`: answer 202 at once"),
    ),
    responses(
        (status = 200, description = "The round's result, or its events", content((Answer = "application/json"), (Event = "text/event-stream"))),
        (status = 202, description = "The prompt is stored; `Location` is the path of its events", body = Accepted),
        (status = 409, description = "`conversation_busy`: a round is open and `on_busy` is `reject`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(in crate::http) async fn send(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
    Messages(request): Messages<MessageRequest>,
) -> Result<Response, Problem> {
    let scope = scope(&tenant, &id)?;
    let form = Form::from_headers(&headers, request.stream)?;
    let key = client_key(&headers)?;
    // Reserve the stream before the prompt is stored: a stored prompt must not be answered with
    // 429.
    let watching = if form == Form::Stream {
        Some(app.watch(&tenant)?)
    } else {
        None
    };

    let mut send = app
        .conversation(&scope)
        .send(Prompt::blocks(request.content.into_blocks()))
        .on_busy(request.on_busy.into());
    if let Some(ms) = request.deadline_ms {
        send = send.deadline(deadline(ms)?);
    }
    if let Some(key) = key {
        send = send.client_key(key);
    }
    let mut reply = send.await?;

    let replayed = reply.is_replayed();
    let mut response = match (form, watching) {
        (Form::Stream, Some(watching)) => sse::respond(&app, sse::Source::Round(reply), watching),
        (Form::Async, _) => accepted(&scope, &reply),
        (Form::Stream | Form::Plain, _) => Json(outcome(&scope, &mut reply).await?).into_response(),
    };
    if replayed {
        response.headers_mut().insert(
            HeaderName::from_static("idempotency-replayed"),
            HeaderValue::from_static("true"),
        );
    }
    Ok(response)
}

/// Reads the history.
///
/// Oldest message first, in pages. Does not activate the conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/messages", tag = "conversations",
    params(("id" = String, Path, description = "The conversation"), Page),
    responses((status = 200, description = "A page of the history", body = History)),
)]
pub(in crate::http) async fn history(
    State(app): State<App>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<History>, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    let after = page.after.as_deref().map(|text| {
        text.parse::<usize>()
            .map_err(|_| Problem::bad_parameter("after", "must be a number"))
    });
    let start = after
        .transpose()?
        .map_or(0, |after| after.saturating_add(1));
    let limit = limit(page.limit, PAGE)?;
    let state = conversation.state().await?;
    let all = state.history.messages();
    let messages: Vec<Placed> = (start..all.len().min(start.saturating_add(limit)))
        .filter_map(|index| {
            all.get(index).map(|message| Placed {
                index,
                message: message.clone(),
            })
        })
        .collect();
    let next = messages
        .last()
        .map(|last| last.index)
        .filter(|last| last + 1 < all.len());
    Ok(Json(History {
        messages,
        total: all.len(),
        next,
    }))
}

/// The validated page size.
pub(super) fn limit(asked: Option<usize>, default: usize) -> Result<usize, Problem> {
    match asked.unwrap_or(default) {
        limit @ 1..=PAGE_MAX => Ok(limit),
        _ => Err(Problem::bad_parameter(
            "limit",
            format_args!("must be 1 to {PAGE_MAX}"),
        )),
    }
}

fn deadline(ms: u64) -> Result<Duration, Problem> {
    match ms {
        1..=DEADLINE_MS_MAX => Ok(Duration::from_millis(ms)),
        _ => Err(Problem::invalid(
            "/deadline_ms",
            format!("must be 1 to {DEADLINE_MS_MAX}"),
        )),
    }
}

fn client_key(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(key) = single_header(headers, "idempotency-key")? else {
        return Ok(None);
    };
    if key.is_empty() || key.len() > CLIENT_KEY_BYTES_MAX {
        return Err(Problem::bad_parameter(
            "Idempotency-Key",
            format_args!("must have 1 to {CLIENT_KEY_BYTES_MAX} bytes"),
        ));
    }
    Ok(Some(key))
}

fn accepted(scope: &Scope, reply: &Reply) -> Response {
    let conversation_id = scope.conversation.clone();
    let round_id = reply.round_id();
    let events = format!("/v1/conversations/{conversation_id}/events?round={round_id}");
    let location = HeaderValue::from_str(&events)
        .ok()
        .map(|value| (header::LOCATION, value));
    let applied = (
        HeaderName::from_static("preference-applied"),
        HeaderValue::from_static("respond-async"),
    );
    let headers: HeaderMap = location.into_iter().chain([applied]).collect();
    (
        StatusCode::ACCEPTED,
        headers,
        Json(Accepted {
            conversation_id,
            round_id,
            stream_id: round_id,
            events,
        }),
    )
        .into_response()
}

/// Waits for the round's end. A failed round is a 200 as well: its prompt is stored, and a client
/// that retried would send it twice.
async fn outcome(scope: &Scope, reply: &mut Reply) -> Result<Answer, Problem> {
    let end: RoundEnd = match reply.outcome().await {
        Ok(end) => end,
        Err(OutcomeError::Failed { end }) => *end,
        Err(error) => return Err(error.into()),
    };
    Ok(Answer::new(
        scope.conversation.clone(),
        reply.round_id(),
        end,
    ))
}

/// The form in which a prompt is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Plain,
    Stream,
    Async,
}

impl Form {
    fn from_headers(headers: &HeaderMap, stream: bool) -> Result<Self, Problem> {
        let prefers = |value: &HeaderValue| {
            let text = value.to_str().unwrap_or_default();
            text.split([',', ';'])
                .any(|preference| preference.trim().eq_ignore_ascii_case("respond-async"))
        };
        if headers.get_all("prefer").iter().any(prefers) {
            return Ok(Self::Async);
        }
        let accepted: Vec<String> = headers
            .get_all(header::ACCEPT)
            .iter()
            .flat_map(|value| value.to_str().unwrap_or_default().split(','))
            .map(|media| {
                media
                    .split(';')
                    .next()
                    .unwrap_or_default()
                    .trim()
                    .to_ascii_lowercase()
            })
            .filter(|media| !media.is_empty())
            .collect();
        let takes = |media: &[&str]| {
            accepted
                .iter()
                .any(|accepted| media.contains(&accepted.as_str()))
        };
        if stream || takes(&["text/event-stream"]) {
            return Ok(Self::Stream);
        }
        if accepted.is_empty() || takes(&["application/json", "application/*", "*/*"]) {
            return Ok(Self::Plain);
        }
        let detail = "this route answers with `application/json` or `text/event-stream`";
        Err(Problem::new(
            StatusCode::NOT_ACCEPTABLE,
            "not_acceptable",
            detail,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn respond_async_wins_over_streaming_and_an_unsupported_media_type_is_406() {
        let form = |fields: &[(&'static str, &'static str)], stream| {
            let fields = fields.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            Form::from_headers(&HeaderMap::from_iter(fields), stream)
                .map_err(|problem| problem.status)
        };

        assert_eq!(form(&[], false), Ok(Form::Plain));
        assert_eq!(form(&[], true), Ok(Form::Stream));
        assert_eq!(
            form(&[("accept", "text/event-stream")], false),
            Ok(Form::Stream)
        );
        assert_eq!(
            form(&[("accept", "application/json, */*;q=0.1")], false),
            Ok(Form::Plain)
        );
        assert_eq!(
            form(
                &[
                    ("accept", "text/event-stream"),
                    ("prefer", "wait=5, respond-async")
                ],
                true
            ),
            Ok(Form::Async)
        );
        assert_eq!(form(&[("accept", "text/html")], false), Err(406));
    }
}
