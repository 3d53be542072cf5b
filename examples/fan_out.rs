//! Many tasks at once, each in a subagent. `cargo run --example fan_out`

use std::time::Duration;

use callboard::{FanOut, Host};
use callboard_actors::testing::{Reply, ScriptedModel};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Each answer takes 50 ms.
    let model = ScriptedModel::answering(|request, _| {
        let task = request
            .messages
            .last()
            .map(|message| message.text())
            .unwrap_or_default();
        Reply::text(task.len().to_string()).after(Duration::from_millis(50))
    });
    let host = Host::builder().provider(model).build().await?;

    // With a name, a fan-out can be continued after a crash; an ephemeral one keeps no journals.
    let tasks = (1..=100).map(|chapter| format!("Summarize chapter {chapter}."));
    let fan_out = FanOut::over(tasks)
        .parallel(32)
        .deadline(Duration::from_secs(60))
        .ephemeral();
    let mut run = host.tenant("acme").fan_out(fan_out).await?;

    // Results arrive as subagents finish, in any order.
    let mut first = None;
    while let Some(end) = run.next().await {
        first.get_or_insert_with(|| (end.index, end.text().to_owned()));
    }
    let summary = run.finish().await;
    println!("first to finish: {first:?}");
    println!("{} done, {} failed", summary.done(), summary.failed());
    Ok(())
}
