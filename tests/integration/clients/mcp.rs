//! Clients of the Model Context Protocol, which no one here wrote, use Callboard as a server: `/mcp`
//! of a host, and `callboard mcp serve`.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{
    KEY, Server,
    editors::{configured, model},
    is_there, keeps, packages, script, sha256,
};
use crate::{
    mcp::peers,
    support::{
        model_server::{ModelServer, Reply, anthropic_text, anthropic_tool},
        scratch, skipped,
    },
};

const OTHER_KEY: &str = "cb_test-key-of-zeta-not-a-real-one";

/// A host with two tenants over the model, and the folder of the first one.
fn host(folder: &std::path::Path, model: &str) -> (Server, std::path::PathBuf) {
    let work = folder.join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(folder.join("key"), "sk-test-not-a-real-key").unwrap();
    let config = format!(
        "[host]\nlisten = \"127.0.0.1:0\"\ndata_dir = \"{}\"\n[sandbox]\nmode = \"none\"\n\n[[provider]]\nname = \"mock\"\nkind = \"anthropic\"\nbase_url = \"{model}\"\napi_key_file = \"key\"\nmodel = \"mock\"\n\n[[tenant]]\nid = \"acme\"\nkey_sha256 = \"{}\"\nprovider = \"mock\"\napprove = \"ask\"\nworkspace = \"{}\"\n\n[[tenant]]\nid = \"zeta\"\nkey_sha256 = \"{}\"\nprovider = \"mock\"\n",
        folder.join("data").display(),
        sha256(KEY),
        work.display(),
        sha256(OTHER_KEY),
    );
    let file = folder.join("callboard.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_callboard"));
    command.arg("--config").arg(&file).arg("serve");
    (Server::start(command.env_remove("CALLBOARD_LOG")), work)
}

/// The Python client; `None` if it is missing.
fn python(test: &str) -> Option<Command> {
    let modules = peers().join("python");
    if !modules.join("mcp").is_dir() {
        skipped(test, "the Python package `mcp` is not in target/mcp-peers");
        return None;
    }
    let mut client = script("python3", "mcp_client.py");
    client
        .env("PYTHONPATH", modules)
        .env_remove("CALLBOARD_LOG")
        .env_remove("CALLBOARD_CLIENTS");
    Some(client)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_python_client_of_mcp_uses_a_host() {
    let Some(mut client) = python("the_official_python_client_of_mcp_uses_a_host") else {
        return;
    };
    let model = model().await;
    let folder = scratch();

    let run = move || {
        let (host, work) = host(folder.path(), &model.url());
        client.args(["http", &host.1, KEY, OTHER_KEY]).arg(work);
        keeps(client, 21);
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_python_client_of_mcp_uses_the_program() {
    let Some(mut client) = python("the_official_python_client_of_mcp_uses_the_program") else {
        return;
    };
    let model = model().await;
    let folder = scratch();
    let (config, work) = configured(folder.path(), &model);

    let run = move || {
        client.args(["pipe", env!("CARGO_BIN_EXE_callboard")]);
        client.arg(config).arg(work);
        keeps(client, 22);
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_typescript_client_of_mcp_uses_both() {
    let name = "the_official_typescript_client_of_mcp_uses_both";
    let modules = peers().join("node_modules");
    if !modules.join("@modelcontextprotocol/sdk").is_dir() || !is_there("node") {
        return skipped(name, "node or `@modelcontextprotocol/sdk` is missing");
    }
    let model = model().await;
    let folders = [scratch(), scratch()];

    let run = move || {
        let (config, program_work) = configured(folders[0].path(), &model);
        let (host, host_work) = host(folders[1].path(), &model.url());
        let mut client = script("node", "mcp_client.mjs");
        client.args([&host.1, KEY]).arg(host_work);
        client.arg(env!("CARGO_BIN_EXE_callboard"));
        client.arg(config).arg(program_work);
        client.env("CLIENT_MODULES", &modules);
        client
            .env_remove("CALLBOARD_LOG")
            .env_remove("CALLBOARD_CLIENTS");
        keeps(client, 9);
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

/// A model that looks up the resources of a server if its client has that tool, and repeats what it is
/// given.
async fn curious_model() -> ModelServer {
    ModelServer::answering(|request| {
        let messages = request["messages"].as_array().unwrap();
        let blocks = messages.last().unwrap()["content"].as_array().cloned();
        let results = blocks.unwrap_or_default().into_iter();
        let result = results.rev().find(|block| block["type"] == "tool_result");
        let tools = request["tools"].as_array().into_iter().flatten();
        let tool = "list_mcp_resources";
        let has_tool = tools.into_iter().any(|known| known["name"] == tool);
        Reply::events(match (result, has_tool) {
            (Some(result), _) => anthropic_text(&result["content"].to_string()),
            (None, true) => anthropic_tool(tool, &json!({ "server": "callboard" })),
            (None, false) => anthropic_text("Nothing."),
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_finds_the_conversations_of_a_host() {
    let name = "codex_finds_the_conversations_of_a_host";
    let codex = packages().join("node_modules/.bin/codex");
    if !codex.is_file() || !is_there("node") {
        return skipped(name, "node or `@openai/codex` is not in target/clients");
    }
    let model = curious_model().await;
    let folder = scratch();
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    let url = model.url();
    let (host, work, folder) = tokio::task::spawn_blocking(move || {
        let (host, work) = host(folder.path(), &url);
        (host, work, folder)
    })
    .await
    .unwrap();
    let path = format!("{}/v1/conversations/found-by-codex/messages", host.1);
    let prompt = client.post(path).bearer_auth(KEY);
    let prompt = prompt.header("content-type", "application/json");
    let sent = prompt.body(r#"{"content":"Hello"}"#).send().await.unwrap();
    assert!(sent.status().is_success());

    let run = move || {
        let home = folder.path().join("codex");
        std::fs::create_dir(&home).unwrap();
        let provider = format!(
            "model_providers.callboard={{name=\"callboard\",base_url=\"{0}/openai/v1\",env_key=\"CALLBOARD_TEST_KEY\",wire_api=\"responses\"}}",
            host.1
        );
        let server = format!(
            "mcp_servers.callboard={{url=\"{}/mcp\",bearer_token_env_var=\"CALLBOARD_TEST_KEY\"}}",
            host.1
        );
        let output = Command::new("timeout")
            .arg("120")
            .arg(&codex)
            .args(["exec", "--skip-git-repo-check", "-s", "danger-full-access"])
            .args(["-m", "default", "-c", "model_provider=\"callboard\""])
            .args(["-c", &provider, "-c", &server])
            .arg("What is there?")
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
        said
    };
    let said = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(
        said.contains("callboard://conversations/found-by-codex"),
        "{said}"
    );
}

/// The code blocks of a language in the page.
fn blocks(language: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/mcp.md");
    let page = std::fs::read_to_string(page).unwrap();
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

/// The servers that a configuration names, under whichever key its client wants them.
fn servers(config: &Value, found: &mut Vec<Value>) {
    for value in config
        .as_object()
        .into_iter()
        .flat_map(|fields| fields.values())
    {
        match value.get("command").or(value.get("url")) {
            Some(_) => found.push(value.clone()),
            None => servers(value, found),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_configuration_of_the_page_reaches_a_server() {
    let model = model().await;
    let folder = scratch();
    let (host, work) = {
        let url = model.url();
        let folder = folder.path().to_owned();
        tokio::task::spawn_blocking(move || host(&folder, &url))
            .await
            .unwrap()
    };
    let mut found = Vec::new();
    for block in blocks("json") {
        servers(&serde_json::from_str(&block).unwrap(), &mut found);
    }
    let commands = found.iter().filter(|server| server["command"].is_string());
    let urls = found.iter().filter(|server| server["url"].is_string());
    assert!(commands.clone().count() >= 2 && urls.clone().count() >= 2);

    let list = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"page","version":"1"}}}"#;
    for server in commands {
        assert_eq!(server["command"], "callboard", "{server}");
        let args = server["args"].as_array().unwrap().iter();
        let args = args.map(|arg| match arg.as_str().unwrap() {
            "/path/of/the/project" => work.to_str().unwrap().to_owned(),
            arg => arg.to_owned(),
        });
        let mut child = Command::new(env!("CARGO_BIN_EXE_callboard"))
            .args(args)
            .env("HOME", folder.path())
            .env_remove("CALLBOARD_CLIENTS")
            .env("CALLBOARD_HOST__DATA_DIR", folder.path().join("pipes"))
            .env("ANTHROPIC_API_KEY", "sk-test-not-a-real-key")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, format!("{list}\n").as_bytes()).unwrap();
        let mut line = String::new();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success(), "{server}");
        assert!(line.contains("\"name\":\"callboard\""), "{server}: {line}");
    }
    let client = callboard::tls::client_builder().unwrap().build().unwrap();
    for server in urls {
        let url = server["url"].as_str().unwrap();
        let header = server["headers"]["Authorization"].as_str().unwrap();
        let (scheme, _) = header.split_once(' ').unwrap();
        let answer = client
            .post(url.replace("http://127.0.0.1:8787", &host.1))
            .header("authorization", format!("{scheme} {KEY}"))
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(list)
            .send()
            .await
            .unwrap();
        let text = answer.text().await.unwrap();
        assert!(text.contains("\"name\":\"callboard\""), "{server}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_the_page_for_curl_is_answered() {
    let name = "the_command_of_the_page_for_curl_is_answered";
    if !is_there("curl") {
        return skipped(name, "curl is not installed");
    }
    let model = model().await;
    let folder = scratch();
    let run = move || {
        let (host, _work) = host(folder.path(), &model.url());
        let [command] = &blocks("sh")[..] else {
            panic!("the page has one command for curl");
        };
        let command = command.replace("http://127.0.0.1:8787", &host.1);
        let output = Command::new("bash")
            .args(["-c", &command])
            .env("CALLBOARD_KEY", KEY)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let said = tokio::task::spawn_blocking(run).await.unwrap();
    assert!(said.contains("\"status\":\"completed\""), "{said}");
}

#[test]
fn every_command_of_the_page_is_accepted() {
    let codex = packages().join("node_modules/.bin/codex");
    let has_codex = codex.is_file() && is_there("node");
    if !has_codex {
        skipped(
            "every_command_of_the_page_is_accepted",
            "node or `@openai/codex` is not in target/clients",
        );
    }
    let home = scratch();
    let blocks = blocks("console");
    let lines = blocks.iter().flat_map(|block| block.lines());
    for command in lines.filter_map(|line| line.strip_prefix("$ ")) {
        if let Some((_, own)) = command.split_once(" -- callboard ") {
            let mut program = Command::new(env!("CARGO_BIN_EXE_callboard"));
            let output = program.args(own.split_whitespace()).arg("--help").output();
            assert!(output.unwrap().status.success(), "{command}");
        } else {
            assert!(command.contains("http://127.0.0.1:8787/mcp"), "{command}");
        }
        if let Some(rest) = command.strip_prefix("codex ").filter(|_| has_codex) {
            let mut client = Command::new("timeout");
            client.arg("60").arg(&codex).args(rest.split_whitespace());
            client
                .env("HOME", home.path())
                .env("CODEX_HOME", home.path());
            let output = client.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command}: {said}");
        }
    }
    if has_codex {
        let written = std::fs::read_to_string(home.path().join("config.toml")).unwrap();
        assert!(
            written.contains("[mcp_servers.callboard-host]"),
            "{written}"
        );
    }
}
