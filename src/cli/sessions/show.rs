//! `callboard sessions show`: prints the messages, open questions and metrics of a conversation.

use callboard_actors::{
    chat::Message,
    journal::{CallState, UsageTotals},
    stream::Open,
};
use clap::Args;

use super::{Found, OneArgs, journal};
use crate::{
    cli::{
        failure::{Done, Failure},
        rounds::describe,
        session::unreadable,
        terminal::{Paint, err_line, out, out_json, sanitize},
        view::seconds,
    },
    config::Config,
};

/// Arguments of `sessions show`.
#[derive(Debug, Args)]
pub(in crate::cli) struct ShowArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(config: &Config, args: &ShowArgs) -> Result<Done, Failure> {
    let found = Found::open(config, &args.one).await?;
    let readable = journal::read(&*found.sessions.backend(), &found.scope).await?;
    if let Some(fault) = &readable.fault {
        let reason = fault.clone();
        let failed = callboard_actors::conversation::ConversationError::Failed { reason };
        return Err(unreadable(&found.id, failed.into()));
    }
    let state = &readable.state;
    let parked = state.round.as_ref().is_some_and(|round| round.is_parked());
    let open = match (&state.round, state.inbox.is_empty()) {
        (Some(_), _) if parked => Open::Parked,
        (None, true) => Open::None,
        _ => Open::Running,
    };
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
