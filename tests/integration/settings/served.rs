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
