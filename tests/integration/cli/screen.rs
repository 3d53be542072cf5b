//! What stays on the screen of a real terminal program (tmux) while its size changes.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use serde_json::json;

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
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let window = Self {
            socket: home.path().join(format!("tmux-{number}")),
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

/// Lets an answer of random words appear while `change` changes the size of the window a hundred
/// times, and compares what has appeared with the answer.
async fn scrollback_through_changes(
    test: &str,
    words: &[&str],
    change: impl Fn(&Window, &mut SplitMix),
) {
    let mut random = SplitMix(seed(test));
    let mut text = "BEGIN of the answer.\n\n".to_owned();
    for number in 0..400 {
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
        change(&window, &mut random);
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
async fn the_scrollback_is_the_answer_after_a_hundred_changes_of_the_size() {
    let test = "the_scrollback_is_the_answer_after_a_hundred_changes_of_the_size";
    // tmux 3.3 loses its place, and rows with it, when a character of two columns does not fit the
    // end of a row that it wraps again. It does so to plain lines as well.
    let words = [
        "plain",
        "word",
        "long-word-with-hyphens",
        "été",
        "a",
        "12,345",
    ];
    scrollback_through_changes(test, &words, |window, random| {
        window.resize(30 + random.below(90), 10 + random.below(30));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scrollback_with_wide_characters_is_the_answer_after_a_hundred_changes_of_the_height() {
    let test =
        "the_scrollback_with_wide_characters_is_the_answer_after_a_hundred_changes_of_the_height";
    let words = ["plain", "文章", "long-word-with-hyphens", "🎉", "été", "a"];
    scrollback_through_changes(test, &words, |window, random| {
        window.resize(80, 10 + random.below(30));
    })
    .await;
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
    window.type_line("!!echo by-hand-$((40 + 2)); exit 3");
    window.wait_for("by-hand-42");
    window.wait_for("the model does not see this");
    window.type_line("!!printf '\\033[1;31mforged\\033[0m\\n'");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_goes_on_with_another_model_and_a_wrong_one_changes_nothing() {
    let test = "a_chat_goes_on_with_another_model_and_a_wrong_one_changes_nothing";
    let answers = ["first answer", "second answer"];
    let server = ModelServer::start(answers.map(|text| Reply::events(anthropic_text(text)))).await;
    let home = Home::new();
    let url = server.url();
    let Some(window) = chat(&home, test, &url) else {
        return;
    };

    window.wait_for("/help lists");
    window.type_line("the first prompt");
    window.wait_for("tokens in");
    window.type_line("/model");
    window.wait_for("* anthropic  claude");
    window.type_line("/model openai/gpt-5");
    window.wait_for("OPENAI_API_KEY");
    window.type_line("/model another-model");
    window.wait_for("model another-model");
    window.type_line("the second prompt");
    window.wait_for("second answer");

    let bodies: Vec<_> = server
        .requests()
        .iter()
        .map(|request| request.json().clone())
        .filter(|body| body["messages"].to_string().contains("the first prompt"))
        .collect();
    assert!(
        bodies[0]["model"].as_str().unwrap().starts_with("claude"),
        "{bodies:?}"
    );
    let last = bodies.last().unwrap();
    assert_eq!(last["model"], "another-model", "{bodies:?}");
    let messages = last["messages"].to_string();
    assert!(
        messages.contains("first answer") && messages.contains("the second prompt"),
        "{messages}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_a_folder_come_back_in_that_folder_only() {
    let test = "the_lines_of_a_folder_come_back_in_that_folder_only";
    let home = Home::new();
    let other = home.work().join("other");
    std::fs::create_dir(&other).unwrap();
    let chat = |folder: &str| {
        let command = format!(
            "'{}' chat --provider offline --sandbox local --workspace {folder}",
            env!("CARGO_BIN_EXE_callboard")
        );
        Window::open(&home, test, &[&command])
    };
    let Some(window) = chat(".") else { return };
    window.wait_for("/help lists");
    window.type_line("/help of-this-folder");
    window.wait_for("/quit     leave");
    drop(window);

    let recalled = |folder: &str, keys: &[&str], shown: &str| {
        let window = chat(folder).unwrap();
        window.wait_for("/help lists");
        keys.iter().for_each(|key| {
            window.try_tmux(&["send-keys", key]);
        });
        window.wait_for(shown)
    };
    recalled(".", &["Up"], "/help of-this-folder");
    let there = recalled("other", &["Up", "typed"], "typed");
    assert!(!there.contains("of-this-folder"), "{there}");
}

/// A server of one conversation whose round asks, goes on, decides the first question by itself and
/// asks again. Returns its address and what is posted to it.
fn asking_server() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (posted, posts) = mpsc::channel();
    let (go, decided) = mpsc::channel();
    let decided = Arc::new(Mutex::new(decided));
    std::thread::spawn(move || {
        for mut peer in listener.incoming().map_while(Result::ok).take(8) {
            let (posted, go, decided) = (posted.clone(), go.clone(), Arc::clone(&decided));
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                let read = peer.read(&mut bytes).unwrap_or(0);
                let request = String::from_utf8_lossy(&bytes[..read]).into_owned();
                let first = request.lines().next().unwrap_or_default().to_owned();
                let head = |kind: &str| {
                    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n")
                };
                if first.starts_with("GET") {
                    let body = r#"{"state":"idle","rounds":1}"#;
                    let _ = write!(peer, "{}{body}", head("application/json"));
                    return;
                }
                let _ = posted.send(first.clone());
                if first.contains("/approvals/") {
                    let _ = write!(peer, "{}{{}}", head("application/json"));
                    let _ = go.send(());
                    return;
                }
                let asks = |id: &str, input: serde_json::Value| {
                    json!({"type": "approval_required", "tool_call_id": id, "name": "bash",
                        "input": input, "reason": "this command changes something."})
                };
                let text = format!("{}MEANWHILE", "filler\n\n".repeat(30));
                let message =
                    json!({"role": "assistant", "content": [{"type": "text", "text": text}]});
                let result = json!({"type": "tool_result", "tool_call_id": "t1", "name": "bash",
                    "is_error": true, "summary": "denied", "preview": "", "duration_ms": 1});
                let end = json!({"type": "round_finished", "status": "completed",
                    "stop_reason": "end_turn", "text": "", "full_text": "", "latency_ms": 1,
                    "usage": {"input_uncached": 0, "cache_read": 0, "cache_write": 0, "output": 0}});
                let _ = write!(peer, "{}", head("text/event-stream"));
                let mut events_of = |list: &[serde_json::Value]| {
                    for event in list {
                        let _ = write!(peer, "data: {event}\n\n");
                    }
                };
                events_of(&[
                    asks("t1", json!({"command": "one"})),
                    json!({"type": "message", "message": message}),
                    result,
                    asks("t2", json!({"command": "two"})),
                ]);
                let _ = decided.lock().unwrap().recv();
                events_of(&[end]);
            });
        }
    });
    (url, posts)
}

#[test]
fn an_attached_question_stays_in_sight_and_closes_when_it_is_decided_elsewhere() {
    let test = "an_attached_question_stays_in_sight_and_closes_when_it_is_decided_elsewhere";
    let home = Home::new();
    let (url, posts) = asking_server();
    let command = format!(
        "'{}' chat --attach one --server {url} --key cb_not-a-real-key",
        env!("CARGO_BIN_EXE_callboard")
    );
    let Some(window) = Window::open(&home, test, &[&command]) else {
        return;
    };

    window.wait_for("one at http://");
    window.type_line("Go on.");
    let shown = window.wait_for("  $ two");
    let at = |what: &str| {
        shown
            .find(what)
            .unwrap_or_else(|| panic!("{what}: {shown}"))
    };
    assert!(at("  $ one") < at("decided without you"), "{shown}");
    assert!(at("decided without you") < at("MEANWHILE"), "{shown}");
    assert!(at("MEANWHILE") < at("  $ two"), "{shown}");
    // A key before the silence ends would not count; this waits for it as a person does.
    std::thread::sleep(Duration::from_millis(900));
    window.try_tmux(&["send-keys", "-l", "y"]);
    window.wait_for("end_turn");

    let posts: Vec<String> = posts.try_iter().collect();
    assert!(
        posts.len() == 2 && posts[1].contains("/approvals/t2"),
        "{posts:?}"
    );
}

/// A chat with a model server in a window.
fn chat(home: &Home, test: &str, url: &str) -> Option<Window> {
    let command = format!(
        "ANTHROPIC_API_KEY=not-a-real-key '{}' chat --provider anthropic --base-url {url} --sandbox local",
        env!("CARGO_BIN_EXE_callboard")
    );
    Window::open(home, test, &[&command])
}

/// A chat with the offline model in a window; what it printed stays, with its status and the modes
/// of the terminal behind it.
fn chat_to_leave(home: &Home, test: &str) -> Option<Window> {
    let command = format!(
        "sh -c 'echo $$ > pid; exec \"{}\" chat --provider offline --sandbox none --session talk'; \
         echo status $?; stty -a; sleep 60",
        env!("CARGO_BIN_EXE_callboard")
    );
    Window::open(home, test, &[&command])
}

#[test]
fn a_signal_ends_a_chat_at_its_prompt_and_the_terminal_is_as_before() {
    let test = "a_signal_ends_a_chat_at_its_prompt_and_the_terminal_is_as_before";
    for signal in ["TERM", "INT"] {
        let home = Home::new();
        let Some(window) = chat_to_leave(&home, test) else {
            return;
        };
        window.wait_for("/help lists");
        window.type_line("Where is RETRY_CAP_MS?");
        window.wait_for("tokens in");
        window.try_tmux(&["send-keys", "-l", "half a li"]);
        window.wait_for("> half a li");

        let pid = std::fs::read_to_string(home.work().join("pid")).unwrap();
        let sent = Instant::now();
        super::kill(pid.trim().parse().unwrap(), signal);
        let shown = window.wait_for("status 130");

        assert!(sent.elapsed() < Duration::from_secs(5), "{signal}: {shown}");
        assert!(
            shown.contains("resume with: callboard chat --session talk"),
            "{shown}"
        );
        let modes = window.wait_for(" icanon ");
        assert!(modes.contains(" echo "), "{modes}");
        let stored = home.run(&["sessions", "export", "talk"]).well().json();
        assert!(
            stored["messages"]
                .to_string()
                .contains("Where is RETRY_CAP_MS?"),
            "{stored}"
        );
    }
}

#[test]
fn exit_and_quit_leave_a_chat_and_help_alone_is_the_list() {
    let test = "exit_and_quit_leave_a_chat_and_help_alone_is_the_list";
    for word in ["exit", "quit"] {
        let home = Home::new();
        let Some(window) = chat_to_leave(&home, test) else {
            return;
        };
        window.wait_for("/help lists");
        window.type_line("help");
        let list = window.wait_for("/quit     leave");
        // Words of the list are not cut at the edge of the window.
        assert!(
            list.lines()
                .all(|line| line.trim_end().chars().count() <= 80),
            "{list}"
        );
        window.type_line(word);

        let shown = window.wait_for("status 0");
        assert!(
            shown.contains(&format!("`{word}` leaves the chat")),
            "{shown}"
        );
        assert!(!shown.contains("resume with"), "nothing was said: {shown}");
        assert!(home.run(&["sessions", "list"]).well().out.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_ends_in_a_backslash_goes_on_in_the_next() {
    let test = "a_line_that_ends_in_a_backslash_goes_on_in_the_next";
    let server = ModelServer::start([Reply::events(anthropic_text("Both came."))]).await;
    let home = Home::new();
    let url = server.url();
    let Some(window) = chat(&home, test, &url) else {
        return;
    };

    window.wait_for("/help lists");
    window.type_line("one\\");
    window.type_line("two");
    window.wait_for("Both came.");

    let bodies = server.requests();
    let prompt = bodies.last().unwrap().json()["messages"].to_string();
    assert!(prompt.contains(r"one\ntwo"), "{prompt}");
}
