//! Tools of an MCP server. `cargo run --example mcp`
//!
//! The server is this program, started again: a stand-in for `npx @modelcontextprotocol/…`.

use std::sync::Arc;

use callboard::{
    EventKind, Host,
    mcp::{self, HttpClients, McpPool, McpResources, McpServerConfig, MemoryPins},
    sandbox::Spawner,
};
use callboard_actors::testing::{Reply, ScriptedModel};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt, model::*, service::RequestContext};

struct Weather;

impl ServerHandler for Weather {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = JsonObject::from_iter([("type".to_owned(), "object".into())]);
        Ok(ListToolsResult::with_all_items(vec![Tool::new(
            "forecast",
            "Today's weather.",
            schema,
        )]))
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text("Sunny, 21 °C.")]).into())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        Weather
            .serve(rmcp::transport::stdio())
            .await?
            .waiting()
            .await?;
        return Ok(());
    }
    let this = std::env::current_exe()?.display().to_string();
    let config = McpServerConfig::stdio("weather", this, ["serve"]);

    // Every tenant gets its own process. A tool whose definition changes later refuses calls until
    // someone accepts the change; `FilePins` remembers the definitions across restarts.
    let pool = McpPool::new(McpResources::new(
        Spawner::start()?,
        HttpClients::vouched_only(),
        Arc::default(),
    ));
    let pins = Arc::new(MemoryPins::default());
    let (tools, notes) = mcp::tools(&[config], &pool, &"acme".try_into()?, &(pins as _)).await;
    notes.iter().for_each(|note| println!("note: {note}"));

    let model = ScriptedModel::replies([
        Reply::tool("weather__forecast", &serde_json::json!({})),
        Reply::text("Take no umbrella."),
    ]);
    let host = tools.into_iter().fold(
        Host::builder().provider(model),
        callboard::HostBuilder::tool,
    );
    let host = host
        .approval(callboard::ApprovalMode::Auto)
        .closes(Arc::new(pool))
        .build()
        .await?;
    let mut reply = host
        .tenant("acme")
        .conversation("trip")
        .send("Do I need an umbrella?")
        .await?;
    while let Some(event) = reply.next().await {
        if let EventKind::ToolResult { summary, .. } = &event.kind {
            println!("the server said: {summary}");
        }
    }
    println!("{}", reply.outcome().await?.text);
    host.shutdown(std::time::Duration::from_secs(5)).await;
    Ok(())
}
