//! An agent over a folder: a provider, a store, tools, one question. `cargo run --example hello_agent -- "Where is main?" [DIR]`
//!
//! With `ANTHROPIC_API_KEY` it asks Anthropic; without one, the offline model, which needs no network.

use std::{io::Write, time::Duration};

use callboard::{
    EventKind, Host,
    providers::{Anthropic, offline::Offline},
    storage::Sqlite,
    tools,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without bubblewrap, commands run in a second process of this program. That process serves
    // commands here and never returns.
    callboard::sandbox::jail_main_if_asked();

    let mut arguments = std::env::args().skip(1);
    let question = arguments
        .next()
        .unwrap_or_else(|| "Where is the main function?".into());
    let workspace = arguments.next().unwrap_or_else(|| ".".into());
    let sessions = std::env::temp_dir().join(format!("callboard-hello-{}.db", std::process::id()));

    let host = Host::builder()
        .sessions(Sqlite::open(&sessions).await?)
        .tools(tools::standard(workspace));
    let host = match std::env::var_os("ANTHROPIC_API_KEY") {
        Some(_) => host.provider(Anthropic::from_env()?),
        None => host.provider(Offline),
    };
    let host = host.build().await?;

    let mut reply = host
        .tenant("acme")
        .conversation("support-42")
        .send(question)
        .await?;
    while let Some(event) = reply.next().await {
        match &event.kind {
            EventKind::TextDelta { text } => {
                print!("{text}");
                std::io::stdout().flush()?;
            }
            EventKind::ToolCall { summary, .. } => eprintln!("> {summary}"),
            _ => {}
        }
    }
    let outcome = reply.outcome().await?;
    println!(
        "\n({}, {} tokens in, {} out)",
        outcome.stop_reason.code(),
        outcome.usage.input(),
        outcome.usage.output
    );

    host.shutdown(Duration::from_secs(10)).await;
    std::fs::remove_file(sessions)?;
    Ok(())
}
