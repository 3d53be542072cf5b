//! What stays on the screen of a real terminal program (tmux) while its size changes.

use std::{
    io::Write as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use super::Home;
use crate::support::{
    model_server::{ModelServer, Reply, Step, anthropic_text, sse},
    random::{SplitMix, seed},
};

/// A window of tmux with its own server; it ends with the value.
struct Window {
    socket: PathBuf,
}

impl Drop for Window {
    fn drop(&mut self) {
        let _ = self.try_tmux(&["kill-server"]);
    }
}

impl Window {
    /// Starts a command in a window of 80 columns; `None`, with a note, without tmux.
    fn open(home: &Home, test: &str, command: &[&str]) -> Option<Self> {
        let version = Command::new("tmux").arg("-V").output();
        if version.is_err() {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: no tmux");
            return None;
        }
        let window = Self {
            socket: home.path().join("tmux"),
        };
        let mut tmux = window.command(&["new-session", "-d", "-x", "80", "-y", "24"]);
        tmux.args(command).current_dir(home.work());
        assert!(home.dress(&mut tmux).status().unwrap().success());
        Some(window)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.args(["-f", "/dev/null", "-S"])
            .arg(&self.socket)
            .args(args);
        tmux
    }

    fn try_tmux(&self, args: &[&str]) -> Option<String> {
        let output = self.command(args).output().ok()?;
        String::from_utf8(output.stdout).ok()
    }

    /// All that was printed, with the lines joined that the terminal has wrapped.
    fn text(&self) -> String {
        self.try_tmux(&["capture-pane", "-p", "-J", "-S", "-"])
            .unwrap_or_default()
    }

    fn resize(&self, columns: usize, rows: usize) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.try_tmux(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    fn wait_for(&self, what: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let text = self.text();
            if text.contains(what) {
                return text;
            }
            assert!(Instant::now() < until, "{what:?} is not in {text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The characters without spaces: rows end at other places in another width.
fn letters(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scrollback_is_the_answer_after_a_hundred_changes_of_the_size() {
    let test = "the_scrollback_is_the_answer_after_a_hundred_changes_of_the_size";
    let mut random = SplitMix(seed(test));
    let mut text = "BEGIN of the answer.\n\n".to_owned();
    for number in 0..400 {
        let words = [
            "plain",
            "文章",
            "long-word-with-hyphens",
            "🎉",
            "été",
            "a",
            "12,345",
        ];
        for _ in 0..random.below(12) {
            text += words[random.below(words.len())];
            text.push(' ');
        }
        text += &format!("n{number}.");
        text += [" ", " ", "\n", "\n\n", "\n1. "][random.below(5)];
    }
    text += "\n\nEND";
    // Numbers of a list begin again in Markdown and on the screen as they were written.
    let whole = anthropic_text("");
    let mut reply = Reply::stream().send(sse(&whole[..2]));
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(7) {
        let piece = serde_json::Value::from(piece.iter().collect::<String>());
        let delta = format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{piece}}}}}"#
        );
        reply = reply
            .send(sse([delta]))
            .then(Step::Pause(Duration::from_millis(1 + random.next() % 3)));
    }
    let server = ModelServer::start([reply.send(sse(&whole[3..]))]).await;
    let home = Home::new();
    let url = server.url();

    let command = format!(
        "ANTHROPIC_API_KEY=not-a-real-key '{}' run --provider anthropic --base-url {url} --no-tools Go; sleep 60",
        env!("CARGO_BIN_EXE_callboard")
    );
    let Some(window) = Window::open(&home, test, &[&command]) else {
        return;
    };
    window.wait_for("BEGIN");
    for _ in 0..100 {
        window.resize(30 + random.below(90), 10 + random.below(30));
        std::thread::sleep(Duration::from_millis(random.next() % 60));
    }
    let shown = window.wait_for("end_turn");

    let answer = shown
        .find("BEGIN")
        .zip(shown.rfind("END"))
        .and_then(|(begin, end)| shown.get(begin..end + 3))
        .unwrap();
    let (found, expected) = (letters(answer), letters(&text));
    let same = found
        .char_indices()
        .zip(expected.chars())
        .find(|((_, found), expected)| found != expected);
    assert_eq!(
        (found.len(), same.map(|((at, _), _)| found.get(at..at + 60))),
        (expected.len(), None),
        "{answer}"
    );
}
