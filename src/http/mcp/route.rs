//! The route `/mcp`: streamable HTTP without sessions.

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use rmcp::{
    model::{ClientJsonRpcMessage, ErrorCode},
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
    },
};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Offered, api::Api, patience::in_time, server::Server, unread::Unread};
use crate::http::{
    answer_body::answer_body,
    answer_room::ConnectionRoom,
    api::EventFrame,
    auth::Caller,
    body::collect,
    error::{Problem, REQUEST_ID},
    shared::App,
};

/// Largest number of JSON values of a message. The protocol's messages are small; parsed, a value
/// takes many times the bytes of its text.
const VALUES_MAX: usize = 20_000;

/// The routes that a call's own requests take. They count no open request: the call is one.
#[derive(Clone)]
pub(in crate::http) struct Inside(pub(in crate::http) Router);

/// An error of JSON-RPC.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[allow(dead_code, reason = "the document's picture of an answer")]
pub(in crate::http) struct McpError {
    /// `2.0`.
    jsonrpc: String,
    /// The id of the request; `null` if it could not be read.
    #[schema(value_type = Option<Object>)]
    id: Value,
    /// `code` and `message`.
    #[schema(value_type = Object)]
    error: Value,
}

/// A message of an MCP client.
///
/// The Model Context Protocol over streamable HTTP, without sessions: each request is answered from
/// itself alone, as an event stream or as JSON. The client accepts both. A notification is answered
/// with 202. A request with the header `Origin`, as browsers send it, is refused.
#[utoipa::path(
    post, path = "/mcp", tag = "mcp",
    request_body(content = Object, description = "One JSON-RPC message", content_type = "application/json"),
    responses(
        (status = 200, description = "The answer of JSON-RPC; in a stream, notifications before it", content((Object = "application/json"), (EventFrame = "text/event-stream"))),
        (status = 202, description = "A notification was received"),
        (status = 400, description = "The message is not one of the protocol", content((McpError = "application/json"), (Problem = "application/problem+json"))),
        (status = 404, description = "There is no such method", content((McpError = "application/json"), (Problem = "application/problem+json"))),
    ),
)]
pub(in crate::http) async fn message(
    State(app): State<App>,
    Caller(tenant): Caller,
    Extension(Inside(router)): Extension<Inside>,
    Extension(tools): Extension<Offered>,
    Extension(connection): Extension<ConnectionRoom>,
    request: axum::extract::Request,
) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    no_origin(&parts)?;
    let mut room = app.body_room(&tenant);
    let bytes_max = app.config.bounds.body_bytes_max;
    let body = collect(&parts.headers, body, &app, bytes_max, Some(&mut room)).await?;
    // Before it is parsed: that takes its time on a thread that serves others.
    if callboard_actors::chat::values_in(&body) > VALUES_MAX {
        return Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the JSON of a message is limited to {VALUES_MAX} values"),
        ));
    }
    // An array can stand for an object's fields in order, which no client means.
    if body.trim_ascii_start().starts_with(b"[") {
        return Ok(no_message(&body));
    }
    let Some(key) = parts.headers.remove(header::AUTHORIZATION) else {
        return Err(Problem::internal()); // `Caller` has read it.
    };
    let request_id = parts.headers.get(REQUEST_ID).cloned();
    let api = Api::new(router, key, &parts.extensions).named(request_id);
    let unread = Unread::default();
    let counter = unread.counter(&app.answers, &tenant, &connection);
    let server = Server::new(api, tools, false).counted_by(counter);
    let mut config = StreamableHttpServerConfig::default()
        // Whoever sends a request has a key, so a name that leads here by a trick gains nothing.
        .disable_allowed_hosts();
    config.legacy_session_mode = false;
    // An answer without notifications before it is a document.
    config.json_response = true;
    config.sse_retry = None;
    config.sse_keep_alive = Some(app.config.bounds.comment_every);
    config.max_request_body_bytes = bytes_max;
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    let request = axum::http::Request::from_parts(parts, Body::from(body.clone()));
    let answering = async move { service.handle(request).await.map(Body::new) };
    let response = in_time(&app, answering).await;
    let is_refused = response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE;
    if is_refused && serde_json::from_slice::<ClientJsonRpcMessage>(&body).is_err() {
        return Ok(no_message(&body));
    }
    // A client that reads takes at least the comments of a stream.
    let bounds = &app.config.bounds;
    let pause_max = bounds.write_pause_max + bounds.comment_every;
    // The message lives as long as its call, so it counts until the answer is sent.
    let held = (room, unread);
    as_problem(response.map(|body| answer_body(body.into_data_stream(), held, pause_max)))
}

/// Refuses what a page in a browser sends: a name that leads to this host by a trick (DNS rebinding)
/// makes its requests look like those of the user.
fn no_origin(parts: &Parts) -> Result<(), Problem> {
    match parts.headers.contains_key(header::ORIGIN) {
        false => Ok(()),
        true => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "origin_refused",
            "this route serves no web page: send the request without `Origin`",
        )),
    }
}

/// The answer to what is no message of the protocol.
fn no_message(body: &[u8]) -> Response {
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => {
            let what: String = error.to_string().chars().take(200).collect();
            let line = format!("the body is not JSON: {what}");
            return refused(Value::Null, ErrorCode::PARSE_ERROR, &line);
        }
    };
    if value.is_array() {
        let line = "send one message in each request: batches are not supported";
        return refused(Value::Null, ErrorCode::INVALID_REQUEST, line);
    }
    let id = match value.get("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
        _ => Value::Null,
    };
    let line = "the body is no JSON-RPC message of MCP: wrong or missing fields";
    refused(id, ErrorCode::INVALID_REQUEST, line)
}

fn refused(id: Value, code: ErrorCode, line: &str) -> Response {
    let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": code.0, "message": line}});
    let media = HeaderValue::from_static("application/json");
    let headers = [(header::CONTENT_TYPE, media)];
    (StatusCode::BAD_REQUEST, headers, error.to_string()).into_response()
}

/// A refusal of the transport as a problem document; an answer as it is.
fn as_problem(response: Response) -> Result<Response, Problem> {
    let status = response.status();
    let media = response.headers().get(header::CONTENT_TYPE);
    let is_json = media.is_some_and(|media| media.as_bytes().starts_with(b"application/json"));
    match status {
        status if status.is_success() || is_json => Ok(response),
        StatusCode::NOT_ACCEPTABLE => Err(Problem::new(
            status,
            "not_acceptable",
            "send `Accept: application/json, text/event-stream`",
        )),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Err(Problem::new(
            status,
            "not_json",
            "send a JSON body with `Content-Type: application/json`",
        )),
        StatusCode::BAD_REQUEST => Err(Problem::new(
            status,
            "malformed_request",
            "the header `Mcp-Protocol-Version` names no version that this host knows",
        )),
        _ => Err(Problem::internal()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::{body::Bytes, http::Request};
    use callboard_actors::{
        ids::TenantId,
        testing::{Reply, ScriptedModel},
    };

    use super::*;
    use crate::{
        Host,
        http::{HttpConfig, Keys, shared::Shared, sse::WithoutText},
    };

    async fn app() -> App {
        let host = Host::builder()
            .shared_provider(Arc::new(ScriptedModel::always(Reply::text("yes"))))
            .build()
            .await
            .unwrap();
        let config = HttpConfig::new(Keys::new());
        Arc::new(Shared::new(host, config, Bytes::new()))
    }

    /// Calls a tool of a server whose own requests `inside` answers.
    async fn called(
        app: &App,
        inside: Router,
        tool: &str,
        arguments: Value,
        meta: Value,
    ) -> Response {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": tool, "arguments": arguments, "_meta": meta,
        }});
        let call = Request::post("/mcp")
            .header("host", "a")
            .header("authorization", "Bearer fake")
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .body(Body::from(call.to_string()))
            .unwrap();
        let answer = message(
            State(app.clone()),
            Caller(TenantId::new("acme").unwrap()),
            Extension(Inside(inside)),
            Extension(Offered::new()),
            Extension(ConnectionRoom::new(&app.config.bounds)),
            call,
        );
        answer.await.unwrap()
    }

    #[tokio::test]
    async fn text_that_is_being_written_is_read_for_clients_that_follow_the_progress_only() {
        const END: &str = "data: {\"type\":\"round_finished\",\"status\":\"completed\"}\n\n";
        let app = &app().await;
        let asked = async |meta: Value| {
            let (seen, mut skips_text) = tokio::sync::mpsc::unbounded_channel();
            let inside = Router::new().fallback(async move |request: Request<Body>| {
                seen.send(request.extensions().get::<WithoutText>().is_some())
                    .unwrap();
                END
            });
            let answer = called(app, inside, "send_prompt", json!({"prompt": "hello"}), meta).await;
            let body = axum::body::to_bytes(answer.into_body(), 10_000).await;
            let body = String::from_utf8(body.unwrap().to_vec()).unwrap();
            assert!(body.contains("completed"), "{body}");
            skips_text.recv().await.unwrap()
        };

        assert!(asked(json!({})).await);
        assert!(!asked(json!({"progressToken": 1})).await);
    }

    #[tokio::test]
    async fn a_message_counts_until_the_answer_to_its_call_is_sent() {
        let app = app().await;
        let acme = TenantId::new("acme").unwrap();
        let arguments = json!({"conversation_id": "c", "round_id": "r"});
        let note = json!({"note": "x".repeat(100_000)});
        // The request that the call makes is never answered.
        let inside = Router::new().fallback(pending::<StatusCode>);

        let answer = called(&app, inside, "get_round", arguments, note).await;
        assert_eq!(answer.status(), 200);
        let during = app.body_bytes(&acme);
        drop(answer);

        assert!(during > 100_000, "{during}");
        assert_eq!(app.body_bytes(&acme), 0);
    }
}
