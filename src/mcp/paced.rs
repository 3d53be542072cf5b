//! An HTTP client that opens event streams at a bounded rate. A server may end a stream at once and
//! ask for a reconnection after 0 ms; the SDK follows it, without a pause and without an end.

use std::{collections::HashMap, sync::Arc, time::Duration};

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    model::ClientJsonRpcMessage,
    transport::{
        common::client_side_sse::BoxedSseResponse,
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

/// Shortest interval between two event streams of one connection.
const STREAM_PAUSE: Duration = Duration::from_secs(1);

/// A client with the pause in front of its event streams. Requests do not wait.
#[derive(Clone)]
pub(super) struct Paced<C> {
    inner: C,
    /// When the next stream may open.
    next: Arc<Mutex<Instant>>,
}

impl<C> Paced<C> {
    pub(super) fn new(inner: C) -> Self {
        Self {
            inner,
            next: Arc::new(Mutex::new(Instant::now())),
        }
    }

    async fn wait(&self) {
        let mut next = self.next.lock().await;
        sleep_until(*next).await;
        *next = Instant::now() + STREAM_PAUSE;
    }
}

impl<C: StreamableHttpClient + Sync> StreamableHttpClient for Paced<C> {
    type Error = C::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<Self::Error>> {
        let inner = &self.inner;
        inner
            .post_message(uri, message, session_id, auth_header, custom_headers)
            .await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<Self::Error>> {
        let inner = &self.inner;
        inner
            .post_message_with_max_sse_event_size(
                uri,
                message,
                session_id,
                auth_header,
                custom_headers,
                max_sse_event_size,
            )
            .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), StreamableHttpError<Self::Error>> {
        let inner = &self.inner;
        inner
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
    ) -> Result<BoxedSseResponse, StreamableHttpError<Self::Error>> {
        self.wait().await;
        let inner = &self.inner;
        inner
            .get_stream(uri, session_id, last_event_id, auth_header, custom_headers)
            .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        max_sse_event_size: usize,
    ) -> Result<BoxedSseResponse, StreamableHttpError<Self::Error>> {
        self.wait().await;
        let inner = &self.inner;
        inner
            .get_stream_with_max_sse_event_size(
                uri,
                session_id,
                last_event_id,
                auth_header,
                custom_headers,
                max_sse_event_size,
            )
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::{
        Router,
        body::Bytes,
        http::header::CONTENT_TYPE,
        response::IntoResponse,
        routing::{get, post},
    };
    use futures_util::{StreamExt as _, stream};
    use parking_lot::Mutex;
    use rmcp::{
        ServiceExt as _,
        transport::{
            StreamableHttpClientTransport,
            streamable_http_client::StreamableHttpClientTransportConfig,
        },
    };
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers the handshake. Its event streams end at once and ask for a reconnection after 0 ms.
    async fn hurrying(opened: Arc<Mutex<Vec<Instant>>>) -> String {
        let answer = async |body: Bytes| {
            let request: Value = serde_json::from_slice(&body).unwrap();
            let id = request["id"].clone();
            if id.is_null() {
                return axum::http::StatusCode::ACCEPTED.into_response();
            }
            let info = json!({ "name": "hurry", "version": "1" });
            let result =
                json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info });
            let body = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
            let fields = [
                ("content-type", "application/json"),
                ("mcp-session-id", "s"),
            ];
            (fields, body).into_response()
        };
        let events = async move || {
            opened.lock().push(Instant::now());
            let event = "retry: 0\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";
            let body = stream::iter([Ok::<_, Infallible>(event)]).boxed();
            (
                [(CONTENT_TYPE, "text/event-stream")],
                axum::body::Body::from_stream(body),
            )
        };
        let app = Router::new().route("/", post(answer).merge(get(events)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        url
    }

    #[tokio::test]
    async fn a_server_that_asks_for_reconnections_without_a_pause_gets_one_a_second() {
        let opened = Arc::new(Mutex::new(Vec::new()));
        let url = hurrying(opened.clone()).await;
        let client = crate::tls::late_client_builder()
            .no_proxy()
            .build()
            .unwrap();
        let config = StreamableHttpClientTransportConfig::with_uri(url);
        let transport = StreamableHttpClientTransport::with_client(Paced::new(client), config);

        let service = ().serve(transport).await.unwrap();
        let all = tokio::time::timeout(Duration::from_secs(30), async {
            loop {
                let opened = opened.lock().clone();
                if opened.len() >= 3 {
                    return opened;
                }
                tokio::task::yield_now().await;
            }
        });
        let all = all.await.unwrap();

        // The pause lies between departures. On a busy machine one request may take longer to
        // arrive than the next.
        let least = STREAM_PAUSE / 2;
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= least));
        let _ = service.cancel().await;
    }
}
