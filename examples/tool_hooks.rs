//! Hooks before and after a tool call: deny, replace, redact. `cargo run --example tool_hooks`

use std::sync::Arc;

use callboard::{
    FnTool, Host, ToolContext, ToolError, ToolSpec,
    chat::{ContentBlock, RawJson},
    ids::Scope,
    journal::ToolExecutionResult,
    ports::{Hook, Review, Verdict},
};
use callboard_actors::testing::{Reply, ScriptedModel};
use serde_json::{Value, json};

/// The rules of this application. A hook decides at once and has no side effects, because it runs
/// inside the conversation's decision.
struct HouseRules;

impl Hook for HouseRules {
    fn before_tool(&self, scope: &Scope, _tool: &ToolSpec, arguments: &RawJson) -> Verdict {
        let Ok(mut arguments) = arguments.parse::<Value>() else {
            return Verdict::Allow;
        };
        match arguments.get("table").and_then(Value::as_str) {
            Some("salaries") => Verdict::Deny("salaries are not for this assistant".to_owned()),
            // Whatever the model requested, it gets only this tenant's rows.
            _ => match arguments.as_object_mut() {
                Some(fields) => {
                    fields.insert("tenant".to_owned(), json!(scope.tenant.as_str()));
                    RawJson::of(fields).map_or(Verdict::Allow, Verdict::Replace)
                }
                None => Verdict::Allow,
            },
        }
    }

    fn after_tool(
        &self,
        _scope: &Scope,
        _tool: &ToolSpec,
        outcome: &ToolExecutionResult,
    ) -> Review {
        match outcome.observation.as_str() {
            text if text.contains("internal note") => {
                Review::Withhold("these rows hold internal notes".to_owned())
            }
            text if text.contains('@') => {
                let masked = |word: &str| {
                    if word.contains('@') {
                        "[address]".to_owned()
                    } else {
                        word.to_owned()
                    }
                };
                Review::Replace(text.split(' ').map(masked).collect::<Vec<_>>().join(" "))
            }
            _ => Review::Keep,
        }
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Rows {
    /// Table to read.
    table: String,
    /// The tenant whose rows are read.
    tenant: Option<String>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows = FnTool::new(
        "rows",
        "Reads the rows of a table.",
        |args: Rows, _: ToolContext| async move {
            let tenant = args.tenant.unwrap_or_else(|| "everybody".to_owned());
            match args.table.as_str() {
                "orders" => Ok(format!("order 4711 of {tenant}")),
                "customers" => Ok(format!("of {tenant}: Ada, ada@example.com , since 2024")),
                "tickets" => Ok("1: late delivery (internal note: be generous)".to_owned()),
                other => Err(ToolError::not_found(format!("there is no table {other:?}"))),
            }
        },
    )
    .declare(ToolSpec::read_only);

    // Replaces the model, so that this runs without one.
    let tables = ["orders", "customers", "tickets", "salaries"];
    let calls = tables.iter().fold(Reply::empty(), |reply, table| {
        reply.and_tool("rows", &json!({ "table": table }))
    });
    let model = ScriptedModel::replies([calls, Reply::text("All is well.")]);

    let host = Host::builder()
        .provider(model)
        .tool(Arc::new(rows))
        .hook(HouseRules)
        .build()
        .await?;
    let conversation = host.tenant("acme").conversation("desk");
    conversation
        .send("What is going on?")
        .await?
        .outcome()
        .await?;

    let results = conversation
        .messages()
        .await?
        .into_iter()
        .flat_map(|message| message.blocks())
        .filter_map(|block| match block {
            ContentBlock::ToolResult(result) => Some(result.content.text().into_owned()),
            _ => None,
        });
    for (table, result) in tables.iter().zip(results) {
        println!("{table}:\n  {}", result.replace('\n', "\n  "));
    }
    Ok(())
}
