//! Many connections that do nothing, and many conversations that are never used again, under the
//! real program. `CALLBOARD_LONG=1` runs 10,000 connections and 100,000 conversations and prints
//! figures; run it alone.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use callboard_actors::testing::TestSize;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::{Home, Key, Served, configure};

fn is_long() -> bool {
    TestSize::is_long()
}

fn file(key: &Key, host: &str) -> String {
    format!(
        "[host]\n{host}\n[[provider]]\nname = \"p\"\nkind = \"offline\"\n\
         [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        key.hash
    )
}

/// Memory that a process holds, in bytes: without the pages of its program, of which the system maps
/// as many as it likes.
fn memory(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let held = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = held.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() * 1024
}

/// How many conversations of the tenant are in memory.
async fn awake(served: &Served, key: &str) -> usize {
    let page = served
        .text(Method::GET, "/v1/metrics", key, None, &[])
        .await;
    let figure = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| line.split_once("conversations_awake "));
    let (_, figure) = figure.unwrap_or_else(|| panic!("{page}"));
    figure.parse().unwrap()
}

/// The preface of HTTP/2 with empty SETTINGS, and a PING.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingping";

/// Keeps a connection open until the server closes it: over HTTP/2 with pings, over HTTP/1.1 with a
/// head that never ends.
async fn idle(mut stream: TcpStream, is_http2: bool, every: Duration) {
    let (hello, again): (&[u8], &[u8]) = match is_http2 {
        true => (HELLO, PING),
        false => (b"GET /healthz HTTP/1.1\r\nhost: a\r\n", b"x: y\r\n"),
    };
    let (mut reads, mut writes) = stream.split();
    let talks = async {
        let mut sent = writes.write_all(hello).await;
        while sent.is_ok() {
            tokio::time::sleep(every).await;
            sent = writes.write_all(again).await;
        }
    };
    let mut buffer = [0; 256];
    let listens = async { while reads.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        () = talks => {}
        () = listens => {}
    }
}

async fn connect_from(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    socket.connect(to).await
}

/// A client at another address of this machine.
fn client_at(from: Ipv4Addr) -> reqwest::Client {
    let client = callboard::tls::client_builder().unwrap().no_proxy();
    client.local_address(Some(from.into())).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_only_ping_leave_a_tenant_with_a_key_served() {
    let (connections, header_s) = if is_long() { (10_000, 15) } else { (100, 1) };
    let of_one_address = connections * 9 / 10;
    let home = Home::new();
    let key = Key::new(&home);
    let host = format!(
        "data_dir = \"data\"\nconnections_max = {connections}\n\
         connections_per_address_max = {of_one_address}\nheader_s = {header_s}"
    );
    configure(&home, &file(&key, &host));
    let served = Served::start(&home, &[]);
    let to: SocketAddr = served.url().trim_start_matches("http://").parse().unwrap();
    let flooder = Ipv4Addr::new(127, 0, 0, 2);
    let tenant = client_at(Ipv4Addr::LOCALHOST);
    let turn = async |client: &reqwest::Client, n: usize| {
        let path = format!("{}/v1/conversations/c{}/messages", served.url(), n % 10);
        let began = Instant::now();
        let request = client.post(path).bearer_auth(&key.key);
        let request = request.header("content-type", "application/json");
        let answer = request.body(json!({ "content": "hi" }).to_string()).send();
        let status = answer.await.map(|answer| answer.status());
        (status, began.elapsed())
    };
    let before = memory(served.id());

    let mut held = tokio::task::JoinSet::new();
    let every = Duration::from_secs(header_s) / 5;
    for n in 0..connections {
        // One beyond the share of its address gets a refusal, and is closed.
        if let Ok(stream) = connect_from(flooder, to).await {
            held.spawn(idle(stream, n % 2 == 0, every));
        }
    }
    // A refused connection gets a 503, or is reset before it is read.
    let (status, _) = turn(&client_at(flooder), 0).await;
    assert!(
        !matches!(status, Ok(StatusCode::OK)),
        "the address of the flood has its share and no more"
    );
    let began = Instant::now();
    let mut took = Vec::new();
    let mut most = 0;
    while began.elapsed() < Duration::from_secs(header_s) / 2 {
        let (status, time) = turn(&tenant, took.len()).await;
        assert_eq!(status.unwrap(), StatusCode::OK);
        took.push(time);
        most = most.max(memory(served.id()));
    }
    let closed = tokio::time::timeout(Duration::from_secs(header_s * 3 + 10), held.join_all());
    assert!(closed.await.is_ok(), "pings keep no connection open");
    let took_to_close = began.elapsed();
    let (status, _) = turn(&client_at(flooder), 0).await;

    took.sort();
    println!(
        "{connections} connections: {} turns of a tenant, p99 {:?}; all closed after {took_to_close:?}; +{} MB",
        took.len(),
        took[took.len() * 99 / 100],
        most.saturating_sub(before) / 1_000_000
    );
    assert_eq!(status.unwrap(), StatusCode::OK, "its places are free again");
    assert_eq!(served.stop().code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_that_are_used_once_take_bounded_memory() {
    // Without a bound of the idle ones, 2,000 conversations take 75 MB, with it 46 to 60; from 16,000
    // to 48,000 the memory stays at 72 MB.
    let (conversations, most) = TestSize::pick(
        (2_000, 70_000_000),
        (4_000, 90_000_000),
        (100_000, 330_000_000),
    );
    let idle_max = if is_long() { 1000 } else { 100 };
    let home = Home::new();
    let key = Key::new(&home);
    let host = "data_dir = \"data\"\n[limits]\nidle_conversations_max = ";
    configure(&home, &file(&key, &format!("{host}{idle_max}")));
    let served = Arc::new(Served::start(&home, &[]));
    let before = memory(served.id());
    let began = Instant::now();

    let number = Arc::new(AtomicUsize::new(0));
    let clients = (0..16).map(|_| {
        let (served, key, number) = (served.clone(), key.key.clone(), number.clone());
        tokio::spawn(async move {
            let mut peaks = (0, 0);
            loop {
                let n = number.fetch_add(1, Ordering::Relaxed);
                if n >= conversations {
                    return peaks;
                }
                let path = format!("/v1/conversations/c{n}/messages");
                let prompt = Some(json!({ "content": "hi" }));
                let answer = served.ask(Method::POST, &path, &key, prompt).await;
                assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
                if n % 64 == 0 {
                    let now = (memory(served.id()), awake(&served, &key).await);
                    peaks = (peaks.0.max(now.0), peaks.1.max(now.1));
                }
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    let (mut peak, mut most_awake) = (0, 0);
    for client in clients {
        let peaks = client.await.unwrap();
        (peak, most_awake) = (peak.max(peaks.0), most_awake.max(peaks.1));
    }

    println!(
        "{conversations} conversations in {:?}: {} MB before, at most {} MB, {most_awake} awake",
        began.elapsed(),
        before / 1_000_000,
        peak / 1_000_000
    );
    // They are counted after each quarter of the bound, and those that leave are behind by a few on
    // a busy machine.
    assert!(most_awake <= 4 * idle_max, "{most_awake}");
    assert!(peak <= most, "{peak}");
    let served = Arc::into_inner(served).unwrap();
    assert_eq!(served.stop().code, Some(0));
}
