//! A conversation with more attachments than its provider accepts in a request goes on answering, in
//! a running host and over HTTP. `CALLBOARD_LONG=1` sends fifty images of 3.6 MB against the default
//! bound of 32 MB and prints the memory of the process; the usual form is a hundredth of that.

use std::sync::Arc;

use callboard::{
    Host, Prompt, StopReason, chat::Attachment, providers::Anthropic, storage::Sqlite,
};
use callboard_actors::testing::TestSize;
use callboard_actors::{host::ConversationHandle, testing::media::padded_png};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    cli::Home,
    support::model_server::{ModelServer, Reply, anthropic_text, sse},
};

/// A server that answers 413 to bodies of more than `accepted` bytes and keeps no body.
struct Strict {
    url: String,
    /// Bytes of the bodies received, and whether each was accepted.
    bodies: Arc<Mutex<Vec<(usize, bool)>>>,
    _tasks: JoinSet<()>,
}

impl Strict {
    async fn start(accepted: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let seen = bodies.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, accepted, seen.clone()));
            }
        });
        Self {
            url,
            bodies,
            _tasks: tasks,
        }
    }

    /// Bytes of the bodies that were refused.
    fn refused(&self) -> Vec<usize> {
        let bodies = self.bodies.lock();
        let refused = bodies.iter().filter(|(_, accepted)| !accepted);
        refused.map(|(bytes, _)| *bytes).collect()
    }
}

async fn serve(stream: TcpStream, accepted: usize, bodies: Arc<Mutex<Vec<(usize, bool)>>>) {
    let mut stream = BufStream::new(stream);
    loop {
        let mut length = 0;
        let mut line = String::new();
        loop {
            line.clear();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let body = tokio::io::copy(&mut (&mut stream).take(length), &mut tokio::io::sink()).await;
        let bytes = usize::try_from(body.unwrap()).unwrap();
        bodies.lock().push((bytes, bytes <= accepted));
        let (head, body) = if bytes <= accepted {
            (
                "200 OK\r\ncontent-type: text/event-stream",
                sse(anthropic_text("seen")),
            )
        } else {
            let body = r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#;
            (
                "413 Payload Too Large\r\ncontent-type: application/json",
                body.to_owned(),
            )
        };
        let answer = format!(
            "HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

/// How much smaller than in reality everything is.
fn scale() -> usize {
    if TestSize::is_long() { 1 } else { 100 }
}

fn image() -> Attachment {
    Attachment::sniffed(&padded_png(2000, 1500, 3_600_000 / scale())).unwrap()
}

async fn host(server: &Strict, data: &std::path::Path, request_bytes_max: Option<u64>) -> Host {
    let builder = Anthropic::builder("sk-test-not-a-real-key").base_url(&server.url);
    let builder = request_bytes_max
        .into_iter()
        .fold(builder, |builder, bytes| builder.request_bytes_max(bytes));
    Host::builder()
        .provider(builder.build().unwrap())
        .sessions(Sqlite::open(data.join("callboard.db")).await.unwrap())
        .build()
        .await
        .unwrap()
}

async fn ask(conversation: &ConversationHandle, prompt: Prompt) {
    let outcome = conversation
        .send(prompt)
        .await
        .unwrap()
        .outcome()
        .await
        .unwrap();
    assert_eq!(
        (outcome.stop_reason, &*outcome.text, outcome.error),
        (StopReason::EndTurn, "seen", None)
    );
}

/// `VmRSS` and `VmHWM` of this process, in MB.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or_default() / 1000
    };
    (of("VmRSS:"), of("VmHWM:"))
}

#[tokio::test]
async fn a_conversation_with_fifty_images_goes_on_answering() {
    let bound = 32_000_000 / scale();
    let server = Strict::start(bound).await;
    let data = tempfile::tempdir().unwrap();
    // In full size, the default is the bound.
    let configured = (scale() > 1).then_some(bound as u64);

    let first = host(&server, data.path(), configured).await;
    let conversation = first.tenant("acme").conversation("c");
    println!("before: {:?} MB (resident, peak)", memory());
    for number in 0..50 {
        ask(
            &conversation,
            Prompt::text(format!("image {number}")).attach(image()),
        )
        .await;
        if number % 10 == 9 {
            println!("image {number}: {:?} MB", memory());
        }
    }
    ask(&conversation, Prompt::text("and without one")).await;
    first.shutdown(std::time::Duration::from_secs(10)).await;
    drop(first);
    println!("stopped: {:?} MB", memory());
    let second = host(&server, data.path(), configured).await;
    ask(
        &second.tenant("acme").conversation("c"),
        Prompt::text("after a restart"),
    )
    .await;
    println!("restarted: {:?} MB", memory());

    assert_eq!(server.refused(), [] as [usize; 0]);
    let bodies = server.bodies.lock();
    assert_eq!(bodies.len(), 52);
    assert!(bodies.iter().any(|(bytes, _)| *bytes > bound / 4 * 3));
}

#[tokio::test]
async fn a_server_that_accepts_less_than_expected_refuses_once() {
    let bound = 32_000_000 / scale();
    let server = Strict::start(bound / 2).await;
    let data = tempfile::tempdir().unwrap();
    let host = host(&server, data.path(), Some(bound as u64)).await;
    let conversation = host.tenant("acme").conversation("c");

    for number in 0..12 {
        ask(
            &conversation,
            Prompt::text(format!("image {number}")).attach(image()),
        )
        .await;
    }

    assert_eq!(server.refused().len(), 1, "{:?}", server.bodies.lock());
}

#[tokio::test(flavor = "multi_thread")]
async fn request_bytes_max_of_a_provider_is_obeyed() {
    let model = ModelServer::start([Reply::events(anthropic_text("seen"))]).await;
    let home = Home::new();
    let picture = home.path().join("a.png");
    std::fs::write(&picture, padded_png(640, 480, 30_000)).unwrap();
    let prompt = |session: &str, settings: &str| {
        let text = format!(
            "[[provider]]\nname = \"local\"\nkind = \"anthropic\"\nbase_url = \"{}\"\nmodel = \"m\"\n{settings}\n",
            model.url()
        );
        let file = home.path().join("callboard.toml");
        std::fs::write(&file, text).unwrap();
        let arguments = [
            "--config",
            file.to_str().unwrap(),
            "run",
            "--session",
            session,
        ];
        let attach = ["--attach", picture.to_str().unwrap(), "look"];
        let arguments = [&arguments[..], &attach].concat();
        tokio::task::block_in_place(|| home.run(&arguments).well());
        let last = model.requests().pop().unwrap();
        String::from_utf8(last.body)
            .unwrap()
            .matches("left out of the request")
            .count()
    };

    assert_eq!((prompt("a", ""), prompt("a", "")), (0, 0));
    let setting = "request_bytes_max = 80_000";
    assert_eq!((prompt("b", setting), prompt("b", setting)), (0, 1));
}
