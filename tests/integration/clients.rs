//! Real clients in separate processes against `callboard serve` and `callboard mock-model`: curl,
//! Chromium, the official OpenAI client, an EventSource whose connection is cut repeatedly, an OpenAPI
//! validator and a Prometheus parser. Each script of `tests/clients/` prints `ok:` for every
//! promise that it has verified.
//!
//! The clients are in the folder that `CALLBOARD_CLIENTS` names, or else in `target/clients`, where
//! `.ci/run` installs them.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::support::{scratch, skipped};

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

fn sha256(text: &str) -> String {
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
    let folder = scratch();
    let binary = env!("CARGO_BIN_EXE_callboard");
    let mut model = Command::new(binary);
    let model = Server::start(
        model
            .args(["mock-model", "--listen", "127.0.0.1:0"])
            .args(flags),
    );
    let config = format!(
        "[host]\nlisten = \"127.0.0.1:0\"\ndata_dir = \"{}\"\nadmin_key_sha256 = \"{}\"\n\n[[provider]]\nname = \"mock\"\nkind = \"openai\"\nbase_url = \"{}/v1\"\nmodel = \"mock\"\n\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nprovider = \"mock\"\n{}",
        folder.path().join("data").display(),
        sha256(ADMIN_KEY),
        model.1,
        sha256(KEY),
        tenant(folder.path()),
    );
    let file = folder.path().join("callboard.toml");
    std::fs::write(&file, config).unwrap();
    let serve = Server::start(
        Command::new(binary)
            .arg("--config")
            .arg(&file)
            .arg("serve")
            .env_remove("CALLBOARD_LOG")
            .env_remove("CALLBOARD_CLIENTS"),
    );
    Host {
        serve,
        _model: model,
        _folder: folder,
    }
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
    command.args(["120", program]).arg(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/clients")
            .join(name),
    );
    command
}

fn is_there(program: &str) -> bool {
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

#[test]
fn a_person_with_a_browser_is_served() {
    let name = "a_person_with_a_browser_is_served";
    if !is_there("chromium") || !is_there("chromedriver") {
        return skipped(name, "chromium or chromedriver is not installed");
    }
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
    let host = host_with(&flags, |folder| {
        let workspace = folder.join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        let workspace = workspace.display();
        format!("workspace = \"{workspace}\"\napprove = \"ask\"\n")
    });

    let mut client = script("python3", "console.py");
    client.args([&host.serve.1, KEY, ADMIN_KEY]);

    keeps(client, 9);
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

    keeps(client, 8);
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
