//! Real clients in separate processes against `callboard serve` and `callboard mock-model`: curl,
//! Chromium, the official clients of OpenAI and Anthropic, an EventSource whose connection is cut repeatedly, an OpenAPI
//! validator, a Prometheus parser, and the packages of `clients/`. Each script of `tests/clients/` prints `ok:` for every
//! promise that it has verified.
//!
//! The clients are in the folder that `CALLBOARD_CLIENTS` names, or else in `target/clients`, where
//! `.ci/run` installs them.

mod editors;
mod mcp;
mod packages;

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use callboard_actors::testing::TestSize;
use serde_json::json;

use super::support::{
    model_server::{ModelServer, Reply, anthropic_text, anthropic_tool},
    scratch, skipped,
};

const KEY: &str = "cb_test-key-of-acme-not-a-real-one";
const ADMIN_KEY: &str = "cb_test-key-of-the-admin-not-a-real-one";

/// A process that prints its address in one of its first lines. Killed when the test ends.
struct Server(Child, String);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .env_remove("CALLBOARD_CLIENTS")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (found, urls) = std::sync::mpsc::channel();
        let streams: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().unwrap()),
            Box::new(child.stderr.take().unwrap()),
        ];
        for stream in streams {
            let found = found.clone();
            // Read all output, or the process would block on a full pipe.
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if let Some(at) = line.find("http://") {
                        let _ = found.send(
                            line[at..]
                                .split_whitespace()
                                .next()
                                .unwrap_or_default()
                                .trim_end_matches('/')
                                .to_owned(),
                        );
                    }
                }
            });
        }
        let url = urls
            .recv_timeout(Duration::from_secs(30))
            .expect("an address in the first lines");
        Self(child, url)
    }
}

pub fn sha256(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A host with one tenant, connected to a mock model that streams forty pieces.
struct Host {
    serve: Server,
    _model: Server,
    _folder: tempfile::TempDir,
}

fn host() -> Host {
    host_with(&["--chunks", "40", "--chunk-delay-ms", "2"], |_| {
        String::new()
    })
}

/// A host with one tenant, connected to a mock model with these flags. `tenant` gives further keys
/// of the tenant, for a folder of its own.
fn host_with(flags: &[&str], tenant: impl Fn(&Path) -> String) -> Host {
    let mut model = Command::new(env!("CARGO_BIN_EXE_callboard"));
    let model = Server::start(
        model
            .args(["mock-model", "--listen", "127.0.0.1:0"])
            .args(flags),
    );
    let provider = format!("kind = \"openai\"\nbase_url = \"{}/v1\"", model.1);
    let (serve, folder) = serve_with(&provider, tenant);
    Host {
        serve,
        _model: model,
        _folder: folder,
    }
}

/// `callboard serve` for one tenant, with this provider.
fn serve(provider: &str) -> (Server, tempfile::TempDir) {
    serve_with(provider, |_| String::new())
}

/// The same, with further keys of the tenant.
fn serve_with(provider: &str, tenant: impl Fn(&Path) -> String) -> (Server, tempfile::TempDir) {
    let folder = scratch();
    std::fs::write(folder.path().join("key"), "sk-test-not-a-real-key").unwrap();
    let config = format!(
        "[host]\nlisten = \"127.0.0.1:0\"\ndata_dir = \"{}\"\nadmin_key_sha256 = \"{}\"\n\n[[provider]]\nname = \"mock\"\n{provider}\nmodel = \"mock\"\n\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nprovider = \"mock\"\n{}",
        folder.path().join("data").display(),
        sha256(ADMIN_KEY),
        sha256(KEY),
        tenant(folder.path()),
    );
    let file = folder.path().join("callboard.toml");
    std::fs::write(&file, config).unwrap();
    let serve = Server::start(
        Command::new(env!("CARGO_BIN_EXE_callboard"))
            .arg("--config")
            .arg(&file)
            .arg("serve")
            .env_remove("CALLBOARD_LOG")
            .env_remove("CALLBOARD_CLIENTS"),
    );
    (serve, folder)
}

/// A model that calls the tool `weather` if it is offered and may be called, and repeats what the
/// tool said.
async fn weather_model() -> ModelServer {
    ModelServer::answering(|request| {
        let last = &request["messages"].as_array().unwrap().last().unwrap()["content"];
        let result = last.as_array().into_iter().flatten().find_map(|block| {
            let text = &block["content"];
            text.as_str().or(text[0]["text"].as_str())
        });
        let tools = request["tools"].as_array().into_iter().flatten();
        let is_offered = tools.into_iter().any(|tool| tool["name"] == "weather")
            && request["tool_choice"]["type"] != "none";
        Reply::events(match result {
            Some(text) => anthropic_text(&format!("The tool says: {text}")),
            None if is_offered => anthropic_tool("weather", &json!({ "city": "Oslo" })),
            None => anthropic_text("I cannot know."),
        })
    })
    .await
}

/// Runs a Python script of `tests/clients/` against a host whose model calls the client's tool.
async fn python_with_tools(test: &str, name: &'static str, package: &str, promises: usize) {
    let modules = packages().join("python");
    if !modules.join(package).is_dir() {
        let reason = format!("the Python package `{package}` is not in target/clients/python");
        return skipped(test, &reason);
    }
    let mut client = script("python3", name);
    client.env("PYTHONPATH", &modules);
    with_tools(client, promises).await;
}

/// Runs a client against a host whose model calls the client's tool.
async fn with_tools(mut client: Command, promises: usize) {
    let model = weather_model().await;
    let provider = format!(
        "kind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"",
        model.url()
    );
    let run = move || {
        let (serve, _folder) = serve(&provider);
        client.args([&serve.1, KEY]);
        keeps(client, promises);
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_openai_client_brings_its_tools() {
    let name = "the_official_openai_client_brings_its_tools";
    python_with_tools(name, "openai_tools.py", "openai", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_openai_client_is_served_responses() {
    let name = "the_official_openai_client_is_served_responses";
    python_with_tools(name, "openai_responses.py", "openai", 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_anthropic_client_is_served() {
    let name = "the_official_anthropic_client_is_served";
    python_with_tools(name, "anthropic_client.py", "anthropic", 6).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_anthropic_client_for_javascript_is_served() {
    let modules = packages().join("node_modules");
    if !modules.join("@anthropic-ai/sdk").is_dir() || !is_there("node") {
        return skipped(
            "the_official_anthropic_client_for_javascript_is_served",
            "node or its package `@anthropic-ai/sdk` is not in target/clients",
        );
    }
    let mut client = script("node", "anthropic_client.mjs");
    client.env("CLIENT_MODULES", &modules);
    with_tools(client, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ai_sdk_does_a_task_over_open_responses() {
    let modules = packages().join("node_modules");
    if !modules.join("@ai-sdk/open-responses").is_dir() || !is_there("node") {
        return skipped(
            "the_ai_sdk_does_a_task_over_open_responses",
            "node or its package `@ai-sdk/open-responses` is not in target/clients",
        );
    }
    let mut client = script("node", "ai_sdk_client.mjs");
    client.env("CLIENT_MODULES", &modules);
    with_tools(client, 3).await;
}

/// A model that writes a file with the tool of Codex that runs commands, and is done when it has the
/// result.
async fn codex_model() -> ModelServer {
    ModelServer::answering(|request| {
        let messages = request["messages"].as_array().unwrap();
        let has_result = messages.iter().any(|message| {
            let blocks = message["content"].as_array().into_iter().flatten();
            blocks
                .into_iter()
                .any(|block| block["type"] == "tool_result")
        });
        let command = "printf 'written by codex' > notes.txt";
        Reply::events(match has_result {
            false => anthropic_tool("exec_command", &json!({ "cmd": command })),
            true => anthropic_text("It is written."),
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_edits_a_file_in_a_folder() {
    let name = "codex_edits_a_file_in_a_folder";
    let codex = packages().join("node_modules/.bin/codex");
    if !codex.is_file() || !is_there("node") {
        return skipped(name, "node or `@openai/codex` is not in target/clients");
    }
    let model = codex_model().await;
    let provider = format!(
        "kind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"",
        model.url()
    );
    let run = move || {
        let (serve, folder) = serve(&provider);
        let work = folder.path().join("work");
        let home = folder.path().join("codex");
        std::fs::create_dir(&work).unwrap();
        std::fs::create_dir(&home).unwrap();
        let provider = format!(
            "model_providers.callboard={{name=\"callboard\",base_url=\"{}/openai/v1\",env_key=\"CALLBOARD_TEST_KEY\",wire_api=\"responses\"}}",
            serve.1
        );
        // Codex's own sandbox needs rights that a container may not give.
        let output = Command::new("timeout")
            .arg("120")
            .arg(&codex)
            .args(["exec", "--skip-git-repo-check", "-s", "danger-full-access"])
            .args([
                "-m",
                "default",
                "-c",
                "model_provider=\"callboard\"",
                "-c",
                &provider,
            ])
            .arg("Write notes.txt.")
            .current_dir(&work)
            .env("CODEX_HOME", &home)
            .env("HOME", &home)
            .env("CALLBOARD_TEST_KEY", KEY)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{log}");
        assert!(said.contains("It is written."), "{said}\n{log}");
        std::fs::read_to_string(work.join("notes.txt")).unwrap()
    };
    let written = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(written, "written by codex");
}

#[tokio::test(flavor = "multi_thread")]
async fn langchain_binds_tools() {
    python_with_tools(
        "langchain_binds_tools",
        "langchain_tools.py",
        "langchain_openai",
        2,
    )
    .await;
}

/// Folder of the clients' packages, which may be missing.
fn packages() -> PathBuf {
    std::env::var_os("CALLBOARD_CLIENTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients"),
        PathBuf::from,
    )
}

/// Runs a client to its end. The client must succeed and verify `promises` promises.
fn keeps(mut client: Command, promises: usize) {
    let output = client.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{client:?}\n{stdout}\n{stderr}");
    assert_eq!(
        stdout
            .lines()
            .filter(|line| line.starts_with("ok: "))
            .count(),
        promises,
        "{stdout}"
    );
}

fn script(program: &str, name: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["240", program]).arg(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/clients")
            .join(name),
    );
    command
}

/// Whether a program is installed.
pub(crate) fn is_there(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

#[test]
fn a_person_with_curl_is_served() {
    if !is_there("curl") {
        return skipped("a_person_with_curl_is_served", "curl is not installed");
    }
    let host = host();

    let mut client = script("bash", "curl.sh");
    client.args([&host.serve.1, KEY]);

    keeps(client, 6);
}

/// A host whose model asks to write a file, and then streams its answer.
fn editing_host() -> Host {
    let edit = r#"{"path":"notes.txt","old_text":"","new_text":"hello\nworld\n"}"#;
    let flags = [
        "--tool-calls=1",
        "--tool=file_edit",
        "--tool-input",
        edit,
        "--chunks=40",
        "--chunk-delay-ms=15",
        "--write-per=event",
    ];
    host_with(&flags, |folder| {
        let workspace = folder.join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        let workspace = workspace.display();
        format!("workspace = \"{workspace}\"\napprove = \"ask\"\n")
    })
}

#[test]
fn a_person_with_a_browser_is_served() {
    let name = "a_person_with_a_browser_is_served";
    if !is_there("chromium") || !is_there("chromedriver") {
        return skipped(name, "chromium or chromedriver is not installed");
    }
    let host = editing_host();

    let mut client = script("python3", "console.py");
    client.args([&host.serve.1, KEY, ADMIN_KEY]);

    keeps(client, 13);
}

#[test]
fn no_page_of_the_console_has_a_serious_fault_of_accessibility() {
    let name = "no_page_of_the_console_has_a_serious_fault_of_accessibility";
    if !is_there("chromium") || !is_there("chromedriver") {
        return skipped(name, "chromium or chromedriver is not installed");
    }
    let axe = packages().join("node_modules/axe-core/axe.min.js");
    if !axe.is_file() {
        return skipped(
            name,
            "the npm package `axe-core` is not in target/clients/node_modules",
        );
    }
    let host = editing_host();

    let mut client = script("python3", "console_axe.py");
    client.args([&host.serve.1, KEY, ADMIN_KEY]).arg(&axe);

    keeps(client, 1);
}

#[test]
fn the_official_openai_client_is_served() {
    let modules = packages().join("python");
    if !modules.join("openai").is_dir() {
        return skipped(
            "the_official_openai_client_is_served",
            "the Python package `openai` is not in target/clients/python",
        );
    }
    let host = host();

    let mut client = script("python3", "openai_client.py");
    client
        .args([&host.serve.1, KEY])
        .env("PYTHONPATH", &modules);

    keeps(client, 7);
}

#[test]
fn an_event_source_that_is_cut_off_misses_nothing() {
    let modules = packages();
    if !modules.join("node_modules/eventsource").is_dir() || !is_there("node") {
        return skipped(
            "an_event_source_that_is_cut_off_misses_nothing",
            "node or its package `eventsource` is not in target/clients",
        );
    }
    let host = host();

    let mut client = script("node", "event_source.mjs");
    client
        .args([&host.serve.1, KEY, "8", "6"])
        .env("CLIENT_MODULES", modules.join("node_modules"));

    keeps(client, 1);
}

#[test]
fn a_program_that_knows_only_the_openapi_document_meets_no_server_error() {
    let modules = packages().join("python");
    if !modules.join("schemathesis").is_dir() {
        let name = "a_program_that_knows_only_the_openapi_document_meets_no_server_error";
        let reason = "the Python package `schemathesis` is not in target/clients/python";
        return skipped(name, reason);
    }
    let host = host_with(&[], |_| String::new());

    let mut client = script("python3", "strangers.py");
    client
        .args([&host.serve.1, KEY])
        .args(std::env::var_os("CALLBOARD_LONG").map(|_| "100"))
        .env("PYTHONPATH", &modules);

    keeps(client, 1);
}

#[test]
fn other_peoples_parsers_read_the_openapi_document_and_the_metrics() {
    let modules = packages().join("python");
    if !modules.join("openapi_spec_validator").is_dir()
        || !modules.join("prometheus_client").is_dir()
    {
        let name = "other_peoples_parsers_read_the_openapi_document_and_the_metrics";
        return skipped(
            name,
            "the Python packages `openapi-spec-validator` and `prometheus-client` are not in target/clients/python",
        );
    }
    let host = host();

    let mut client = script("python3", "contracts.py");
    client
        .args([&host.serve.1, ADMIN_KEY])
        .env("PYTHONPATH", &modules);

    keeps(client, 2);
}

/// Most bytes that the host may grow by in ten minutes of mixed load.
const GROWTH_MAX: i64 = 1 << 20;

/// Half a minute of it takes no measure of memory: caches fill for longer. `CALLBOARD_LONG=1` runs an hour.
#[test]
fn an_hour_of_mixed_load_is_answered_and_leaves_nothing_in_memory() {
    let flags = [
        "--chunks=30",
        "--chunk-delay-ms=20",
        "--tool-calls=1",
        "--tool=think",
        r#"--tool-input={"thought":"hm"}"#,
    ];
    let keys = [KEY, "cb_test-key-of-beta-not-a-real-one"];
    let host = host_with(&flags, |_| {
        let hash = sha256(keys[1]);
        format!(
            "tools = [\"think\"]\n[[tenant]]\nid = \"beta\"\nkey_sha256 = \"{hash}\"\nprovider = \"mock\"\ntools = [\"think\"]\n"
        )
    });
    let seconds = TestSize::pick("5", "15", "3900");

    let mut load = script("python3", "hour.py");
    let ran = load
        .args([&host.serve.1, &host.serve.0.id().to_string(), seconds])
        .args(keys)
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&ran.stdout);
    let log = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}{log}");
    eprintln!("{log}{said}");
    let grown = said.split_once("grew by ").expect("a figure").1;
    let grown: i64 = grown.split(' ').next().unwrap().parse().unwrap();
    if TestSize::is_long() {
        assert!(grown <= GROWTH_MAX, "{grown} bytes in ten minutes");
    }
}
