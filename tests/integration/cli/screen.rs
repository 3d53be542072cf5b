//! What stays on the screen of a real terminal program (tmux) while its size changes.

use std::{
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use super::Home;
use crate::support::{
    SplitMix,
    model_server::{ModelServer, Reply, Step, anthropic_text, sse},
    seed, skipped,
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
            skipped(test, "no tmux");
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

    fn type_line(&self, line: &str) {
        self.try_tmux(&["send-keys", "-l", line]);
        self.try_tmux(&["send-keys", "Enter"]);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_line_typed_while_a_round_runs_waits_in_sight_and_is_sent_after_it() {
    let test = "a_line_typed_while_a_round_runs_waits_in_sight_and_is_sent_after_it";
    let slow = Reply::events(anthropic_text("first answer")).delay(Duration::from_secs(2));
    let server = ModelServer::start([slow, Reply::events(anthropic_text("second answer"))]).await;
    let home = Home::new();
    let url = server.url();
    let Some(window) = chat(&home, test, &url) else {
        return;
    };

    window.wait_for("/help lists");
    window.type_line("the first prompt");
    window.wait_for("thinking");
    window.type_line("the second prompt");
    window.wait_for("queued: the second prompt");
    let shown = window.wait_for("second answer");

    assert!(shown.contains("first answer"), "{shown}");
    let bodies: Vec<String> = server
        .requests()
        .iter()
        .map(|request| request.json()["messages"].to_string())
        .filter(|messages| messages.contains("the first prompt"))
        .collect();
    assert!(!bodies[0].contains("the second prompt"), "{bodies:?}");
    assert!(
        bodies.last().unwrap().contains("the second prompt"),
        "{bodies:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_by_hand_runs_in_the_sandbox_and_the_model_does_not_see_it() {
    let test = "a_command_by_hand_runs_in_the_sandbox_and_the_model_does_not_see_it";
    let server = ModelServer::start([Reply::events(anthropic_text("an answer"))]).await;
    let home = Home::new();
    std::fs::write(home.work().join("note.txt"), "words of the file\n").unwrap();
    let url = server.url();
    let Some(window) = chat(&home, test, &url) else {
        return;
    };

    window.wait_for("/help lists");
    window.type_line("!echo by-hand-$((40 + 2)); exit 3");
    window.wait_for("by-hand-42");
    window.wait_for("the model does not see this");
    window.type_line("!printf '\\033[1;31mforged\\033[0m\\n'");
    window.wait_for("\\u{1b}[1;31mforged\\u{1b}[0m"); // Not in the colors that Callboard paints.
    window.type_line("Read @note.txt please");
    window.wait_for("an answer");

    let requests = server.requests();
    let bodies: Vec<String> = requests
        .iter()
        .map(|request| request.json()["messages"].to_string())
        .filter(|messages| messages.contains("please"))
        .collect();
    assert!(
        bodies.iter().all(|body| body.contains("words of the file")),
        "{bodies:?}"
    );
    assert!(!bodies.concat().contains("by-hand"), "{bodies:?}");
}

/// A chat with a model server in a window.
fn chat(home: &Home, test: &str, url: &str) -> Option<Window> {
    let command = format!(
        "ANTHROPIC_API_KEY=not-a-real-key '{}' chat --provider anthropic --base-url {url} --sandbox local",
        env!("CARGO_BIN_EXE_callboard")
    );
    Window::open(home, test, &[&command])
}
