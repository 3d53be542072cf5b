//! `callboard sessions show`: prints the messages, open questions and metrics of a conversation.

use callboard_actors::{
    chat::Message,
    journal::{CallState, MultiRoundConversation, SchemaVersion, UsageTotals, debug_form},
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
    /// Print all messages in their debug form as JSON, one per line: flat blocks with time and ids,
    /// also those that a compaction dropped
    #[arg(long, conflicts_with_all = ["json", "rounds"])]
    debug: bool,
    /// Print the rounds as JSON, with active skills and how full the window is
    #[arg(long, conflicts_with = "json")]
    rounds: bool,
}

pub(super) async fn run(config: &Config, args: &ShowArgs) -> Result<Done, Failure> {
    let found = Found::open(config, &args.served).await?;
    let readable = journal::read(&*found.sessions.backend(), &found.scope).await?;
    if let Some(fault) = &readable.fault {
        return Err(args.served.unreadable(fault));
    }
    let state = &readable.state;
    let open = readable.open();
    let rounds = readable.rounds();
    if args.debug {
        let version = SchemaVersion::LATEST.to_string();
        for message in debug_form(&found.scope, &readable.entries) {
            out_json(&message.to_debug_dict(&version).to_string());
        }
        return Ok(Done::Well);
    }
    if args.rounds {
        let trigger = config.compaction.trigger;
        let window = (MultiRoundConversation::WINDOW, trigger);
        let shown = MultiRoundConversation::new(&found.scope, rounds, state, window);
        out_json(&serde_json::to_string_pretty(&shown).unwrap_or_default());
        return Ok(Done::Well);
    }
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
