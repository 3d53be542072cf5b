//! The routes, and the stages of each call: limits, delay, fault, answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Extension, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    routing::{get, post},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    MockModelSettings,
    answer::{Answers, Wire},
    anthropic,
    asked::Asked,
    connections::{ConnectionCounts, Connections, Link},
    fault::Fault,
    meter::{Limit, Meter, rfc3339_in},
    openai,
};

/// Bytes in a request body.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The `Retry-After` of an injected 429.
const FAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

const PAGE: &str = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head><body>Fault injected by the mock model.</body></html>";

/// The server's state.
#[derive(Debug)]
pub(super) struct Mock {
    settings: MockModelSettings,
    answers: Answers,
    meter: Meter,
    connections: Arc<Connections>,
    calls: AtomicU64,
    over: CancellationToken,
}

impl Mock {
    pub(super) fn new(settings: MockModelSettings, over: CancellationToken) -> Self {
        let answers = Answers::new(settings.clone());
        let meter = Meter::new(&settings);
        Self {
            settings,
            answers,
            meter,
            connections: Arc::default(),
            calls: AtomicU64::new(0),
            over,
        }
    }

    /// Cancelled when the server must stop.
    pub(super) fn over(&self) -> &CancellationToken {
        &self.over
    }

    /// The open connections.
    pub(super) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }

    /// Number of model calls so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether a request carries the key, in the header of either API.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.settings.key else {
            return true;
        };
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        bearer.or(headers.get("x-api-key").map(HeaderValue::as_bytes)) == Some(key.as_bytes())
    }

    async fn answer(
        &self,
        wire: Wire,
        link: &Link,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Response<Body> {
        if !self.knows(headers) {
            return self.refuse(
                wire,
                StatusCode::UNAUTHORIZED,
                "the key is not the mock's",
                None,
            );
        }
        let nth = self.calls.fetch_add(1, Ordering::Relaxed);
        if self.settings.requests_max.is_some_and(|max| nth + 1 >= max) {
            self.over.cancel();
        }
        let asked = match Asked::read(body) {
            Ok(asked) => asked,
            Err(error) => {
                return self.refuse(wire, StatusCode::BAD_REQUEST, &error.to_string(), None);
            }
        };
        let running = match self.meter.admit(asked.tokens) {
            Ok(running) => running,
            Err(refused) => {
                let message = format!("the limit of {} is reached", refused.what);
                return self.refuse(
                    wire,
                    StatusCode::TOO_MANY_REQUESTS,
                    &message,
                    Some(refused.retry_after),
                );
            }
        };
        if !self.settings.latency.is_zero() {
            tokio::time::sleep(self.settings.latency).await;
        }
        let fault = Fault::of_call(
            nth,
            self.settings.seed,
            self.settings.fault_rate,
            &self.settings.faults,
        );
        const INJECTED: &str = "fault injected by the mock model";
        let overloaded = StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        match fault {
            Some(Fault::RateLimited) => {
                return self.refuse(
                    wire,
                    StatusCode::TOO_MANY_REQUESTS,
                    INJECTED,
                    Some(FAULT_RETRY_AFTER),
                );
            }
            Some(Fault::Overloaded) => return self.refuse(wire, overloaded, INJECTED, None),
            Some(Fault::ServerError) => {
                return self.refuse(wire, StatusCode::INTERNAL_SERVER_ERROR, INJECTED, None);
            }
            Some(Fault::Html) => {
                return respond(StatusCode::OK, "text/html; charset=utf-8", Body::from(PAGE));
            }
            Some(Fault::Reset) => link.reset(),
            Some(Fault::Half) if !asked.stream => link.reset(),
            Some(Fault::ErrorEvent) if !asked.stream => {
                return self.refuse(wire, overloaded, INJECTED, None);
            }
            Some(Fault::Stall) if !asked.stream => return std::future::pending().await,
            Some(Fault::Stall | Fault::Half | Fault::MalformedJson | Fault::ErrorEvent) | None => {}
        }
        let mut response = if asked.stream {
            let body = self.answers.stream(wire, &asked, nth, fault, running);
            respond(StatusCode::OK, "text/event-stream; charset=utf-8", body)
        } else {
            respond(
                StatusCode::OK,
                "application/json",
                Body::from(self.answers.whole(wire, &asked, nth, fault)),
            )
        };
        self.set_limit_headers(wire, response.headers_mut());
        response
    }

    fn refuse(
        &self,
        wire: Wire,
        status: StatusCode,
        message: &str,
        retry_after: Option<Duration>,
    ) -> Response<Body> {
        let body = match wire {
            Wire::Anthropic => anthropic::refusal(
                match status.as_u16() {
                    401 => "authentication_error",
                    429 => "rate_limit_error",
                    529 => "overloaded_error",
                    400..=499 => "invalid_request_error",
                    _ => "api_error",
                },
                message,
            ),
            Wire::OpenAi => openai::refusal(
                match status.as_u16() {
                    401 => "invalid_api_key",
                    429 => "rate_limit_exceeded",
                    400..=499 => "invalid_request_error",
                    _ => "server_error",
                },
                message,
            ),
        };
        let mut response = respond(status, "application/json", Body::from(body));
        let headers = response.headers_mut();
        if let Some(wait) = retry_after {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        self.set_limit_headers(wire, headers);
        response
    }

    fn set_limit_headers(&self, wire: Wire, headers: &mut HeaderMap) {
        for limit in self.meter.limits() {
            for (name, value) in limit_headers(wire, &limit) {
                if let (Ok(name), Ok(value)) = (
                    header::HeaderName::try_from(name),
                    HeaderValue::try_from(value),
                ) {
                    headers.insert(name, value);
                }
            }
        }
    }
}

/// The headers in which a provider reports a limit.
fn limit_headers(wire: Wire, limit: &Limit) -> [(String, String); 3] {
    let what = limit.what;
    match wire {
        Wire::Anthropic => [
            (
                format!("anthropic-ratelimit-{what}-limit"),
                limit.size.to_string(),
            ),
            (
                format!("anthropic-ratelimit-{what}-remaining"),
                limit.left.to_string(),
            ),
            (
                format!("anthropic-ratelimit-{what}-reset"),
                rfc3339_in(limit.full_in),
            ),
        ],
        Wire::OpenAi => [
            (format!("x-ratelimit-limit-{what}"), limit.size.to_string()),
            (
                format!("x-ratelimit-remaining-{what}"),
                limit.left.to_string(),
            ),
            (
                format!("x-ratelimit-reset-{what}"),
                format!("{}ms", limit.full_in.as_millis()),
            ),
        ],
    }
}

fn respond(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Routes of both APIs, `/healthz` and `/stats`.
pub(super) fn router(mock: Arc<Mock>) -> Router {
    let messages =
        async |State(mock): State<Arc<Mock>>,
               Extension(link): Extension<Link>,
               headers: HeaderMap,
               body: Bytes| { mock.answer(Wire::Anthropic, &link, &headers, &body).await };
    let completions =
        async |State(mock): State<Arc<Mock>>,
               Extension(link): Extension<Link>,
               headers: HeaderMap,
               body: Bytes| { mock.answer(Wire::OpenAi, &link, &headers, &body).await };
    let stats = async |State(mock): State<Arc<Mock>>| {
        let ConnectionCounts {
            accepted,
            open,
            streams,
            streams_max,
        } = mock.connections.counts();
        let connections = json!({ "accepted": accepted, "open": open, "streams": streams, "streams_max": streams_max });
        let stats = json!({
            "calls": mock.calls(), "running": mock.meter.running(), "connections": connections,
        });
        respond(
            StatusCode::OK,
            "application/json",
            Body::from(stats.to_string()),
        )
    };
    let count = async |State(mock): State<Arc<Mock>>, body: Bytes| match Asked::read(&body) {
        Ok(asked) => respond(
            StatusCode::OK,
            "application/json",
            Body::from(json!({ "input_tokens": asked.tokens }).to_string()),
        ),
        Err(error) => mock.refuse(
            Wire::Anthropic,
            StatusCode::BAD_REQUEST,
            &error.to_string(),
            None,
        ),
    };
    Router::new()
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count))
        .route("/v1/chat/completions", post(completions))
        .route(
            "/v1/models",
            get(async || respond(StatusCode::OK, "application/json", Body::from(models()))),
        )
        .route("/stats", get(stats))
        .route("/healthz", get(async || "ok\n"))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(mock)
}

/// A model list that clients of either API understand.
fn models() -> String {
    let mock = json!({
        "id": "mock", "type": "model", "object": "model", "display_name": "mock", "owned_by": "callboard",
        "created": 0, "created_at": "1970-01-01T00:00:00Z",
    });
    json!({ "object": "list", "data": [mock], "has_more": false, "first_id": "mock", "last_id": "mock" }).to_string()
}
