//! Resource limits against hostile or broken clients, and the answers that they get.

use super::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sends bytes as they are, and reads until the server closes the connection.
async fn raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn server(change: impl FnOnce(&mut HttpBounds)) -> Server {
    let mut bounds = HttpBounds::default();
    change(&mut bounds);
    Server::with(
        Arc::new(ScriptedModel::always(Reply::text("yes"))),
        Setting {
            bounds,
            ..Setting::default()
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_too_large_is_413_by_its_length_and_by_its_bytes() {
    let server = server(|bounds| bounds.body_bytes_max = 1000).await;
    server.send("c", "hello").await;
    let long = json!({ "conversation_id": "x".repeat(2000) });

    let announced = server.post("/v1/conversations/c/fork", long.clone()).await;
    let chunk = futures_util::stream::iter([Ok::<_, std::io::Error>(long.to_string())]);
    let chunked = server
        .ask(Method::POST, "/v1/conversations/c/fork", ACME)
        .header("content-type", "application/json");
    let chunked = soon(chunked.body(reqwest::Body::wrap_stream(chunk)).send())
        .await
        .unwrap();

    assert_eq!(problem(announced).await, (413, "too_large".into()));
    assert_eq!(problem(chunked).await, (413, "too_large".into()));
    let prompt = server
        .post(
            "/v1/conversations/c/messages",
            json!({ "content": "x".repeat(5000) }),
        )
        .await;
    assert_eq!(prompt.status(), 200, "prompts have a larger limit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_more_values_than_memory_has_room_for_is_413() {
    let server = server(|_| {}).await;
    let round = r#"{"role":"user","content":"a"},{"role":"assistant","content":"b"}"#;
    let rounds = vec![round; 200_000].join(",");

    let refused = server
        .ask(Method::PUT, "/v1/conversations/c", ACME)
        .header("content-type", "application/json")
        .body(format!("{{\"messages\":[{rounds}]}}"));

    let refused = soon(refused.send()).await.unwrap();
    assert_eq!(problem(refused).await, (413, "too_large".into()));
}

/// A request whose body comes once its answer is there, on this connection. Returns the status, or
/// `None` if the connection has ended.
async fn answered_first(stream: &mut TcpStream, path: &str, key: &str) -> Option<String> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: 70000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // Answers to refused requests end with an object, and hold no other.
    while !answer.ends_with(b"}") {
        let read = stream.read_buf(&mut answer).await.ok()?;
        if read == 0 {
            return None;
        }
    }
    stream.write_all(&[b' '; 70_000]).await.ok()?;
    let answer = String::from_utf8(answer).unwrap();
    assert!(
        !answer.to_lowercase().contains("connection: close"),
        "{answer}"
    );
    answer.split(' ').nth(1).map(ToOwned::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_whose_body_comes_later_leaves_its_connection_open() {
    let server = server(|_| {}).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();

    let mut seen = Vec::new();
    for _ in 0..3 {
        for (path, key) in [
            ("/v1/conversations/c/messages", "cb_unknown-not-a-real-key"),
            ("/v1/nothing", "cb_unknown-not-a-real-key"),
            ("/v1/metrics", "cb_unknown-not-a-real-key"),
        ] {
            let status = answered_first(&mut stream, path, key).await;
            seen.push(status.expect("the connection is open"));
        }
    }

    let expected = ["401", "404", "401"].repeat(3);
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_large_or_has_too_many_fields_is_refused() {
    let server = server(|_| {}).await;
    let large = format!(
        "GET /healthz HTTP/1.1\r\nhost: a\r\nx-large: {}\r\n\r\n",
        "x".repeat(40_000)
    );
    let many = format!(
        "GET /healthz HTTP/1.1\r\nhost: a\r\n{}\r\n",
        "x-a: b\r\n".repeat(100)
    );

    for head in [large, many] {
        let answer = raw(&server, head.as_bytes()).await;

        assert!(
            answer.starts_with("HTTP/1.1 431") || answer.is_empty(),
            "{answer}"
        );
    }
    assert_eq!(server.get("/healthz").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_too_slowly_is_disconnected() {
    let server = server(|bounds| {
        bounds.header_within = Duration::from_millis(200);
        bounds.body_pause_max = Duration::from_millis(200);
    })
    .await;
    server.send("c", "hello").await;

    for silent in ["", "PRI * HT", "GET /healthz HTTP/1.1\r\nhost: a\r\n"] {
        let answer = raw(&server, silent.as_bytes()).await;

        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 408"),
            "{silent}: {answer}"
        );
    }
    let slow = format!(
        "POST /v1/conversations/c/fork HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ACME}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    let answer = raw(&server, slow.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 408") && answer.contains("body_too_slow"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_frames_that_are_no_request_are_read_slowly() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const ACKNOWLEDGED: &str = "\0\0\0\u{4}\u{1}\0\0\0\0";
    const FRAMES: usize = 20_000;
    let server = server(|bounds| bounds.header_within = Duration::from_secs(1)).await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(SETTINGS.repeat(FRAMES));

    let answer = raw(&server, &bytes).await;

    let count = answer.matches(ACKNOWLEDGED).count();
    assert!((100..FRAMES / 2).contains(&count), "{count}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_and_answers_pass_an_http2_connection_at_once() {
    let server = server(|_| {}).await;
    let client = callboard::tls::client_builder().unwrap().no_proxy();
    let client = client.http2_prior_knowledge().build().unwrap();
    let url = format!("http://{}/v1/conversations/c", server.address);
    let text = "x".repeat(100_000);
    let round = [
        json!({ "role": "user", "content": text }),
        json!({ "role": "assistant", "content": text }),
    ];
    let history = json!({ "messages": vec![round.clone(); 40].concat() });

    let put = with_json(client.put(&url).bearer_auth(ACME), &history).send();
    assert_eq!(soon(put).await.unwrap().status(), 201);
    // Each of them is a frame; the host reads on as the request takes them.
    let bytes = json!({ "messages": vec![round; 10].concat() }).to_string();
    let pieces: Vec<_> = bytes
        .as_bytes()
        .chunks(500)
        .map(|piece| Ok::<_, std::io::Error>(piece.to_vec()))
        .collect();
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    let in_pieces = client.put(format!("{url}2")).bearer_auth(ACME).body(body);
    let in_pieces = in_pieces.header("content-type", "application/json");
    assert_eq!(soon(in_pieces.send()).await.unwrap().status(), 201);
    let messages = format!("{url}/messages?limit=1000");
    let read = async {
        client
            .get(messages)
            .bearer_auth(ACME)
            .send()
            .await?
            .text()
            .await
    };
    assert!(soon(read).await.unwrap().len() > 8_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_without_a_key_is_not_waited_for() {
    let server = server(|_| {}).await;
    let endless = "POST /v1/conversations/c/messages HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 1000000000\r\n\r\n{";

    let answer = raw(&server, endless.as_bytes()).await;

    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_beyond_the_limit_gets_503() {
    let server = server(|bounds| bounds.connections_max = 1).await;
    let mut held = TcpStream::connect(server.address).await.unwrap();
    held.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 12];
    soon(held.read_exact(&mut first)).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");

    let answer = raw(&server, b"").await;

    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("too_many_connections"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_with_too_many_open_requests_is_refused_and_another_is_served() {
    let server = server(|bounds| bounds.requests_per_tenant_max = 2).await;
    server.send("c", "hello").await;
    // Two bodies that never come, and an event stream in place of the second.
    let waits = format!(
        "POST /v1/conversations/c/messages HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ACME}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n"
    );
    let mut held = TcpStream::connect(server.address).await.unwrap();
    held.write_all(waits.as_bytes()).await.unwrap();
    let events = server.get("/v1/conversations/c/events").await;
    assert_eq!(events.status(), 200);
    let refused = async || server.get("/v1/conversations/c").await;
    soon(async { while refused().await.status() != 429 {} }).await;

    assert_eq!(
        problem(refused().await).await,
        (429, "too_many_requests".into())
    );
    let other = soon(server.ask(Method::GET, "/v1/conversations", ZETA).send());
    assert_eq!(other.await.unwrap().status(), 200);
    let unknown = soon(
        server
            .ask(Method::GET, "/v1/conversations", "cb_unknown")
            .send(),
    );
    assert_eq!(
        problem(unknown.await.unwrap()).await,
        (401, "unauthorized".into())
    );

    drop((held, events));
    soon(async { while refused().await.status() != 200 {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_that_reads_nothing_is_disconnected_and_stalls_no_other() {
    let mut bounds = HttpBounds::default();
    bounds.write_pause_max = Duration::from_millis(300);
    bounds.streams_per_tenant_max = 1;
    let text = "x".repeat(200_000);
    let model = Arc::new(ScriptedModel::answering(move |_, _| {
        Reply::text(text.as_str()).chunks(50)
    }));
    let server = Server::with(
        model,
        Setting {
            bounds,
            ..Setting::default()
        },
    )
    .await;
    server.send("c", "hello").await;
    let mut stuck = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "GET /v1/conversations/c/events?after=0.0.0 HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ACME}\r\n\r\n"
    );
    stuck.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    soon(stuck.read_exact(&mut head)).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");

    for round in 0..40 {
        assert_eq!(
            server.send("c", &format!("go {round}")).await["status"],
            "completed"
        );
    }

    // Its place is free again: the connection was cut.
    soon(async { while server.get("/v1/conversations/c/events").await.status() != 200 {} }).await;
}

#[tokio::test]
async fn a_key_that_is_replaced_while_a_body_arrives_does_nothing() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    server.send("c", "hello").await;
    let body = r#"{"conversation_id":"d"}"#;
    let head = format!(
        "POST /v1/conversations/c/fork HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ACME}\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 25];
    // The key was good, and the body is asked for.
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 100"));

    server
        .keys
        .replace([(tenant("acme"), KeyHash::from_key("another"))]);
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();

    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    let forked = soon(
        server
            .ask(Method::GET, "/v1/conversations/d", "another")
            .send(),
    );
    assert_eq!(forked.await.unwrap().status(), 404);
}
