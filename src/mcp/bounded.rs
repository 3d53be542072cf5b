//! The HTTP client of a connection: every message is checked by [`Scan`] before it is parsed, as
//! over pipes. The SDK's own client bounds bytes only, and a message of a few MiB may hold millions
//! of values, each of which costs a hundred bytes or more.
//!
//! Guarantees: a message that breaks a bound sets the connection's [`Fault`], which ends it. Of a
//! connection's messages, few are long at a time while they are read; others wait. At most 64 KiB of a
//! failure's body are read. Answers mean to the SDK what they mean from its own client.

use std::{collections::HashMap, io, sync::Arc};

use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    header::{
        ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    },
};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, RequestId,
        ServerJsonRpcMessage,
    },
    transport::{
        common::client_side_sse::BoxedSseResponse,
        streamable_http_client::{
            AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError,
            StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use sse_stream::SseStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    intake::Intake,
    stdio::{FRAME_BYTES_MAX, Fault, Scan},
};
use crate::outside::Outside;

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const SESSION_ID: &str = "mcp-session-id";
const LAST_EVENT_ID: &str = "last-event-id";

/// Most bytes read of a failure's body.
const FAILURE_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a message from which it is long.
const LONG_BYTES: usize = 64 * 1024;

/// Long messages of a connection that are read at a time. A server may begin as many as it has calls
/// and end none.
const LONG_AT_ONCE_MAX: usize = 2;

type Failure = StreamableHttpError<reqwest::Error>;

/// An HTTP client that passes on only messages within the bounds.
#[derive(Clone)]
pub(super) struct Bounded {
    client: Client,
    /// Serves the connections.
    outside: Outside,
    fault: Fault,
    intake: Intake,
    /// Places of long messages.
    long: Arc<Semaphore>,
}

impl Bounded {
    /// `fault` is set by the first message that breaks a bound.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn new(client: Client, fault: Fault) -> io::Result<Self> {
        Ok(Self {
            client,
            outside: Outside::start()?,
            fault,
            intake: Intake::new(),
            long: Arc::new(Semaphore::new(LONG_AT_ONCE_MAX)),
        })
    }

    fn place(&self) -> Place {
        Place {
            places: self.long.clone(),
            held: None,
        }
    }

    /// Sends a request with the headers that all have; a challenge is an error.
    async fn send(
        &self,
        request: RequestBuilder,
        session: Option<Arc<str>>,
        bearer: Option<String>,
        custom: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Response, Failure> {
        let mut request = request.header(ACCEPT, format!("{EVENTS}, {JSON}"));
        if let Some(bearer) = bearer {
            request = request.bearer_auth(bearer);
        }
        for (name, value) in custom {
            if [ACCEPT.as_str(), SESSION_ID, LAST_EVENT_ID].contains(&name.as_str()) {
                return Err(StreamableHttpError::ReservedHeaderConflict(
                    name.to_string(),
                ));
            }
            request = request.header(name, value);
        }
        if let Some(session) = session {
            request = request.header(SESSION_ID, &*session);
        }
        let response = self.outside.serve(request.send()).await?;
        let Some(challenge) = response.headers().get(WWW_AUTHENTICATE) else {
            return Ok(response);
        };
        let challenge = String::from_utf8_lossy(challenge.as_bytes()).into_owned();
        match response.status() {
            StatusCode::UNAUTHORIZED => Err(StreamableHttpError::AuthRequired(
                AuthRequiredError::new(challenge),
            )),
            StatusCode::FORBIDDEN => Err(StreamableHttpError::InsufficientScope(
                InsufficientScopeError::new(challenge, None),
            )),
            _ => Ok(response),
        }
    }

    /// The body of a success, within the bounds of a message and at the pace of the connection, and the
    /// place that it holds.
    async fn message(&self, mut response: Response) -> Result<(Vec<u8>, Place), Failure> {
        let mut body = Vec::new();
        let mut scan = Scan::default();
        let mut place = self.place();
        while let Some(part) = response.chunk().await? {
            self.intake.take(&part).await;
            let taken = scan.take(&part);
            taken.map_err(|problem| {
                StreamableHttpError::UnexpectedServerResponse(self.fault.refuse(&problem).into())
            })?;
            place.hold(body.len() + part.len()).await;
            body.extend_from_slice(&part);
        }
        self.intake.take_values(scan.values());
        Ok((body, place))
    }

    /// The events of a response, at the pace of the connection; in place of one that breaks a bound
    /// there is an error.
    fn events(&self, response: Response) -> BoxedSseResponse {
        let (values, refused) = (self.intake.clone(), self.fault.clone());
        let parts = Parts {
            parts: response.bytes_stream().boxed(),
            size: EventSize::default(),
            place: self.place(),
            intake: self.intake.clone(),
            fault: self.fault.clone(),
        };
        let bytes = stream::unfold(parts, async |mut parts| Some((parts.next().await?, parts)));
        SseStream::from_bytes_stream(bytes)
            .map(move |event| {
                let event = event?;
                let data = event.data.as_deref().unwrap_or_default();
                let mut scan = Scan::default();
                let taken = scan.take(data.as_bytes());
                values.take_values(scan.values());
                taken.map_err(|problem| SseError::Body(refused.refuse(&problem).into()))?;
                Ok(event)
            })
            .boxed()
    }
}

/// The place that a long message holds while it is read.
struct Place {
    places: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Waits for a place if a message of that size needs one and has none; one that is short gives
    /// it back. Cancel safe.
    async fn hold(&mut self, bytes: usize) {
        if bytes < LONG_BYTES {
            self.held = None;
        } else if self.held.is_none() {
            self.held = self.places.clone().acquire_owned().await.ok();
        }
    }
}

/// The parts of an event stream.
struct Parts {
    parts: BoxStream<'static, reqwest::Result<Bytes>>,
    size: EventSize,
    place: Place,
    intake: Intake,
    fault: Fault,
}

impl Parts {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let part = match self.parts.next().await? {
            Ok(part) => part,
            Err(error) => return Some(Err(io::Error::other(error))),
        };
        self.intake.take(&part).await;
        if !self.size.take(&part) {
            let problem = self.fault.refuse(&Scan::too_long());
            return Some(Err(io::Error::other(problem)));
        }
        self.place.hold(self.size.kept()).await;
        Some(Ok(part))
    }
}

/// Bytes of the event that is being read, as far as the parser keeps them: comments are not, and an
/// empty line ends the event.
#[derive(Default)]
struct EventSize {
    lines: usize,
    line: usize,
    is_comment: bool,
    after_return: bool,
}

impl EventSize {
    fn kept(&self) -> usize {
        self.lines + self.line
    }

    /// Counts bytes; `false` if the event is too long.
    fn take(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, *byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => {
                    self.lines = match self.line {
                        0 => 0,
                        _ if self.is_comment => self.lines,
                        line => self.lines + line + 1,
                    };
                    self.line = 0;
                }
                _ => {
                    self.is_comment = match self.line {
                        0 => *byte == b':',
                        _ => self.is_comment,
                    };
                    self.line += 1;
                }
            }
            if self.kept() > FRAME_BYTES_MAX {
                return false;
            }
        }
        true
    }
}

fn is_kind(headers: &HeaderMap, kind: &str) -> bool {
    let found = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    found.is_some_and(|found| found.starts_with(kind.as_bytes()))
}

fn unexpected_kind(headers: &HeaderMap) -> Failure {
    let found = headers.get(CONTENT_TYPE);
    StreamableHttpError::UnexpectedContentType(
        found.map(|found| String::from_utf8_lossy(found.as_bytes()).into_owned()),
    )
}

/// The error of a status that may have `Retry-After`: 429 and 5xx.
fn status_error(response: &Response) -> Option<HttpStatusError> {
    let status = response.status();
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
        return None;
    }
    let wait = response.headers().get(RETRY_AFTER);
    let wait = wait.and_then(|wait| wait.to_str().ok()).map(str::to_owned);
    Some(HttpStatusError::new(status.as_u16(), wait))
}

/// The start of a failure's body; `None` if it is longer than the bound.
async fn failure_body(mut response: Response, intake: &Intake) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Ok(Some(part)) = response.chunk().await {
        intake.take(&part).await;
        if body.len() + part.len() > FAILURE_BYTES_MAX {
            return None;
        }
        body.extend_from_slice(&part);
    }
    Some(body)
}

/// What an answer with the status of a failure means. `probe` is the id of a `server/discover`
/// outside of a session: any status 4xx except 401 and 403 answers it, since servers of the older
/// protocol refuse it in many ways.
async fn failure(
    response: Response,
    intake: &Intake,
    probe: Option<RequestId>,
    session: Option<String>,
) -> Result<StreamableHttpPostResponse, Failure> {
    let status = response.status();
    let is_json = is_kind(response.headers(), JSON);
    let error = match status_error(&response) {
        Some(error) if !is_json || status == StatusCode::TOO_MANY_REQUESTS => {
            return Err(error.into());
        }
        error => error,
    };
    let Some(body) = failure_body(response, intake).await else {
        let max_size = FAILURE_BYTES_MAX;
        return Err(error.map_or(
            StreamableHttpError::ResponseBodyTooLarge { max_size },
            StreamableHttpError::from,
        ));
    };
    let is_login = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let said = match serde_json::from_slice::<ServerJsonRpcMessage>(&body) {
        Ok(JsonRpcMessage::Error(said)) if !is_login => Some(said),
        _ => None,
    };
    match (probe, said) {
        (Some(id), said) if status.is_client_error() && !is_login => {
            // The id is ours: a server that does not know the request may not repeat it.
            let error = said.map_or_else(
                || {
                    let text = String::from_utf8_lossy(&body);
                    let text = format!("`server/discover` was refused with HTTP {status}: {text}");
                    ErrorData::invalid_request(text, None)
                },
                |said| said.error,
            );
            let message = ServerJsonRpcMessage::error(error, Some(id));
            Ok(StreamableHttpPostResponse::Json(message, None))
        }
        (_, Some(said)) if is_json => Ok(StreamableHttpPostResponse::Json(
            JsonRpcMessage::Error(said),
            session,
        )),
        _ => Err(error.map_or_else(
            || StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}").into()),
            StreamableHttpError::from,
        )),
    }
}

impl StreamableHttpClient for Bounded {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let probe = match &message {
            JsonRpcMessage::Request(request)
                if session_id.is_none()
                    && matches!(request.request, ClientRequest::DiscoverRequest(_)) =>
            {
                Some(request.id.clone())
            }
            _ => None,
        };
        let wants_answer = matches!(message, JsonRpcMessage::Request(_));
        let has_session = session_id.is_some();
        let request = self.client.post(&*uri).json(&message);
        let response = self
            .send(request, session_id, auth_header, custom_headers)
            .await?;
        let status = response.status();
        let session = response.headers().get(SESSION_ID);
        let session = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !status.is_success() {
            return failure(response, &self.intake, probe, session).await;
        }
        // The protocol has 202 for what needs no answer; some servers send an empty 200.
        if !wants_answer && response.content_length() == Some(0) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if is_kind(response.headers(), EVENTS) {
            let events = self.events(response);
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        if !is_kind(response.headers(), JSON) {
            return Err(unexpected_kind(response.headers()));
        }
        let (body, _place) = self.message(response).await?;
        match serde_json::from_slice(&body) {
            Ok(message) => Ok(StreamableHttpPostResponse::Json(message, session)),
            Err(_) if !wants_answer => Ok(StreamableHttpPostResponse::Accepted),
            Err(error) => Err(StreamableHttpError::UnexpectedServerResponse(
                format!("the answer is not a message: {error}").into(),
            )),
        }
    }

    /// The bound of an event is that of a message.
    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        _: usize,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.post_message(uri, message, session_id, auth_header, custom_headers)
            .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let client = &self.client;
        client
            .delete_session(uri, session_id, auth_header, custom_headers)
            .await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxedSseResponse, Failure> {
        let mut request = self.client.get(&*uri);
        if let Some(last) = last_event_id {
            request = request.header(LAST_EVENT_ID, last);
        }
        let response = self
            .send(request, session_id, auth_header, custom_headers)
            .await?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if let Some(error) = status_error(&response) {
            return Err(error.into());
        }
        let response = response.error_for_status()?;
        let headers = response.headers();
        if !is_kind(headers, EVENTS) && !is_kind(headers, JSON) {
            return Err(unexpected_kind(headers));
        }
        Ok(self.events(response))
    }

    /// The bound of an event is that of a message.
    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        _: usize,
    ) -> Result<BoxedSseResponse, Failure> {
        self.get_stream(uri, session_id, last_event_id, auth_header, custom_headers)
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use axum::{Router, http, response::IntoResponse as _};
    use futures_util::FutureExt as _;
    use parking_lot::Mutex;
    use rmcp::model::{ClientNotification, DiscoverRequest, InitializedNotification, PingRequest};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    type Fields = Vec<(&'static str, &'static str)>;

    /// What a server answers, and the requests that it got.
    #[derive(Clone, Default)]
    struct Peer {
        answer: Arc<Mutex<(u16, Fields, String)>>,
        requests: Arc<Mutex<Vec<Value>>>,
    }

    impl Peer {
        async fn start() -> (Self, Arc<str>) {
            let peer = Self::default();
            let shared = peer.clone();
            let app = Router::new().fallback(
                async move |method: http::Method, headers: HeaderMap, body: Bytes| {
                    let headers: std::collections::BTreeMap<_, _> = headers
                        .iter()
                        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                        .collect();
                    let body = String::from_utf8_lossy(&body).into_owned();
                    let request = json!([method.as_str(), headers, body]);
                    shared.requests.lock().push(request);
                    let (status, fields, body) = shared.answer.lock().clone();
                    let mut response = body.into_response();
                    *response.status_mut() = StatusCode::from_u16(status).unwrap();
                    response.headers_mut().remove(CONTENT_TYPE);
                    for (name, value) in fields {
                        response.headers_mut().append(name, value.parse().unwrap());
                    }
                    response
                },
            );
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let uri = format!("http://{}/", listener.local_addr().unwrap());
            tokio::spawn(async move { axum::serve(listener, app).await });
            (peer, uri.into())
        }

        fn answer(&self, status: u16, fields: &Fields, body: &str) {
            *self.answer.lock() = (status, fields.clone(), body.to_owned());
        }
    }

    fn client() -> Client {
        crate::tls::late_client_builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .unwrap()
    }

    fn bounded() -> Bounded {
        Bounded::new(client(), Fault::default()).unwrap()
    }

    fn messages() -> Vec<ClientJsonRpcMessage> {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        let discover = ClientRequest::DiscoverRequest(DiscoverRequest::default());
        let notification =
            ClientNotification::InitializedNotification(InitializedNotification::default());
        vec![
            ClientJsonRpcMessage::request(ping, RequestId::Number(1)),
            ClientJsonRpcMessage::request(discover, RequestId::Number(2)),
            ClientJsonRpcMessage::notification(notification),
        ]
    }

    /// An outcome without its texts.
    fn kind(error: &Failure) -> String {
        let detail = match error {
            StreamableHttpError::HttpStatus(error) => {
                format!("{} {:?}", error.status, error.retry_after)
            }
            StreamableHttpError::AuthRequired(error) => error.www_authenticate_header.clone(),
            StreamableHttpError::InsufficientScope(error) => error.www_authenticate_header.clone(),
            StreamableHttpError::UnexpectedContentType(found) => format!("{found:?}"),
            StreamableHttpError::ReservedHeaderConflict(name) => name.clone(),
            _ => String::new(),
        };
        format!("{:?} {detail}", discriminant(error))
    }

    async fn posted(
        client: &impl StreamableHttpClient<Error = reqwest::Error>,
        uri: &Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<&str>,
        custom: &HashMap<HeaderName, HeaderValue>,
    ) -> String {
        let session = session.map(Arc::from);
        let bearer = Some("fake-bearer".to_owned());
        let posted = client
            .post_message(uri.clone(), message, session, bearer, custom.clone())
            .await;
        match posted {
            Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), session)) => {
                format!("{:?} {:?} {session:?}", error.id, error.error.code)
            }
            Ok(StreamableHttpPostResponse::Sse(events, session)) => {
                let events: Vec<_> = events.collect().await;
                format!("{events:?} {session:?}")
            }
            Ok(other) => format!("{other:?}"),
            Err(error) => kind(&error),
        }
    }

    /// A server whose answers of the path `/open` begin with `bytes` and end never, and whose other
    /// answers have `bytes` in all.
    async fn with_long_answers(bytes: usize) -> String {
        let start = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":"{}""#,
            "x".repeat(bytes)
        );
        let app = Router::new().fallback(async move |uri: http::Uri| {
            let start = stream::iter([Ok::<_, io::Error>(start.clone())]);
            let end = match uri.path() {
                "/open" => stream::pending().boxed(),
                _ => stream::iter([Ok("}}".to_owned())]).boxed(),
            };
            let body = axum::body::Body::from_stream(start.chain(end));
            ([("content-type", "application/json")], body)
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        uri
    }

    #[tokio::test]
    async fn long_answers_of_a_server_are_read_two_at_a_time_and_short_ones_at_once() {
        let long = with_long_answers(LONG_BYTES).await;
        let short = with_long_answers(10).await;
        let client = bounded();
        let post = async |uri: String| {
            let [ping, ..] = &messages()[..] else {
                panic!("there are messages");
            };
            let (uri, custom) = (uri.into(), HashMap::new());
            let posted = client.post_message(uri, ping.clone(), None, None, custom);
            posted.await.map(|_| ()).map_err(|error| kind(&error))
        };
        let mut open: Vec<_> = (0..LONG_AT_ONCE_MAX)
            .map(|_| Box::pin(post(format!("{long}/open"))))
            .collect();
        let mut third = Box::pin(post(long));
        while client.long.available_permits() > 0 {
            let polled = open.iter_mut().map(|call| call.now_or_never());
            assert!(polled.flatten().next().is_none(), "they do not end");
            tokio::task::yield_now().await;
        }

        tokio::select! {
            posted = &mut third => panic!("there is no place: {posted:?}"),
            posted = post(short.clone()) => posted.unwrap(),
        }
        open.pop();
        third.await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_means_what_it_means_from_the_client_of_the_sdk() {
        let (peer, uri) = Peer::start().await;
        let (ours, theirs) = (bounded(), client());
        let json = ("content-type", "application/json; charset=utf-8");
        let events = ("content-type", "text/event-stream");
        let text = ("content-type", "text/plain");
        let session = ("mcp-session-id", "s");
        let challenge = ("www-authenticate", "Bearer realm=\"x\", scope=\"y\"");
        let wait = ("retry-after", "7");
        let done = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let error = r#"{"jsonrpc":"2.0","id":"other","error":{"code":-32004,"message":"no"}}"#;
        let long = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":"{}"}}"#,
            "x".repeat(70_000)
        );
        let event = format!(": hi\r\n\r\nid: 3\r\ndata: {done}\r\n\r\nretry: 5\n\n");
        let mut answers: Vec<(u16, Fields, &str)> = vec![
            (200, vec![json, session], done),
            (200, vec![json], error),
            (200, vec![json], "{"),
            (200, vec![json], &long),
            (200, vec![json], ""),
            (200, vec![], ""),
            (200, vec![text], "Hello"),
            (200, vec![events, session], &event),
            (200, vec![events], "data: x\n\nnonsense\n\n"),
            (202, vec![], ""),
            (204, vec![], ""),
            (302, vec![("location", "/elsewhere")], ""),
        ];
        for status in [400, 401, 403, 404, 405, 406, 429, 500, 503] {
            for kind in [json, text] {
                for body in [error, done, "{", "", &long] {
                    answers.push((status, vec![kind, session], body));
                    answers.push((status, vec![kind, challenge, wait], body));
                }
            }
        }

        for (status, fields, body) in answers {
            peer.answer(status, &fields, body);
            let custom = HashMap::from([(
                HeaderName::from_static("x-custom"),
                HeaderValue::from_static("fake"),
            )]);
            for message in messages() {
                for session in [None, Some("s")] {
                    let found = posted(&ours, &uri, message.clone(), session, &custom).await;
                    let expected = posted(&theirs, &uri, message.clone(), session, &custom).await;

                    let shown = body.get(..40).unwrap_or(body);
                    assert_eq!(
                        found, expected,
                        "{status} {fields:?} {shown} {message:?} {session:?}"
                    );
                    let mut requests = peer.requests.lock();
                    assert_eq!(requests.len(), 2);
                    assert_eq!(requests[0], requests[1]);
                    requests.clear();
                }
            }
            for last in [None, Some("3".to_owned())] {
                let mut outcomes = Vec::new();
                let session = Some("s".into());
                let (uri, custom) = (uri.clone(), custom.clone());
                let stream = ours.get_stream(
                    uri.clone(),
                    session.clone(),
                    last.clone(),
                    None,
                    custom.clone(),
                );
                outcomes.push(stream.await);
                outcomes.push(theirs.get_stream(uri, session, last, None, custom).await);
                let mut shown = Vec::new();
                for outcome in outcomes {
                    shown.push(match outcome {
                        Ok(events) => format!("{:?}", events.collect::<Vec<_>>().await),
                        Err(error) => kind(&error),
                    });
                }
                assert_eq!(shown[0], shown[1], "{status} {fields:?}");
                let mut requests = peer.requests.lock();
                assert_eq!(requests[0], requests[1]);
                requests.clear();
            }
        }
        for name in [
            ACCEPT.as_str(),
            SESSION_ID,
            LAST_EVENT_ID,
            "mcp-protocol-version",
        ] {
            let name = HeaderName::from_static(name);
            let custom = HashMap::from([(name, HeaderValue::from_static("x"))]);
            let message = messages().remove(0);
            let found = posted(&ours, &uri, message.clone(), None, &custom).await;
            assert_eq!(found, posted(&theirs, &uri, message, None, &custom).await);
        }
    }

    #[tokio::test]
    async fn a_message_beyond_a_bound_is_refused_before_it_is_parsed() {
        let (peer, uri) = Peer::start().await;
        let note = |values: String| {
            format!(r#"{{"jsonrpc":"2.0","method":"x","params":{{"v":{values}}}}}"#)
        };
        let list = |length: usize| note(format!("[0{}]", ",0".repeat(length)));
        let split = |text: &str| text.replace(",0,", ",0,\r\ndata: ");
        let many = "it sent a message of more than 200000 values";
        let long = "it sent a message of more than 8 MiB";
        for (body, reason) in [
            (list(100), None),
            (list(300_000), Some(many)),
            (split(&list(300_000)), Some(many)),
            (
                note(format!("{}{}", "[".repeat(70), "]".repeat(70))),
                Some("it sent a message nested deeper than 64 levels"),
            ),
            (
                note(format!("\"{}\"", "x".repeat(FRAME_BYTES_MAX))),
                Some(long),
            ),
        ] {
            for kind in [JSON, EVENTS] {
                let is_event = kind == EVENTS;
                let sent = match is_event {
                    true => format!("data: {body}\r\n\r\n"),
                    false => body.replace("\r\ndata: ", ""),
                };
                peer.answer(200, &vec![("content-type", kind)], &sent);
                let client = bounded();
                let custom = HashMap::new();
                let posted = posted(&client, &uri, messages().remove(0), None, &custom).await;

                assert_eq!(client.fault.reason(), reason, "{posted:.200}");
                if is_event {
                    let client = bounded();
                    let stream = client.get_stream(uri.clone(), None, None, None, custom);
                    let events: Vec<_> = stream.await.unwrap().collect().await;

                    assert_eq!(client.fault.reason(), reason);
                    assert_eq!(events.iter().any(Result::is_err), reason.is_some());
                }
            }
        }
    }

    #[test]
    fn comments_and_events_that_ended_do_not_count_as_a_long_event() {
        let mut size = EventSize::default();
        let line = format!("data: {}\r\n", "x".repeat(FRAME_BYTES_MAX / 4));
        let comment = line.replace("data", "");

        for _ in 0..3 {
            for part in [&line, &comment, &comment, &comment, &comment, &line] {
                assert!(part.as_bytes().chunks(1000).all(|part| size.take(part)));
            }
            assert!(size.take(b"\r\n"));
        }
        let taken = [&line, &line, &line, &line].map(|line| size.take(line.as_bytes()));
        assert_eq!(taken, [true, true, true, false]);
    }
}
