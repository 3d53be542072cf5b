//! `callboard acp` without a client library: what it does with a client that goes away, with an
//! untrusted project and with lines that are no messages.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Stdio},
};

use serde_json::{Value, json};

use super::{Home, Ran};
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_call, anthropic_text, sse};

/// A client that writes and reads lines.
struct Client {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Client {
    fn start(home: &Home, args: &[&str]) -> Self {
        let args: Vec<&str> = ["acp"].iter().chain(args).copied().collect();
        let mut command = home.command_in(&home.work(), &args);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn write(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line:?}"))
    }

    /// Sends a request and returns its answer; updates before it are dropped.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.send(method, params);
        loop {
            let message = self.read();
            if message["id"] == method {
                return message;
            }
        }
    }

    fn send(&mut self, method: &str, params: Value) {
        let message = json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params});
        self.write(&message.to_string());
    }

    fn session(&mut self, home: &Home) -> Value {
        let opened = self.ask("session/new", json!({"cwd": home.work(), "mcpServers": []}));
        assert!(opened["result"].is_object(), "{opened}");
        opened["result"].clone()
    }

    /// Closes the input, as an editor that goes away.
    fn leave(mut self) -> Ran {
        drop(self.child.stdin.take());
        Ran::of(&["acp"], self.child)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_editor_that_goes_away_in_a_round_ends_the_program_and_loses_nothing() {
    let started = &anthropic_text("Half of it")[..3];
    let stalls = Reply::stream().send(sse(started)).then(Step::Stall);
    let model = ModelServer::start([stalls, Reply::events(anthropic_text("Whole."))]).await;
    let url = model.url();
    let run = move || {
        let mut home = Home::new();
        home.variables = vec![("ANTHROPIC_API_KEY", "sk-test-not-a-real-key".to_owned())];
        let flags = [
            "--provider",
            "anthropic",
            "--base-url",
            &url,
            "--sandbox",
            "none",
        ];
        let mut editor = Client::start(&home, &flags);
        let session = editor.session(&home)["sessionId"].clone();
        let prompt =
            |text: &str| json!({"sessionId": session, "prompt": [{"type": "text", "text": text}]});
        editor.send("session/prompt", prompt("Say it"));
        while editor.read()["params"]["update"]["sessionUpdate"] != "agent_message_chunk" {}

        let left = editor.leave();
        let mut editor = Client::start(&home, &flags);
        let old = json!({"sessionId": session, "cwd": home.work(), "mcpServers": []});
        editor.send("session/load", old);
        let replayed = [editor.read(), editor.read()].map(|message| {
            let update = &message["params"]["update"];
            (
                update["sessionUpdate"].clone(),
                update["content"]["text"].clone(),
            )
        });
        let goes_on = editor.ask("session/prompt", prompt("Go on"));

        assert_eq!((left.code, left.out.as_str()), (Some(0), ""), "{left:?}");
        let expected = [
            (json!("user_message_chunk"), json!("Say it")),
            (json!("agent_message_chunk"), json!("Half of it")),
        ];
        assert_eq!(replayed, expected);
        assert_eq!(goes_on["result"]["stopReason"], "end_turn", "{goes_on}");
        assert_eq!(editor.leave().code, Some(0));
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[test]
fn an_untrusted_project_narrows_a_session_and_the_editor_cannot_widen_it() {
    let home = Home::new();
    let project = "[tools]\napprove = \"deny\"\n[[mcp]]\nname = \"evil\"\ncommand = \"touch\"\nargs = [\"started\"]\n";
    std::fs::write(home.work().join("callboard.toml"), project).unwrap();
    let mut editor = Client::start(&home, &["--provider", "offline"]);

    let session = editor.session(&home);
    let widened = editor.ask(
        "session/set_mode",
        json!({"sessionId": session["sessionId"], "modeId": "auto"}),
    );
    let left = editor.leave();

    let modes = session["modes"]["availableModes"].as_array().unwrap();
    assert_eq!((modes.len(), &modes[0]["id"]), (1, &json!("deny")));
    assert_eq!(widened["error"]["code"], -32602, "{widened}");
    assert!(
        left.err.contains("only what narrows takes effect"),
        "{left:?}"
    );
    assert_eq!((left.code, left.out.as_str()), (Some(0), ""));
}

#[test]
fn lines_that_are_no_messages_and_unknown_names_are_answered_with_an_error() {
    let home = Home::new();
    let mut editor = Client::start(&home, &["--provider", "offline", "--quiet"]);

    editor.write("no json");
    let no_json = editor.read();
    let version = editor.ask("initialize", json!({"protocolVersion": 99}));
    let method = editor.ask("session/dance", json!({}));
    let relative = editor.ask("session/new", json!({"cwd": "work", "mcpServers": []}));
    let unknown = json!({"sessionId": "never", "cwd": home.work(), "mcpServers": []});
    let unknown = editor.ask("session/load", unknown);
    let prompt = json!({"sessionId": "never", "prompt": []});
    let prompt = editor.ask("session/prompt", prompt);
    let left = editor.leave();

    let code = |answer: &Value| answer["error"]["code"].as_i64().unwrap();
    assert_eq!(version["result"]["protocolVersion"], 1);
    assert_eq!(
        [&no_json, &method, &relative, &unknown, &prompt].map(code),
        [-32700, -32601, -32602, -32002, -32002]
    );
    assert_eq!((left.code, left.err.as_str()), (Some(0), ""));
}

#[test]
fn more_sessions_than_may_be_open_work_and_closing_one_leaves_the_others() {
    let home = Home::new();
    let mut editor = Client::start(
        &home,
        &["--provider", "offline", "--sandbox", "none", "--quiet"],
    );
    let first = editor.session(&home)["sessionId"].clone();
    let closed = editor.session(&home)["sessionId"].clone();

    let close = editor.ask("session/close", json!({"sessionId": closed}));
    for _ in 0..16 {
        editor.session(&home);
    }
    let prompt = |session: &Value| json!({"sessionId": session, "prompt": [{"type": "text", "text": "Hello"}]});
    let answer = editor.ask("session/prompt", prompt(&first));
    let gone = editor.ask("session/prompt", prompt(&closed));

    assert!(close["result"].is_object(), "{close}");
    assert_eq!(answer["result"]["stopReason"], "end_turn", "{answer}");
    assert_eq!(gone["error"]["code"], -32002, "{gone}");
    assert_eq!(editor.leave().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_a_later_session_names_is_protected_in_all_sessions() {
    let edit = json!({"path": "tools/server.py", "old_text": "mine", "new_text": "evil"});
    let command =
        json!({"command": "echo evil >> tools/server.py; mv tools moved; cat tools/server.py"});
    let calls = [("file_edit", edit), ("bash", command)];
    let replies = calls
        .into_iter()
        .enumerate()
        .flat_map(|(n, (tool, input))| {
            [
                Reply::events(anthropic_call(&format!("toolu_{n}"), tool, &input)),
                Reply::events(anthropic_text("Done.")),
            ]
        });
    let model = ModelServer::start(replies.collect::<Vec<_>>()).await;
    let url = model.url();
    let run = move || {
        let mut home = Home::new();
        home.variables = vec![("ANTHROPIC_API_KEY", "sk-test-not-a-real-key".to_owned())];
        let flags = ["--provider", "anthropic", "--base-url", &url, "--quiet"];
        let server = home.work().join("tools/server.py");
        std::fs::create_dir(home.work().join("tools")).unwrap();
        std::fs::write(&server, "mine").unwrap();
        let mut editor = Client::start(&home, &flags);
        let first = editor.session(&home)["sessionId"].clone();
        editor.ask(
            "session/set_mode",
            json!({"sessionId": first, "modeId": "auto"}),
        );
        let servers = json!([{"name": "x", "command": "cat", "args": [server], "env": []}]);
        let second = editor.ask(
            "session/new",
            json!({"cwd": home.work(), "mcpServers": servers}),
        );
        assert!(second["result"].is_object(), "{second}");

        for _ in 0..2 {
            let prompt = json!({"sessionId": first, "prompt": [{"type": "text", "text": "go"}]});
            let ended = editor.ask("session/prompt", prompt);
            assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
        }

        assert_eq!(std::fs::read_to_string(&server).unwrap(), "mine");
        editor.leave();
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}
