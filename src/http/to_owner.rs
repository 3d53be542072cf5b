//! Several hosts on one store answer for one another's conversations: a request that only the owner
//! of a conversation can answer is sent on to it, once. Histories are answered by any host.

use axum::{
    body::Body,
    extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request, State},
    http::{HeaderName, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use callboard_actors::ids::Scope;
use futures_util::StreamExt as _;

use super::{
    auth::Caller,
    body::collect,
    error::Problem,
    peers::{FORWARDED, Peers},
    shared::{App, scope},
};

/// The address of the host that answered, so that a balancer can learn it.
const OWNER: HeaderName = HeaderName::from_static("x-callboard-owner");

/// Largest body that is kept until the answer, in case that another host takes the conversation at
/// this moment. A request with a larger one, or one for whose copy there is no room, is answered
/// with a retryable error then.
const KEPT_BYTES_MAX: usize = 256 * 1024;

/// What only the owner of a conversation can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// A change, or what the conversation waits for.
    Owner,
    /// The events as they come.
    Events,
}

fn asked(method: &Method, route: &str) -> Option<Asked> {
    let rest = route.strip_prefix("/v1/conversations/{id}")?;
    match (method, rest) {
        (&Method::GET | &Method::HEAD, "/events") => Some(Asked::Events),
        (&Method::GET | &Method::HEAD, "") => Some(Asked::Owner),
        (&Method::GET | &Method::HEAD, _) => None,
        _ => Some(Asked::Owner),
    }
}

/// Sends a request on to the owner of its conversation, or answers it here.
pub(super) async fn to_owner(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(peers) = app.config.peers.clone() else {
        return next.run(request).await;
    };
    let (mut parts, body) = request.into_parts();
    let place = place(&app, &mut parts).await;
    // Sent on once. Its event stream is watched here all the same: the conversation may move again.
    let may_send_on = !parts.headers.contains_key(FORWARDED);
    let kept = body_of(&parts.headers)
        .filter(|_| place.is_some() && may_send_on)
        .and_then(|bytes| Some((bytes, app.keep(bytes)?)));
    let (request, copy) = match kept {
        Some((bytes, room)) => {
            let body = match collect(&parts.headers, body, &app, bytes, None).await {
                Ok(body) => body,
                Err(refused) => return refused.into_response(),
            };
            let mut copy = Request::new(Body::from(body.clone()));
            (*copy.method_mut(), *copy.uri_mut()) = (parts.method.clone(), parts.uri.clone());
            copy.headers_mut().clone_from(&parts.headers);
            let request = Request::from_parts(parts, Body::from(body));
            (request, Some((copy, room)))
        }
        None => (Request::from_parts(parts, body), None),
    };
    let Some((scope, asked)) = place else {
        return next.run(request).await;
    };
    // An active conversation belongs to this host, as far as it knows; if it does not any more, the
    // answer shows it. A store that is away is reported by the handler.
    if may_send_on
        && !app.host.is_awake(&scope)
        && let Some(owner) = owner(&*peers, &scope).await
    {
        return sent_on(&*peers, &owner, request).await;
    }
    let watching = (asked == Asked::Events).then(|| app.watched.enter(&scope));
    let response = next.run(request).await;
    if is_taken(&response)
        && let Some((copy, _room)) = copy
        && let Some(owner) = owner(&*peers, &scope).await
    {
        return sent_on(&*peers, &owner, copy).await;
    }
    let mut response = match watching {
        Some(watching) if response.status().is_success() => response.map(|body| {
            let ended = watching.ended().clone().cancelled_owned();
            let events = body.into_data_stream().take_until(ended);
            Body::from_stream(events.map(move |event| {
                let _ = &watching; // Counted as long as the stream is read.
                event
            }))
        }),
        _ => response,
    };
    if let Ok(address) = HeaderValue::from_str(peers.address()) {
        response.headers_mut().insert(OWNER, address);
    }
    response
}

/// The conversation that a request asks its owner about; `None` for other requests and for those
/// that are refused anyway.
async fn place(app: &App, parts: &mut axum::http::request::Parts) -> Option<(Scope, Asked)> {
    let route = MatchedPath::from_request_parts(parts, app).await.ok()?;
    let asked = asked(&parts.method, route.as_str())?;
    let parameters = RawPathParams::from_request_parts(parts, app).await.ok()?;
    let (_, id) = parameters.iter().find(|(name, _)| *name == "id")?;
    let id = id.to_owned();
    let Caller(tenant) = Caller::from_request_parts(parts, app).await.ok()?;
    Some((scope(&tenant, &id).ok()?, asked))
}

/// The bytes of a body that is small enough to keep.
fn body_of(headers: &axum::http::HeaderMap) -> Option<usize> {
    let length = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    length.parse().ok().filter(|bytes| *bytes <= KEPT_BYTES_MAX)
}

async fn owner(peers: &dyn Peers, scope: &Scope) -> Option<String> {
    let found = peers.owned_elsewhere(vec![scope.clone()]).await.ok()?;
    let (_, address) = found.into_iter().next()?;
    (!address.is_empty()).then_some(address)
}

/// Whether a request was refused because another host took the conversation meanwhile. Nothing of
/// it was stored.
fn is_taken(response: &Response) -> bool {
    response
        .extensions()
        .get::<Problem>()
        .is_some_and(|problem| ["owned_elsewhere", "session_in_use"].contains(&&*problem.code))
}

async fn sent_on(peers: &dyn Peers, owner: &str, mut request: Request) -> Response {
    request
        .headers_mut()
        .insert(FORWARDED, HeaderValue::from_static("1"));
    match peers.forward(owner, request).await {
        Ok(mut response) => {
            if let Ok(address) = HeaderValue::from_str(owner) {
                response.headers_mut().insert(OWNER, address);
            }
            response
        }
        Err(error) => {
            tracing::warn!(error, "the host that owns a conversation was not reached");
            Problem::owner_away().into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
