//! A round survives its host, and a caller can cancel it. `cargo run --example cancel_and_resume`
//!
//! The first host is dropped in the middle of a model call, as in a crash. The second host reads
//! the journal, takes the round up again, and its caller cancels another round.

use std::time::Duration;

use callboard::{EventKind, Host, storage::Sqlite};
use callboard_actors::testing::{Reply, ScriptedModel};

async fn host(
    store: &std::path::Path,
    model: ScriptedModel,
) -> Result<Host, Box<dyn std::error::Error>> {
    Ok(Host::builder()
        .provider(model)
        .sessions(Sqlite::open(store).await?)
        .build()
        .await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let store = folder.path().join("sessions.db");

    // `send` returns once the prompt is stored. This model never answers, and its host goes away.
    let first = host(&store, ScriptedModel::always(Reply::stall())).await?;
    let reply = first
        .tenant("acme")
        .conversation("report")
        .send("Write the report.")
        .await?;
    let round_id = reply.round_id();
    println!("round accepted; the host is dropped");
    drop((reply, first));

    // Opening the store waits until the other host has let go of it.
    let second = host(
        &store,
        ScriptedModel::replies([Reply::text("The report."), Reply::stall()]),
    )
    .await?;
    println!(
        "interrupted rounds that go on: {}",
        second.resume_interrupted().await?
    );
    let conversation = second.tenant("acme").conversation("report");
    let outcome = conversation.watch(round_id)?.outcome().await?;
    println!("resumed: {}", outcome.text);

    // Cancelling ends the model call at once; the journal keeps what was said.
    let mut endless = conversation.send("Now a longer one.").await?;
    while let Some(event) = endless.next().await {
        if matches!(event.kind, EventKind::RoundStarted {}) {
            conversation.interrupt().await?;
        }
    }
    println!("cancelled: {}", endless.outcome().await?.stop_reason.code());

    second.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
