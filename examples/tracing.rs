//! Spans and logs: the host emits `tracing` spans for every round, model call and tool call, and
//! your application decides where they go. `cargo run --example tracing`
//!
//! With the feature `otel`, `callboard::observe::otlp` exports the same spans by the conventions of
//! OpenTelemetry.

use callboard::{Host, observe};
use callboard_actors::testing::{Reply, ScriptedModel};
use tracing_subscriber::fmt::format::FmtSpan;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The library installs no subscriber. This one prints each span as it ends, with its fields.
    tracing_subscriber::fmt()
        .with_env_filter("callboard=debug,callboard_actors=debug")
        .with_span_events(FmtSpan::CLOSE)
        .with_target(false)
        .init();

    let host = Host::builder()
        .provider(ScriptedModel::always(Reply::text("Forty-two.")))
        .build()
        .await?;
    let mut reply = host
        .tenant("acme")
        .conversation("questions")
        .send("What is the answer?")
        .await?;
    println!("{}", reply.outcome().await?.text);

    // Counters cost no span: the same figures that `GET /metrics` serves.
    let figures = observe::prometheus_text(&host, observe::View::Operator).await;
    for line in figures
        .lines()
        .filter(|line| line.starts_with("callboard_rounds"))
    {
        println!("{line}");
    }
    Ok(())
}
