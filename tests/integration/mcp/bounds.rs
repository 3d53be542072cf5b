//! The bounds of a message hold over HTTP as over pipes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use callboard::{
    mcp::{McpServerConfig, McpTransport, Server},
    ports::McpError,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Stage, call};

/// How a server sends a message with many values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Json,
    Event,
    /// A notification, while a call waits.
    Notification,
}

fn events(text: String) -> Response {
    let text = stream::iter([Ok::<_, Infallible>(text)]).chain(stream::pending());
    let body = Body::from_stream(text);
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// Starts a server whose messages have `values` values; its stream of notifications follows a call.
async fn peer(way: Way, values: usize) -> String {
    let called = Arc::new(Notify::new());
    let calling = called.clone();
    let blocks = vec![json!({}); values];
    let note = json!({
        "jsonrpc": "2.0",
        "method": "notifications/message",
        "params": { "level": "info", "data": &blocks },
    });
    let answer = async move |body: Bytes| {
        let request: Value = serde_json::from_slice(&body).unwrap();
        let id = &request["id"];
        let result = match request["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-06-18",
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "s", "version": "1" },
            }),
            Some("tools/call") => {
                calling.notify_one();
                let content = [json!({ "type": "text", "text": "fine" })];
                match way {
                    Way::Notification if values > 1000 => return std::future::pending().await,
                    Way::Notification => json!({ "content": content }),
                    _ => json!({ "content": content, "structuredContent": { "a": &blocks } }),
                }
            }
            Some("server/discover") => return StatusCode::NOT_FOUND.into_response(),
            _ => return StatusCode::ACCEPTED.into_response(),
        };
        let message = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
        let session = [("mcp-session-id", "s")];
        match way {
            Way::Event => (session, events(format!("data: {message}\n\n"))).into_response(),
            _ => (session, [(CONTENT_TYPE, "application/json")], message).into_response(),
        }
    };
    let stream = async move || {
        if way != Way::Notification {
            return StatusCode::METHOD_NOT_ALLOWED.into_response();
        }
        called.notified().await;
        events(format!("data: {note}\n\n"))
    };
    let app = Router::new().route("/mcp", post(answer).merge(get(stream)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://127.0.0.1:{port}/mcp")
}

async fn server(stage: &Stage, way: Way, values: usize) -> Arc<Server> {
    let name = format!("{way:?}{values}").to_lowercase();
    let mut config = McpServerConfig::http(name, peer(way, values).await);
    let McpTransport::Http { allow_private, .. } = &mut config.transport else {
        panic!("not an HTTP server")
    };
    *allow_private = true;
    stage.server(&config)
}

#[tokio::test]
async fn a_message_of_many_values_over_http_ends_the_connection_as_over_pipes() {
    let stage = Stage::new();
    for way in [Way::Json, Way::Event, Way::Notification] {
        let well = server(&stage, way, 100).await;
        let hostile = server(&stage, way, 250_000).await;

        let answered = call(&well, "t", "{}").await;
        let refused = call(&hostile, "t", "{}").await;

        assert_eq!(answered.as_deref(), Ok("[Text(\"fine\")]"), "{way:?}");
        assert!(well.is_running().await);
        assert_eq!(
            refused,
            Err(McpError::Failed {
                server: hostile.config().name.clone(),
                reason: "it sent a message of more than 200000 values".into(),
            }),
            "{way:?}"
        );
        let started = std::time::Instant::now();
        while hostile.is_running().await {
            assert!(started.elapsed() < Duration::from_secs(10));
            tokio::task::yield_now().await;
        }
        let again = call(&hostile, "t", "{}").await.unwrap_err().to_string();
        assert!(again.contains("the next start is possible in"), "{again}");
    }
}
