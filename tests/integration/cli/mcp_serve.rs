//! `callboard mcp serve` without a client library: what it does with lines that are no messages, with
//! a client that goes away, and with a conversation that is in use.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdout, Stdio},
};

use serde_json::{Value, json};

use super::{
    Home, Ran,
    serve::{Key, Served, configure},
};
use crate::support::model_server::{ModelServer, Reply, Step, anthropic_text, sse};

/// A client that writes and reads lines.
struct Client {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Client {
    fn start(home: &Home, args: &[&str]) -> Self {
        let args: Vec<&str> = ["mcp", "serve"].iter().chain(args).copied().collect();
        let mut command = home.command_in(&home.work(), &args);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn offline(home: &Home) -> Self {
        let flags = ["--provider", "offline", "--sandbox", "none", "--quiet"];
        Self::start(home, &flags)
    }

    fn write(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        // A server that ended reads no more.
        let _ = writeln!(stdin, "{line}");
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no message: {line:?}"))
    }

    /// Sends a request and returns its answer; notifications before it are dropped.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": method, "method": method, "params": params});
        self.write(&message.to_string());
        loop {
            let message = self.read();
            if message["id"] == method {
                return message;
            }
        }
    }

    fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({"name": name, "arguments": arguments}))["result"].clone()
    }

    fn shakes_hands(&mut self) {
        let answer = self.ask(
            "initialize",
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}),
        );
        assert_eq!(
            answer["result"]["serverInfo"]["name"], "callboard",
            "{answer}"
        );
        self.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    }

    /// Closes the input, as a client that goes away.
    fn leave(mut self) -> Ran {
        drop(self.child.stdin.take());
        Ran::of(&["mcp", "serve"], self.child)
    }
}

#[test]
fn lines_that_are_no_messages_end_nothing_and_leave_no_trace_on_standard_output() {
    let home = Home::new();
    let mut client = Client::offline(&home);
    client.shakes_hands();

    client.write("no json");
    client.write(&"[".repeat(100_000));
    client.write(&format!("\"{}\"", "x".repeat(3_000_000)));
    client.write("{\"jsonrpc\":\"2.0\"}");
    let method = client.ask("tenants/delete", json!({}));
    let answer = client.call("send_prompt", json!({"prompt": "Hello"}));
    let left = client.leave();

    assert_eq!(method["error"]["code"], -32601, "{method}");
    assert_eq!(
        answer["structuredContent"]["status"], "completed",
        "{answer}"
    );
    assert_eq!((left.code, left.out.as_str()), (Some(0), ""), "{left:?}");
}

#[test]
fn a_client_that_leaves_without_a_word_is_no_error_and_one_that_shakes_no_hands_is() {
    let home = Home::new();

    let silent = Client::offline(&home).leave();
    let mut rude = Client::offline(&home);
    rude.write(r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}"#);
    let rude = rude.leave();

    assert_eq!((silent.code, silent.err.as_str()), (Some(0), ""));
    assert!(
        rude.code == Some(0) || rude.err.lines().count() == 1,
        "{rude:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_in_a_round_ends_the_program_and_loses_nothing() {
    let started = &anthropic_text("Half of it")[..3];
    let stalls = Reply::stream().send(sse(started)).then(Step::Stall);
    let model = ModelServer::start([stalls]).await;
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
            "--quiet",
        ];
        let mut client = Client::start(&home, &flags);
        client.shakes_hands();
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "send_prompt", "arguments": {"prompt": "Hi", "conversation_id": "c"}, "_meta": {"progressToken": "p"},
        }});
        client.write(&call.to_string());
        while !client.read()["params"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("started"))
        {}
        let written = || {
            let shown = home.run(&["sessions", "show", "c"]);
            shown.out.contains("Hi")
        };
        while !written() {}
        let left = client.leave();

        assert_eq!(left.code, Some(0), "{left:?}");
        let shown = home.run(&["sessions", "show", "c"]);
        assert!(shown.out.contains("Half of it"), "{shown:?}");
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[test]
fn a_conversation_that_another_program_has_open_is_left_alone() {
    let home = Home::new();
    let mut first = Client::offline(&home);
    first.shakes_hands();
    let mut second = Client::offline(&home);
    second.shakes_hands();
    let hello = json!({"prompt": "Hello", "conversation_id": "c"});

    let own = first.call("send_prompt", hello.clone());
    let others = second.call("send_prompt", hello);
    let read = second.call("read_conversation", json!({"conversation_id": "c"}));

    assert_eq!(own["isError"], false, "{own}");
    assert_eq!(others["isError"], true);
    let line = others["content"][0]["text"].as_str().unwrap();
    assert!(
        line.contains("session_in_use") && !line.contains(home.path().to_str().unwrap()),
        "{line}"
    );
    assert_eq!(read["structuredContent"]["total_messages"], 2, "{read}");
    assert_eq!(first.leave().code, Some(0));
    let mut third = Client::offline(&home);
    third.shakes_hands();
    let again = third.call(
        "send_prompt",
        json!({"prompt": "Hello", "conversation_id": "c"}),
    );
    assert_eq!(again["isError"], false, "{again}");
}

#[test]
fn without_a_provider_the_program_says_so_in_one_line_before_any_message() {
    let home = Home::new();

    let left = Client::start(&home, &["--provider", "anthropic"]).leave();

    assert_eq!((left.code, left.out.as_str()), (Some(2), ""), "{left:?}");
    assert!(left.err.contains("ANTHROPIC_API_KEY"), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_pipes_is_served_by_a_running_host_with_a_tenants_key() {
    let home = Home::new();
    let key = Key::new(&home);
    let text = format!(
        "[[provider]]\nkind = \"offline\"\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\n",
        key.hash
    );
    configure(&home, &text);
    let served = Served::start(&home, &[]);
    let url = served.url().to_owned();
    let secret = key.key.clone();
    let run = move || {
        let mut of_client = Home::new();
        let flags = ["--server", &url, "--key-env", "KEY_OF_ACME"];
        let without = Client::start(&of_client, &flags).leave();
        of_client.variables = vec![("KEY_OF_ACME", "cb_not-a-key-of-anyone".to_owned())];
        let mut refused = Client::start(&of_client, &flags);
        let shake = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let answer = refused.ask("initialize", shake);
        let refused = refused.leave();
        of_client.variables = vec![("KEY_OF_ACME", secret)];
        let mut client = Client::start(&of_client, &flags);
        client.shakes_hands();
        let said = client.call(
            "send_prompt",
            json!({"prompt": "Hello", "conversation_id": "by-pipe"}),
        );
        (without, answer, refused, said, client.leave())
    };
    let (without, answer, refused, said, left) = tokio::task::spawn_blocking(run).await.unwrap();

    assert_eq!(without.code, Some(2), "{without:?}");
    assert!(without.err.contains("set KEY_OF_ACME"), "{without:?}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("the host did not take the message"),
        "{message}"
    );
    assert!(!format!("{answer}{refused:?}").contains("cb_not-a-key"));
    assert_eq!(said["structuredContent"]["status"], "completed", "{said}");
    assert_eq!((left.code, left.out.as_str()), (Some(0), ""), "{left:?}");
    let stored = served.get("/v1/conversations/by-pipe", &key.key).await;
    assert_eq!(stored.body["state"], "idle", "{stored:?}");
}
