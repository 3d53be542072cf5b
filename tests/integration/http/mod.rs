//! The HTTP host from outside: over a loopback socket, with an ordinary HTTP client.

mod admin;
mod anthropic;
mod console;
mod documents;
mod drain;
mod errors;
mod events;
mod failures;
mod fan_outs;
mod histories;
mod limits;
mod matrix;
mod mcp;
mod openai;
mod outage;
mod owners;
mod peers;
mod pressure;
mod rounds;
mod routes;
mod tenants;

use std::{future::Future, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use callboard::{
    Host,
    http::{HttpBounds, HttpConfig, KeyHash, Keys, Operator, Peers, Served, serve},
    observe::Redactor,
};
use callboard_actors::{
    ids::TenantId,
    ports::LlmProvider,
    testing::{Reply, ScriptedModel},
};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// The key of the tenant `acme`.
const ACME: &str = "cb_test_acme_not_a_real_key";

/// The key of the tenant `zeta`.
const ZETA: &str = "cb_test_zeta_not_a_real_key";

/// The operator's key.
const ADMIN: &str = "cb_test_admin_not_a_real_key";

/// Upper limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what)
        .await
        .expect("the step takes too long")
}

/// A folder of skills; `csv-tables` has files.
fn skills() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/skills"
    ))
}

fn tenant(id: &str) -> TenantId {
    TenantId::new(id).unwrap()
}

/// A running host and its address.
struct Server {
    address: SocketAddr,
    host: Host,
    keys: Keys,
    stop: CancellationToken,
    served: JoinHandle<Served>,
    client: Client,
}

/// What to start.
#[derive(Default)]
struct Setting {
    bounds: HttpBounds,
    operator: Option<Arc<dyn Operator>>,
    drain_within: Option<Duration>,
    redactor: Redactor,
    no_metrics: bool,
    peers: Option<Arc<dyn Peers>>,
    eval_results: Option<PathBuf>,
}

impl Server {
    async fn start(model: ScriptedModel) -> Self {
        Self::with(Arc::new(model), Setting::default()).await
    }

    async fn with(model: Arc<dyn LlmProvider>, setting: Setting) -> Self {
        let host = Host::builder()
            .shared_provider(model)
            .build()
            .await
            .unwrap();
        Self::over(host, setting).await
    }

    async fn over(host: Host, setting: Setting) -> Self {
        let keys = Keys::new();
        keys.put(tenant("acme"), KeyHash::from_key(ACME));
        keys.put(tenant("zeta"), KeyHash::from_key(ZETA));
        keys.set_admin(Some(KeyHash::from_key(ADMIN)));
        let mut config = HttpConfig::new(keys.clone()).bounds(setting.bounds);
        config.eval_results = setting.eval_results;
        if let Some(operator) = setting.operator {
            config = config.operator(operator);
        }
        config = config
            .redactor(setting.redactor)
            .metrics(!setting.no_metrics)
            .peers(setting.peers);
        config = config.drain_within(setting.drain_within.unwrap_or(Duration::from_secs(5)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(
            listener,
            host.clone(),
            config,
            stop.clone().cancelled_owned(),
        ));
        let client = callboard::tls::client_builder()
            .unwrap()
            .no_proxy()
            .build()
            .unwrap();
        Self {
            address,
            host,
            keys,
            stop,
            served,
            client,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn ask(&self, method: Method, path: &str, key: &str) -> RequestBuilder {
        self.client.request(method, self.url(path)).bearer_auth(key)
    }

    async fn get(&self, path: &str) -> Response {
        soon(self.ask(Method::GET, path, ACME).send())
            .await
            .unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Response {
        soon(with_json(self.ask(Method::POST, path, ACME), &body).send())
            .await
            .unwrap()
    }

    /// Sends a prompt and waits for the answer.
    async fn send(&self, conversation: &str, text: &str) -> Value {
        let response = self
            .post(
                &format!("/v1/conversations/{conversation}/messages"),
                json!({ "content": text }),
            )
            .await;
        assert_eq!(response.status(), StatusCode::OK);
        body(response).await
    }

    /// Shuts the host down and waits for the end.
    async fn end(self) -> Served {
        self.stop.cancel();
        soon(self.served).await.unwrap()
    }
}

fn with_json(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request
        .header("content-type", "application/json")
        .body(body.to_string())
}

async fn body(response: Response) -> Value {
    let bytes = soon(response.bytes()).await.unwrap();
    serde_json::from_slice(&bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)))
}

/// Checks the form of a problem document; returns its status and code.
async fn problem(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let media = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    let problem = body(response).await;
    assert_eq!(media, "application/problem+json", "{problem}");
    assert_eq!(problem["status"], status, "{problem}");
    assert!(
        problem["title"].is_string() && problem["detail"].is_string(),
        "{problem}"
    );
    (status, problem["code"].as_str().unwrap().to_owned())
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    id: String,
    event: String,
    data: Value,
}

/// Reads server-sent events as they arrive.
struct Sse {
    response: Response,
    text: String,
    comments: usize,
}

impl Sse {
    fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self {
            response,
            text: String::new(),
            comments: 0,
        }
    }

    /// The next event; `None` once the stream has ended.
    async fn next(&mut self) -> Option<Sent> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let block = block.to_owned();
                let rest = rest.to_owned();
                self.text = rest;
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(|text| text.trim_start().to_owned())
                };
                if block.starts_with(':') {
                    self.comments += 1;
                }
                let Some(data) = field("data:") else { continue };
                let data = serde_json::from_str(&data).unwrap();
                return Some(Sent {
                    id: field("id:").unwrap(),
                    event: field("event:").unwrap(),
                    data,
                });
            }
            let chunk = soon(self.response.chunk()).await.ok()??;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn rest(mut self) -> Vec<Sent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}
