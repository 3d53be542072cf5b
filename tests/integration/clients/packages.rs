//! The clients of `clients/`: each script builds the package, drives it over a proxy that cuts connections, kills and starts the host, and
//! compares what the client uses with the OpenAPI document.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use super::{KEY, Server, is_there, keeps, packages, scratch, script, sha256, skipped};

const EDITOR_KEY: &str = "cb_test-key-of-the-editor-not-a-real-one";

/// Models of two tenants, and a configuration for hosts that a script starts.
struct Setup {
    config: PathBuf,
    _models: [Server; 2],
    _folder: tempfile::TempDir,
}

/// The first tenant's model calls the first tool that it is offered and streams its answer in pieces.
/// That of the second tenant edits a file, which needs an approval.
fn setup() -> Setup {
    let edit = r#"{"path":"notes.txt","old_text":"","new_text":"hello\n"}"#;
    // Characters of several bytes, which a cut divides, and one that is a line break to some languages.
    let pieces = [
        "--tool-calls=1",
        "--text=Zürich\u{2028}",
        "--chunks=60",
        "--chunk-delay-ms=20",
        "--write-per=event",
    ];
    let edits = [
        "--tool-calls=1",
        "--tool=file_edit",
        "--tool-input",
        edit,
        "--chunks=4",
    ];
    let [pieces, edits] = [&pieces[..], &edits[..]].map(|flags| {
        let mut model = Command::new(env!("CARGO_BIN_EXE_callboard"));
        Server::start(
            model
                .args(["mock-model", "--listen", "127.0.0.1:0"])
                .args(flags),
        )
    });
    let folder = scratch();
    let workspace = folder.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    let providers = [("pieces", &pieces.1), ("edits", &edits.1)].map(|(name, url)| {
        format!("[[provider]]\nname = \"{name}\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\nmodel = \"mock\"\n")
    });
    let tenants = [
        (KEY, "pieces", "tools = []".to_owned()),
        (
            EDITOR_KEY,
            "edits",
            format!(
                "workspace = \"{}\"\napprove = \"ask\"",
                workspace.display()
            ),
        ),
    ]
    .map(|(key, provider, more)| {
        let key = sha256(key);
        format!("[[tenant]]\nid = \"of-{provider}\"\nkey_sha256 = \"{key}\"\nprovider = \"{provider}\"\n{more}\n")
    });
    let host = format!(
        "[host]\nlisten = \"127.0.0.1:0\"\ndata_dir = \"{}\"\n",
        folder.path().join("data").display()
    );
    let config = folder.path().join("callboard.toml");
    std::fs::write(&config, host + &providers.concat() + &tenants.concat()).unwrap();
    Setup {
        config,
        _models: [pieces, edits],
        _folder: folder,
    }
}

fn drives(mut client: Command, sources: &str) {
    let setup = setup();
    client
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("clients")
                .join(sources),
        )
        .arg(env!("CARGO_BIN_EXE_callboard"))
        .arg(&setup.config)
        .args([KEY, EDITOR_KEY])
        .env_remove("CALLBOARD_CLIENTS")
        .env_remove("CALLBOARD_LOG");
    keeps(client, if sources == "python" { 10 } else { 9 });
}

#[test]
fn the_python_client_loses_nothing_and_sends_once() {
    let modules = packages().join("python");
    if !modules.join("mypy").is_dir() || !modules.join("flit_core").is_dir() {
        let reason = "the Python packages `mypy` and `flit-core` are not in target/clients/python";
        return skipped("the_python_client_loses_nothing_and_sends_once", reason);
    }
    let mut client = script("python3", "python_client.py");
    client.env("PYTHONPATH", &modules);
    drives(client, "python");
}

#[test]
fn the_typescript_client_loses_nothing_and_sends_once() {
    let modules = packages().join("node_modules");
    if !modules.join("typescript").is_dir() || !is_there("node") || !is_there("npm") {
        let reason = "node, npm or the package `typescript` is not in target/clients";
        return skipped("the_typescript_client_loses_nothing_and_sends_once", reason);
    }
    let mut client = script("node", "typescript_client.mjs");
    client.env("CLIENT_MODULES", &modules);
    drives(client, "typescript");
}
