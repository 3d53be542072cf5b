//! Lets web pages of the configured origins call the API from a browser (CORS). Off without origins.
//!
//! A key is sent in a header by the page's own code, never by the browser, so no answer allows
//! credentials. The console is left out: it has cookies, and only its own pages may use it.

use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};

use super::console;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, DELETE");

/// Headers of answers that a page may read besides those that are always readable.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "location, retry-after, x-request-id, idempotency-replayed, preference-applied, content-range, accept-ranges, x-conversation-id, x-callboard-owner",
);

/// Seconds for which a browser need not ask again.
const MAX_AGE: HeaderValue = HeaderValue::from_static("3600");

/// Who may call the API from a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Allowed {
    /// Pages of any origin.
    Any,
    /// Pages of these origins.
    Listed(Vec<HeaderValue>),
}

impl Allowed {
    /// `None` without origins.
    fn of(origins: &[String]) -> Option<Self> {
        if origins.iter().any(|origin| origin == "*") {
            return Some(Self::Any);
        }
        let listed: Vec<HeaderValue> = origins
            .iter()
            .filter_map(|origin| HeaderValue::from_str(origin).ok())
            .collect();
        (!listed.is_empty()).then_some(Self::Listed(listed))
    }

    /// The value of `Access-Control-Allow-Origin` for a request; `None` for a page that may not
    /// read the answer, and for a request that no page made.
    fn answer(&self, request: &HeaderMap) -> Option<HeaderValue> {
        let origin = request.get(header::ORIGIN)?;
        match self {
            Self::Any => Some(HeaderValue::from_static("*")),
            Self::Listed(listed) => listed.contains(origin).then(|| origin.clone()),
        }
    }
}

/// Adds CORS to everything but the console.
pub(super) fn layered(router: Router, origins: &[String]) -> Router {
    match Allowed::of(origins) {
        Some(allowed) => router.layer(middleware::from_fn(move |request, next| {
            answered(allowed.clone(), request, next)
        })),
        None => router,
    }
}

async fn answered(allowed: Allowed, request: Request, next: Next) -> Response {
    if request.uri().path().starts_with(console::PREFIX) {
        return next.run(request).await;
    }
    let origin = allowed.answer(request.headers());
    let asked = request
        .headers()
        .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let is_preflight = request.method() == Method::OPTIONS && asked;
    let mut response = if is_preflight && origin.is_some() {
        // The question comes without a key, and its answer is the same for every path.
        let wanted = request
            .headers()
            .get(header::ACCESS_CONTROL_REQUEST_HEADERS)
            .cloned();
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(wanted) = wanted {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
        }
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    if let Allowed::Listed(_) = allowed {
        // Caches must keep the answers for pages of different origins apart.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if is_preflight {
        let varies = "access-control-request-method, access-control-request-headers";
        headers.append(header::VARY, HeaderValue::from_static(varies));
    }
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
    response
}
