//! Extractors for request bodies. A body is read within limits of size and time, counted against
//! its tenant's buffer space, and parsed as JSON.

use std::sync::Arc;

use axum::{
    body::{Body, BodyDataStream, Bytes},
    extract::{FromRequest, FromRequestParts as _, Request},
    http::{HeaderMap, StatusCode, header},
};
use callboard_actors::limits::PROMPT_BYTES_MAX;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Segment};
use tokio::time::{Instant, timeout_at};

use super::{
    auth::{Admin, Caller, unauthorized},
    error::Problem,
    shared::{App, BodyRoom, too_busy},
    words::wrong_type,
};
use crate::fair::{FairPlaces, Owner};

/// Room for a message request's other fields and white space, beside the prompt itself.
const MESSAGE_SLACK_BYTES: usize = 1024 * 1024;

/// Bytes of a body that is parsed, and of messages of which an answer is built, on the worker thread,
/// which takes less than a millisecond.
pub(super) const WORKED_IN_PLACE_MAX: usize = 64 * 1024;

/// Values of a body, and bytes that each takes of the tenant's room: the shortest message takes half a
/// kilobyte in memory and 30 bytes in the body, so the size alone does not bound what a body becomes.
const VALUES_MAX: usize = 500_000;
const VALUE_BYTES: usize = 160;

/// A JSON body of a tenant's request, within the general size limit.
pub(super) struct Json<T>(pub(super) T);

/// A JSON body of a tenant's request that carries messages, and the room that it takes until they are
/// stored. Its size limit is that of a prompt.
pub(super) struct Messages<T>(pub(super) T, pub(super) BodyRoom);

/// A JSON body of an operator's request.
pub(super) struct AdminJson<T>(pub(super) T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let bytes_max = app.config.bounds.body_bytes_max;
        read(request, app, bytes_max, |parsed, _, _| parsed)
            .await
            .map(Self)
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for Messages<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        read_messages(request, app, |parsed, _, room| Self(parsed, room)).await
    }
}

/// Reads and parses a body that carries messages. `convert` runs where the body is parsed: for a
/// large one on a blocking thread. Its other arguments are whether the body is large, and its room.
pub(super) async fn read_messages<T: DeserializeOwned + Send + 'static, U: Send + 'static>(
    request: Request,
    app: &App,
    convert: impl FnOnce(T, bool, BodyRoom) -> U + Send + 'static,
) -> Result<U, Problem> {
    read(
        request,
        app,
        PROMPT_BYTES_MAX + MESSAGE_SLACK_BYTES,
        convert,
    )
    .await
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for AdminJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        Admin::from_request_parts(&mut parts, app).await?;
        let bytes = collect(
            &parts.headers,
            body,
            app,
            app.config.bounds.body_bytes_max,
            None,
        )
        .await?;
        let place = (&app.parses, None);
        let convert = |parsed, _, ()| Self(parsed);
        parse(place, parts.headers, bytes, |_| Ok(()), convert).await
    }
}

/// Reads the JSON body of an operator's request; an empty body gives the default value.
pub(super) async fn optional<T: DeserializeOwned + Default + Send + 'static>(
    request: Request,
    app: &App,
) -> Result<T, Problem> {
    let (parts, body) = request.into_parts();
    let bytes = collect(
        &parts.headers,
        body,
        app,
        app.config.bounds.body_bytes_max,
        None,
    )
    .await?;
    if bytes.is_empty() {
        Ok(T::default())
    } else {
        let place = (&app.parses, None);
        let convert = |parsed, _, ()| parsed;
        parse(place, parts.headers, bytes, |_| Ok(()), convert).await
    }
}

/// Reads and parses the body of a tenant's request. The caller is authenticated here as well, so no
/// handler can buffer a body without charging it to a tenant.
async fn read<T: DeserializeOwned + Send + 'static, U: Send + 'static>(
    request: Request,
    app: &App,
    bytes_max: usize,
    convert: impl FnOnce(T, bool, BodyRoom) -> U + Send + 'static,
) -> Result<U, Problem> {
    let (mut parts, body) = request.into_parts();
    let Caller(tenant) = Caller::from_request_parts(&mut parts, app).await?;
    let mut room = app.body_room(&tenant);
    let bytes = collect(&parts.headers, body, app, bytes_max, Some(&mut room)).await?;
    // A body may take minutes, and its key may have been replaced meanwhile.
    let Caller(now) = Caller::from_request_parts(&mut parts, app).await?;
    if now != tenant {
        return Err(unauthorized("unknown key"));
    }
    let admit = move |count: usize| {
        room.take(count * VALUE_BYTES)?;
        Ok(room)
    };
    let place = (&app.parses, Some(tenant));
    parse(place, parts.headers, bytes, admit, convert).await
}

/// Reads a body within the bounds of time and size, and into `room` if it counts there.
pub(super) async fn collect(
    headers: &HeaderMap,
    body: Body,
    app: &App,
    bytes_max: usize,
    room: Option<&mut BodyRoom>,
) -> Result<Bytes, Problem> {
    let mut chunks = body.into_data_stream();
    collect_from(headers, &mut chunks, app, bytes_max, room).await
}

async fn collect_from(
    headers: &HeaderMap,
    chunks: &mut BodyDataStream,
    app: &App,
    bytes_max: usize,
    mut room: Option<&mut BodyRoom>,
) -> Result<Bytes, Problem> {
    let bounds = &app.config.bounds;
    let too_large = || {
        Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the body of this request is limited to {bytes_max} bytes"),
        )
    };
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large());
    }
    let too_slow = |_| {
        Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_too_slow",
            "the body arrived too slowly; send it without pauses",
        )
    };
    let whole = Instant::now() + bounds.body_within;
    let mut bytes = Vec::new();
    loop {
        let until = whole.min(Instant::now() + bounds.body_pause_max);
        match timeout_at(until, chunks.next()).await.map_err(too_slow)? {
            None => return Ok(bytes.into()),
            Some(Ok(chunk)) if chunk.len() > bytes_max.saturating_sub(bytes.len()) => {
                return Err(too_large());
            }
            Some(Ok(chunk)) => {
                if let Some(room) = &mut room {
                    room.take(chunk.len())?;
                }
                bytes.extend_from_slice(&chunk);
            }
            Some(Err(_)) => {
                return Err(Problem::new(
                    StatusCode::BAD_REQUEST,
                    "broken_body",
                    "the connection broke before the body was complete",
                ));
            }
        }
    }
}

/// Parses a body and converts what it says, in one place. `admit` takes the number of its values, and
/// returns what is held for them.
async fn parse<T: DeserializeOwned + Send + 'static, R, U: Send + 'static>(
    place: (&Arc<FairPlaces>, Owner),
    headers: HeaderMap,
    bytes: Bytes,
    admit: impl FnOnce(usize) -> Result<R, Problem> + Send + 'static,
    convert: impl FnOnce(T, bool, R) -> U + Send + 'static,
) -> Result<U, Problem> {
    let is_large = bytes.len() > WORKED_IN_PLACE_MAX;
    worked(place, is_large, move || {
        let held = admit(counted(&bytes)?)?;
        let parsed = parse_here(&headers, &bytes)?;
        Ok(convert(parsed, is_large, held))
    })
    .await?
}

/// The number of a body's values, within the limit.
fn counted(bytes: &[u8]) -> Result<usize, Problem> {
    match callboard_actors::chat::values_in(bytes) {
        count if count <= VALUES_MAX => Ok(count),
        _ => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the JSON of a body is limited to {VALUES_MAX} values"),
        )),
    }
}

/// Works on a body, on what was made of it, or on an answer: on a small one here, on a large one on a
/// blocking thread. A worker thread that parses or converts for seconds serves no other tenant meanwhile.
///
/// A thread that has begun goes on when its client has left, so it holds the place and what `work`
/// holds itself: otherwise clients that leave would have as many bodies parsed at a time as they
/// send.
pub(super) async fn worked<T: Send + 'static>(
    (places, owner): (&Arc<FairPlaces>, Owner),
    is_large: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    if !is_large {
        return Ok(work());
    }
    let place = places.acquire(owner).await.map_err(too_busy)?;
    let working = tokio::task::spawn_blocking(move || {
        let _held = place;
        work()
    });
    working.await.map_err(|_| Problem::internal())
}

fn parse_here<T: DeserializeOwned>(headers: &HeaderMap, bytes: &[u8]) -> Result<T, Problem> {
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = media
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if !(essence == "application/json"
        || essence.starts_with("application/") && essence.ends_with("+json"))
    {
        let detail = "send a JSON body with `Content-Type: application/json`";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not_json",
            detail,
        ));
    }
    if bytes.trim_ascii().is_empty() {
        let detail = "the body is empty; send a JSON object";
        return Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed_json",
            detail,
        ));
    }
    // An array would be read as the fields of a struct in their order, and `[]` as all defaults.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::invalid(
            String::new(),
            "send an object, not an array",
        ));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let pointer = pointer(error.path());
        match error.inner().classify() {
            serde_json::error::Category::Data => Problem::invalid(pointer, field(error.inner())),
            _ => malformed(error.inner()),
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(parsed)
}

/// A body that is not JSON.
fn malformed(error: &serde_json::Error) -> Problem {
    let at = format!("line {}, column {}", error.line(), error.column());
    let detail = match error.classify() {
        serde_json::error::Category::Eof => format!("the JSON of the body ends too early, at {at}"),
        _ => format!("the body is not valid JSON at {at}: {}", reason(error)),
    };
    Problem::new(StatusCode::BAD_REQUEST, "malformed_json", detail)
}

/// What is wrong with a field, whose place the pointer says.
fn field(error: &serde_json::Error) -> String {
    wrong_type(&reason(error)).chars().take(300).collect()
}

/// serde's message without the place at its end.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// A serde path as a JSON pointer (RFC 6901).
fn pointer(path: &Path) -> String {
    path.iter()
        .fold(String::new(), |pointer, segment| match segment {
            Segment::Seq { index } => format!("{pointer}/{index}"),
            Segment::Map { key } => {
                format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
            }
            Segment::Enum { .. } | Segment::Unknown => pointer,
        })
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread::ThreadId};

    use axum::http::HeaderValue;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[allow(dead_code)]
        list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[allow(dead_code)]
        #[serde(rename = "a/b")]
        number: u32,
    }

    fn problem(media: &'static str, body: &str) -> (u16, String, Option<String>) {
        let headers =
            HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(media))]);
        let problem = parse_here::<Outer>(&headers, body.as_bytes()).unwrap_err();
        (problem.status, problem.code, problem.pointer)
    }

    #[test]
    fn a_wrong_field_is_named_by_its_pointer() {
        let wrong = |pointer: &str| (422, "invalid_field".to_owned(), Some(pointer.to_owned()));

        assert_eq!(
            problem("application/json", r#"{"list":[{"a/b":1},{"a/b":"x"}]}"#),
            wrong("/list/1/a~1b")
        );
        assert_eq!(
            problem(
                "application/json; charset=utf-8",
                r#"{"list":[],"other":1}"#
            ),
            wrong("/other")
        );
        assert_eq!(problem("application/json", r#"{}"#), wrong(""));
    }

    /// The thread on which a value was parsed.
    struct ParsedOn(ThreadId);

    impl<'de> Deserialize<'de> for ParsedOn {
        fn deserialize<D: serde::Deserializer<'de>>(text: D) -> Result<Self, D::Error> {
            let thread = std::thread::current().id();
            serde::de::IgnoredAny::deserialize(text).map(|_| Self(thread))
        }
    }

    /// Parses a body with a text of this length. Returns whether it is large, and the threads on
    /// which it was parsed and converted.
    async fn parsed(length: usize) -> (bool, ThreadId, ThreadId) {
        let places = FairPlaces::new(1, crate::fair::Waiting { all: 8, tenant: 8 });
        let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(length));
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
        let convert =
            |value: ParsedOn, is_large, ()| (is_large, value.0, std::thread::current().id());
        let parsing = parse((&places, None), headers, body.into(), |_| Ok(()), convert);
        parsing.await.unwrap()
    }

    #[tokio::test]
    async fn a_large_body_is_not_parsed_on_a_worker_thread() {
        let worker = std::thread::current().id();

        assert_eq!(parsed(1000).await.1, worker);
        assert_ne!(parsed(WORKED_IN_PLACE_MAX).await.1, worker);
    }

    #[tokio::test]
    async fn a_large_history_is_converted_where_its_body_is_parsed() {
        let (is_large, parsed_on, converted_on) = parsed(WORKED_IN_PLACE_MAX).await;
        assert_eq!((is_large, parsed_on), (true, converted_on));

        assert!(!parsed(1000).await.0);
    }

    /// Where the work on a body waits for the test.
    static GATE: Barrier = Barrier::new(2);

    #[tokio::test]
    async fn a_client_that_leaves_while_its_body_is_parsed_keeps_its_place_and_its_bytes() {
        let places = FairPlaces::new(1, crate::fair::Waiting { all: 8, tenant: 8 });
        let room = Arc::new(());
        let held = room.clone();

        let mut parsing = Box::pin(worked((&places, None), true, move || {
            let _held = held;
            GATE.wait();
        }));
        assert!(futures_util::poll!(&mut parsing).is_pending());
        drop(parsing);

        assert_eq!((places.free(), Arc::strong_count(&room)), (0, 2));
        GATE.wait();
        let _freed = places.acquire(None).await.unwrap();
        assert_eq!(Arc::strong_count(&room), 1);
    }

    #[test]
    fn malformed_json_is_distinguished_from_a_wrong_field() {
        assert_eq!(
            problem("application/json", "{"),
            (400, "malformed_json".to_owned(), None)
        );
        assert_eq!(
            problem("application/json", r#"{"list":[]} x"#),
            (400, "malformed_json".to_owned(), None)
        );
        assert_eq!(
            problem("application/json", " "),
            (400, "malformed_json".to_owned(), None)
        );
        assert_eq!(
            problem("text/plain", "{}"),
            (415, "not_json".to_owned(), None)
        );
    }
}
