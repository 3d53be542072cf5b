//! A database that cannot be written, under the real program: its disk is full, or another program
//! holds its lock. `CALLBOARD_LONG=1` makes the outages 75 s long.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use callboard_actors::testing::TestSize;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Home, Key, Served, configure};

/// From here on, all prompts are refused fast.
const KNOWN_AFTER: Duration = Duration::from_secs(1);
const REFUSED_WITHIN: Duration = Duration::from_millis(100);
const READY_WITHIN: Duration = Duration::from_secs(1);
const LINES_A_SECOND: usize = 10;

fn outage() -> Duration {
    let is_long = TestSize::is_long();
    Duration::from_secs(if is_long { 75 } else { 4 })
}

fn file(key: &Key) -> String {
    format!(
        "[host]\ndata_dir = \"data\"\n[[provider]]\nname = \"p\"\nkind = \"offline\"\n\
         [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        key.hash
    )
}

/// A prompt, when it was sent, and its answer.
struct Sent {
    id: String,
    at: Instant,
    took: Duration,
    status: StatusCode,
    code: String,
}

/// Sends prompts to new conversations, one every 25 ms, until it is stopped. None waits for another.
struct Clients {
    over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<Sent>>,
}

impl Clients {
    fn start(served: &Arc<Served>, key: &str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (served, key, ends) = (served.clone(), key.to_owned(), over.clone());
        let task = tokio::spawn(async move {
            let mut sent = tokio::task::JoinSet::new();
            let mut ticks = tokio::time::interval(Duration::from_millis(25));
            while !ends.load(Ordering::Relaxed) {
                ticks.tick().await;
                let (served, key) = (served.clone(), key.clone());
                let id = format!("c{}", sent.len());
                sent.spawn(async move { send(&served, &key, id).await });
            }
            sent.join_all().await
        });
        Self { over, task }
    }

    /// Waits for the answers to all prompts.
    async fn stop(self) -> Vec<Sent> {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

async fn send(served: &Served, key: &str, id: String) -> Sent {
    let path = format!("/v1/conversations/{id}/messages");
    let prompt = Some(json!({ "content": "hi" }));
    let at = Instant::now();
    let answer = served.ask(Method::POST, &path, key, prompt).await;
    Sent {
        id,
        at,
        took: at.elapsed(),
        status: answer.status,
        code: answer.body["code"].as_str().unwrap_or_default().to_owned(),
    }
}

async fn is_ready(served: &Served, key: &str) -> bool {
    served.get("/readyz", key).await.status == StatusCode::OK
}

/// Waits until the host is ready or not ready; returns how long it took.
async fn until_ready(served: &Served, key: &str, ready: bool) -> Duration {
    let began = Instant::now();
    while is_ready(served, key).await != ready {
        assert!(began.elapsed() < Duration::from_secs(20), "ready: {ready}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

/// Runs an outage beside clients, and checks what they saw.
async fn judge(name: &str, served: Served, key: &str, begin: impl FnOnce(), end: impl FnOnce()) {
    let served = Arc::new(served);
    let clients = Clients::start(&served, key);
    tokio::time::sleep(Duration::from_millis(500)).await;
    tokio::task::block_in_place(begin);
    until_ready(&served, key, false).await;
    let known = Instant::now() + KNOWN_AFTER;
    let lines = served.err().lines().count();
    let began = Instant::now();
    while began.elapsed() < outage() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!is_ready(&served, key).await, "{name}: ready in the outage");
    }
    let ended = Instant::now();
    tokio::task::block_in_place(end);
    let ready = until_ready(&served, key, true).await;
    let lines = served.err().lines().count() - lines;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sent = clients.stop().await;

    let during = sent
        .iter()
        .filter(|sent| sent.at > known && sent.at + sent.took < ended);
    let mut took = Vec::new();
    for sent in during {
        let refused = (sent.status.as_u16(), sent.code.as_str());
        assert_eq!(refused, (503, "store_unavailable"), "{name}");
        took.push(sent.took);
    }
    took.sort();
    assert!(!took.is_empty(), "{name}: {}", served.err());
    let p99 = took[took.len() * 99 / 100];
    let accepted: Vec<&Sent> = sent.iter().filter(|s| s.status.is_success()).collect();
    println!(
        "{name}, {:?}: {} accepted, {} refused, p99 {p99:?}, at most {:?}; {lines} lines of the log; ready {ready:?} after its end",
        outage(),
        accepted.len(),
        took.len(),
        took.last().unwrap(),
    );
    assert!(took.len() > 50 && p99 <= REFUSED_WITHIN, "{name}: {p99:?}");
    let seconds = usize::try_from(outage().as_secs()).unwrap();
    assert!(lines <= LINES_A_SECOND * seconds, "{name}: {lines} lines");
    assert!(ready <= READY_WITHIN, "{name}: ready after {ready:?}");
    assert!(
        accepted.iter().any(|sent| sent.at > ended),
        "{name}: prompts are accepted again"
    );
    for sent in accepted {
        let path = format!("/v1/conversations/{}/messages", sent.id);
        let history = served.get(&path, key).await;
        assert_eq!(history.body["total"], 2, "{name}: {}: {history:?}", sent.id);
    }
    let served = Arc::into_inner(served).unwrap();
    let ran = tokio::task::block_in_place(|| served.stop());
    assert_eq!(ran.code, Some(0), "{name}: {}", ran.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_another_program_locks_refuses_fast_and_comes_back() {
    let home = Home::new();
    let key = Key::new(&home);
    configure(&home, &file(&key));
    let served = Served::start(&home, &[]);
    let database = home.work().join("data/callboard.db");
    let other = rusqlite::Connection::open(database).unwrap();
    other.busy_timeout(Duration::from_secs(10)).unwrap();

    let begin = || other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let end = || other.execute_batch("ROLLBACK").unwrap();
    judge("locked", served, &key.key, begin, end).await;
}

/// Starts `serve` with its data on a file system of 24 MiB, in a mount namespace of its own. `None`
/// where the system permits none.
fn on_a_small_disk(home: &Home) -> Option<(Served, PathBuf)> {
    let data = home.work().join("data");
    std::fs::create_dir(&data).unwrap();
    let script = "mount -t tmpfs -o size=24m tmpfs \"$0\" || exit 9; shift 0; exec \"$@\"";
    let wrap = |program: &Path, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]);
        command.arg(&data).arg(program).args(args);
        command
    };
    let works = wrap(Path::new("true"), &[]).output();
    if !works.is_ok_and(|ran| ran.status.success()) {
        return None;
    }
    let plain = home.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut command = wrap(
        Path::new(plain.get_program()),
        &["serve", "--listen", "127.0.0.1:0"],
    );
    command
        .current_dir(home.work())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    home.dress(&mut command)
        .env("CALLBOARD_CONFIG", "callboard.toml");
    let served = Served::of(command);
    let inside = PathBuf::from(format!("/proc/{}/root", served.id()));
    let data = inside.join(data.strip_prefix("/").unwrap());
    Some((served, data))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_fast_and_comes_back() {
    let home = Home::new();
    let key = Key::new(&home);
    configure(&home, &file(&key));
    let Some((served, data)) = on_a_small_disk(&home) else {
        let reason = "the system permits no mounts of users";
        return crate::support::skipped("a_full_disk_refuses_fast_and_comes_back", reason);
    };
    let filler = data.join("filler");

    let begin = || {
        use std::io::Write as _;
        let mut file = std::fs::File::create(&filler).unwrap();
        let full = loop {
            if let Err(error) = file.write_all(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    };
    let end = || std::fs::remove_file(&filler).unwrap();
    judge("full", served, &key.key, begin, end).await;
}
