//! FAULTS F17 over HTTP: half of the watchers never read. The others and the turns do not feel it, and memory is flat. 40 watch,
//! with `CALLBOARD_LONG` 200.

use std::time::{Duration, Instant};

use reqwest::{Client, Method, StatusCode};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpSocket, task::JoinSet};

use super::{Home, Key, Served, configure};
use crate::support::model_server::{ModelServer, Reply, anthropic_text, sse};

const CONVERSATIONS: usize = 4;
const TURNS: usize = 10;

/// A stuck watcher may take so much of the host's memory.
const STUCK_BYTES_MAX: u64 = 1024 * 1024;

/// Resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib: u64 = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap();
    kib * 1024
}

/// Every conversation is emptied and speaks in turns, all beside each other; the times of the turns, the shortest first.
async fn turns(served: &Served, key: &str) -> Vec<Duration> {
    let mut took = Vec::new();
    for n in 0..CONVERSATIONS {
        served.ask(Method::POST, &format!("/v1/conversations/c{n}/reset"), key, None).await;
    }
    for turn in 0..TURNS {
        let asked = (0..CONVERSATIONS).map(|n| async move {
            let began = Instant::now();
            let body = json!({ "content": format!("turn {turn}") });
            let answer = served.ask(Method::POST, &format!("/v1/conversations/c{n}/messages"), key, Some(body)).await;
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            began.elapsed()
        });
        took.extend(futures_util::future::join_all(asked).await);
    }
    took.sort();
    took
}

fn p99(took: &[Duration]) -> Duration {
    took[took.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_watchers_never_read_and_nobody_feels_it() {
    let half = if std::env::var_os("CALLBOARD_LONG").is_some() { 100 } else { 20 };
    let home = Home::new();
    let reply = anthropic_text(&"word ".repeat(400));
    let [start, block, delta, end @ ..] = <[String; 6]>::try_from(reply).unwrap();
    let whole = sse([start, block].into_iter().chain((0..16).map(|_| delta.clone())).chain(end));
    let model = ModelServer::start([Reply::stream().send(whole)]).await;
    let acme = Key::new(&home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let provider = format!("[[provider]]\nname = \"fast\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n", model.url());
    configure(&home, &format!("{provider}[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n", acme.hash));
    let served = Served::start(&home, &[]);
    let pid = served.child.as_ref().unwrap().id();
    turns(&served, &acme.key).await; // The host is warm, and the rings are full.
    let client = Client::builder().no_proxy().build().unwrap();
    let path = |n: usize| format!("/v1/conversations/c{}/events", n % CONVERSATIONS);
    let mut readers = JoinSet::new();
    for n in 0..half {
        let mut response = client.get(format!("{}{}", served.url, path(n))).bearer_auth(&acme.key).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        readers.spawn(async move {
            let mut ends = 0;
            let mut tail = String::new();
            while ends < 4 * TURNS {
                tail.push_str(&String::from_utf8_lossy(&response.chunk().await.unwrap().unwrap()));
                let rest = tail.split_off(tail.rfind('\n').map_or(0, |at| at + 1));
                ends += tail.matches("event: round_finished").count();
                tail = rest;
            }
        });
    }

    let alone = turns(&served, &acme.key).await;
    let before = resident(pid);
    let mut stuck = Vec::new();
    for n in 0..half {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut socket = socket.connect(served.url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap()).await.unwrap();
        let ask = format!("GET {} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\n\r\n", path(n), acme.key);
        socket.write_all(ask.as_bytes()).await.unwrap();
        stuck.push(socket); // It never reads.
    }
    for _ in 0..2 {
        turns(&served, &acme.key).await; // Their sockets are full.
    }
    let beside = turns(&served, &acme.key).await;
    let after = resident(pid);

    tokio::time::timeout(Duration::from_secs(60), readers.join_all()).await.expect("who reads is told everything");
    let each = after.saturating_sub(before) / stuck.len() as u64;
    let ratio = p99(&beside).as_secs_f64() / p99(&alone).as_secs_f64();
    println!("p99 of a turn {:?} alone, {:?} beside the stuck ({ratio:.2}x); {each} bytes a stuck watcher", p99(&alone), p99(&beside));
    assert!(each <= STUCK_BYTES_MAX, "{each} bytes a stuck watcher");
    // Held to 1.2x by hand; a busy machine of CI is not that even.
    assert!(p99(&beside) < p99(&alone) * 3 + Duration::from_millis(200), "{:?} alone, {:?} beside", p99(&alone), p99(&beside));
}
