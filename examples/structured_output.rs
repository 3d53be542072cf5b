//! An answer as a typed value: the schema is derived from a type, and an answer that does not match
//! is sent back to the model. `cargo run --example structured_output`

use callboard::Host;
use callboard_actors::testing::{Reply, ScriptedModel};

/// The answer that the model must give.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Recipe {
    /// Name of the dish.
    name: String,
    /// Total time in minutes.
    minutes: u32,
}

/// Replaces the model, so that this runs without one: wrong at first, then right.
fn cook() -> ScriptedModel {
    let answers = [
        r#"{"name": "Potato soup", "minutes": "forty"}"#,
        r#"{"name": "Potato soup", "minutes": 40}"#,
    ];
    ScriptedModel::replies(answers.map(Reply::text))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = Host::builder().provider(cook()).build().await?;

    let recipe: Recipe = host
        .tenant("acme")
        .conversation("kitchen")
        .send_as("A soup for a cold evening, please.")
        .await?;

    println!("{}: {} minutes", recipe.name, recipe.minutes);
    Ok(())
}
