//! A server of the newer protocol (2026-07-28), written with the SDK's server half, and a
//! hand-written HTTP one.

use std::time::Duration;

use callboard::{mcp::Era, ports::McpClient as _};
use rmcp::{
    ErrorData, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::{RequestContext, RoleServer},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Stage, call};
use callboard::mcp::{McpServerConfig, McpTransport, config::Template};

const AS_PEER: &str = "CALLBOARD_TEST_MODERN_PEER";

struct Peer;

impl ServerHandler for Peer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = serde_json::json!({"type": "object"})
            .as_object()
            .unwrap()
            .clone();
        Ok(ListToolsResult::with_all_items(vec![Tool::new(
            "protocol",
            "Names the protocol in use.",
            schema,
        )]))
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let version = context
            .meta
            .protocol_version()
            .map(|version| version.to_string());
        Ok(CallToolResult::success(vec![ContentBlock::text(format!("{version:?}"))]).into())
    }
}

/// Not a test: with the variable set, this is the peer that another test starts.
#[test]
fn the_modern_peer() {
    if std::env::var_os(AS_PEER).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let service = Peer.serve(rmcp::transport::stdio()).await.unwrap();
        service.waiting().await.unwrap();
    });
    std::process::exit(0);
}

#[tokio::test]
async fn a_modern_server_is_used_without_a_handshake() {
    let stage = Stage::new();
    let this = std::env::current_exe().unwrap();
    let mut config = McpServerConfig::stdio(
        "modern",
        this.to_str().unwrap(),
        ["--exact", "mcp::modern::the_modern_peer", "--nocapture"],
    );
    let McpTransport::Stdio { env, .. } = &mut config.transport else {
        panic!("not a stdio server")
    };
    env.insert(AS_PEER.to_owned(), Template::new("1"));
    let server = stage.server(&config);

    let listed = server.list_tools().await.unwrap();
    let answer = call(&server, "protocol", "{}").await.unwrap();

    assert_eq!(
        listed
            .iter()
            .map(|tool| tool.name.as_str())
            .collect::<Vec<_>>(),
        ["protocol"]
    );
    assert_eq!(
        answer, "[Text(\"Some(\\\"2026-07-28\\\")\")]",
        "every request states its protocol version"
    );
    assert_eq!(
        (server.era().await, server.version().await.as_deref()),
        (Some(Era::Modern), Some("2026-07-28"))
    );
}

/// Serves one request per connection; the answer depends on the method. Records methods and
/// headers.
async fn http_peer(
    answers: fn(&str, &serde_json::Value) -> (u16, String),
) -> (u16, std::sync::Arc<parking_lot::Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let record = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let record = record.clone();
            tokio::spawn(async move {
                let mut text = Vec::new();
                let mut buffer = [0; 4096];
                loop {
                    let Ok(read) = socket.read(&mut buffer).await else {
                        return;
                    };
                    text.extend_from_slice(&buffer[..read]);
                    let whole = String::from_utf8_lossy(&text).into_owned();
                    let Some((head, body)) = whole.split_once("\r\n\r\n") else {
                        if read == 0 {
                            return;
                        }
                        continue;
                    };
                    let length = head.lines().find_map(|line| {
                        line.to_ascii_lowercase()
                            .strip_prefix("content-length: ")?
                            .parse()
                            .ok()
                    });
                    if read > 0 && body.len() < length.unwrap_or(0_usize) {
                        continue;
                    }
                    let message: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
                    let method = message["method"].as_str().unwrap_or_default().to_owned();
                    record
                        .lock()
                        .push(format!("{method}\n{}", head.to_ascii_lowercase()));
                    let (status, body) = answers(&method, &message);
                    let answer = format!(
                        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = socket.write_all(answer.as_bytes()).await;
                    return;
                }
            });
        }
    });
    (port, seen)
}

fn modern(method: &str, message: &serde_json::Value) -> (u16, String) {
    let result = match method {
        "server/discover" => serde_json::json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private",
            "serverInfo": {"name": "x", "version": "1"},
        }),
        "tools/list" => serde_json::json!({
            "resultType": "complete", "ttlMs": 0, "cacheScope": "private", "tools": [{"name": "echo", "inputSchema": {"type": "object"}}],
        }),
        "tools/call" => {
            serde_json::json!({"resultType": "complete", "content": [{"type": "text", "text": "over HTTP"}]})
        }
        _ => return (202, String::new()),
    };
    (
        200,
        serde_json::json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string(),
    )
}

fn vouched(name: &str, port: u16) -> McpServerConfig {
    let mut config = McpServerConfig::http(name, format!("http://127.0.0.1:{port}/mcp"));
    let McpTransport::Http {
        headers,
        allow_private,
        ..
    } = &mut config.transport
    else {
        panic!("not HTTP")
    };
    headers.insert(
        "Authorization".to_owned(),
        Template::new("Bearer ${FAKE_TOKEN}"),
    );
    *allow_private = true;
    config.start_timeout = Duration::from_secs(10);
    config
}

#[tokio::test]
async fn a_modern_server_over_http_gets_its_headers() {
    let stage = Stage::new();
    let (port, seen) = http_peer(modern).await;
    let server = stage.server(&vouched("web", port));

    let answer = call(&server, "echo", "{}").await.unwrap();

    assert_eq!(
        (answer.as_str(), server.era().await),
        ("[Text(\"over HTTP\")]", Some(Era::Modern))
    );
    let seen = seen.lock();
    let called = seen
        .iter()
        .find(|request| request.starts_with("tools/call"))
        .unwrap();
    for header in [
        "authorization: bearer fake-token-0123456789",
        "mcp-protocol-version: 2026-07-28",
        "mcp-method: tools/call",
        "mcp-name: echo",
    ] {
        assert!(called.contains(header), "{header} in {called}");
    }
    assert!(
        !seen.iter().any(|request| request.starts_with("initialize")),
        "no handshake"
    );
}

#[tokio::test]
async fn an_invalid_http_server_or_one_that_needs_a_key_is_reported_without_address_or_key() {
    let stage = Stage::new();
    let (html, _) = http_peer(|_, _| (200, "<html>".to_owned())).await;
    let (closed, _) = http_peer(|_, _| (401, String::new())).await;
    let (moved, _) = http_peer(|_, _| (302, String::new())).await;

    for (name, port) in [
        ("html", html),
        ("closed", closed),
        ("moved", moved),
        ("refused", 9),
    ] {
        let error = stage
            .server(&vouched(name, port))
            .list_tools()
            .await
            .unwrap_err()
            .to_string();

        assert!(
            error.starts_with(&format!("the MCP server {name} cannot be reached: ")),
            "{error}"
        );
        assert!(
            !error.contains("fake-token") && !error.contains("127.0.0.1") && !error.contains('\n'),
            "{error}"
        );
    }
}
