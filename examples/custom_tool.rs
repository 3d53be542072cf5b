//! A custom tool: typed arguments, its declaration, and the context of its calls. `cargo run
//! --example custom_tool`

use std::time::Duration;

use callboard::{
    EventKind, Extensions, Host, Json, ToolContext, ToolError, ToolSpec, TypedTool,
    chat::ContentBlock, erased, ports::CachePolicy, tool::OutputLevel,
};
use callboard_actors::testing::{Reply, ScriptedModel};
use parking_lot::Mutex;

/// The arguments. The model reads their doc comments. The schema is derived, and arguments are
/// checked against it before the tool is called.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Lookup {
    /// Number of the order, such as 4711.
    order: u64,
}

/// The result. Data is formatted by output level; a `String` would be shown as it is.
#[derive(serde::Serialize)]
struct Status {
    order: u64,
    state: &'static str,
    steps: Vec<String>,
    /// Where the full history is stored, for a tool that reads it.
    history: Option<String>,
}

/// A value of the application that every call can use.
#[derive(Default)]
struct Audit(Mutex<Vec<String>>);

struct OrderStatus;

impl TypedTool for OrderStatus {
    type Args = Lookup;
    type Output = Json<Status>;
    const NAME: &'static str = "order_status";
    const DESCRIPTION: &'static str =
        "Reports the status of an order. Use it whenever an order number is named.";

    // It only reads: it may be retried, may run beside other calls, and needs no approval.
    fn declare(&self, spec: ToolSpec) -> ToolSpec {
        spec.read_only()
            .timeout(Duration::from_secs(20))
            .cache(CachePolicy::TtlShort) // an equal call within five minutes gets the cached result
            .returns_data() // the model may ask for brief, standard or full
            .level(OutputLevel::Full)
    }

    // Rules that the type does not express. The call is not journaled as started yet.
    fn check(&self, args: &Lookup) -> Result<(), ToolError> {
        if args.order == 0 {
            Err(ToolError::invalid("order numbers begin at 1"))
        } else {
            Ok(())
        }
    }

    async fn call(&self, args: Lookup, context: ToolContext) -> Result<Json<Status>, ToolError> {
        if let Some(audit) = context.extensions.get::<Audit>() {
            audit.0.lock().push(format!(
                "{} asked for order {}",
                context.key.scope, args.order
            ));
        }
        context.progress.report("asking the warehouse");
        let steps = tokio::select! {
            // Interrupted, or out of time: stop soon and say so.
            () = context.cancel.cancelled() => return Err(ToolError::failed("the question was withdrawn").code("INTERRUPTED")),
            steps = warehouse(args.order) => steps,
        };
        // A history that is too long to read goes to an artifact, which another tool reads. Without
        // an artifact store it is left out.
        let history = match &context.artifacts {
            Some(artifacts) => {
                let stored = artifacts.store.store(
                    artifacts.owner.clone(),
                    context.tool_call_id.clone(),
                    steps.join("\n").into(),
                );
                stored.await.ok().map(|id| id.as_str().to_owned())
            }
            None => None,
        };
        Ok(Json(Status {
            order: args.order,
            state: "packed, leaves tomorrow",
            steps,
            history,
        }))
    }
}

/// Replaces another system.
async fn warehouse(order: u64) -> Vec<String> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    vec![
        format!("{order} paid"),
        format!("{order} picked"),
        format!("{order} packed"),
    ]
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::builder()
        .provider(clerk()) // any provider works; this one always calls the tool
        .tool(erased(OrderStatus))
        .extensions(Extensions::default().with(Audit::default()))
        .build()
        .await?;

    let mut reply = host
        .tenant("acme")
        .conversation("order-4711")
        .send("Where is my order 4711?")
        .await?;
    while let Some(event) = reply.next().await {
        match &event.kind {
            EventKind::ToolCall { summary, .. } => println!("> {summary}"),
            EventKind::ToolProgress { text, .. } => println!("  {text} …"),
            EventKind::ToolResult { summary, .. } => println!("< {summary}"),
            _ => {}
        }
    }
    println!("{}", reply.outcome().await?.text);
    Ok(())
}

/// Replaces the model, so that this runs without one: calls the tool once, then repeats its result.
fn clerk() -> ScriptedModel {
    ScriptedModel::answering(|request, _| {
        let blocks = request
            .messages
            .last()
            .map(|message| message.blocks())
            .unwrap_or_default();
        let result = blocks.into_iter().find_map(|block| match block {
            ContentBlock::ToolResult(result) => Some(result.content.text().into_owned()),
            _ => None,
        });
        result.map_or_else(
            || Reply::tool("order_status", &serde_json::json!({ "order": 4711 })),
            Reply::text,
        )
    })
}
