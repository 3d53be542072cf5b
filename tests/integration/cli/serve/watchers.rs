//! Half of the watchers never read: some connect to new events, some to the beginning of a long
//! conversation. The other watchers and the rounds are not slowed down, and memory stays flat.
//! There are 40 watchers, or 200 with `CALLBOARD_LONG`.

use std::time::{Duration, Instant};

use callboard_actors::testing::TestSize;
use reqwest::{Method, StatusCode};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpSocket, sync::mpsc, task::JoinSet};

use super::{Home, Key, Served, configure};
use crate::support::model_server::{ModelServer, Reply, anthropic_text, sse};

const CONVERSATIONS: usize = 4;
const TURNS: usize = 25;
const TURNS_USUALLY: usize = 15;

/// Memory of the host that one stuck watcher may use, in bytes.
const STUCK_BYTES_MAX: u64 = 1024 * 1024;

/// Processor time that a process has used, in hundredths of a second.
pub(super) fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    [fields[11], fields[12]]
        .iter()
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum()
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kib: u64 = status
        .lines()
        .find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .strip_suffix(" kB")?
                .trim()
                .parse()
                .ok()
        })
        .unwrap();
    kib * 1024
}

/// The turns of each conversation between two measurements.
fn turns_each() -> usize {
    TestSize::pick(TURNS_USUALLY, TURNS, TURNS)
}

/// Empties every conversation and runs rounds in all of them concurrently. Returns the durations of
/// the rounds, sorted.
async fn turns(served: &Served, key: &str) -> Vec<Duration> {
    let mut took = Vec::new();
    for n in 0..CONVERSATIONS {
        served
            .ask(
                Method::POST,
                &format!("/v1/conversations/c{n}/reset"),
                key,
                None,
            )
            .await;
    }
    for turn in 0..turns_each() {
        let asked = (0..CONVERSATIONS).map(|n| async move {
            let began = Instant::now();
            let body = json!({ "content": format!("turn {turn}") });
            let answer = served
                .ask(
                    Method::POST,
                    &format!("/v1/conversations/c{n}/messages"),
                    key,
                    Some(body),
                )
                .await;
            assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
            began.elapsed()
        });
        took.extend(futures_util::future::join_all(asked).await);
    }
    took.sort();
    took
}

/// The events of a conversation from now on.
fn live(n: usize) -> String {
    format!("/v1/conversations/c{}/events", n % CONVERSATIONS)
}

fn p99(took: &[Duration]) -> Duration {
    took[took.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_watchers_never_read_and_no_other_is_slower() {
    let half = if TestSize::is_long() { 100 } else { 20 };
    let home = Home::new();
    let reply = anthropic_text(&"word ".repeat(200));
    let [start, block, delta, end @ ..] = <[String; 6]>::try_from(reply).unwrap();
    let whole = sse([start, block]
        .into_iter()
        .chain((0..8).map(|_| delta.clone()))
        .chain(end));
    let model = ModelServer::start([Reply::stream().send(whole)]).await;
    let acme = Key::new(&home);
    std::fs::write(home.work().join("key"), "sk-test-not-a-real-key").unwrap();
    let provider = format!(
        "[[provider]]\nname = \"fast\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\n",
        model.url()
    );
    configure(
        &home,
        &format!(
            "{provider}[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
            acme.hash
        ),
    );
    let served = Served::start(&home, &[]);
    let pid = served.child.as_ref().unwrap().id();
    turns(&served, &acme.key).await; // Warms the host up.
    for n in 0..4 * TURNS {
        let body = json!({ "content": format!("turn {n}") });
        assert_eq!(
            served
                .ask(
                    Method::POST,
                    "/v1/conversations/long/messages",
                    &acme.key,
                    Some(body)
                )
                .await
                .status,
            StatusCode::OK
        );
    }
    let client = callboard::tls::client_builder()
        .unwrap()
        .no_proxy()
        .build()
        .unwrap();
    let (sender, mut received) = mpsc::unbounded_channel();
    let mut readers = JoinSet::new();
    for n in 0..half {
        let mut response = client
            .get(format!("{}{}", served.url, live(n)))
            .bearer_auth(&acme.key)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let sender = sender.clone();
        readers.spawn(async move {
            let mut ends = 0;
            let mut tail = Vec::new();
            loop {
                tail.extend(response.chunk().await.unwrap().unwrap());
                let rest = tail.split_off(
                    tail.iter()
                        .rposition(|byte| *byte == b'\n')
                        .map_or(0, |at| at + 1),
                );
                for _ in tail
                    .split(|byte| *byte == b'\n')
                    .filter(|line| *line == b"event: round_finished")
                {
                    ends += 1;
                    if ends % turns_each() == 0 {
                        sender.send(()).unwrap();
                    }
                }
                tail = rest;
            }
        });
    }
    // Runs rounds until each reading watcher has received all of them; only then may the
    // conversations be emptied. Returns the durations and the processor time of the host.
    let mut measured = async || {
        let before = ticks(pid);
        let took = turns(&served, &acme.key).await;
        for _ in 0..half {
            tokio::time::timeout(Duration::from_secs(120), received.recv())
                .await
                .expect("a reading watcher receives every event");
        }
        (took, ticks(pid) - before)
    };

    let (alone, alone_ticks) = measured().await;
    let before = resident(pid);
    let mut stuck = Vec::new();
    for n in 0..half {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut socket = socket
            .connect(
                served
                    .url
                    .trim_start_matches("http://")
                    .trim_end_matches('/')
                    .parse()
                    .unwrap(),
            )
            .await
            .unwrap();
        let path = if n % 2 == 0 {
            live(n / 2)
        } else {
            "/v1/conversations/long/events?after=0.0.0".to_owned()
        };
        let ask = format!(
            "GET {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\n\r\n",
            acme.key
        );
        socket.write_all(ask.as_bytes()).await.unwrap();
        stuck.push(socket); // This watcher never reads.
    }
    let (joining, joining_ticks) = measured().await; // The sockets of the stuck watchers are full now.
    let (beside, beside_ticks) = measured().await;
    let after = resident(pid);

    let each = after.saturating_sub(before) / stuck.len() as u64;
    println!(
        "turns alone, as the stuck join, beside them: p99 {:?}, {:?}, {:?}; {alone_ticks}, {joining_ticks}, {beside_ticks} hundredths of a second; \
         {each} bytes a stuck watcher of {before}",
        p99(&alone),
        p99(&joining),
        p99(&beside)
    );
    assert!(each <= STUCK_BYTES_MAX, "{each} bytes a stuck watcher");
    // On a busy machine the p99 varies, but the host's own processor time does not: stuck watchers
    // cost nothing.
    assert!(
        beside_ticks <= alone_ticks * 3 / 2 + 20,
        "{alone_ticks} alone, {beside_ticks} beside"
    );
    assert!(
        p99(&beside) < p99(&alone) * 3 + Duration::from_millis(200),
        "{:?} alone, {:?} beside",
        p99(&alone),
        p99(&beside)
    );
}
