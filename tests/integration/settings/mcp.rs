//! `[[mcp]]`: how a server is started or reached, and which of its tools are offered.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Home, Key, Ran, Served, call, configure, home, home_with};
use crate::support::model_server::{ModelServer, Reply, anthropic_call, anthropic_text};

const PEER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/integration/support/mcp_peer.py"
);

/// The section of a server that behaves in this mode and keeps its notes in its folder.
fn peer(mode: &str, more: &str) -> String {
    format!(
        "[[mcp]]\nname = \"peer\"\ncommand = \"python3\"\nargs = [{PEER:?}, \"{mode}\", \".\"]\ncwd = \"../notes\"\n{more}\n"
    )
}

fn with(mode: &str, more: &str) -> Home {
    let home = home(&format!(
        "[tools]\napprove = \"auto\"\n{}",
        peer(mode, more)
    ));
    std::fs::create_dir(home.path().join("notes")).unwrap();
    home
}

/// The server's tools that are offered.
fn offered(home: &Home) -> (Vec<String>, Ran) {
    let listed = home.run(&["tools", "list", "--json"]);
    let tools = listed.json();
    let names = tools.as_array().unwrap().iter();
    let names = names
        .filter_map(|tool| Some((tool["name"].as_str()?, &tool["source"])))
        .filter(|(name, _)| name.starts_with("peer__"))
        .map(|(name, source)| {
            assert_eq!(*source, serde_json::json!({"mcp": "peer"}), "{name}");
            name.to_owned()
        })
        .collect();
    (names, listed)
}

#[test]
fn a_server_starts_where_it_finds_no_program_of_the_folder_in_which_callboard_runs() {
    let section = |cwd: &str| {
        format!(
            "[[mcp]]\nname = \"peer\"\ncommand = \"python3\"\nargs = [\"-m\", \"planted\"]\nstart_timeout_ms = 10000\n{cwd}\n"
        )
    };
    let planted = |home: &Home| {
        let mark = home.path().join("mark");
        std::fs::create_dir(home.work().join("planted")).unwrap();
        let program = format!("open({mark:?}, 'w')\n");
        std::fs::write(home.work().join("planted/__main__.py"), program).unwrap();
        mark
    };
    for command in [
        &["tools", "list"][..],
        &["mcp", "list"],
        &["run", "hello", "--provider", "offline"],
    ] {
        let apart = home(&section(""));
        let mark = planted(&apart);
        apart.run(command);
        assert!(!mark.exists(), "{command:?}");
        let chosen = home(&section("cwd = \"${workspace}\""));
        let mark = planted(&chosen);
        chosen.run(command);
        assert!(mark.exists(), "{command:?}");
    }
}

#[test]
fn a_server_is_started_as_its_section_says() {
    let mut home = with(
        "plain",
        "env = { CHOSEN = \"one\", MADE = \"of ${GIVEN}\" }\nenv_from = [\"PASSED_ON\"]",
    );
    home.variables.push(("GIVEN", "two".to_owned()));
    home.variables.push(("PASSED_ON", "three".to_owned()));

    let ran = call(&home, "peer__environment", &json!({})).well().json();

    let seen: Value = serde_json::from_str(ran["observation"].as_str().unwrap()).unwrap();
    let seen = &seen["environment"];
    // The value of a passed variable may be a key, so it is masked.
    assert_eq!([&seen["CHOSEN"], &seen["MADE"]], ["one", "of two"]);
    assert!(
        seen["PASSED_ON"].is_string() && seen["GIVEN"].is_null(),
        "{seen}"
    );
    assert!(home.path().join("notes/starts").is_file());
}

#[test]
fn the_tools_of_a_server_are_those_that_its_section_names() {
    assert!(offered(&with("plain", "")).0.len() > 10);
    assert_eq!(
        offered(&with("plain", "tools = [\"echo\"]")).0,
        ["peer__echo"]
    );
    assert_eq!(offered(&with("plain", "tools_max = 2")).0.len(), 2);
}

#[test]
fn calls_of_a_server_need_approval_as_its_section_trusts_it() {
    let echo = |trust: &str| {
        let home = home(&format!(
            "[tools]\napprove = \"deny\"\n{}",
            peer("plain", trust)
        ));
        std::fs::create_dir(home.path().join("notes")).unwrap();
        call(&home, "peer__echo", &json!({"text": "hi"})).json()
    };

    assert_eq!(echo("trust = \"none\"")["error_code"], "APPROVAL_DENIED");
    assert_eq!(echo("trust = \"annotations\"")["observation"], "hi");
}

/// By default a call is waited for two minutes, a start one minute, and a reply in the newer
/// protocol five seconds.
#[test]
fn a_server_is_waited_for_as_long_as_its_section_says() {
    let timed = |what: &dyn Fn()| {
        let begun = Instant::now();
        what();
        begun.elapsed()
    };

    let call_ended = timed(&|| {
        let ran = call(&with("plain", "timeout_ms = 300"), "peer__slow", &json!({}));
        let called = ran.json();
        assert_eq!(called["error_code"], "TIMEOUT", "{ran:?}");
        assert_eq!(called["should_retry"], true, "{ran:?}");
    });
    let start_ended = timed(&|| {
        let (names, ran) = offered(&with("mute", "start_timeout_ms = 300"));
        assert!(names.is_empty() && ran.err.contains("peer"), "{ran:?}");
    });
    let older = timed(&|| assert!(!offered(&with("silent", "probe_ms = 200")).0.is_empty()));

    assert!(call_ended < Duration::from_secs(20), "{call_ended:?}");
    assert!(start_ended < Duration::from_secs(20), "{start_ended:?}");
    assert!(older < Duration::from_millis(4500), "{older:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_used_is_stopped_after_idle_ms() {
    let echo = |id: &str| anthropic_call(id, "peer__echo", &json!({"text": id}));
    let model = ModelServer::start([
        Reply::events(echo("a")),
        Reply::events(echo("b")).delay(Duration::from_millis(1500)),
        Reply::events(anthropic_text("Done.")),
    ])
    .await;
    let home = home_with(
        &model,
        &format!(
            "[tools]\napprove = \"auto\"\n{}",
            peer("plain", "idle_ms = 200")
        ),
    );
    std::fs::create_dir(home.path().join("notes")).unwrap();

    home.run(&["run", "go"]).well();

    let starts = std::fs::read_to_string(home.path().join("notes/starts")).unwrap();
    assert!(starts.lines().count() >= 2, "{starts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_an_address_is_reached_with_its_headers_if_it_may_be_private() {
    let server = ModelServer::answering(|body| {
        let id = &body["id"];
        let result = match body["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "far", "version": "1"}
            }),
            Some("tools/list") => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
            Some(method) if method.starts_with("notifications/") => return Reply::status(202),
            _ => {
                let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}});
                return Reply::json(200, &error.to_string());
            }
        };
        Reply::json(200, &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    })
    .await;
    let section = |more: &str| {
        home(&format!(
            "[[mcp]]\nname = \"peer\"\nurl = \"{}/mcp\"\nheaders = {{ x-team = \"blue\" }}\n{more}\n",
            server.url()
        ))
    };

    let (refused, _) = offered(&section(""));
    assert_eq!((refused.len(), server.requests().len()), (0, 0));
    let (reached, ran) = offered(&section("allow_private = true"));

    assert_eq!(reached, ["peer__echo"], "{ran:?}");
    let asked = server.requests();
    assert!(asked[0].line.starts_with("POST /mcp"), "{}", asked[0].line);
    assert!(
        asked
            .iter()
            .all(|asked| asked.header("x-team") == Some("blue"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_of_a_server_with_an_address_ends_with_a_run_and_with_serve() {
    let server = ModelServer::answering(|body| {
        let result = match body["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "far", "version": "1"}
            }),
            Some("tools/list") => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
            Some("server/discover") => return Reply::status(404),
            Some(_) => return Reply::status(202),
            None => return Reply::status(405), // The stream of the server's own messages, and DELETE.
        };
        let answer = json!({"jsonrpc": "2.0", "id": body["id"], "result": result});
        Reply::json(200, &answer.to_string()).header("mcp-session-id", "s1")
    })
    .await;
    let home = Home::new();
    let key = Key::new(&home);
    let settings = format!(
        "[[provider]]\nkind = \"offline\"\n\
         [[mcp]]\nname = \"peer\"\nurl = \"{}/mcp\"\nallow_private = true\n\
         [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\ntools = [\"peer__echo\"]\n",
        server.url(),
        key.hash
    );
    configure(&home, &settings);
    let ended = || {
        let asked = server.requests();
        let ends = asked.iter().filter(|asked| asked.line == "DELETE /mcp");
        ends.filter(|asked| asked.header("mcp-session-id") == Some("s1"))
            .count()
    };

    home.run(&["run", "hello"]).well();
    assert_eq!(ended(), 1);
    let served = Served::start(&home, &[]);
    assert_eq!(ended(), 1);
    served.stop();

    assert_eq!(ended(), 2);
}
