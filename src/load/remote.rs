//! A target over HTTP: posts prompts and reads their events as server-sent events.

use std::borrow::Cow;

use callboard_actors::chat::Usage;
use reqwest::{Client, Response, header};
use serde::Deserialize;
use serde_json::json;

use super::{
    LoadError,
    turn::{End, RoundOver, Seen, Turn, Watch},
};
use crate::providers::sse::{SseDecoder, SseTooLong};

/// A running `callboard serve`.
pub(crate) struct Remote {
    client: Client,
    url: String,
    /// One key for each tenant.
    keys: Vec<String>,
}

/// The fields of an event that the generator reads.
#[derive(Deserialize)]
struct EventBody<'a> {
    #[serde(borrow, default)]
    id: Cow<'a, str>,
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    text: Cow<'a, str>,
    #[serde(borrow, default)]
    stop_reason: Cow<'a, str>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    code: String,
}

/// Why reading the events failed.
enum Broken {
    TooLong,
    NoJson,
}

impl From<SseTooLong> for Broken {
    fn from(_: SseTooLong) -> Self {
        Self::TooLong
    }
}

impl Remote {
    /// Creates a target at this URL. Each key is a tenant. Over https, the certificates of
    /// `ca_pem` are trusted as the system's are.
    ///
    /// The client speaks HTTP/1.1: one HTTP/2 connection would hold turns back beyond the server's
    /// limit of streams, and they would count as late.
    ///
    /// # Errors
    /// [`LoadError::Client`], [`LoadError::Tls`].
    pub(crate) fn new(
        url: &str,
        keys: Vec<String>,
        ca_pem: Option<&[u8]>,
    ) -> Result<Self, LoadError> {
        let client = crate::tls::http1_client_builder(ca_pem)?
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .pool_max_idle_per_host(usize::MAX)
            .build()?;
        Ok(Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            keys,
        })
    }

    fn request(&self, turn: &Turn, verb: &str) -> reqwest::RequestBuilder {
        let key = self.keys.get(turn.tenant).map_or("", String::as_str);
        let url = format!("{}/v1/conversations/{}/{verb}", self.url, turn.conversation);
        self.client.post(url).bearer_auth(key)
    }

    pub(super) async fn turn(&self, turn: &Turn) -> Seen {
        let body = json!({ "content": turn.prompt(), "on_busy": "queue" }).to_string();
        let request = self
            .request(turn, "messages")
            .header(header::ACCEPT, "text/event-stream");
        let response = match request
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .send()
            .await
        {
            Ok(response) if response.status().is_success() => response,
            Ok(response) => return Seen::only(End::Refused(code_of(response).await)),
            Err(_) => return Seen::only(End::Refused("connection".to_owned())),
        };
        self.follow(turn, response).await
    }

    async fn follow(&self, turn: &Turn, mut response: Response) -> Seen {
        let mut decoder = SseDecoder::new();
        let mut watch = Watch::new(turn);
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return watch.seen(),
                Err(_) => {
                    watch.failed("connection");
                    return watch.seen();
                }
            };
            let mut interrupt = false;
            let read = decoder.feed(&chunk, &mut |event| {
                let body: EventBody<'_> =
                    serde_json::from_slice(event.data).map_err(|_| Broken::NoJson)?;
                interrupt |= record(&mut watch, &body);
                Ok(())
            });
            if let Err(broken) = read {
                watch.failed(match broken {
                    Broken::TooLong => "event_too_long",
                    Broken::NoJson => "event_not_json",
                });
                return watch.seen();
            }
            if interrupt && self.request(turn, "interrupt").send().await.is_err() {
                watch.failed("connection");
            }
        }
    }
}

/// Records an event. Returns true when the turn must be interrupted now.
fn record(watch: &mut Watch, body: &EventBody<'_>) -> bool {
    let mut parts = body.id.split('.').map_while(|part| part.parse().ok());
    if let (Some(epoch), Some(seq), Some(n)) = (parts.next(), parts.next(), parts.next()) {
        watch.place([epoch, seq, n]);
    }
    match &*body.kind {
        "text_delta" => return watch.text(),
        "round_finished" => watch.over(&RoundOver {
            stop_reason: &body.stop_reason,
            error: body.error.as_ref().map(|error| error.code.as_str()),
            text: &body.text,
            tokens: body.usage.map_or(0, |usage| usage.input() + usage.output),
        }),
        "error" => watch.failed(body.code.as_deref().unwrap_or("error")),
        _ => {}
    }
    false
}

/// Returns the stable code of a refusal, else `http_` and its status.
async fn code_of(response: Response) -> String {
    let status = response.status().as_u16();
    let body = response.bytes().await.unwrap_or_default();
    serde_json::from_slice::<Problem>(&body)
        .map_or_else(|_| format!("http_{status}"), |problem| problem.code)
}

#[cfg(test)]
mod tests {
    use axum::{Router, extract::Path, http::HeaderMap, response::IntoResponse, routing::post};

    use super::*;
    use crate::mock_model::{MockTls, TlsIdentity};

    /// A host that answers correctly, late, or not at all, depending on the conversation's name.
    async fn fake() -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes()).await });
        url
    }

    fn routes() -> Router {
        async fn messages(
            Path(id): Path<String>,
            headers: HeaderMap,
            body: String,
        ) -> axum::response::Response {
            let kind = [(header::CONTENT_TYPE, "text/event-stream")];
            if headers
                .get(header::AUTHORIZATION)
                .is_none_or(|key| key != "Bearer good")
            {
                let problem = r#"{"type":"about:blank","title":"Unauthorized","status":401,"code":"unauthorized"}"#;
                return (axum::http::StatusCode::UNAUTHORIZED, problem).into_response();
            }
            let mark = body
                .split('"')
                .find(|text| text.starts_with("load-"))
                .and_then(|text| text.split(' ').next())
                .unwrap();
            let started = r#"data: {"id":"1.1.0","conversation_id":"c","type":"round_started"}"#;
            let delta =
                format!(r#"data: {{"id":"1.1.1","type":"text_delta","text":"{mark} w\u00f6rd"}}"#);
            let usage = r#""usage":{"input_uncached":5,"cache_read":1,"cache_write":0,"output":2}"#;
            let end = |reason: &str| {
                format!(
                    r#"data: {{"id":"1.3.0","type":"round_finished","status":"completed","stop_reason":"{reason}","text":"{mark} w\u00f6rd","full_text":"",{usage},"latency_ms":3}}"#
                )
            };
            let text = match id.as_str() {
                "cut" => format!("{started}\n\n{delta}\n\n"),
                "twice" => format!(
                    "{started}\n\n{started}\n\n{delta}\n\n{}\n\n",
                    end("end_turn")
                ),
                "failed" => {
                    format!(
                        "{started}\n\ndata: {{\"id\":\"1.2.0\",\"type\":\"error\",\"code\":\"overloaded\",\"message\":\"m\"}}\n\n"
                    )
                }
                "html" => "data: <html>\n\n".to_owned(),
                "interrupted" => format!("{started}\n\n{delta}\n\n{}\n\n", end("interrupted")),
                _ => format!(
                    ": hello\n\n{started}\n\nid: 1.1.1\n{delta}\n\n{}\n\n",
                    end("end_turn")
                ),
            };
            (kind, text).into_response()
        }
        Router::new()
            .route("/v1/conversations/{id}/messages", post(messages))
            .route("/v1/conversations/{id}/interrupt", post(async || "{}"))
    }

    /// Accepts TLS, and records which protocol each connection chose.
    struct TlsListener {
        tcp: tokio::net::TcpListener,
        tls: tokio_rustls::TlsAcceptor,
        protocols: tokio::sync::mpsc::Sender<Option<Vec<u8>>>,
    }

    impl axum::serve::Listener for TlsListener {
        type Io = tokio_rustls::server::TlsStream<tokio::net::TcpStream>;
        type Addr = ();

        async fn accept(&mut self) -> (Self::Io, ()) {
            loop {
                let (stream, _) = self.tcp.accept().await.unwrap();
                if let Ok(stream) = self.tls.accept(stream).await {
                    let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                    self.protocols.send(protocol).await.unwrap();
                    return (stream, ());
                }
            }
        }

        fn local_addr(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn turn(conversation: &str, tenant: usize) -> Turn {
        Turn {
            tenant,
            conversation: conversation.into(),
            id: 9,
            cancel: conversation == "interrupted",
        }
    }

    #[tokio::test]
    async fn a_remote_host_is_measured_as_it_reports() {
        let remote = Remote::new(&fake().await, vec!["good".into(), "bad".into()], None).unwrap();

        let well = remote.turn(&turn("well", 0)).await;
        assert_eq!(
            (
                &well.end,
                well.tokens,
                well.repeated,
                well.mismatched,
                well.unmarked
            ),
            (&End::Well, 8, 0, false, false)
        );
        assert!(well.first_text.is_some());
        assert_eq!(remote.turn(&turn("twice", 0)).await.repeated, 1);
        for (conversation, end) in [
            ("cut", End::Lost),
            ("failed", End::Failed("overloaded".into())),
            ("html", End::Failed("event_not_json".into())),
            ("interrupted", End::Interrupted),
        ] {
            assert_eq!(
                remote.turn(&turn(conversation, 0)).await.end,
                end,
                "{conversation}"
            );
        }
        assert_eq!(
            remote.turn(&turn("well", 1)).await.end,
            End::Refused("unauthorized".into())
        );
        let gone = Remote::new("http://127.0.0.1:1", vec!["good".into()], None).unwrap();
        assert_eq!(
            gone.turn(&turn("well", 0)).await.end,
            End::Refused("connection".into())
        );
    }
    #[tokio::test]
    async fn a_host_behind_https_is_measured_if_its_certificate_is_trusted() {
        let made = TlsIdentity::make(&[]).unwrap();
        let tls = MockTls {
            identity: made.identity,
            http2_streams_max: Some(1),
        };
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", tcp.local_addr().unwrap());
        let (protocols, mut chosen) = tokio::sync::mpsc::channel(8);
        let tls = tls.server_config().unwrap().into();
        let listener = TlsListener {
            tcp,
            tls,
            protocols,
        };
        tokio::spawn(async move { axum::serve(listener, routes()).await });
        let keys = || vec!["good".into()];

        let trusting = Remote::new(&url, keys(), Some(made.ca_pem.as_bytes())).unwrap();
        let strange = Remote::new(&url, keys(), None).unwrap();

        assert_eq!(trusting.turn(&turn("well", 0)).await.end, End::Well);
        assert_eq!(chosen.recv().await.unwrap().unwrap(), b"http/1.1");
        assert_eq!(
            strange.turn(&turn("well", 0)).await.end,
            End::Refused("connection".into())
        );
        assert!(Remote::new(&url, keys(), Some(b"no certificate")).is_err());
    }
}
