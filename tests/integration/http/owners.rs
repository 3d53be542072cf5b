//! Requests for conversations of another host, with that host played by the test.

use std::collections::VecDeque;

use axum::body::Body;
use callboard::{
    Host,
    http::{FORWARDED, NotForwarded, Peers},
    ids::Scope,
    ports::{BoxFuture, StoreError},
};
use callboard_actors::memory::MemorySessions;
use parking_lot::Mutex;

use super::*;

/// What the other host does with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Answers,
    /// It is not the owner any more.
    Refers,
    /// It is gone.
    NotThere,
    /// It ends in the middle.
    Breaks,
}

/// A database that names an owner, and that owner.
#[derive(Default)]
struct Other {
    owner: Mutex<Option<&'static str>>,
    does: Mutex<VecDeque<Does>>,
    looks: Mutex<usize>,
    asked: Mutex<Vec<String>>,
}

impl Peers for Other {
    fn address(&self) -> &str {
        "http://this.example"
    }

    fn owned_elsewhere(
        &self,
        scopes: Vec<Scope>,
    ) -> BoxFuture<'_, Result<Vec<(Scope, String)>, StoreError>> {
        *self.looks.lock() += 1;
        let owner = *self.owner.lock();
        let found = scopes
            .into_iter()
            .filter_map(|scope| Some((scope, owner?.to_owned())));
        Box::pin(std::future::ready(Ok(found.collect())))
    }

    fn forward<'a>(
        &'a self,
        address: &'a str,
        request: axum::extract::Request,
    ) -> BoxFuture<'a, Result<axum::response::Response, NotForwarded>> {
        assert!(request.headers().contains_key(FORWARDED));
        self.asked.lock().push(address.to_owned());
        let does = self.does.lock().pop_front().unwrap_or(Does::Answers);
        let lost = |was_sent| {
            let reason = "lost".to_owned();
            Err(NotForwarded { reason, was_sent })
        };
        let answer = |status: u16| axum::response::Response::builder().status(status);
        Box::pin(std::future::ready(match does {
            Does::Answers => Ok(answer(200)
                .body(Body::from("{\"from\":\"other\"}"))
                .unwrap()),
            Does::Refers => Ok(answer(503)
                .header("x-callboard-moved", "1")
                .body(Body::empty())
                .unwrap()),
            Does::NotThere => lost(false),
            Does::Breaks => lost(true),
        }))
    }
}

async fn server(other: &Arc<Other>) -> Server {
    let model = Arc::new(ScriptedModel::always(Reply::text("here")));
    let host = Host::builder()
        .shared_provider(model)
        .build()
        .await
        .unwrap();
    let peers: Arc<dyn Peers> = other.clone();
    let setting = Setting {
        peers: Some(peers),
        ..Setting::default()
    };
    Server::over(host, setting).await
}

/// The status of a prompt's answer, and the host that gave it.
async fn say(server: &Server) -> (u16, Option<String>) {
    let path = "/v1/conversations/c/messages";
    let response = server.post(path, json!({"content": "Hi"})).await;
    assert!(response.headers().get("x-callboard-moved").is_none());
    let owner = response.headers().get("x-callboard-owner");
    let owner = owner.map(|owner| owner.to_str().unwrap().to_owned());
    (response.status().as_u16(), owner)
}

fn other(owner: &'static str, does: impl IntoIterator<Item = Does>) -> Arc<Other> {
    Arc::new(Other {
        owner: Mutex::new(Some(owner)),
        does: Mutex::new(does.into_iter().collect()),
        ..Other::default()
    })
}

#[tokio::test]
async fn a_host_that_answered_is_asked_again_without_the_database() {
    let other = other("http://other.example", []);
    let server = server(&other).await;

    for _ in 0..20 {
        let owner = Some("http://other.example".to_owned());
        assert_eq!(say(&server).await, (200, owner));
    }

    assert_eq!(other.asked.lock().len(), 20);
    assert_eq!(*other.looks.lock(), 1);
    server.end().await;
}

#[tokio::test]
async fn calls_of_the_compatible_apis_are_answered_by_the_owner_of_the_conversation_they_name() {
    let other = other("http://other.example", []);
    let server = server(&other).await;
    let say = json!([{ "role": "user", "content": "Hi" }]);
    let chat = "/openai/v1/chat/completions";
    let previous = "resp_0a_00000000-0000-4000-8000-000000000001_3";
    let named =
        json!({ "model": "default", "messages": say, "metadata": { "conversation_id": "c" } });
    let follows = json!({ "model": "default", "input": "Hi", "previous_response_id": previous });

    for (path, wanted) in [
        (chat, &named),
        ("/v1/chat/completions", &named),
        ("/openai/v1/responses", &follows),
        ("/v1/responses", &follows),
    ] {
        let answer: Value = soon(server.post(path, wanted.clone()).await.json())
            .await
            .unwrap();
        assert_eq!(answer["from"], "other", "{path}");
    }
    let by_header = server
        .ask(reqwest::Method::POST, chat, ACME)
        .header("x-conversation-id", "c")
        .json(&json!({ "model": "default", "messages": say }));
    let answer: Value = soon(soon(by_header.send()).await.unwrap().json())
        .await
        .unwrap();
    assert_eq!(answer["from"], "other");
    assert_eq!(other.asked.lock().len(), 5);

    // Without a conversation, any host answers.
    let alone = json!({ "model": "default", "messages": say });
    let answer: Value = soon(server.post(chat, alone).await.json()).await.unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], "here");
    assert_eq!(other.asked.lock().len(), 5);
    server.end().await;
}

#[tokio::test]
async fn a_remembered_owner_that_is_none_any_more_is_corrected_by_the_database() {
    for does in [Does::Refers, Does::NotThere] {
        let other = other("http://old.example", [Does::Answers, does]);
        let server = server(&other).await;
        say(&server).await;

        *other.owner.lock() = Some("http://new.example");
        let moved = say(&server).await;
        *other.owner.lock() = None;
        other.does.lock().push_back(does);
        let free = say(&server).await;

        assert_eq!(moved, (200, Some("http://new.example".into())), "{does:?}");
        assert_eq!(free, (200, Some("http://this.example".into())), "{does:?}");
        let asked = ["old", "old", "new", "new"].map(|name| format!("http://{name}.example"));
        assert_eq!(*other.asked.lock(), asked, "{does:?}");
        server.end().await;
    }
}

#[tokio::test]
async fn a_prompt_that_an_owner_may_have_received_is_not_sent_again() {
    let other = other("http://old.example", [Does::Answers, Does::Breaks]);
    let server = server(&other).await;
    say(&server).await;

    *other.owner.lock() = None;
    let lost = say(&server).await;

    assert_eq!(lost, (503, None));
    assert_eq!(other.asked.lock().len(), 2);
    // It is forgotten, so the next request looks.
    assert_eq!(
        say(&server).await,
        (200, Some("http://this.example".into()))
    );
    server.end().await;
}

const MESSAGES: &str = "/v1/conversations/c/messages";

/// Sends a prompt that waits for its model, has another host on the store take the conversation, and
/// returns the answer to the prompt.
async fn say_and_lose(path: &str, key: Option<&str>) -> ((u16, Value), Arc<Other>) {
    let sessions = Arc::new(MemorySessions::new());
    let host = |reply: Reply| {
        Host::builder()
            .shared_provider(Arc::new(ScriptedModel::always(reply)))
            .shared_sessions(sessions.clone())
            .build()
    };
    let other = Arc::new(Other::default());
    let peers: Arc<dyn Peers> = other.clone();
    let setting = Setting {
        peers: Some(peers),
        ..Setting::default()
    };
    let server = Server::over(host(Reply::stall()).await.unwrap(), setting).await;
    let mut prompt = server.ask(Method::POST, path, ACME);
    if let Some(key) = key {
        prompt = prompt.header("idempotency-key", key);
    }
    let asked = match path {
        MESSAGES => json!({"content": "Hi"}),
        _ => json!({"model": "default", "messages": [{"role": "user", "content": "Hi"}]}),
    };
    let prompt = prompt.header("x-conversation-id", "c");
    let prompt = with_json(prompt, &asked).send();
    let lost = async {
        let running = async {
            while body(server.get("/v1/conversations/c").await).await["round_id"].is_null() {
                tokio::task::yield_now().await;
            }
        };
        soon(running).await;
        let taken = host(Reply::text("there")).await.unwrap();
        let acme = taken.tenant("acme");
        let reply = acme.conversation("c").send("And?").await;
        reply.unwrap().outcome().await.unwrap();
        *other.owner.lock() = Some("http://other.example");
        // It stores what this host may not store any more.
        server
            .post("/v1/conversations/c/interrupt", json!({}))
            .await;
    };
    let (answer, ()) = tokio::join!(prompt, lost);
    let answer = answer.unwrap();
    let retries = answer.headers().get("x-should-retry").cloned();
    if path != MESSAGES {
        // Clients of these APIs send other failures again by themselves.
        assert_eq!(retries.unwrap(), "false");
    }
    let answer = (answer.status().as_u16(), body(answer).await);
    server.end().await;
    (answer, other)
}

#[tokio::test]
async fn a_prompt_that_is_stored_is_not_sent_to_the_host_that_takes_its_conversation() {
    let ((status, problem), other) = say_and_lose(MESSAGES, None).await;

    assert_eq!(status, 503, "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("/v1/conversations/c/events?round="),
        "{detail}"
    );
    assert!(other.asked.lock().is_empty());
}

#[tokio::test]
async fn a_stored_prompt_of_a_compatible_api_is_not_sent_on_either() {
    for key in [None, Some("k")] {
        let ((status, problem), other) = say_and_lose("/openai/v1/chat/completions", key).await;

        assert!([502, 503].contains(&status), "{problem}");
        assert!(other.asked.lock().is_empty());
    }
}

#[tokio::test]
async fn a_prompt_with_a_key_is_answered_by_the_host_that_takes_its_conversation() {
    let (answer, other) = say_and_lose(MESSAGES, Some("k")).await;

    assert_eq!(answer, (200, json!({"from": "other"})));
    assert_eq!(*other.asked.lock(), ["http://other.example"]);
}

#[tokio::test]
async fn a_request_that_was_sent_on_to_a_host_that_is_not_the_owner_is_referred_back() {
    let other = other("http://other.example", []);
    let server = server(&other).await;

    let path = "/v1/conversations/c/messages";
    let sent_on = server
        .ask(Method::POST, path, ACME)
        .header(FORWARDED.as_str(), "1");
    let response = soon(with_json(sent_on, &json!({"content": "Hi"})).send())
        .await
        .unwrap();

    assert_eq!(response.status().as_u16(), 503);
    assert_eq!(response.headers()["x-callboard-moved"], "1");
    assert_eq!(body(response).await["code"], "owned_elsewhere");
    assert!(other.asked.lock().is_empty(), "sent on once");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_an_mcp_client_reaches_the_host_that_owns_the_conversation() {
    let other = other("http://other.example", []);
    let server = server(&other).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "cancel_round", "arguments": {"conversation_id": "c"},
    }});

    let answer = with_json(server.ask(Method::POST, "/mcp", ACME), &call)
        .header("accept", "application/json, text/event-stream");
    let answer = soon(answer.send()).await.unwrap().text().await.unwrap();

    assert!(answer.contains("\"cancelled\":true"), "{answer}");
    assert_eq!(*other.asked.lock(), ["http://other.example"]);
}
