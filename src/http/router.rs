//! The route table and the middleware of all routes. The OpenAPI document is generated from the
//! same table, so every served route is documented.

use std::any::Any;

#[cfg(feature = "mcp-server")]
use axum::Extension;
use axum::{
    Router,
    body::Bytes,
    extract::{FromRequestParts as _, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, Uri, Version, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use callboard_actors::ports::Entropy as _;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::{router::OpenApiRouter, routes};

#[cfg(feature = "mcp-server")]
use super::mcp;
use super::{
    answer_body::counted,
    answer_room::ConnectionRoom,
    anthropic,
    auth::{API_KEY, Admin, Caller, OpenedBy, no_route, opened_by},
    console, cors,
    error::{Problem, REQUEST_ID},
    idle::held_until_sent,
    openai, openapi,
    routes::{
        admin, artifacts, control, conversations, events, fan_outs, health, messages, metrics,
        rounds, skills,
    },
    shared::App,
    to_owner::to_owner,
};
use crate::{clock::SystemEntropy, observe::Redactor};

/// Longest request id that is accepted from a client.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// Shorter values of `Authorization` are not masked: they cannot be keys of this host, and masking
/// them would hide ordinary words.
const KEY_BYTES_MIN: usize = 6;

/// Replaces the caller's key in error texts.
const MASKED: &str = "[masked]";

/// What is served beside the API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doors {
    /// The pages for people.
    pub(super) console: bool,
    /// `/mcp`.
    #[cfg_attr(not(feature = "mcp-server"), allow(dead_code))]
    pub(super) mcp: bool,
}

/// Builds the routes and their document. `redactor` masks secrets in error responses.
pub(super) fn routes(redactor: &Redactor, has: Doors) -> (Router<App>, Bytes) {
    let routes = OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(conversations::list))
        .routes(routes!(
            conversations::put,
            conversations::get,
            conversations::delete
        ))
        .routes(routes!(conversations::reset))
        .routes(routes!(messages::send, messages::history))
        .routes(routes!(rounds::list))
        .routes(routes!(rounds::report))
        .routes(routes!(rounds::rewind))
        .routes(routes!(events::watch))
        .routes(routes!(control::interrupt))
        .routes(routes!(control::approve))
        .routes(routes!(control::tool_results))
        .routes(routes!(control::inject))
        .routes(routes!(control::compact))
        .routes(routes!(control::fork))
        .routes(routes!(skills::list))
        .routes(routes!(skills::activate, skills::deactivate))
        .routes(routes!(fan_outs::list, fan_outs::start))
        .routes(routes!(fan_outs::get, fan_outs::delete))
        .routes(routes!(fan_outs::cancel))
        .routes(routes!(artifacts::get))
        .routes(routes!(metrics::tenant))
        .routes(routes!(metrics::host))
        .routes(routes!(admin::list))
        .routes(routes!(admin::put, admin::remove))
        .routes(routes!(admin::quota))
        .routes(routes!(admin::pause))
        .routes(routes!(admin::key))
        .routes(routes!(admin::erase))
        .routes(routes!(admin::reload))
        .routes(routes!(admin::drain))
        .routes(routes!(openai::chat))
        .routes(routes!(openai::models))
        .routes(routes!(openai::one_model))
        .routes(routes!(openai::responses::create))
        .routes(routes!(
            openai::responses::stored::get,
            openai::responses::stored::delete
        ))
        .routes(routes!(openai::responses::stored::cancel))
        .routes(routes!(openai::responses::stored::input_items))
        .routes(routes!(anthropic::create))
        .routes(routes!(anthropic::count))
        .routes(routes!(anthropic::models))
        .routes(routes!(anthropic::one_model))
        .routes(routes!(health::alive))
        .routes(routes!(health::ready))
        .routes(routes!(health::openapi));
    #[cfg(feature = "mcp-server")]
    let routes = match has.mcp {
        true => routes.routes(routes!(mcp::route::message)),
        false => routes,
    };
    let (mut router, document) = routes.split_for_parts();
    if has.console {
        router = router.merge(console::routes(redactor));
    }
    (router, openapi::render(document))
}

/// The routes with everything that holds for all of them, from the inside out: requests that another
/// host answers, the bound of open requests, and what also holds for unknown paths: panics, the id
/// of a request, refusals of malformed ones. `redactor` masks secrets in error responses.
pub(super) fn served(routes: Router<App>, app: &App, redactor: &Redactor) -> Router {
    let routes = routes.route_layer(middleware::from_fn_with_state(app.clone(), to_owner));
    // What a call of an MCP client asks of the host takes these routes: the call is counted already.
    #[cfg(feature = "mcp-server")]
    let routes = routes
        .clone()
        .layer(Extension(mcp::route::Inside(layered(
            routes, app, redactor,
        ))))
        .layer(Extension(mcp::Offered::new()));
    let routes = routes.route_layer(middleware::from_fn_with_state(app.clone(), within_bounds));
    cors::layered(layered(routes, app, redactor), &app.config.cors_origins)
}

/// The routes with what also holds for unknown paths.
fn layered(routes: Router<App>, app: &App, redactor: &Redactor) -> Router {
    let router = routes
        .fallback(async |uri: Uri| elsewhere(uri.path()).unwrap_or_else(no_route))
        .method_not_allowed_fallback(no_method)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn({
            let redactor = redactor.clone();
            move |request, next| named(redactor.clone(), request, next)
        }));
    outside(router.with_state(app.clone()))
}

/// Counts a tenant's request and its answer until that is sent, and refuses one too many: with its key,
/// or with a session of the console that its key opened. What has neither is refused at once by its
/// route, or is the operator's.
async fn within_bounds(State(app): State<App>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let caller = match parts.uri.path().starts_with(console::PREFIX) {
        true => console::tenant_of(&parts.headers, &app),
        false => {
            let caller = Caller::from_request_parts(&mut parts, &app).await;
            caller.ok().map(|Caller(tenant)| tenant)
        }
    };
    let request = Request::from_parts(parts, body);
    let Some(tenant) = caller else {
        return next.run(request).await;
    };
    let open = match app.begin(&tenant) {
        Ok(open) => open,
        Err(refused) => return refused.into_response(),
    };
    let bounds = &app.config.bounds;
    let connection = ConnectionRoom::of(request.extensions(), bounds);
    let response = next.run(request).await;
    let room = (&app.answers, &tenant, &connection);
    match counted(room, bounds.write_pause_max, response).await {
        Ok(response) => response.map(|body| held_until_sent(body, open)),
        Err(refused) => refused.into_response(),
    }
}

/// The answer for a path of a compatible API, which clients append to the base URL that they are
/// given.
fn elsewhere(path: &str) -> Option<Problem> {
    let detail = match path {
        "/chat/completions" | "/responses" | "/models" => {
            "OpenAI's API is at /openai/v1: give clients this host with /openai/v1 as base URL"
        }
        "/v1/messages" | "/v1/messages/count_tokens" | "/messages" => {
            "Anthropic's API is at /anthropic: give clients this host with /anthropic as base URL"
        }
        _ => return None,
    };
    Some(Problem {
        detail: detail.into(),
        ..no_route()
    })
}

/// What has to be outside of the routes: paths of OpenAI's API below `/v1` lead to it, and `Allow` is
/// removed from responses other than 405, because axum adds it outside of every layer of a route and
/// it would reveal that the route exists.
fn outside(router: Router) -> Router {
    let strip = async |mut response: Response| {
        if response.status() != StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().remove(header::ALLOW);
        }
        response
    };
    Router::new()
        .fallback_service(router)
        .layer(middleware::map_response(strip))
        .layer(middleware::map_request(async |mut request: Request| {
            if let Some(uri) = openai::at_second_base(request.uri()) {
                *request.uri_mut() = uri;
            }
            request
        }))
}

/// The answer for a method that a route does not have. A caller without access to the route gets
/// the same refusal as for its existing methods, so that the response reveals nothing about the
/// route.
async fn no_method(State(app): State<App>, request: Request) -> Problem {
    let (mut parts, _) = request.into_parts();
    let refused = match opened_by(parts.uri.path()) {
        OpenedBy::Anyone => None,
        OpenedBy::Tenant => Caller::from_request_parts(&mut parts, &app).await.err(),
        OpenedBy::Operator => Admin::from_request_parts(&mut parts, &app).await.err(),
    };
    refused.unwrap_or_else(|| {
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "this route has other methods; see `Allow`",
        )
    })
}

/// Turns a panic of a handler into a 500 of that request; other requests are unaffected.
fn panicked(_: Box<dyn Any + Send>) -> Response {
    tracing::error!("a handler panicked");
    Problem::internal().into_response()
}

/// Middleware of every request: assigns the request id (the client's own if it is valid), opens the
/// log span, and masks keys in error responses.
async fn named(redactor: Redactor, mut request: Request, next: Next) -> Response {
    let is_sane = |id: &&HeaderValue| {
        let bytes = id.as_bytes();
        (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len())
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte))
    };
    let id = request
        .headers()
        .get(REQUEST_ID)
        .filter(is_sane)
        .cloned()
        .or_else(|| {
            let id = SystemEntropy
                .bytes()
                .iter()
                .fold(String::new(), |id, byte| format!("{id}{byte:02x}"));
            HeaderValue::from_str(&id).ok()
        });
    let text = id
        .as_ref()
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default();
    let span = tracing::debug_span!("http", method = %request.method(), path = request.uri().path(), request_id = text);
    // A host that the request is sent on to takes the same id.
    if let Some(id) = &id {
        request.headers_mut().insert(REQUEST_ID, id.clone());
    }
    // `HeaderMap`'s `Debug` does not print a sensitive value.
    for name in [header::AUTHORIZATION, API_KEY] {
        if let Some(key) = request.headers_mut().get_mut(name) {
            key.set_sensitive(true);
        }
    }
    let path = request.uri().path().to_owned();
    let key = key_of(&request);
    let response = match malformed(&request) {
        None => tracing::Instrument::instrument(next.run(request), span).await,
        Some(problem) => ([(header::CONNECTION, "close")], problem).into_response(),
    };
    let response = masked(response, &redactor, key.as_deref());
    let response = openai::translate(&path, response);
    let mut response = anthropic::translate(&path, id.as_ref(), response);
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// What the HTTP layer lets pass although RFC 9112 forbids it: a proxy before this host may read
/// such a request as another one.
fn malformed(request: &Request) -> Option<Problem> {
    let wrong = |detail: &str| {
        Some(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed_request",
            detail,
        ))
    };
    if request.version() != Version::HTTP_11 {
        return None;
    }
    let fields = request.headers();
    if fields.get_all(header::HOST).iter().count() != 1 {
        return wrong("a request of HTTP/1.1 has exactly one `Host`");
    }
    let mut codings = fields.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None, _) => None,
        (Some(only), None) if is_chunked(only) => None,
        _ => wrong("`Transfer-Encoding` must be `chunked`, once"),
    }
}

/// The key that a request carries, to keep it out of the error response. Dropped with the request.
fn key_of(request: &Request) -> Option<String> {
    let value = |name: HeaderName| request.headers().get(name)?.to_str().ok();
    let text = value(API_KEY).or_else(|| value(header::AUTHORIZATION))?;
    let key = text.split_once(' ').map_or(text, |(_, key)| key).trim();
    if key.eq_ignore_ascii_case("bearer") {
        return None; // a scheme without a key
    }
    (key.len() >= KEY_BYTES_MIN).then(|| key.to_owned())
}

/// Masks secrets in an error response: those the redactor knows, those of a known shape, and the
/// caller's own key.
fn masked(mut response: Response, redactor: &Redactor, key: Option<&str>) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };
    let mask = |text: &str| {
        let text = redactor.mask(text);
        key.map_or(text.clone(), |key| text.replace(key, MASKED))
    };
    let masked = problem.clone().masked(mask);
    if masked == problem {
        response.extensions_mut().insert(problem);
        return response;
    }
    let mut rewritten = masked.into_response();
    response.headers_mut().remove(header::CONTENT_LENGTH);
    // A header that both have stays single; clients read a doubled content type as none.
    for (name, value) in response.headers() {
        rewritten.headers_mut().insert(name, value.clone());
    }
    rewritten
}
