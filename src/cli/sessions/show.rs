//! `callboard sessions show`: prints the messages, open questions and metrics of a conversation.

use callboard_actors::{
    chat::Message,
    journal::{CallState, UsageTotals},
    stream::Open,
};
use clap::Args;

use super::{Found, ServedArgs, journal};
use crate::{
    cli::{
        failure::{Done, Failure},
        rounds::describe,
        terminal::{Paint, err_line, out, out_json, sanitize},
        view::seconds,
    },
    config::Config,
};

/// Arguments of `sessions show`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    #[command(flatten)]
    served: ServedArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(config: &Config, args: &ShowArgs) -> Result<Done, Failure> {
    let found = Found::open_served(config, &args.served).await?;
    let readable = journal::read(&*found.sessions.backend(), &found.scope).await?;
    if let Some(fault) = &readable.fault {
        return Err(args.served.unreadable(fault));
    }
    let state = &readable.state;
    let open = readable.open();
    let rounds = readable.rounds();
    if args.json {
        let shown = serde_json::json!({
            "conversation_id": found.id,
            "open": open,
            "entries": state.head,
            "epoch": state.epoch,
            "messages": state.history.messages().iter().collect::<Vec<_>>(),
            "rounds": rounds,
            "usage": UsageTotals::from_conversation(&state.metrics),
            "waiting_prompts": state.inbox.len(),
            "metrics": state.metrics,
            "tools": state.tools,
        });
        out_json(&serde_json::to_string_pretty(&shown).unwrap_or_default());
        return Ok(Done::Well);
    }
    let messages: Vec<Message> = state.history.messages().iter().cloned().collect();
    out(&describe(&rounds, &messages));
    let paint = Paint::stderr();
    for call in state
        .batch()
        .map(|batch| batch.calls.as_slice())
        .unwrap_or_default()
    {
        if matches!(call.state, CallState::Asked { .. }) {
            err_line(&format!(
                "waiting for approval: {} {}",
                sanitize(&call.tool_use.name),
                sanitize(call.tool_use.input.as_str())
            ));
        }
    }
    if open == Open::Running {
        err_line(&format!(
            "a round of this session was interrupted (hint: `callboard run --session {} --resume`)",
            found.id
        ));
    }
    let figures = &state.metrics;
    err_line(&paint.dim(&format!(
        "messages {}, rounds {}, API calls {}, tool calls {}, tokens {} in, {} out, over {}",
        figures.messages_count,
        figures.rounds,
        figures.api_calls,
        figures.tool_calls,
        figures.total_input_tokens,
        figures.total_output_tokens,
        seconds(figures.total_duration_ms()),
    )));
    Ok(Done::Well)
}
