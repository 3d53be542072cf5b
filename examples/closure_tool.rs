//! Tools from closures, with typed arguments and with an explicit schema. `cargo run --example
//! closure_tool`

use std::sync::Arc;

use callboard::{EventKind, FnTool, Host, ToolContext, ToolError, ToolSpec};
use callboard_actors::testing::{Reply, ScriptedModel};
use serde_json::{Value, json};

/// The arguments of `convert`; the schema is derived from them.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Convert {
    /// Distance in miles.
    miles: f64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let convert = FnTool::new(
        "convert",
        "Turns miles into kilometres.",
        |args: Convert, _context: ToolContext| async move {
            match args.miles {
                miles if miles < 0.0 => Err(ToolError::invalid("a distance is not negative")),
                miles => Ok(format!("{:.1} km", miles * 1.609_344)),
            }
        },
    )
    .declare(ToolSpec::read_only);

    // The schema may come from anywhere. Calls with the same `path` run one after the other.
    let schema = json!({
        "type": "object",
        "properties": { "path": { "type": "string" }, "unit": { "enum": ["words", "lines"] } },
        "required": ["path"],
        "additionalProperties": false,
    });
    let count = FnTool::raw(
        "count",
        "Counts the words or lines of a text.",
        &schema,
        |arguments: Value, _context: ToolContext| async move {
            let unit = arguments
                .get("unit")
                .and_then(Value::as_str)
                .unwrap_or("words");
            Ok(format!(
                "{}: 7 {unit}",
                arguments
                    .get("path")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            ))
        },
        Some("path"),
    )
    .declare(ToolSpec::read_only);

    // Replaces the model, so that this runs without one: four calls, two of them invalid. A model
    // would correct them.
    let calls = Reply::tool("convert", &json!({ "miles": 26.2 }))
        .and_tool("convert", &json!({ "mile": 26.2 }))
        .and_tool("count", &json!({ "path": "notes.txt", "unit": "lines" }))
        .and_tool("count", &json!({ "path": "notes.txt", "unit": "pages" }));
    let model = ScriptedModel::replies([calls, Reply::text("42.2 km.")]);

    let host = Host::builder()
        .provider(model)
        .tool(Arc::new(convert))
        .tool(Arc::new(count))
        .build()
        .await?;
    let conversation = host.tenant("acme").conversation("distances");
    let mut reply = conversation.send("How far is a marathon?").await?;
    while let Some(event) = reply.next().await {
        if let EventKind::ToolCall { name, input, .. } = &event.kind {
            println!("> {name} {}", input.as_str());
        }
    }
    reply.outcome().await?;
    for message in conversation.messages().await? {
        for block in message.blocks() {
            if let callboard::chat::ContentBlock::ToolResult(result) = block {
                println!("< {}", result.content.text().replace('\n', "\n  "));
            }
        }
    }
    Ok(())
}
