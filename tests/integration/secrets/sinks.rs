//! A complete `callboard serve` with untrusted provider, files, tools and watchers: every key that
//! the host knows or sees is in its inputs, and none is in its outputs.

use reqwest::Method;
use serde_json::json;

use super::{KEY, files, forms, holds_none};
use crate::{
    cli::{
        Home,
        serve::{Key, Served, configure},
        wait_for,
    },
    observe::collector::Collector,
    support::model_server::{ModelServer, Reply, anthropic_text, anthropic_tool, sse},
};

const WEB_KEY: &str = "plain-word-web-not-real";
const OTLP_KEY: &str = "plain-word-otlp-not-real";
const MCP_KEY: &str = "plain-word-mcp-not-real";

/// An answer that repeats a key, split in the middle of it.
fn repeats(text: &str, key: &str) -> Reply {
    let (begin, end) = key.split_at(key.len() / 2);
    let mut events = anthropic_text(&format!("{text} {begin}"));
    events.insert(
        3,
        anthropic_text(&format!("{end} is what I was given")).remove(2),
    );
    Reply::stream()
        .send(sse(&events[..3]))
        .send(sse(&events[3..]))
}

/// The keys in every form, as a file of the workspace may contain them.
fn planted(keys: &[&str]) -> String {
    keys.iter()
        .flat_map(|key| forms(key))
        .map(|form| format!("key: {form} end\n"))
        .collect()
}

/// Outputs: the name and the bytes of each.
type Sinks = Vec<(&'static str, Vec<u8>)>;

async fn of_serve(format: &str) {
    let mut home = Home::new();
    let collector = Collector::start().await;
    let admin = Key::new(&home);
    let acme = Key::new(&home);
    let keys = [KEY, WEB_KEY, OTLP_KEY, MCP_KEY, &admin.key, &acme.key];
    let workspace = home.path().join("of-acme");
    std::fs::create_dir(&workspace).unwrap();
    std::fs::write(workspace.join("keys.txt"), planted(&keys)).unwrap();
    let refused = |status, message: String| {
        Reply::json(
            status,
            &json!({ "error": { "type": "invalid_request_error", "message": message } })
                .to_string(),
        )
    };
    let long = format!("{} {KEY}", "x".repeat(500 - KEY.len() / 2));
    let model = ModelServer::start([
        Reply::events(anthropic_tool("file_read", &json!({ "path": "keys.txt" }))),
        repeats("I have read it.", WEB_KEY),
        refused(400, format!("the key {KEY} cannot do that, nor {WEB_KEY}, nor {MCP_KEY}, nor {}", json!(OTLP_KEY))),
        refused(401, long),
        Reply::stream()
            .send(sse([json!({ "type": "error", "error": { "type": "api_error", "message": format!("lost {KEY}") } }).to_string()])),
        refused(400, format!("the key {KEY} cannot do that either, {MCP_KEY} neither")),
    ])
    .await;
    home.variables = vec![
        ("MAIN_KEY", KEY.to_owned()),
        ("TAVILY_API_KEY", WEB_KEY.to_owned()),
        ("WIKI_TOKEN", MCP_KEY.to_owned()),
    ];
    configure(
        &home,
        &format!(
            "[host]\nadmin_key_sha256 = \"{}\"\n\
             [[provider]]\nname = \"main\"\nkind = \"anthropic\"\nbase_url = \"{}\"\nmodel = \"m\"\napi_key_env = \"MAIN_KEY\"\n\
             [[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nworkspace = {:?}\n\
             [[mcp]]\nname = \"wiki\"\nurl = \"https://wiki.invalid/mcp\"\nheaders = {{ Authorization = \"Bearer ${{WIKI_TOKEN}}\" }}\n\
             [observability]\nlog_level = \"DEBUG\"\nlog_format = \"{format}\"\nlog_output = [\"stderr\", \"file\"]\n\
             otlp_endpoint = \"{}\"\notlp_headers = {{ authorization = \"Bearer {OTLP_KEY}\" }}\ntrace_sampling = \"always\"\n",
            admin.hash,
            model.url(),
            acme.hash,
            workspace,
            collector.endpoint,
        ),
    );
    let served = Served::with(
        &home,
        &["--log", "trace", "serve", "--listen", "127.0.0.1:0"],
    );
    let mut sinks: Sinks = Vec::new();
    let say = json!({ "content": "go" });

    let answers = [
        ("an answer", served.text(Method::POST, "/v1/conversations/c/messages", &acme.key, Some(say.clone()), &[]).await),
        ("a refused round", served.text(Method::POST, "/v1/conversations/c/messages", &acme.key, Some(say.clone()), &[]).await),
        (
            "events of a refused round",
            served
                .text(Method::POST, "/v1/conversations/c/messages", &acme.key, Some(say.clone()), &[("accept", "text/event-stream")])
                .await,
        ),
        (
            "events of a broken round",
            served
                .text(
                    Method::POST,
                    "/v1/conversations/d/messages",
                    &acme.key,
                    Some(json!({ "content": "go" })),
                    &[("accept", "text/event-stream")],
                )
                .await,
        ),
        (
            "the door",
            served
                .text(
                    Method::POST,
                    "/openai/v1/chat/completions",
                    &acme.key,
                    Some(json!({ "model": "default", "messages": [{ "role": "user", "content": "hi" }] })),
                    &[],
                )
                .await,
        ),
        (
            "a problem",
            served
                .text(Method::POST, "/v1/conversations/c/messages", &acme.key, Some(json!({ "content": "x", acme.key.clone(): 1 })), &[])
                .await,
        ),
        ("a problem of a path", served.text(Method::GET, &format!("/v1/conversations/{}", acme.key), &acme.key, None, &[]).await),
        ("messages", served.text(Method::GET, "/v1/conversations/c/messages", &acme.key, None, &[]).await),
        ("how it stands", served.text(Method::GET, "/v1/conversations/c", &acme.key, None, &[]).await),
        ("figures", served.text(Method::GET, "/metrics", &admin.key, None, &[]).await),
        ("figures of a tenant", served.text(Method::GET, "/v1/metrics", &acme.key, None, &[]).await),
        (
            "a problem of the operator",
            served.text(Method::PUT, "/v1/admin/tenants/beta", &admin.key, Some(json!({ admin.key.clone(): 1 })), &[]).await,
        ),
    ];
    assert!(
        answers[0]
            .1
            .contains("I have read it. [masked:1] is what I was given"),
        "{}",
        answers[0].1
    );
    assert!(
        answers[1].1.contains("cannot do that, nor [masked:"),
        "{}",
        answers[1].1
    );
    assert!(
        answers[7].1.contains("[masked:"),
        "the file was read: {}",
        answers[7].1
    );
    sinks.extend(
        answers
            .into_iter()
            .map(|(what, text)| (what, text.into_bytes())),
    );
    served.signal("HUP");
    served.wait_for_log("reloaded");
    let ran = served.stop();
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    sinks.push(("standard error", ran.err.into_bytes()));
    sinks.push(("standard output", ran.out.into_bytes()));

    for (what, args) in [
        ("config show", &["config", "show"][..]),
        ("config check", &["config", "check"]),
        ("doctor", &["doctor", "--json"]),
        ("doctor for people", &["doctor"]),
    ] {
        let ran = home.run(args);
        sinks.push((what, [ran.out, ran.err].concat().into_bytes()));
    }
    wait_for("spans", || collector.requests() > 0);
    for form in keys.iter().flat_map(|key| forms(key)) {
        assert!(!collector.holds(&form), "OTLP holds {form}");
    }
    let (spans, _) = collector.spans();
    assert!(
        spans
            .iter()
            .any(|span| span.name == "execute_tool file_read"),
        "{spans:?}"
    );
    for (what, bytes) in &sinks {
        holds_none(what, bytes, &keys);
    }
    let data = files(&home.path().join("home/.local/share/callboard"));
    assert!(
        data.iter()
            .any(|(name, bytes)| name.ends_with("callboard.log") && !bytes.is_empty()),
        "there is a log file"
    );
    assert!(
        data.iter()
            .any(|(name, bytes)| name.ends_with(".db") && bytes.len() > 4096),
        "there is a store"
    );
    for (name, bytes) in &data {
        holds_none(name, bytes, &keys);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_serves_shows_no_key_in_any_answer_event_figure_trace_file_or_json_log() {
    of_serve("json").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_with_logs_for_people() {
    of_serve("text").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_shows_no_key_of_a_tool_an_mcp_server_or_a_provider_in_what_it_prints_stores_and_exports()
 {
    let mut home = Home::new();
    home.variables = vec![
        ("MAIN_KEY", KEY.to_owned()),
        ("TAVILY_API_KEY", WEB_KEY.to_owned()),
    ];
    let keys = [KEY, WEB_KEY];
    std::fs::write(home.work().join("keys.txt"), planted(&keys)).unwrap();
    std::fs::write(home.path().join("printed.txt"), planted(&keys)).unwrap();
    let model = ModelServer::start([
        Reply::events(anthropic_tool("file_read", &json!({ "path": "keys.txt" }))),
        Reply::events(anthropic_text("I have read it.")),
        Reply::json(
            400,
            &json!({ "error": { "message": format!("the key {KEY} cannot do that") } }).to_string(),
        ),
    ])
    .await;
    configure(
        &home,
        &format!(
            "[[provider]]\nname = \"main\"\nkind = \"anthropic\"\nbase_url = \"{}\"\nmodel = \"m\"\napi_key_env = \"MAIN_KEY\"\n",
            model.url()
        ),
    );
    let file = home.path().join("printed.txt");
    let server = json!({ "mcpServers": { "talks": { "command": "sh", "args": ["-c", format!("cat '{}' >&2; exit 1", file.display())] } } });
    std::fs::write(home.path().join("mcp.json"), server.to_string()).unwrap();
    let mcp = home.path().join("mcp.json");

    let well = home.run(&[
        "--log",
        "trace",
        "run",
        "--session",
        "c",
        "--mcp",
        mcp.to_str().unwrap(),
        "--json",
        "read it",
    ]);
    let failed = home.run(&["--log", "trace", "run", "--session", "c", "--json", "again"]);
    let exported = home.run(&["sessions", "export", "c"]).well();
    let shown = home.run(&["sessions", "show", "c"]);
    let called = home.run(&[
        "--log",
        "trace",
        "tools",
        "call",
        "file_read",
        "{\"path\": \"keys.txt\"}",
    ]);

    assert!(
        well.out.contains("[masked:") && well.err.contains("standard error of an MCP server"),
        "{well:?}"
    );
    assert!(
        failed.code == Some(1) && failed.out.contains("***"),
        "{failed:?}"
    );
    assert!(
        exported.out.contains("[masked:") && called.out.contains("[masked:"),
        "{exported:?} {called:?}"
    );
    for (what, ran) in [
        ("run", well),
        ("a failed run", failed),
        ("export", exported),
        ("show", shown),
        ("tools call", called),
    ] {
        holds_none(what, [ran.out, ran.err].concat().as_bytes(), &keys);
    }
    for (name, bytes) in files(&home.path().join("home/.local/share/callboard")) {
        holds_none(&name, &bytes, &keys);
    }
}

/// A span for a call that belongs to no round.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_tool_without_a_model_is_a_trace_of_its_own() {
    let home = Home::new();
    let collector = Collector::start().await;
    configure(
        &home,
        &format!(
            "[observability]\notlp_endpoint = \"{}\"\ntrace_sampling = \"always\"\n",
            collector.endpoint
        ),
    );

    home.run(&["tools", "call", "file_read", "{\"path\": \"src/retry.rs\"}"])
        .well();

    wait_for("the span", || collector.requests() > 0);
    let (spans, _) = collector.spans();
    let [call] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(
        (call.name.as_str(), call.parent_span_id.is_empty()),
        ("execute_tool file_read", true)
    );
}
