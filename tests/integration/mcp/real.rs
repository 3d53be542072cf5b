//! The reference servers from npm and PyPI.

use std::{
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use callboard::{
    mcp::{Era, McpServerConfig, McpTransport},
    ports::McpClient as _,
};
use tokio_util::sync::CancellationToken;

use super::{Stage, call, peers, run, until, wait, writeln};

/// The script of an npm package; if it is missing, prints SKIPPED and returns `None`.
fn npm(test: &str, package: &str) -> Option<PathBuf> {
    let path = peers()
        .join("node_modules/@modelcontextprotocol")
        .join(package)
        .join("dist/index.js");
    let node = Command::new("node")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if node && path.is_file() {
        return Some(path);
    }
    writeln(&format!(
        "SKIPPED: {test}: node or {package} is not in {}",
        peers().display()
    ));
    None
}

#[tokio::test]
async fn server_everything_over_stdio_lists_calls_and_reports_progress() {
    let Some(script) = npm(
        "server_everything_over_stdio_lists_calls_and_reports_progress",
        "server-everything",
    ) else {
        return;
    };
    let stage = Stage::new();
    let config = McpServerConfig::stdio("everything", "node", [script.to_str().unwrap(), "stdio"]);
    let start = Instant::now();

    let (tools, notes) = stage.tools(&config).await;

    writeln(&format!(
        "note: server-everything over stdio was there in {:?} with {} tools",
        start.elapsed(),
        tools.len()
    ));
    assert!(
        tools.len() >= 10 && notes.is_empty(),
        "{} tools, {notes:?}",
        tools.len()
    );
    let server = stage.server(&config);
    assert_eq!(server.era().await, Some(Era::Legacy));
    let echo = stage.tool(&config, "everything__echo").await;
    let outcome = run(&echo, "{\"message\": \"hello\"}", CancellationToken::new()).await;
    assert_eq!(
        (outcome.observation.as_str(), outcome.is_error),
        ("Echo: hello", false)
    );
    let wrong = run(&echo, "{\"message\": 3}", CancellationToken::new()).await;
    assert!(wrong.is_error, "{wrong:?}");

    let long = stage
        .tool(&config, "everything__trigger-long-running-operation")
        .await;
    let cancel = CancellationToken::new();
    let calling = tokio::spawn({
        let cancel = cancel.clone();
        async move { run(&long, "{\"duration\": 30, \"steps\": 3}", cancel).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    cancel.cancel();
    assert!(calling.await.unwrap().is_error && start.elapsed() < Duration::from_secs(2));
    stage.pool.close_all().await;
}

/// A server process that this test started; killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn server_everything_over_streamable_http_lists_and_calls() {
    let Some(script) = npm(
        "server_everything_over_streamable_http_lists_and_calls",
        "server-everything",
    ) else {
        return;
    };
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut command = Command::new("node");
    command
        .arg(script)
        .arg("streamableHttp")
        .env("PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _running = Running(command.stdin(Stdio::null()).spawn().unwrap());
    wait("the server", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let stage = Stage::new();
    let mut config = McpServerConfig::http("everything", format!("http://127.0.0.1:{port}/mcp"));
    let McpTransport::Http { allow_private, .. } = &mut config.transport else {
        panic!("not HTTP")
    };
    *allow_private = true;

    let (tools, notes) = stage.tools(&config).await;
    let server = stage.server(&config);
    let answer = call(&server, "echo", "{\"message\": \"hello\"}").await;

    assert!(
        tools.len() >= 10 && notes.is_empty(),
        "{} tools, {notes:?}",
        tools.len()
    );
    assert_eq!(answer.as_deref(), Ok("[Text(\"Echo: hello\")]"));
    assert_eq!(server.era().await, Some(Era::Legacy));
    stage.pool.close_all().await;
}

#[tokio::test]
async fn server_filesystem_reads_a_file_and_refuses_another() {
    let Some(script) = npm(
        "server_filesystem_reads_a_file_and_refuses_another",
        "server-filesystem",
    ) else {
        return;
    };
    let stage = Stage::new();
    let folder = stage.folder.path().join("allowed");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.txt"), "inside").unwrap();
    let config = McpServerConfig::stdio(
        "files",
        "node",
        [script.to_str().unwrap(), folder.to_str().unwrap()],
    );
    let read = stage.tool(&config, "files__read_text_file").await;
    let path = |path: &str| serde_json::json!({"path": path}).to_string();

    let inside = run(
        &read,
        &path(folder.join("a.txt").to_str().unwrap()),
        CancellationToken::new(),
    )
    .await;
    let outside = run(&read, &path("/etc/hostname"), CancellationToken::new()).await;

    assert_eq!(
        (inside.observation.as_str(), inside.is_error),
        ("inside", false)
    );
    assert!(
        outside.is_error && outside.observation.contains("denied"),
        "{}",
        outside.observation
    );
}

#[tokio::test]
async fn mcp_server_time_of_pypi_returns_the_time_and_ends_when_unused() {
    let folder = peers().join("python");
    if !folder.join("mcp_server_time").is_dir() {
        return writeln(&format!(
            "SKIPPED: mcp_server_time_of_pypi_tells_the_time_and_ends_when_unused: not in {}",
            folder.display()
        ));
    }
    let stage = Stage::new();
    let mut config = McpServerConfig::stdio(
        "time",
        "python3",
        ["-m", "mcp_server_time", "--local-timezone", "UTC"],
    );
    config.idle = Duration::from_millis(300);
    let McpTransport::Stdio { env, .. } = &mut config.transport else {
        panic!("not a stdio server")
    };
    env.insert(
        "PYTHONPATH".to_owned(),
        callboard::mcp::config::Template::new(folder.to_str().unwrap()),
    );
    let server = stage.server(&config);

    let listed = server.list_tools().await.unwrap();
    let answer = call(&server, "get_current_time", "{\"timezone\": \"UTC\"}")
        .await
        .unwrap();

    assert_eq!(
        listed
            .iter()
            .map(|tool| tool.name.as_str())
            .collect::<Vec<_>>(),
        ["get_current_time", "convert_time"]
    );
    assert!(answer.contains("datetime"), "{answer}");
    assert_eq!(
        server.era().await,
        Some(Era::Modern),
        "the Python SDK 2.3 supports both protocols; the newer one is used"
    );
    let refused = call(&server, "no_such_tool", "{}").await;
    assert!(
        refused.as_ref().map_or(true, |text| text.contains("nknown")
            || text.contains("rror")),
        "{refused:?}"
    );
    let waiting = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = waiting.clone();
    tokio::spawn(async move {
        while server.is_running().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        seen.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    until("its end", Duration::from_secs(10), || {
        waiting.load(std::sync::atomic::Ordering::Relaxed)
    })
    .await;
}
