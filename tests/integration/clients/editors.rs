//! Clients of the Agent Client Protocol, which no one here wrote, start `callboard acp` as an editor
//! does.

use std::{path::Path, process::Stdio};

use serde_json::{Value, json};

use super::{is_there, keeps, packages, script};
use crate::support::{
    model_server::{ModelServer, Reply, Step, anthropic_call, anthropic_text, sse},
    scratch, skipped,
};

/// A model that repeats its prompt, but writes a file for the prompt `edit` and never ends its answer
/// to `wait`.
pub(super) async fn model() -> ModelServer {
    ModelServer::answering(|request| {
        let messages = request["messages"].as_array().unwrap();
        let content = &messages.last().unwrap()["content"];
        let blocks = content.as_array().cloned().unwrap_or_default();
        if blocks.iter().any(|block| block["type"] == "tool_result") {
            return Reply::events(anthropic_text("Done."));
        }
        let texts = blocks.iter().filter_map(|block| block["text"].as_str());
        let said = match content {
            Value::String(text) => text.clone(),
            _ => texts.collect::<Vec<_>>().join("\n"),
        };
        match said.as_str() {
            "edit" => {
                let edit = json!({"path": "notes.txt", "old_text": "", "new_text": "hello\n"});
                let id = format!("call_{}", messages.len());
                Reply::events(anthropic_call(&id, "file_edit", &edit))
            }
            "wait" => {
                let started = &anthropic_text("Working on it")[..3];
                Reply::stream().send(sse(started)).then(Step::Stall)
            }
            said => Reply::events(anthropic_text(said)),
        }
    })
    .await
}

/// A configuration with this model and a folder with a file, in `folder`.
pub(super) fn configured(
    folder: &Path,
    model: &ModelServer,
) -> (std::path::PathBuf, std::path::PathBuf) {
    let work = folder.join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("a.rs"), "fn a() {}\n").unwrap();
    std::fs::write(folder.join("key"), "sk-test-not-a-real-key").unwrap();
    let config = format!(
        "[host]\ndata_dir = \"{}\"\n[sandbox]\nmode = \"none\"\n\n[[provider]]\nname = \"mock\"\nkind = \"anthropic\"\nbase_url = \"{}\"\napi_key_file = \"key\"\nmodel = \"mock\"\n",
        folder.join("data").display(),
        model.url(),
    );
    let file = folder.join("callboard.toml");
    std::fs::write(&file, config).unwrap();
    (file, work)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_acp_client_edits_a_file_and_loads_its_session() {
    let name = "the_official_acp_client_edits_a_file_and_loads_its_session";
    let modules = packages().join("python");
    if !modules.join("acp").is_dir() {
        let reason = "the Python package `agent-client-protocol` is not in target/clients/python";
        return skipped(name, reason);
    }
    let model = model().await;
    let folder = scratch();
    let (config, work) = configured(folder.path(), &model);

    let run = move || {
        let mut client = script("python3", "acp_client.py");
        client
            .arg(env!("CARGO_BIN_EXE_callboard"))
            .arg(config)
            .arg(work)
            .env("PYTHONPATH", &modules)
            .env_remove("CALLBOARD_LOG")
            .env_remove("CALLBOARD_CLIENTS");
        keeps(client, 8);
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn acpx_prompts_the_agent_from_a_shell() {
    let name = "acpx_prompts_the_agent_from_a_shell";
    let acpx = packages().join("node_modules/.bin/acpx");
    if !acpx.is_file() || !is_there("node") {
        return skipped(name, "node or `acpx` is not in target/clients");
    }
    let model = model().await;
    let folder = scratch();
    let (config, work) = configured(folder.path(), &model);

    let run = move || {
        let agent = format!(
            "{} --config {} acp --quiet",
            env!("CARGO_BIN_EXE_callboard"),
            config.display()
        );
        let output = std::process::Command::new("timeout")
            .arg("120")
            .arg(&acpx)
            .args(["--agent", &agent, "--approve-all", "--cwd"])
            .arg(&work)
            .args(["exec", "edit"])
            .env("HOME", work.parent().unwrap())
            .env_remove("CALLBOARD_LOG")
            .env_remove("CALLBOARD_CLIENTS")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{log}");
        assert!(
            said.contains("Create notes.txt") && said.contains("Done."),
            "{said}\n{log}"
        );
        std::fs::read_to_string(work.join("notes.txt")).unwrap()
    };
    let written = tokio::task::spawn_blocking(run).await.unwrap();
    assert_eq!(written, "hello\n");
}
