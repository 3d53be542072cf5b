//! The same turn over each API, with one client after the other in each lane.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{Router, extract::State, routing::post};
use futures_util::StreamExt as _;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::program::{KEYS, Programs};

/// Prompts of a conversation that is kept.
const TURNS_EACH: usize = 5;

/// The answer of the model.
const PIECES: usize = 64;
const PIECE: &str = "word";

/// A way to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Own,
    Chat,
    Responses,
    Messages,
    Mcp,
    Webhook,
}

impl Door {
    pub(crate) const SINGLE: [Self; 4] = [Self::Own, Self::Chat, Self::Responses, Self::Messages];
    pub(crate) const KEPT: [Self; 5] = [
        Self::Own,
        Self::Chat,
        Self::Responses,
        Self::Mcp,
        Self::Webhook,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Mcp => "mcp",
            Self::Webhook => "webhook",
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) door: Door,
    /// Whether the host keeps the conversation for the next prompt.
    pub(crate) is_kept: bool,
    pub(crate) streams: bool,
    /// Messages before the prompt that the client brings.
    pub(crate) earlier: usize,
}

impl Row {
    pub(crate) fn name(self) -> &'static str {
        match (self.door, self.is_kept) {
            (Door::Own, true) => "own, kept",
            (door, _) => door.name(),
        }
    }
}

/// Counts the calls of webhooks.
pub(crate) struct Receiver {
    pub(crate) url: String,
    calls: Arc<AtomicUsize>,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = |State(calls): State<Arc<AtomicUsize>>| async move {
            calls.fetch_add(1, Relaxed);
        };
        let app = Router::new()
            .route("/hook", post(counted))
            .with_state(calls.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { url, calls }
    }

    async fn reached(&self, calls: usize) {
        let began = Instant::now();
        while self.calls.load(Relaxed) < calls {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "calls are missing"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) struct Clients {
    client: Client,
    url: String,
    hooks: Receiver,
    lanes: usize,
    names: AtomicUsize,
}

impl Clients {
    pub(crate) fn new(programs: &Programs, hooks: Receiver, lanes: usize) -> Self {
        Self {
            client: callboard::tls::client_builder().unwrap().build().unwrap(),
            url: programs.url.clone(),
            hooks,
            lanes,
            names: AtomicUsize::new(0),
        }
    }

    /// Runs about `turns` turns. Returns their number, and what deletes the conversations.
    pub(crate) async fn run(self: &Arc<Self>, row: Row, turns: usize) -> (usize, Vec<String>) {
        let each = if row.is_kept { TURNS_EACH } else { 1 };
        let lives = (turns / each / self.lanes).max(1);
        let called = self.hooks.calls.load(Relaxed);
        let lanes: Vec<_> = (0..self.lanes)
            .map(|_| {
                let clients = self.clone();
                tokio::spawn(async move {
                    let mut kept = Vec::new();
                    for _ in 0..lives {
                        kept.extend(clients.conversation(row, each).await);
                    }
                    kept
                })
            })
            .collect();
        let mut kept = Vec::new();
        for lane in lanes {
            kept.extend(lane.await.unwrap());
        }
        let done = lives * each * self.lanes;
        if row.door == Door::Webhook {
            self.hooks.reached(called + done).await;
        }
        (done, kept)
    }

    /// Deletes what a phase left.
    pub(crate) async fn delete(self: &Arc<Self>, row: Row, kept: Vec<String>) {
        let deleted = kept.into_iter().map(|path| async move {
            let url = format!("{}{path}", self.url);
            let request = self.client.delete(url).bearer_auth(key(row));
            assert!(request.send().await.unwrap().status().is_success());
        });
        let at_once = futures_util::stream::iter(deleted).buffer_unordered(self.lanes);
        at_once.collect::<Vec<()>>().await;
    }

    async fn conversation(&self, row: Row, each: usize) -> Option<String> {
        let id = format!("c-{}", self.names.fetch_add(1, Relaxed));
        let own = format!("/v1/conversations/{id}");
        let mut talk = Talk {
            id,
            messages: earlier(row.earlier),
            previous: None,
        };
        if row.door == Door::Own && row.earlier > 0 {
            let body = json!({ "messages": talk.messages });
            self.send(row, Method::PUT, &own, &talk, Some(body)).await;
        }
        for _ in 0..each {
            let (path, body) = talk.request(row);
            let answer = self.send(row, Method::POST, &path, &talk, Some(body)).await;
            talk.answered(row, &answer);
        }
        match (row.door, row.is_kept) {
            (Door::Own, false) => {
                self.send(row, Method::DELETE, &own, &talk, None).await;
                None
            }
            (_, false) => None,
            (Door::Responses, true) => {
                let id = talk.previous.unwrap();
                Some(format!("/openai/v1/responses/{id}"))
            }
            (_, true) => Some(own),
        }
    }

    /// Sends a request and reads the answer to its end.
    async fn send(
        &self,
        row: Row,
        method: Method,
        path: &str,
        talk: &Talk,
        body: Option<Value>,
    ) -> String {
        let is_prompt = method == Method::POST;
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(key(row));
        if row.door == Door::Mcp {
            request = request.header("accept", "application/json, text/event-stream");
        }
        if row.door == Door::Chat && row.is_kept {
            request = request.header("x-conversation-id", &talk.id);
        }
        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let answer = response.text().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {answer}");
        if is_prompt {
            let pieces = answer.matches(PIECE).count();
            assert!(pieces >= PIECES, "{path}: {pieces} pieces in {answer}");
        }
        answer
    }
}

fn key(row: Row) -> &'static str {
    KEYS[usize::from(row.door == Door::Webhook)]
}

/// The messages before the prompt, of 200 bytes each.
fn earlier(count: usize) -> Vec<Value> {
    // The last is the model's: the prompt follows.
    let of_model = |nth: usize| (count - nth) % 2 == 1;
    let role = |nth| if of_model(nth) { "assistant" } else { "user" };
    (0..count)
        .map(|nth| json!({ "role": role(nth), "content": "u".repeat(200) }))
        .collect()
}

/// What a client knows of its conversation.
struct Talk {
    id: String,
    messages: Vec<Value>,
    /// The last response.
    previous: Option<String>,
}

impl Talk {
    fn request(&mut self, row: Row) -> (String, Value) {
        let prompt = "p".repeat(200);
        let message = json!({ "role": "user", "content": prompt });
        let streams = row.streams;
        match row.door {
            Door::Own | Door::Webhook => (
                format!("/v1/conversations/{}/messages", self.id),
                json!({ "content": prompt, "stream": streams }),
            ),
            Door::Chat => {
                self.messages.push(message);
                (
                    "/openai/v1/chat/completions".to_owned(),
                    json!({ "model": "default", "messages": self.messages, "stream": streams }),
                )
            }
            Door::Messages => {
                self.messages.push(message);
                let body = json!({
                    "model": "default", "max_tokens": 4096, "messages": self.messages, "stream": streams,
                });
                ("/anthropic/v1/messages".to_owned(), body)
            }
            Door::Responses => {
                let mut body =
                    json!({ "model": "default", "stream": streams, "store": row.is_kept });
                if let Some(previous) = &self.previous {
                    body["previous_response_id"] = json!(previous);
                }
                self.messages.push(message);
                body["input"] = if row.is_kept {
                    json!(prompt)
                } else {
                    json!(self.messages)
                };
                ("/openai/v1/responses".to_owned(), body)
            }
            Door::Mcp => {
                let mut params = json!({
                    "name": "send_prompt",
                    "arguments": { "prompt": prompt, "conversation_id": self.id },
                });
                if streams {
                    params["_meta"] = json!({ "progressToken": "p" });
                }
                let body = json!({
                    "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params,
                });
                ("/mcp".to_owned(), body)
            }
        }
    }

    fn answered(&mut self, row: Row, answer: &str) {
        if row.door == Door::Chat {
            let text = PIECE.repeat(PIECES);
            self.messages
                .push(json!({ "role": "assistant", "content": text }));
        }
        if row.door == Door::Responses && row.is_kept {
            let at = answer.find("resp_").expect("an id");
            let end = answer[at..].find('"').unwrap();
            self.previous = Some(answer[at..at + end].to_owned());
        }
    }
}
