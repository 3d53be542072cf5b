//! Clients that read events of rounds: this program in another process, so that their work is not
//! counted. It reports the tokens that arrived when a line is sent to it.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Barrier,
};

use super::reference::phases::runtime;

const ASKED: &str = "token-clients";

/// The text of one token.
const TOKEN: &[u8] = b"word";

/// Reads answers if this process was started for it. Call it first in `main`.
pub(crate) fn read_if_asked() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [asked, url, key, streams] = arguments.as_slice() else {
        return false;
    };
    if asked == ASKED {
        let streams = streams.parse().unwrap();
        runtime().block_on(read_all(url.clone(), key.clone(), streams));
    }
    asked == ASKED
}

async fn read_all(url: String, key: String, streams: usize) {
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    let tokens = Arc::new(AtomicUsize::new(0));
    let begun = Arc::new(Barrier::new(streams + 1));
    let answers: Vec<_> = (0..streams)
        .map(|nth| {
            let request = client
                .post(format!("{url}/v1/conversations/c-{nth}/messages"))
                .bearer_auth(&key)
                .header("accept", "text/event-stream")
                .header("content-type", "application/json")
                .body(r#"{"content":"go"}"#);
            let (tokens, begun) = (tokens.clone(), begun.clone());
            tokio::spawn(async move {
                let mut response = request.send().await.unwrap();
                assert_eq!(response.status(), 200);
                let mut has_begun = false;
                while let Some(bytes) = response.chunk().await.unwrap() {
                    let more = memchr::memmem::find_iter(&bytes, TOKEN).count();
                    tokens.fetch_add(more, Relaxed);
                    if more > 0 && !has_begun {
                        has_begun = true;
                        begun.wait().await;
                    }
                }
            })
        })
        .collect();
    begun.wait().await;
    println!("begun");
    let mut asked = BufReader::new(tokio::io::stdin()).lines();
    while let Some(_line) = asked.next_line().await.unwrap() {
        println!("{}", tokens.load(Relaxed));
    }
    for answer in answers {
        answer.await.unwrap();
    }
}

/// Clients that are reading.
pub(crate) struct Clients {
    process: Child,
    ask: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Clients {
    /// Sends a prompt to each of `streams` conversations and returns once all answers have begun.
    pub(crate) async fn start(url: &str, key: &str, streams: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([ASKED, url, key, &streams.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let ask = process.stdin.take().unwrap();
        let mut answers = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(answers.next_line().await.unwrap().unwrap(), "begun");
        Self {
            process,
            ask,
            answers,
        }
    }

    /// Number of tokens that arrived so far.
    pub(crate) async fn tokens(&mut self) -> usize {
        self.ask.write_all(b"\n").await.unwrap();
        let answer = self.answers.next_line().await.unwrap().unwrap();
        answer.parse().unwrap()
    }

    /// Waits until all answers have ended.
    pub(crate) async fn finish(mut self) {
        drop(self.ask);
        assert!(self.process.wait().await.unwrap().success());
    }
}
