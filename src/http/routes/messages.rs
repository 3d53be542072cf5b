//! Messages of a conversation: sending prompts and reading the history.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use axum::{
    Extension, Json,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::BytesMut;
use callboard_actors::{
    chat::{MessageList, StandardMessage},
    host::{OutcomeError, Prompt, Reply},
    ids::Scope,
    journal::{MultiRoundConversation, SchemaVersion},
    stream::RoundEnd,
};
use futures_util::stream;

use super::{Path, Query, single_header};
use crate::http::{
    answer_body::{answer_body, built, bytes_of, round_answer},
    answer_room::{AnswerRoom, ConnectionRoom},
    api::{
        Accepted, Answer, DEADLINE_MS_MAX, EventFrame, History, HistoryPage, MessageForm,
        MessageRequest,
    },
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

/// Bytes of the messages on a page; a larger message is alone on its page.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes up to which pieces of a body are joined.
const JOINED_BYTES_MAX: usize = 16 * 1024;

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
        (status = 200, description = "The round's result, or its events", content((Answer = "application/json"), (EventFrame = "text/event-stream"))),
        (status = 202, description = "The prompt is stored; `Location` is the path of its events", body = Accepted),
        (status = 409, description = "`conversation_busy`: a round is open and `on_busy` is `reject`", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(in crate::http) async fn send(
    State(app): State<App>,
    Caller(tenant): Caller,
    viewer: sse::Viewer,
    connection: Option<Extension<ConnectionRoom>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Messages(request, room): Messages<MessageRequest>,
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

    let parameters = request.parameters();
    let (tools, tool_choice) = (request.tools, request.tool_choice);
    let blocks = request.content.into_blocks();
    app.check_attachments(&blocks, "/content")?;
    let mut send = app
        .conversation(&scope)
        .send(Prompt::blocks(blocks))
        .on_busy(request.on_busy.into())
        .parameters(parameters);
    if let Some(ms) = request.deadline_ms {
        send = send.deadline(deadline(ms, "/deadline_ms")?);
    }
    if let Some(ms) = request.wait_ms {
        send = send.wait_at_most(deadline(ms, "/wait_ms")?);
    }
    if let Some(key) = key {
        send = send.client_key(key);
    }
    if !tools.is_empty() {
        send = send.client_tools(tools.into_iter().map(Into::into));
    }
    if let Some(choice) = tool_choice {
        send = send.tool_choice(choice);
    }
    let mut reply = send.await?;
    drop(room);

    let replayed = reply.is_replayed();
    let mut response = match (form, watching) {
        (Form::Stream, Some(watching)) => {
            sse::respond(&app, sse::Source::Round(reply), watching, viewer)
        }
        (Form::Async, _) => accepted(&scope, &reply),
        (Form::Stream | Form::Plain, _) => {
            let answer = tokio::select! {
                biased;
                answer = outcome(&scope, &mut reply) => answer?,
                () = app.config.leaving.cancelled() => return Err(left_open(&scope, &reply)),
            };
            let bytes = answer.text.len() + answer.full_text.len();
            round_answer(&app, &tenant, connection, bytes, answer).await?
        }
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
/// Oldest message first, in pages: the context that the model is sent, or with `whole=true` all
/// messages, also those that a compaction dropped. `form` selects another form of them. Does not
/// activate the conversation.
#[utoipa::path(
    get, path = "/v1/conversations/{id}/messages", tag = "conversations",
    params(("id" = String, Path, description = "The conversation"), HistoryPage),
    responses((status = 200, description = "A page of the history", body = History)),
)]
pub(in crate::http) async fn history(
    State(app): State<App>,
    Caller(tenant): Caller,
    Extension(connection): Extension<ConnectionRoom>,
    Path(id): Path<String>,
    Query(page): Query<HistoryPage>,
) -> Result<Response, Problem> {
    let (_, conversation) = app.known(&tenant, &id).await?;
    let after = page.after.as_deref().map(|text| {
        text.parse::<usize>()
            .map_err(|_| Problem::bad_parameter("after", "must be a number"))
    });
    let start = after
        .transpose()?
        .map_or(0, |after| after.saturating_add(1));
    let limit = limit(page.limit, PAGE)?;
    // Reserve before the history is read, so that waiting requests hold nothing.
    let room = app
        .answers
        .take(&tenant, &connection, PAGE_BYTES_MAX)
        .await?;
    let wire = move |all: MessageList| {
        let page = all.iter().skip(start).take(limit);
        let page: Vec<Bytes> = page.map(|message| message.wire().clone()).collect();
        (page, all.len())
    };
    let ((page, total), room) = match page.form {
        MessageForm::Debug => {
            let all = conversation.debug_messages().await?;
            // A second for a message of a million values, whatever its bytes.
            let written = move || debug_page(&all, start, limit);
            built(&app, &tenant, usize::MAX, room, written).await?
        }
        MessageForm::Compressed => {
            let page = move |all: MultiRoundConversation| {
                (wire(all.compressed_history().into_iter().collect()), room)
            };
            conversation.multi_round(page).await?
        }
        MessageForm::Wire => {
            let all = match page.whole {
                true => conversation.transcript().await?,
                false => conversation.state().await?.history.messages().clone(),
            };
            let bytes = bytes_of(all.iter());
            built(&app, &tenant, bytes, room, move || wire(all)).await?
        }
    };
    let pause_max = app.config.bounds.write_pause_max;
    history_page(page, start, total, room, pause_max).await
}

/// Writes the messages of a page in the form for debugging, as far as the page goes, and counts all.
fn debug_page(all: &[StandardMessage], start: usize, limit: usize) -> (Vec<Bytes>, usize) {
    let version = SchemaVersion::LATEST.to_string();
    let mut bytes = 0;
    let page = all.iter().skip(start).take(limit).map_while(|message| {
        let is_within = bytes <= PAGE_BYTES_MAX;
        is_within.then(|| {
            let text = message.to_debug_dict(&version).to_string();
            bytes += text.len();
            Bytes::from(text)
        })
    });
    (page.collect(), all.len())
}

/// Answers with a page of the messages from `start` on, of `total`. The body refers to the messages'
/// own bytes and is written while the client reads it.
async fn history_page(
    messages: Vec<Bytes>,
    start: usize,
    total: usize,
    mut room: AnswerRoom,
    pause_max: Duration,
) -> Result<Response, Problem> {
    let mut bytes = 0;
    let page: Vec<(usize, Bytes)> = messages
        .into_iter()
        .zip(start..)
        .map_while(|(wire, index)| {
            let is_first = bytes == 0;
            bytes += wire.len();
            (is_first || bytes <= PAGE_BYTES_MAX).then_some((index, wire))
        })
        .collect();
    let shell = History {
        messages: Vec::new(),
        total,
        next: page
            .last()
            .map(|(last, _)| *last)
            .filter(|last| last + 1 < total),
    };
    let shell = serde_json::to_string(&shell).unwrap_or_default();
    let (before, after) = shell.split_once(']').unwrap_or_default();
    let mut pieces = VecDeque::with_capacity(2 * page.len() + 2);
    pieces.push_back(Bytes::copy_from_slice(before.as_bytes()));
    for (number, (index, wire)) in page.into_iter().enumerate() {
        let separator = if number == 0 { "" } else { "}," };
        pieces.push_back(format!("{separator}{{\"index\":{index},\"message\":").into());
        pieces.push_back(wire);
    }
    let close = if pieces.len() > 1 { "}]" } else { "]" };
    pieces.push_back(format!("{close}{after}").into());
    let length: usize = pieces.iter().map(Bytes::len).sum();
    room.resize(length).await?;
    let body = stream::iter(std::iter::from_fn(move || {
        next_piece(&mut pieces).map(Ok::<_, Infallible>)
    }));
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        ),
        (header::CONTENT_LENGTH, HeaderValue::from(length)),
    ];
    Ok((headers, answer_body(body, room, pause_max)).into_response())
}

/// Takes the next piece of a body; joins small ones, so that short messages do not become a frame
/// each.
fn next_piece(pieces: &mut VecDeque<Bytes>) -> Option<Bytes> {
    let first = pieces.pop_front()?;
    let next_is_small = |pieces: &VecDeque<Bytes>, held: usize| {
        pieces
            .front()
            .is_some_and(|next| held + next.len() <= JOINED_BYTES_MAX)
    };
    if !next_is_small(pieces, first.len()) {
        return Some(first);
    }
    let mut joined = BytesMut::from(&*first);
    while next_is_small(pieces, joined.len())
        && let Some(next) = pieces.pop_front()
    {
        joined.extend_from_slice(&next);
    }
    Some(joined.freeze())
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

fn deadline(ms: u64, pointer: &str) -> Result<Duration, Problem> {
    match ms {
        1..=DEADLINE_MS_MAX => Ok(Duration::from_millis(ms)),
        _ => Err(Problem::invalid(
            pointer,
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

/// The answer to a client whose round stays open while the program exits. Its next start resumes
/// the round.
fn left_open(scope: &Scope, reply: &Reply) -> Problem {
    let (id, round) = (&scope.conversation, reply.round_id());
    let detail = format!(
        "the host stops and its next start resumes the round; do not send the prompt again, its end is at /v1/conversations/{id}/events?round={round}"
    );
    Problem {
        detail,
        ..Problem::draining()
    }
}

/// The answer to a client whose round goes on at another host.
fn moved_on(scope: &Scope, reply: &Reply, problem: Problem) -> Problem {
    let (id, round) = (&scope.conversation, reply.round_id());
    let detail = format!(
        "another host has taken the conversation and goes on with the round; do not send the prompt again, its end is at /v1/conversations/{id}/events?round={round}"
    );
    Problem { detail, ..problem }
}

/// Waits for the round's end. A failed round is a 200 as well: its prompt is stored, and a client
/// that retried would send it twice.
async fn outcome(scope: &Scope, reply: &mut Reply) -> Result<Answer, Problem> {
    let end: RoundEnd = match reply.outcome().await {
        Ok(end) => end,
        Err(OutcomeError::Failed { end }) => *end,
        Err(error) => {
            let problem = Problem::from(error);
            return Err(match problem.is_taken() {
                true => moved_on(scope, reply, problem),
                false => problem,
            });
        }
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
    use callboard_actors::{chat::Message, ids::TenantId};

    use super::*;
    use crate::http::{HttpBounds, answer_room::AnswerRooms, api::Placed};

    #[tokio::test]
    async fn a_streamed_page_is_the_documented_json_and_its_length_is_known() {
        let texts = ["a", &"b".repeat(30_000), "", "c \"quoted\""];
        let all: MessageList = texts.iter().map(|text| Message::user(*text)).collect();
        let rooms = AnswerRooms::new(&HttpBounds::default());
        let connection = ConnectionRoom::new(&HttpBounds::default());
        for (start, limit) in [(0, 100), (0, 2), (1, 1), (3, 5), (4, 5), (9, 1)] {
            let tenant = TenantId::new("acme").unwrap();
            let room = rooms
                .take(&tenant, &connection, PAGE_BYTES_MAX)
                .await
                .unwrap();

            let wire = all.iter().map(|message| message.wire().clone());
            let wire = wire.skip(start).take(limit).collect();
            let response = history_page(wire, start, all.len(), room, Duration::from_secs(60))
                .await
                .unwrap();

            let length = response.headers()[header::CONTENT_LENGTH].clone();
            let body = axum::body::to_bytes(response.into_body(), usize::MAX)
                .await
                .unwrap();
            let end = all.len().min(start + limit);
            let expected = History {
                messages: (start..end)
                    .map(|index| Placed {
                        index,
                        message: all.get(index).unwrap().clone(),
                    })
                    .collect(),
                total: all.len(),
                next: (end > start && end < all.len()).then(|| end - 1),
            };
            assert_eq!(body, serde_json::to_string(&expected).unwrap());
            assert_eq!(length, body.len().to_string().as_str());
        }
    }

    #[tokio::test]
    async fn a_page_ends_before_its_bytes_are_too_many() {
        let all: Vec<Bytes> = (0..3)
            .map(|_| Message::user("x".repeat(5_000_000)).wire().clone())
            .collect();
        let rooms = AnswerRooms::new(&HttpBounds::default());
        let connection = ConnectionRoom::new(&HttpBounds::default());
        let room = rooms
            .take(&TenantId::new("acme").unwrap(), &connection, 1)
            .await
            .unwrap();

        let response = history_page(all, 0, 3, room, Duration::from_secs(60))
            .await
            .unwrap();

        let body = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        assert!(body.len() < PAGE_BYTES_MAX && body.ends_with(br#"],"total":3,"next":0}"#));
    }

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
