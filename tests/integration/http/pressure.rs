//! Clients that open connections and answers and do not use them. A raw HTTP/2 client writes its own
//! frames, because a library would answer and read on its own.
//!
//! `CALLBOARD_LONG=1` runs the full form and prints the memory of the process and the latency of
//! another tenant; run it alone.

use callboard_actors::testing::TestSize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::*;

/// The initial window of streams, in SETTINGS: RFC 9113, section 6.5.2.
const INITIAL_WINDOW: [u8; 2] = [0, 4];
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const END_STREAM_AND_HEADERS: u8 = 5;

/// `:status: 200` in the static table of HPACK. Other statuses here have other first bytes.
const STATUS_200: u8 = 0x88;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head, &stream.to_be_bytes()[..], payload].concat()
}

/// Fields as HPACK writes them without its tables; each has at most 126 bytes.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields
        .iter()
        .flat_map(|(name, value)| [vec![0], text(name), text(value)].concat())
        .collect()
}

/// A connection whose streams have no window: the server may send heads of answers and no bodies.
struct Raw {
    reads: OwnedReadHalf,
    writes: OwnedWriteHalf,
}

impl Raw {
    async fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let (reads, writes) = stream.into_split();
        let mut raw = Self { reads, writes };
        let no_window = [&INITIAL_WINDOW[..], &[0; 4]].concat();
        let hello = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(SETTINGS, 0, 0, &no_window),
        ];
        raw.writes.write_all(&hello.concat()).await.unwrap();
        raw
    }

    /// Sends `count` requests, each on its stream.
    async fn get(&mut self, path: &str, count: u32) {
        let bearer = format!("Bearer {ACME}");
        self.get_as(path, count, ("authorization", &bearer)).await;
    }

    /// As [`Raw::get`], with this header.
    async fn get_as(&mut self, path: &str, count: u32, who: (&str, &str)) {
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", path),
            who,
        ];
        let block = block(&fields);
        for number in 0..count {
            let request = frame(HEADERS, END_STREAM_AND_HEADERS, 2 * number + 1, &block);
            self.writes.write_all(&request).await.unwrap();
        }
    }

    /// Sends a call of a tool of `/mcp` on this stream, as a client of the newest version: its answer
    /// begins when the result is known.
    async fn call(&mut self, stream: u32, name: &str, arguments: &Value) {
        let fields = [
            ("accept", "application/json, text/event-stream"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", name),
        ];
        let call = mcp::newer_call(name, arguments);
        self.post_with(stream, "/mcp", &fields, &call).await;
    }

    /// Sends a body of at most 16 KiB on this stream.
    async fn post(&mut self, stream: u32, path: &str, body: &Value) {
        self.post_with(stream, path, &[], body).await;
    }

    async fn post_with(&mut self, stream: u32, path: &str, more: &[(&str, &str)], body: &Value) {
        let bearer = format!("Bearer {ACME}");
        let mut fields = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", path),
            ("authorization", &bearer),
            ("content-type", "application/json"),
        ];
        fields.extend(more);
        let head = frame(HEADERS, END_HEADERS, stream, &block(&fields));
        let request = [
            head,
            frame(DATA, END_STREAM, stream, body.to_string().as_bytes()),
        ];
        self.writes.write_all(&request.concat()).await.unwrap();
    }

    /// Lets the server send this much of each answer.
    async fn open_window(&mut self, bytes: u32) {
        let window = [&INITIAL_WINDOW[..], &bytes.to_be_bytes()].concat();
        let frames = [
            frame(SETTINGS, 0, 0, &window),
            frame(WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes()),
        ];
        self.writes.write_all(&frames.concat()).await.unwrap();
    }

    /// The next frame: its kind and its payload. `None` when the server closed the connection.
    async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        let (kind, _, _, payload) = self.next_of().await?;
        Some((kind, payload))
    }

    /// As [`Raw::next`], with its flags and its stream between them.
    async fn next_of(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.reads.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        self.reads.read_exact(&mut payload).await.ok()?;
        Some((head[3], head[4], stream, payload))
    }

    /// Reads `count` heads of answers; returns how many have the status 200.
    async fn answered(&mut self, count: u32) -> usize {
        let mut heads = Vec::new();
        while heads.len() < count as usize {
            let (kind, payload) = self.next().await.expect("the connection is open");
            if kind == HEADERS {
                heads.push(payload[0]);
            }
        }
        heads.iter().filter(|first| **first == STATUS_200).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_only_pings_is_closed_and_makes_room() {
    const CONNECTIONS: usize = 20;
    let mut bounds = HttpBounds::default();
    bounds.connections_max = CONNECTIONS;
    bounds.header_within = Duration::from_millis(700);
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(model, setting).await;
    let mut pinging = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut raw = Raw::connect(&server).await;
        pinging.spawn(async move {
            let mut pings = tokio::time::interval(Duration::from_millis(50));
            loop {
                tokio::select! {
                    read = raw.next() => if read.is_none() { return },
                    _ = pings.tick() => {
                        if raw.writes.write_all(&frame(PING, 0, 0, &[0; 8])).await.is_err() {
                            return;
                        }
                    }
                }
            }
        });
    }
    let mut refused = TcpStream::connect(server.address).await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(refused.read_to_end(&mut answer)).await;
    assert!(answer.starts_with(b"HTTP/1.1 503"), "all places are taken");

    soon(pinging.join_all()).await;

    assert_eq!(server.send("c", "hello").await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_with_an_open_request_is_not_idle() {
    let mut bounds = HttpBounds::default();
    bounds.header_within = Duration::from_millis(300);
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = Arc::new(ScriptedModel::answering(|_, _| {
        Reply::text("late").after(Duration::from_millis(1500))
    }));
    let server = Server::with(model, setting).await;

    assert_eq!(server.send("c", "hello").await["text"], "late");
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Runs turns of the tenant zeta; returns the 99th percentile of their latency.
async fn turns(server: &Server, count: usize) -> Duration {
    let mut took = Vec::new();
    for n in 0..count {
        let path = format!("/v1/conversations/t{}/messages", n % 20);
        let request = with_json(
            server.ask(Method::POST, &path, ZETA),
            &json!({"content": "Hi"}),
        );
        let started = std::time::Instant::now();
        let answer = body(soon(request.send()).await.unwrap()).await;
        took.push(started.elapsed());
        assert_eq!(answer["status"], "completed", "{answer}");
    }
    took.sort();
    took[count * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_no_client_reads_are_bounded_and_disturb_no_other_tenant() {
    let is_long = TestSize::is_long();
    let (connections, streams) = if is_long { (100, 100) } else { (10, 20) };
    let mut bounds = HttpBounds::default();
    if !is_long {
        bounds.tenant_answer_bytes_max = 12 * 1024 * 1024;
    }
    let room = bounds.tenant_answer_bytes_max;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")).without_record());
    let server = Server::with(model, setting).await;
    let messages: Vec<Value> = (0..100)
        .map(|n| match n % 2 {
            0 => json!({"role": "user", "content": "x".repeat(2000)}),
            _ => json!({"role": "assistant", "content": "x".repeat(2000)}),
        })
        .collect();
    let put = server.ask(Method::PUT, "/v1/conversations/h", ACME);
    let put = soon(with_json(put, &json!({ "messages": messages })).send())
        .await
        .unwrap();
    assert_eq!(put.status(), StatusCode::CREATED);
    let one = soon(server.get("/v1/conversations/h/messages").await.bytes())
        .await
        .unwrap()
        .len();
    let count = if is_long { 1000 } else { 50 };
    turns(&server, count).await;
    let before = turns(&server, count).await;
    let memory = resident();

    let mut held = Vec::new();
    for _ in 0..connections {
        let mut raw = Raw::connect(&server).await;
        raw.get("/v1/conversations/h/messages", streams).await;
        held.push(raw);
    }
    let during = turns(&server, count).await;
    let mut answered = 0;
    for raw in &mut held {
        answered += soon(raw.answered(streams)).await;
    }

    let grown = resident().saturating_sub(memory);
    println!(
        "{connections} x {streams} streams, {answered} answers of {one} bytes held: +{} MB; a turn of another tenant: p99 {before:?} before, {during:?} meanwhile",
        grown / 1_000_000
    );
    assert!(answered > 0 && answered * one <= room, "{answered}");
    if is_long {
        assert!(grown <= 150_000_000, "{grown}");
        assert!(
            during <= before * 3 / 2 + Duration::from_millis(10),
            "{before:?} {during:?}"
        );
    }
    drop(held);
    soon(async {
        while server.get("/v1/conversations/h/messages").await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Starts a server with a history of 1 MB, and a client that asks for it 30 times over one
/// connection and reads nothing. Returns the server and how many of its requests were answered.
async fn answered_to_a_silent_client(bounds: HttpBounds) -> (Server, usize) {
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")).without_record());
    let server = Server::with(model, setting).await;
    let large = json!([{"role": "user", "content": "x".repeat(1_000_000)}]);
    let put = server.ask(Method::PUT, "/v1/conversations/h", ACME);
    let put = soon(with_json(put, &json!({ "messages": large })).send())
        .await
        .unwrap();
    assert_eq!(put.status(), StatusCode::CREATED);
    let mut silent = Raw::connect(&server).await;
    silent.get("/v1/conversations/h/messages", 30).await;
    let answered = soon(silent.answered(30)).await;
    (server, answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_reads_nothing_leaves_room_to_the_others_of_its_tenant() {
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 24 * 1024 * 1024;
    bounds.connection_answer_bytes_max = 12 * 1024 * 1024;
    let (server, answered) = answered_to_a_silent_client(bounds).await;

    assert!((1..=12).contains(&answered), "{answered} of 1 MB each");
    let other = server.get("/v1/conversations/h/messages").await;
    assert_eq!(other.status(), 200);
    let read = soon(other.bytes()).await.unwrap();
    assert!(read.len() > 1_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_all_tenants_share_one_bound() {
    let mut bounds = HttpBounds::default();
    bounds.answer_bytes_max = 6 * 1024 * 1024;
    let (_server, answered) = answered_to_a_silent_client(bounds).await;

    assert!((1..=6).contains(&answered), "{answered} of 1 MB each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_body_is_read_on_so_that_its_client_gets_the_answer() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    server.send("c", "hello").await;
    let body = "x".repeat(8 * 1024 * 1024);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "POST /v1/conversations/c/fork HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ACME}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );

    // A client that reads only after it has written all.
    stream.write_all(head.as_bytes()).await.unwrap();
    soon(stream.write_all(body.as_bytes()))
        .await
        .expect("the server reads on");

    let mut answer = [0; 12];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_a_proxy_may_read_otherwise_are_refused() {
    let server = Server::start(ScriptedModel::always(Reply::text("yes"))).await;
    let body = "\r\n0\r\n\r\n";
    for head in [
        "GET /healthz HTTP/1.1\r\n\r\n".to_owned(),
        "GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n".to_owned(),
        format!(
            "POST /healthz HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n{body}"
        ),
        format!(
            "POST /healthz HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n{body}"
        ),
        format!("POST /healthz HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n{body}"),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer);

        assert!(answer.starts_with("HTTP/1.1 400"), "{head}: {answer}");
    }
    assert_eq!(server.get("/healthz").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_of_every_long_kind_are_bounded() {
    const LONG: usize = 3 * 1024 * 1024;
    // More than the bound lets through of one kind alone.
    let each = TestSize::pick(6, 15, 15);
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 12 * 1024 * 1024;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = ScriptedModel::answering(|_, _| Reply::text("x".repeat(LONG))).without_record();
    let server = Server::with(Arc::new(model), setting).await;
    assert_eq!(server.send("c", "hello").await["status"], "completed");
    let started = server.post("/v1/fanouts", json!({"name": "f", "tasks": ["a"]}));
    assert_eq!(started.await.status(), 202);
    let ended = server.get("/v1/fanouts/f?wait_ms=20000").await;
    assert_eq!(body(ended).await["is_over"], true);
    let response = server.post("/v1/responses", json!({"model": "default", "input": "a"}));
    let response = body(response.await).await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let imported = json!({"messages": [{"role": "user", "content": "x".repeat(LONG)}]});
    let put = server.ask(Method::PUT, "/v1/conversations/h", ACME);
    assert_eq!(
        soon(with_json(put, &imported).send())
            .await
            .unwrap()
            .status(),
        201
    );
    let browser = console::Browser::with(&server, ACME).await;
    // The raw client writes values of at most 126 bytes.
    let cookies = browser.cookie_line();
    let mut cookies = cookies.split("; ");
    let session = cookies.find(|cookie| cookie.starts_with("callboard_session"));
    let cookie = session.unwrap().to_owned();
    let entries = server.get("/v1/conversations/h").await;
    let entry = body(entries).await["entries"].as_u64().unwrap();

    let bearer = format!("Bearer {ACME}");
    let asked = [
        (
            "/v1/conversations/c/rounds".to_owned(),
            ("authorization", &bearer),
        ),
        ("/v1/fanouts/f".to_owned(), ("authorization", &bearer)),
        (
            format!("/v1/responses/{response}"),
            ("authorization", &bearer),
        ),
        (format!("/console/c/h/entry/{entry}"), ("cookie", &cookie)),
    ];
    let mut held = Vec::new();
    for (path, (name, value)) in &asked {
        let mut raw = Raw::connect(&server).await;
        raw.get_as(path, each, (name, value)).await;
        held.push(raw);
    }
    let mut answered = Vec::new();
    for raw in &mut held {
        answered.push(soon(raw.answered(each)).await);
    }

    assert!(answered.iter().sum::<usize>() <= 5, "{answered:?}");
    assert!(answered.iter().sum::<usize>() >= 1, "{answered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_the_console_count_until_they_are_read() {
    const EACH: u32 = 30;
    let mut bounds = HttpBounds::default();
    // While a page is made it counts as 8 MiB.
    bounds.tenant_answer_bytes_max = 9 * 1024 * 1024;
    let room = bounds.tenant_answer_bytes_max;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = Arc::new(ScriptedModel::always(Reply::text("yes")));
    let server = Server::with(model, setting).await;
    let block = json!({"type": "text", "text": "x".repeat(12_000)});
    let imported = json!({"messages": [{"role": "user", "content": vec![block; 20]}]});
    let put = server.ask(Method::PUT, "/v1/conversations/h", ACME);
    let put = soon(with_json(put, &imported).send()).await.unwrap();
    assert_eq!(put.status(), 201);
    let browser = console::Browser::with(&server, ACME).await;
    let cookies = browser.cookie_line();
    let mut cookies = cookies.split("; ");
    let session = cookies.find(|cookie| cookie.starts_with("callboard_session"));

    let mut raw = Raw::connect(&server).await;
    raw.get_as("/console/c/h", EACH, ("cookie", session.unwrap()))
        .await;
    let answered = soon(raw.answered(EACH)).await;

    assert!(
        answered >= 1 && answered * 120_000 <= room - 7 * 1024 * 1024,
        "{answered}"
    );
    drop(raw);
    soon(async {
        while server.get("/v1/conversations/h/messages").await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_given_again_counts_until_it_is_read() {
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 9 * 1024 * 1024;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = ScriptedModel::answering(|_, _| Reply::text("x".repeat(2 * 1024 * 1024)));
    let server = Server::with(Arc::new(model.without_record()), setting).await;
    let request = format!(
        "POST /v1/conversations/c/messages HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {ACME}\r\n\
         idempotency-key: k\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{{\"content\":\"a\"}}"
    );
    // The text stands twice in an answer, of which the system takes some hundred KiB.
    let mut held = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        soon(stream.read_exact(&mut head)).await.unwrap();
        statuses.push(String::from_utf8_lossy(&head[9..]).into_owned());
        held.push(stream);
    }

    assert_eq!(statuses, ["200", "200", "429"]);
}

/// A server with a round in the conversation `c` whose text has this many bytes, and the arguments of
/// `get_round` for it. An answer of `/mcp` has the text twice.
async fn with_long_round(bounds: HttpBounds, bytes: usize) -> (Server, Value) {
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = ScriptedModel::answering(move |_, _| Reply::text("x".repeat(bytes)));
    let server = Server::with(Arc::new(model.without_record()), setting).await;
    let round = server.send("c", "hello").await;
    assert_eq!(round["status"], "completed");
    let asked = json!({"conversation_id": "c", "round_id": round["round_id"]});
    (server, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_mcp_that_no_client_reads_are_bounded() {
    const CALLS: u32 = 10;
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 1024 * 1024;
    let (server, asked) = with_long_round(bounds, 200_000).await;
    let mut silent = Raw::connect(&server).await;
    for number in 0..CALLS {
        silent.call(2 * number + 1, "get_round", &asked).await;
    }
    assert_eq!(soon(silent.answered(CALLS)).await, CALLS as usize);

    // Waits as long for room as the calls, and later.
    let history = server.get("/v1/conversations/c/messages").await;
    assert_eq!(problem(history).await, (429, "too_many_bytes".into()));

    // Then the client reads what was kept for it.
    silent.open_window(100_000_000).await;
    let mut texts = std::collections::BTreeMap::<u32, Vec<u8>>::new();
    let mut ended = 0;
    soon(async {
        while ended < CALLS {
            let (kind, flags, stream, payload) = silent.next_of().await.unwrap();
            if kind == DATA {
                texts.entry(stream).or_default().extend(payload);
                ended += u32::from(flags & END_STREAM);
            }
        }
    })
    .await;

    let whole = texts.values().filter(|text| text.len() > 400_000);
    let whole = whole.count();
    assert!((1..=2).contains(&whole), "{whole} of 400 kB each");
    let refused = texts.values().find(|text| text.len() < 400_000).unwrap();
    let refused = String::from_utf8_lossy(refused);
    assert!(refused.contains("(code too_many_bytes"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_mcp_that_its_client_does_not_read_is_given_up() {
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 2 * 1024 * 1024;
    bounds.write_pause_max = Duration::from_millis(500);
    bounds.comment_every = Duration::from_millis(100);
    let (server, asked) = with_long_round(bounds, 900_000).await;
    let mut silent = Raw::connect(&server).await;
    silent.call(1, "get_round", &asked).await;
    assert_eq!(soon(silent.answered(1)).await, 1);

    // Waits for the room that the silent client has.
    let next = server.get("/v1/conversations/c/messages").await;
    assert_eq!(next.status(), 200);
    silent.open_window(100_000_000).await;

    let (kind, stream) = soon(async {
        loop {
            let (kind, _, stream, _) = silent.next_of().await.unwrap();
            if [DATA, RST_STREAM].contains(&kind) {
                return (kind, stream);
            }
        }
    })
    .await;
    assert_eq!((kind, stream), (RST_STREAM, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_mcp_over_http_1_are_bounded() {
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 14 * 1024 * 1024;
    let (server, asked) = with_long_round(bounds, 3 * 1024 * 1024).await;
    let call = mcp::newer_call("get_round", &asked).to_string();
    let request = format!(
        "POST /mcp HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {ACME}\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n\
         mcp-method: tools/call\r\nmcp-name: get_round\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{call}",
        call.len()
    );
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        soon(stream.read_exact(&mut head)).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        held.push(stream);
    }

    let mut third = String::new();
    let mut stream = held.pop().unwrap();
    soon(stream.read_to_string(&mut third)).await.unwrap();

    assert!(third.contains("(code too_many_bytes"), "{}", third.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_events_that_no_client_reads_are_bounded() {
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 12 * 1024 * 1024;
    let (server, _) = with_long_round(bounds, 3 * 1024 * 1024).await;
    let request = format!(
        "GET /v1/conversations/c/events?after=0.0.0 HTTP/1.1\r\nhost: a\r\n\
         authorization: Bearer {ACME}\r\n\r\n"
    );
    let mut held = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        soon(stream.read_exact(&mut head)).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        held.push(stream);
    }
    let history = async || server.get("/v1/conversations/c/messages").await;

    // Each of these waits some seconds for room.
    soon(async { while history().await.status() != 429 {} }).await;

    // A stream without room ends; its client comes again.
    let mut lengths = Vec::new();
    for mut stream in held {
        let mut text = Vec::new();
        let read = stream.read_to_end(&mut text);
        let _ = tokio::time::timeout(Duration::from_secs(1), read).await;
        lengths.push(text.len());
    }
    let whole = lengths.iter().filter(|length| **length > 3 << 20).count();
    assert!((1..=4).contains(&whole), "{lengths:?}");
    soon(async { while history().await.status() != 200 {} }).await;
}

/// Each is no longer than most answers; a tenant may open a thousand streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_events_that_no_client_reads_are_bounded_together() {
    const STREAMS: u32 = 40;
    let server = with_little_room("x".repeat(30_000), Duration::from_secs(60)).await;
    let ask = server.ask(Method::POST, "/v1/conversations/c/messages", ACME);
    let ended = soon(with_json(ask, &json!({"content": "hi"})).send()).await;
    assert_eq!(ended.unwrap().status(), 200);
    let mut slow = Raw::connect(&server).await;
    let path = "/v1/conversations/c/events?after=0.0.0";
    slow.get(path, STREAMS).await;
    assert_eq!(soon(slow.answered(STREAMS)).await, STREAMS as usize);

    slow.open_window(4_000).await;
    let mut ended = 0;
    soon(async {
        // 256 KiB for short ones, and as much for all of more than 4 KiB.
        while ended < STREAMS - 17 {
            let (_, flags, stream, _) = slow.next_of().await.unwrap();
            ended += u32::from(stream > 0 && flags & END_STREAM > 0);
        }
    })
    .await;

    let history = async || server.get("/v1/conversations/c/messages").await.status();
    assert_eq!(history().await, 429);
    drop(slow);
    soon(async { while history().await != 200 {} }).await;
}

/// The longest answers of rounds, on each route that answers with one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_answers_of_rounds_that_no_client_reads_are_bounded() {
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 12 * 1024 * 1024;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let text = "x".repeat(5 * 1024 * 1024);
    let model = Arc::new(ScriptedModel::always(Reply::text(text)).without_record());
    let server = Server::with(model, setting).await;
    let ask = |path: &str, fields: &str| {
        let body = format!("{{{fields}}}");
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {ACME}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let prompt = r#""messages":[{"role":"user","content":"hi"}]"#;
    let asked = [
        ask("/v1/conversations/c/messages", r#""content":"hi""#),
        ask(
            "/openai/v1/chat/completions",
            &format!(r#""model":"default",{prompt}"#),
        ),
        ask("/openai/v1/responses", r#""model":"default","input":"hi""#),
        ask(
            "/anthropic/v1/messages",
            &format!(r#""model":"default","max_tokens":99,{prompt}"#),
        ),
    ];
    let status = async |stream: &mut TcpStream| {
        let mut head = [0; 12];
        soon(stream.read_exact(&mut head)).await.unwrap();
        String::from_utf8_lossy(&head[9..]).into_owned()
    };
    let send = async |request: &str| {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    };
    // Takes nearly all of the room: the text stands twice in it.
    let mut unread = send(&asked[0]).await;
    assert_eq!(status(&mut unread).await, "200");

    for request in &asked {
        let mut refused = send(request).await;
        assert_eq!(status(&mut refused).await, "429", "{request}");
    }
    drop(unread);
    for request in &asked {
        soon(async { while status(&mut send(request).await).await != "200" {} }).await;
    }
}

/// A host whose tenant has room for 256 KiB of unread answers, and whose model answers with `text`.
async fn with_little_room(text: String, write_pause_max: Duration) -> Server {
    let mut bounds = HttpBounds::default();
    bounds.tenant_answer_bytes_max = 256 * 1024;
    bounds.write_pause_max = write_pause_max;
    let setting = Setting {
        bounds,
        ..Setting::default()
    };
    let model = ScriptedModel::answering(move |_, _| Reply::text(text.clone()));
    Server::with(Arc::new(model.without_record()), setting).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_long_only_as_json_takes_room_until_it_is_read() {
    // A control character has six bytes in JSON, and the text stands twice in the answer.
    let server = with_little_room("\u{1}".repeat(25_000), Duration::from_secs(2)).await;
    let prompt = json!({"content": "hi"});
    let mut silent = Raw::connect(&server).await;
    silent
        .post(1, "/v1/conversations/c/messages", &prompt)
        .await;
    assert_eq!(soon(silent.answered(1)).await, 1);
    let ask = async || {
        let request = server.ask(Method::POST, "/v1/conversations/d/messages", ACME);
        soon(with_json(request, &prompt).send()).await.unwrap()
    };

    let refused = ask().await;
    assert_eq!(problem(refused).await, (429, "too_many_bytes".into()));

    // The silent client loses its answer.
    soon(async { while ask().await.status() != 200 {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_are_cancelled_or_in_the_background_take_room_until_they_are_read() {
    let server = with_little_room("x".repeat(200_000), Duration::from_secs(60)).await;
    let create = async |body: Value| {
        let request = server.ask(Method::POST, "/openai/v1/responses", ACME);
        soon(with_json(request, &body).send()).await.unwrap()
    };
    let ended = body(create(json!({"model": "default", "input": "hi"})).await).await;
    let path = format!("/openai/v1/responses/{}", ended["id"].as_str().unwrap());
    let mut silent = Raw::connect(&server).await;
    silent.post(1, &format!("{path}/cancel"), &json!({})).await;
    assert_eq!(soon(silent.answered(1)).await, 1);

    let refused = server.get(&path).await;
    assert_eq!(
        refused.status(),
        429,
        "the answer to the cancellation is not read"
    );
    let background = json!({
        "model": "default", "input": "hi", "background": true, "instructions": "y".repeat(150_000)
    });
    assert_eq!(create(background.clone()).await.status(), 429);

    drop(silent);
    soon(async { while server.get(&path).await.status() != 200 {} }).await;
    assert_eq!(create(background).await.status(), 200);
}

/// The last events of a response have its text four times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_events_of_a_streamed_response_take_room_together() {
    let server = with_little_room("x".repeat(200_000), Duration::from_secs(60)).await;
    let request = server.ask(Method::POST, "/openai/v1/responses", ACME);
    let asked = json!({"model": "default", "input": "hi"});
    let ended = body(soon(with_json(request, &asked).send()).await.unwrap()).await;
    let path = format!("/openai/v1/responses/{}", ended["id"].as_str().unwrap());
    let mut slow = Raw::connect(&server).await;
    slow.get(&format!("{path}?stream=true"), 1).await;
    assert_eq!(soon(slow.answered(1)).await, 1);

    slow.open_window(300_000).await;
    let mut read = 0;
    soon(async {
        while read < 280_000 {
            let (kind, payload) = slow.next().await.unwrap();
            read += if kind == DATA { payload.len() } else { 0 };
        }
    })
    .await;

    assert_eq!(server.get(&path).await.status(), 429);
    drop(slow);
    soon(async { while server.get(&path).await.status() != 200 {} }).await;
}
