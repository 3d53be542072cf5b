//! Several hosts on one store answer for one another's conversations: a request that only the owner
//! of a conversation can answer is sent on to it, once. Histories are answered by any host.
//!
//! The database knows the owner. A host that answered is remembered for two seconds, so that a
//! conversation in use costs no query for each request; a host that is asked and is not the owner
//! (any more) says so and does nothing, and then the database is asked.

use std::{future::Future, hash::Hash, time::Instant};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request::Parts},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use callboard_actors::ids::{Scope, TenantId};
use futures_util::StreamExt as _;
use serde::Deserialize;

use super::{
    auth::Caller,
    body::collect,
    error::Problem,
    kept::KeptRoom,
    openai::responses,
    peers::{FORWARDED, NotForwarded, Peers, Watching},
    shared::{App, scope},
};

/// The address of the host that answered, so that a balancer can learn it.
const OWNER: HeaderName = HeaderName::from_static("x-callboard-owner");

/// Marks an answer between hosts: the conversation is not of the host that was asked, and nothing was
/// done.
const MOVED: HeaderName = HeaderName::from_static("x-callboard-moved");

/// Largest body that is kept until the answer, in case that another host takes the conversation at
/// this moment. A request with a larger one, or one for whose copy there is no room, is answered
/// with a retryable error then.
const KEPT_BYTES_MAX: usize = 256 * 1024;

/// Routes of `POST` whose body, or the header `X-Conversation-Id`, may name a conversation.
const NAMED_IN_BODY: [&str; 2] = ["/openai/v1/chat/completions", "/openai/v1/responses"];

/// What only the owner of a conversation can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// A change, or what the conversation waits for.
    Owner,
    /// The events as they come.
    Events,
}

fn asked(method: &Method, route: &str) -> Option<Asked> {
    if let Some(rest) = route.strip_prefix("/openai/v1/responses/{response_id}") {
        return match (method, rest) {
            // Read as it comes, or to its end.
            (&Method::GET | &Method::HEAD, "") => Some(Asked::Events),
            (&Method::GET | &Method::HEAD, _) => None,
            _ => Some(Asked::Owner),
        };
    }
    let rest = route.strip_prefix("/v1/conversations/{id}")?;
    match (method, rest) {
        (&Method::GET | &Method::HEAD, "/events") => Some(Asked::Events),
        (&Method::GET | &Method::HEAD, "") => Some(Asked::Owner),
        (&Method::GET | &Method::HEAD, _) => None,
        _ => Some(Asked::Owner),
    }
}

/// How a request says which conversation it is about.
enum Place {
    /// By its path or a header.
    Named(Scope, Asked),
    /// By its body, if at all.
    InBody(TenantId),
}

/// What of a body of OpenAI's APIs names a conversation.
#[derive(Deserialize)]
struct NamingBody {
    previous_response_id: Option<String>,
    metadata: Option<NamingMetadata>,
}

#[derive(Deserialize)]
struct NamingMetadata {
    conversation_id: Option<String>,
}

/// The conversation that a body of OpenAI's APIs names; `None` for a body that its handler refuses.
fn named_in(body: &[u8]) -> Option<String> {
    let naming: NamingBody = serde_json::from_slice(body).ok()?;
    match naming.previous_response_id {
        Some(previous) => responses::stored::conversation_of(&previous),
        None => naming.metadata?.conversation_id,
    }
}

/// A request that can be sent more than once.
struct Kept {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    /// Counts the body as long as it is kept.
    _room: KeptRoom,
}

impl Place {
    fn tenant(&self) -> &TenantId {
        match self {
            Self::Named(scope, _) => &scope.tenant,
            Self::InBody(tenant) => tenant,
        }
    }
}

impl Kept {
    fn request(&self) -> Request {
        let mut request = Request::new(Body::from(self.body.clone()));
        (*request.method_mut(), *request.uri_mut()) = (self.method.clone(), self.uri.clone());
        request.headers_mut().clone_from(&self.headers);
        request
    }
}

/// Why a host that was asked gave no answer. It did nothing then.
enum Unanswered {
    /// The conversation is not its own.
    Moved,
    /// No connection to it could be opened.
    NotThere,
}

impl From<Unanswered> for Problem {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Moved => Self::owner_changed(),
            Unanswered::NotThere => Self::owner_away(),
        }
    }
}

/// Sends a request on to the owner of its conversation, or answers it here.
pub(super) async fn to_owner(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(peers) = app.config.peers.clone() else {
        return next.run(request).await;
    };
    let (mut parts, body) = request.into_parts();
    let is_forwarded = parts.headers.contains_key(FORWARDED);
    // The compatible APIs read no key.
    let has_key = parts.uri.path().starts_with("/v1/conversations/")
        && parts.headers.contains_key("idempotency-key");
    let place = place(&app, &mut parts).await;
    let Some(place) = place else {
        return next.run(Request::from_parts(parts, body)).await;
    };
    let is_kept = match &place {
        Place::Named(..) => !is_forwarded,
        Place::InBody(_) => true,
    };
    let (request, kept) = match is_kept {
        true => match kept(&app, place.tenant(), parts, body).await {
            Ok(read) => read,
            Err(problem) => return problem.into_response(),
        },
        false => (Request::from_parts(parts, body), None),
    };
    let named = match place {
        Place::Named(scope, asked) => Some((scope, asked)),
        Place::InBody(tenant) => kept
            .as_ref()
            .and_then(|kept| scope(&tenant, &named_in(&kept.body)?).ok())
            .map(|scope| (scope, Asked::Owner)),
    };
    let Some((scope, asked)) = named else {
        return next.run(request).await;
    };
    let peers = &*peers;
    let is_taken = |response: &Response| is_taken(response, has_key);
    // An active conversation belongs to this host, as far as it knows; if it does not any more, the
    // answer shows it. A store that is away is reported by the handler.
    let is_awake = app.host.is_awake(&scope);
    if is_forwarded {
        // Sent on once. Its event stream is watched here all the same: the conversation may move
        // again. The host that sent it may have remembered an owner of a moment ago.
        if !is_awake && owner(peers, &scope).await.is_some() {
            return moved(Problem::owner_changed().into_response());
        }
        let response = answered_here(&app, peers, &scope, asked, next.run(request)).await;
        return match is_taken(&response) {
            true => moved(response),
            false => response,
        };
    }
    if !is_awake {
        let remembered = app.owners.get(&scope, Instant::now());
        if let (Some(kept), Some(owner)) = (&kept, remembered) {
            match sent_on(&app, peers, &owner, &scope, kept.request()).await {
                Ok(response) => return response,
                Err(Unanswered::Moved | Unanswered::NotThere) => app.owners.forget(&scope),
            }
        }
        if let Some(owner) = owner(peers, &scope).await {
            let sent = sent_on(&app, peers, &owner, &scope, request).await;
            return sent.unwrap_or_else(|why| Problem::from(why).into_response());
        }
    }
    let response = answered_here(&app, peers, &scope, asked, next.run(request)).await;
    if is_taken(&response)
        && let Some(kept) = kept
        && let Some(owner) = owner(peers, &scope).await
    {
        let sent = sent_on(&app, peers, &owner, &scope, kept.request()).await;
        return sent.unwrap_or_else(|why| Problem::from(why).into_response());
    }
    response
}

/// Reads a body that is small enough to keep, if there is room to keep it.
///
/// # Errors
/// 4xx for a body that does not arrive.
async fn kept(
    app: &App,
    tenant: &TenantId,
    parts: Parts,
    body: Body,
) -> Result<(Request, Option<Kept>), Problem> {
    let bytes = match body.is_end_stream() {
        true => Some(0),
        false => body_of(&parts.headers),
    };
    let room = bytes.and_then(|bytes| Some((bytes, app.kept.take(tenant, bytes)?)));
    let Some((bytes, room)) = room else {
        return Ok((Request::from_parts(parts, body), None));
    };
    let body = collect(&parts.headers, body, app, bytes, None).await?;
    let kept = Kept {
        method: parts.method.clone(),
        uri: parts.uri.clone(),
        headers: parts.headers.clone(),
        body: body.clone(),
        _room: room,
    };
    Ok((Request::from_parts(parts, Body::from(body)), Some(kept)))
}

/// The answer of this host. An event stream in it ends when another host takes the conversation.
async fn answered_here(
    app: &App,
    peers: &dyn Peers,
    scope: &Scope,
    asked: Asked,
    answer: impl Future<Output = Response>,
) -> Response {
    let watching = (asked == Asked::Events).then(|| app.watched.enter(scope));
    let mut response = match (answer.await, watching) {
        (response, Some(watching)) if response.status().is_success() => until(watching, response),
        (response, _) => response,
    };
    if let Ok(address) = HeaderValue::from_str(peers.address()) {
        response.headers_mut().insert(OWNER, address);
    }
    response
}

/// An answer that ends when what it belongs to does.
fn until<K>(watching: Watching<K>, response: Response) -> Response
where
    K: Eq + Hash + Send + 'static,
{
    response.map(|body| {
        let ended = watching.ended().clone().cancelled_owned();
        let parts = body.into_data_stream().take_until(ended);
        Body::from_stream(parts.map(move |part| {
            let _ = &watching; // Counted as long as the answer is read.
            part
        }))
    })
}

/// Marks an answer for the host that sent the request on: it is to ask the owner instead.
fn moved(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(MOVED, HeaderValue::from_static("1"));
    response
}

/// The conversation that a request asks its owner about; `None` for other requests and for those
/// that are refused anyway.
async fn place(app: &App, parts: &mut Parts) -> Option<Place> {
    // Clients of URLs take such a segment, and the one before it, away: another route would be asked
    // there. No route has a name that is one.
    if parts.uri.path().split('/').any(is_dots) {
        return None;
    }
    let route = MatchedPath::from_request_parts(parts, app).await.ok()?;
    if parts.method == Method::POST && NAMED_IN_BODY.contains(&route.as_str()) {
        let Caller(tenant) = Caller::from_request_parts(parts, app).await.ok()?;
        return match parts.headers.get("x-conversation-id") {
            Some(id) => Some(Place::Named(
                scope(&tenant, id.to_str().ok()?).ok()?,
                Asked::Owner,
            )),
            None => Some(Place::InBody(tenant)),
        };
    }
    let asked = asked(&parts.method, route.as_str())?;
    let parameters = RawPathParams::from_request_parts(parts, app).await.ok()?;
    let id = parameters.iter().find_map(|(name, value)| match name {
        "id" => Some(value.to_owned()),
        "response_id" => responses::stored::conversation_of(value),
        _ => None,
    })?;
    let Caller(tenant) = Caller::from_request_parts(parts, app).await.ok()?;
    Some(Place::Named(scope(&tenant, &id).ok()?, asked))
}

/// Whether a segment of a path is `.` or `..`, in any spelling.
fn is_dots(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(&*plain, "." | "..")
}

/// The bytes of a body that is small enough to keep.
fn body_of(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    length.parse().ok().filter(|bytes| *bytes <= KEPT_BYTES_MAX)
}

async fn owner(peers: &dyn Peers, scope: &Scope) -> Option<String> {
    let found = peers.owned_elsewhere(vec![scope.clone()]).await.ok()?;
    let (_, address) = found.into_iter().next()?;
    (!address.is_empty()).then_some(address)
}

/// Whether a request is to be sent to another host, which took the conversation meanwhile. Nothing of
/// it was stored, or it has a key by which a prompt that was stored does not run again.
fn is_taken(response: &Response, has_key: bool) -> bool {
    response
        .extensions()
        .get::<Problem>()
        .is_some_and(|problem| problem.is_taken() && (!problem.is_stored || has_key))
}

/// Sends a request on, and remembers who answered it.
async fn sent_on(
    app: &App,
    peers: &dyn Peers,
    owner: &str,
    scope: &Scope,
    mut request: Request,
) -> Result<Response, Unanswered> {
    let headers = request.headers_mut();
    headers.insert(FORWARDED, HeaderValue::from_static("1"));
    let watching = app.sent_on.enter(&owner.to_owned());
    let gone = watching.ended().clone();
    let sent = gone.run_until_cancelled(peers.forward(owner, request));
    let sent = sent.await.unwrap_or_else(|| {
        Err(NotForwarded {
            reason: "it is gone".to_owned(),
            was_sent: true,
        })
    });
    match sent {
        Ok(response) if response.headers().contains_key(MOVED) => Err(Unanswered::Moved),
        Ok(mut response) => {
            match response.status().is_server_error() {
                true => app.owners.forget(scope),
                false => app.owners.insert(scope, owner, Instant::now()),
            }
            if let Ok(address) = HeaderValue::from_str(owner) {
                response.headers_mut().insert(OWNER, address);
            }
            Ok(until(watching, response))
        }
        Err(NotForwarded { reason, was_sent }) => {
            tracing::warn!(
                error = reason,
                "the host that owns a conversation was not reached"
            );
            app.owners.forget(scope);
            match was_sent {
                true => Ok(Problem::owner_away().into_response()),
                false => Err(Unanswered::NotThere),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_its_conversation_by_the_response_before_or_by_metadata() {
        let round = "00000000-0000-4000-8000-000000000001";
        let previous = format!("resp_0a_{round}_3");
        for (body, expected) in [
            (
                format!(r#"{{"input":"x","previous_response_id":"{previous}"}}"#),
                responses::stored::conversation_of(&previous),
            ),
            (
                r#"{"messages":[],"metadata":{"conversation_id":"c"}}"#.to_owned(),
                Some("c".to_owned()),
            ),
            (r#"{"messages":[],"metadata":null}"#.to_owned(), None),
            ("[".to_owned(), None),
        ] {
            assert_eq!(named_in(body.as_bytes()), expected, "{body}");
        }
        assert!(responses::stored::conversation_of(&previous).is_some());
    }

    #[test]
    fn a_segment_that_clients_take_away_is_known_in_every_spelling() {
        for dots in [".", "..", "%2e", "%2E%2e", ".%2e"] {
            assert!(is_dots(dots), "{dots}");
        }
        for name in ["", "a", "...", "%2e%2ea", "..\\x", "%252e"] {
            assert!(!is_dots(name), "{name}");
        }
    }

    #[test]
    fn changes_and_live_answers_are_the_owners_and_histories_are_anyones() {
        let conversation = "/v1/conversations/{id}";
        for (method, rest, expected) in [
            (Method::POST, "/messages", Some(Asked::Owner)),
            (Method::PUT, "", Some(Asked::Owner)),
            (Method::DELETE, "", Some(Asked::Owner)),
            (Method::GET, "", Some(Asked::Owner)),
            (Method::GET, "/events", Some(Asked::Events)),
            (Method::GET, "/messages", None),
            (Method::GET, "/rounds", None),
        ] {
            let route = format!("{conversation}{rest}");
            assert_eq!(asked(&method, &route), expected, "{method} {route}");
        }
        assert_eq!(asked(&Method::GET, "/v1/conversations"), None);
        assert_eq!(asked(&Method::POST, "/openai/v1/chat/completions"), None);
        let response = "/openai/v1/responses/{response_id}";
        assert_eq!(asked(&Method::GET, response), Some(Asked::Events));
        assert_eq!(asked(&Method::DELETE, response), Some(Asked::Owner));
        let cancel = format!("{response}/cancel");
        assert_eq!(asked(&Method::POST, &cancel), Some(Asked::Owner));
    }
}
