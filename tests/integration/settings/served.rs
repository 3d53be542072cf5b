//! `[host]`: how `serve` is reached, and what its clients may use.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Home, Key, Served, home};

/// A host with the tenant `acme` and these bounds.
fn bounded(bound: &str) -> (Served, Key, Home) {
    let home = home("");
    let key = Key::new(&home);
    let text = format!(
        "[host]\n{bound}\n[[provider]]\nkind = \"offline\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        key.hash
    );
    std::fs::write(home.work().join("callboard.toml"), text).unwrap();
    (Served::start(&home, &[]), key, home)
}

fn connect(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.url().strip_prefix("http://").unwrap()).unwrap();
    let patience = Some(Duration::from_secs(10));
    stream.set_read_timeout(patience).unwrap();
    stream
}

#[test]
fn serve_listens_where_the_configuration_says() {
    let home = home("[host]\nlisten = \"127.0.0.2:0\"\n");

    let served = Served::with(&home, &["serve"]);

    assert!(
        served.url().starts_with("http://127.0.0.2:"),
        "{}",
        served.url()
    );
}

#[test]
fn serve_holds_as_many_connections_as_the_configuration_says() {
    let (served, _, _home) = bounded("connections_max = 1");
    let _held = connect(&served);

    let mut answer = String::new();
    let _ = connect(&served).read_to_string(&mut answer);

    assert!(answer.contains("too_many_connections"), "{answer}");
}

#[test]
fn a_connection_without_a_request_is_closed_after_header_s() {
    let (served, _, _home) = bounded("header_s = 0.2");

    // The usual 15 s are longer than this client waits.
    let mut answer = Vec::new();
    connect(&served).read_to_end(&mut answer).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_as_many_event_streams_as_the_configuration_says() {
    let (served, key, _home) = bounded("streams_per_tenant_max = 1");
    let made = served
        .ask(
            Method::PUT,
            "/v1/conversations/c",
            &key.key,
            Some(json!({})),
        )
        .await;
    assert_eq!(made.status, StatusCode::CREATED);
    let events = format!("{}/v1/conversations/c/events", served.url());
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    let watch = async || {
        client
            .get(&events)
            .bearer_auth(&key.key)
            .send()
            .await
            .unwrap()
    };

    let first = watch().await;
    let second = watch().await;

    assert_eq!(
        (first.status(), second.status()),
        (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_has_as_many_open_requests_as_the_configuration_says() {
    let (served, key, _home) = bounded("requests_per_tenant_max = 1");
    let conversation = "/v1/conversations/c";
    let made = served
        .ask(Method::PUT, conversation, &key.key, Some(json!({})))
        .await;
    assert_eq!(made.status, StatusCode::CREATED);
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    let events = client.get(format!("{}{conversation}/events", served.url()));

    let watched = events.bearer_auth(&key.key).send().await.unwrap();
    let refused = served.get(conversation, &key.key).await;

    assert_eq!(
        (watched.status(), refused.status),
        (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_messages_is_as_long_as_the_configuration_says() {
    let (served, key, _home) = bounded("body_bytes_max = 100");
    let long = json!({"conversation_id": "x".repeat(120)});

    let refused = served
        .ask(
            Method::POST,
            "/v1/conversations/c/fork",
            &key.key,
            Some(long),
        )
        .await;

    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE, "{refused:?}");
}

#[test]
fn the_console_is_served_where_the_configuration_does_not_forbid_it() {
    for (line, expected) in [("", true), ("console = false", false)] {
        let (served, _, _home) = bounded(line);

        let login = ask(&served, "/console/login");
        let start = ask(&served, "/");

        assert_eq!(login.starts_with("HTTP/1.1 200"), expected, "{login}");
        assert_eq!(start.starts_with("HTTP/1.1 404"), !expected, "{start}");
    }
}

#[test]
fn mcp_clients_are_served_where_the_configuration_does_not_forbid_it() {
    for (line, expected) in [("", true), ("mcp = false", false)] {
        let (served, _, _home) = bounded(line);

        // Without a key the route asks for one; a path that is not served is not there.
        let answer = ask(&served, "/mcp");

        assert_eq!(answer.starts_with("HTTP/1.1 401"), expected, "{answer}");
        assert_eq!(answer.starts_with("HTTP/1.1 404"), !expected, "{answer}");
    }
}

/// The answer to a request without a key.
fn ask(served: &Served, path: &str) -> String {
    let mut stream = connect(served);
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What a browser asks before a call of a page.
async fn preflight(served: &Served, path: &str, origin: &str) -> reqwest::Response {
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    client
        .request(Method::OPTIONS, format!("{}{path}", served.url()))
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type",
        )
        .send()
        .await
        .unwrap()
}

/// A call of a page.
async fn called(served: &Served, path: &str, key: &str, origin: &str) -> reqwest::Response {
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    client
        .get(format!("{}{path}", served.url()))
        .header("origin", origin)
        .bearer_auth(key)
        .send()
        .await
        .unwrap()
}

fn header<'a>(response: &'a reqwest::Response, name: &str) -> Option<&'a str> {
    response
        .headers()
        .get(name)
        .map(|value| value.to_str().unwrap())
}

const ALLOW: &str = "access-control-allow-origin";
const APP: &str = "https://app.example";
const PATH: &str = "/v1/conversations";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_an_allowed_origin_may_call_the_api_and_ask_without_a_key() {
    let (served, key, _home) =
        bounded("cors_origins = [\"https://app.example\", \"http://localhost:3000\"]");

    for origin in [APP, "http://localhost:3000"] {
        let asked = preflight(&served, "/v1/conversations/c/messages", origin).await;
        assert_eq!(asked.status(), StatusCode::NO_CONTENT);
        assert_eq!(header(&asked, ALLOW), Some(origin));
        let headers = header(&asked, "access-control-allow-headers");
        assert_eq!(headers, Some("authorization,content-type"));
        let methods = header(&asked, "access-control-allow-methods").unwrap();
        assert!(methods.contains("DELETE"), "{methods}");
        let answer = called(&served, PATH, &key.key, origin).await;
        assert_eq!(
            (answer.status(), header(&answer, ALLOW)),
            (StatusCode::OK, Some(origin))
        );
        assert_eq!(header(&answer, "vary"), Some("origin"));
        let exposed = header(&answer, "access-control-expose-headers").unwrap();
        for name in [
            "location",
            "retry-after",
            "x-request-id",
            "idempotency-replayed",
        ] {
            assert!(exposed.contains(name), "{exposed}");
        }
        let credentials = header(&answer, "access-control-allow-credentials");
        assert_eq!(credentials, None);
    }
    // A page can read why it is refused, but not without a key.
    let refused = called(&served, PATH, "cb_not-a-key", APP).await;
    assert_eq!(
        (refused.status(), header(&refused, ALLOW)),
        (StatusCode::UNAUTHORIZED, Some(APP))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_another_origin_and_the_console_get_no_cors() {
    let (served, key, _home) = bounded("cors_origins = [\"https://app.example\"]");

    for origin in ["https://app.example.evil", "http://app.example", "null"] {
        let asked = preflight(&served, PATH, origin).await;
        assert_ne!(asked.status(), StatusCode::NO_CONTENT);
        let answer = called(&served, PATH, &key.key, origin).await;
        let both = (header(&asked, ALLOW), header(&answer, ALLOW));
        assert_eq!(both, (None, None), "{origin}");
        assert_eq!(header(&answer, "vary"), Some("origin"));
    }
    let console = called(&served, "/console", &key.key, APP).await;
    let asked = preflight(&served, "/console", APP).await;
    assert_eq!(
        (header(&console, ALLOW), header(&asked, ALLOW)),
        (None, None)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cors_is_off_by_default_and_a_star_is_for_every_page() {
    let (served, key, _home) = bounded("");
    let asked = preflight(&served, PATH, APP).await;
    let answer = called(&served, PATH, &key.key, APP).await;
    assert_ne!(asked.status(), StatusCode::NO_CONTENT);
    for response in [&asked, &answer] {
        assert_eq!(
            (header(response, ALLOW), header(response, "vary")),
            (None, None)
        );
    }

    let (served, key, _home) = bounded("cors_origins = [\"*\"]");
    let asked = preflight(&served, PATH, APP).await;
    let answer = called(&served, PATH, &key.key, APP).await;
    assert_eq!(asked.status(), StatusCode::NO_CONTENT);
    assert_eq!(
        (header(&asked, ALLOW), header(&answer, ALLOW)),
        (Some("*"), Some("*"))
    );

    for (origins, problem) in [
        (
            "[\"*\", \"https://app.example\"]",
            "must be `*` alone, or a list of origins without it",
        ),
        (
            "[\"app.example\"]",
            "must list origins such as `https://app.example`",
        ),
        (
            "[\"https://app.example/\"]",
            "must list origins such as `https://app.example`",
        ),
        (
            "[\"null\"]",
            "must list origins such as `https://app.example`",
        ),
    ] {
        let home = home(&format!("[host]\ncors_origins = {origins}\n"));
        let refused = home.run(&["config", "check"]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.err.contains(problem), "{}", refused.err);
    }
}
